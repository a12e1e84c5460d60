"""Load suites and programs by name, or from folders and files of HLO text."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from compiler.errors import UnknownNameError
from compiler.support.json_reading import read_object
from compiler.support.paths import is_file, is_folder
from compiler.support.plugins import extension_names, find_extension
from compiler.support.safe_names import why_no_name
from env.suites.built import PROGRAM_SUITES, find_built, load_built
from env.suites.checks import content_problems, duplicate_names, entry_problems, input_problems, path_problem
from env.suites.dumps import Dump, dump_of, dump_program_name
from env.suites.input_specs import input_spec_from_json
from env.suites.sealing import require_file_open
from env.suites.suite import ManifestError, Program, Suite, Tolerance

__all__ = [
    "JAX",
    "KERNELS",
    "LINEAR_ALGEBRA",
    "MODELS",
    "QUICKSTART",
    "SUITE_NAMES",
    "find_program",
    "load_suite",
    "program_in",
]

GROUP = "hlogym.suites"
"""The group of entry points with suites of other distributions."""
_HERE = Path(__file__).parent
QUICKSTART, JAX, LINEAR_ALGEBRA = _HERE / "quickstart", _HERE / "jax", _HERE / "linear_algebra"
KERNELS, MODELS = _HERE / "kernels", _HERE / "models"
_FOLDERS = {folder.name: folder for folder in (QUICKSTART, JAX, LINEAR_ALGEBRA, KERNELS, MODELS)}
BUNDLED = tuple(_FOLDERS)
"""The suites that come with hlogym, whole."""
SUITE_NAMES = ("quickstart", "train", "validation", "test", "jax", "jax/train", "jax/validation", "jax/test",
               "linear_algebra", "kernels", "models", *PROGRAM_SUITES)  # fmt: skip
"""The suites of hlogym and their splits; a split without a suite is one of the quickstart suite's. The suite "corpus"
has to be built first (`hlogym suites build`)."""


def load_suite(name: str | Path) -> Suite:
    """Return a suite by name ("jax"), or a split of it ("jax/train"; "train" is the quickstart's), or HLO files.

    Programs in the user's folders and files are read and checked; each file is checked once until it changes.

    Args:
        name: one of SUITE_NAMES, or a folder of HLO files with or without a manifest, or a folder that XLA dumped (see
            `env.suites.dumps`), or a file in one of the formats of `env.suites.program_files`, or a program of the
            suites ("softmax"); or several of these separated by commas.

    Raises:
        UnknownNameError: neither the name of a suite or of a program, nor a folder, nor an HLO file.
        ManifestError: the manifest or a program cannot be used, or there are no programs; lists everything that is
            wrong with the suite.
        SealedError: the programs are sealed test programs, and not open (see `env.suites.sealing`).
    """
    if name in PROGRAM_SUITES:
        return load_built(str(name))
    if name in SUITE_NAMES:
        return _named_suite(str(name))
    path = Path(name)
    is_path = is_file(path) or is_folder(path)
    if isinstance(name, str) and not is_path and (declared := declared_suite(name)) is not None:
        return declared
    if isinstance(name, str) and "," in name and not is_path:
        return _joined(name)
    if is_file(path):
        require_file_open(path)
        return _bare_suite(path.stem, path, [path])
    if str(name).strip() and is_folder(path):
        require_file_open(path)
        suite = _load_folder(path)
        if not suite.programs:
            raise ManifestError(f"the folder {path} has no .hlo files, and XLA dumped none into it")
        return suite
    if (dump := dump_of(name)) is not None:
        require_file_open(dump.folder)
        if not dump.files:
            raise ManifestError(f"{name}: XLA dumped no such module into the folder {dump.folder}")
        return _dumped_suite(dump)
    try:
        return Suite(str(name), (find_program(name),))
    except UnknownNameError:
        known = [*SUITE_NAMES, *extension_names(GROUP)]
        raise UnknownNameError("suite, program, folder of .hlo files or file", str(name), known) from None


def declared_suite(name: str) -> Suite | None:
    """Return the suite, or the split of one, that another distribution declares in the group hlogym.suites, or None.

    Raises:
        ExtensionError: it is neither the path of a folder nor a function that returns one.
        ManifestError: the suite cannot be used.
    """
    whole, _, split = name.partition("/")
    found = find_extension(GROUP, whole, lacks_of_suite)
    if found is None:
        return None
    folder = Path(found() if callable(found) else found)
    require_file_open(folder)
    programs = _load_folder(folder).programs
    chosen = tuple(replace(p, suite=whole) for p in programs if split in ("", p.split))
    if not chosen:
        raise UnknownNameError(f"split of the suite {whole}", split, {p.split for p in programs})
    return Suite(name, chosen)


def lacks_of_suite(found: Any) -> str | None:
    """Return why an object is no folder of programs, or None."""
    folder = found() if callable(found) else found
    if not isinstance(folder, str | Path):
        return f"{folder!r:.80} is no path; declare the path of a folder of .hlo files, or a function that returns it"
    return None if Path(folder).is_dir() else f"there is no folder {str(folder)!r}"


def program_in(path: Path) -> Program:
    """Return the program in an HLO file, with its entry in the manifest of its folder, if there is one.

    Other programs of the folder are not checked.

    Raises:
        ManifestError: the manifest's entry for this program cannot be used.
        SealedError: it is a sealed test program, and not open.
    """
    require_file_open(path)
    manifest = path.parent / "manifest.json"
    entries: Any = None
    if manifest.is_file():
        entries = read_object(manifest, ManifestError).get("programs")
    for entry in entries if isinstance(entries, list) else ():
        file = entry.get("file") if isinstance(entry, dict) else None
        if not isinstance(file, str) or path_problem(path.parent, file) or not (path.parent / file).samefile(path):
            continue
        if problems := [*entry_problems(entry), *_input_problems(path, entry)]:
            raise ManifestError.of(manifest, [f"program {entry.get('name')!r:.80}: {p}" for p in problems])
        return _program(path.parent, entry)
    return _bare_program(path, _file_name(path))


def find_program(name: str | Path) -> Program:
    """Return a program of the suites that come with hlogym by name, or the program in an HLO file.

    If two suites have a program of that name, the quickstart's is returned.

    Raises:
        UnknownNameError: neither the name of a program nor an HLO file.
        SealedError: it is a sealed test program, and not open.
    """
    path = Path(name)
    if path.suffix == ".hlo" and is_file(path):
        require_file_open(path)
        return _bare_program(path, _file_name(path))
    programs = {p.name: p for folder in reversed(_FOLDERS) for p in _named_suite(folder).programs}
    if str(name) not in programs:
        if (built := find_built(str(name))) is not None:
            return built
        raise UnknownNameError("program", str(name), programs)
    return programs[str(name)]


@cache
def _named_suite(name: str) -> Suite:
    if name in _FOLDERS:
        return _load_folder(_FOLDERS[name], check_contents=False)
    folder, _, split = name.rpartition("/")
    whole = _named_suite(folder or QUICKSTART.name)
    return Suite(name, tuple(p for p in whole.programs if p.split == split))


def _joined(names: str) -> Suite:
    programs = [p for part in names.split(",") for p in load_suite(part.strip()).programs]
    if duplicates := duplicate_names(p.name for p in programs):
        raise ManifestError(f"suites {names}: there are several programs called {duplicates[0]!r}")
    return Suite(names, tuple(programs))


# ---- folders with a manifest


def _load_folder(folder: Path, check_contents: bool = True) -> Suite:
    name = folder.resolve().name
    manifest = folder / "manifest.json"
    if not manifest.exists():
        files = sorted(folder.glob("*.hlo"))
        if not files and (dump := dump_of(folder)) is not None and dump.files:
            return _dumped_suite(dump)
        return _bare_suite(name, folder, files)
    entries = read_object(manifest, ManifestError).get("programs")
    if not isinstance(entries, list) or not entries:
        raise ManifestError.of(manifest, ["'programs' must be a list of at least one program"])
    problems = [p for n, entry in enumerate(entries) for p in _program_problems(folder, n, entry, check_contents)]
    names = [e["name"] for e in entries if isinstance(e, dict) and isinstance(e.get("name"), str)]
    problems += [f"there are several programs called {name!r:.80}" for name in duplicate_names(names)]
    if problems:
        raise ManifestError.of(manifest, problems)
    return Suite(name, tuple(_program(folder, entry) for entry in entries))


def _program_problems(folder: Path, number: int, entry: Any, check_contents: bool) -> list[str]:
    name = entry.get("name") if isinstance(entry, dict) else None
    what = f"program {name!r:.80}" if isinstance(name, str) else f"program number {number}"
    found = entry_problems(entry)
    if not found and (reason := path_problem(folder, entry["file"])) is not None:
        found = [reason]
    if not found and check_contents:
        path = folder / entry["file"]
        found = [*content_problems(path), *_input_problems(path, entry)]
    return [f"{what}: {p}" for p in found]


def _input_problems(path: Path, entry: Mapping[str, Any]) -> list[str]:
    return input_problems(path, entry["inputs"]) if isinstance(entry.get("inputs"), list) else []


def _program(folder: Path, entry: Mapping[str, Any]) -> Program:
    """Return the program of an entry that was checked."""
    return Program(
        name=entry["name"],
        suite=folder.resolve().name,
        split=entry["split"],
        path=folder / entry["file"],
        description=entry.get("description", ""),
        inputs=tuple(input_spec_from_json(spec) for spec in entry.get("inputs", ())),
        tolerance=Tolerance.from_json(entry["tolerance"]) if "tolerance" in entry else None,
        chaotic=entry.get("chaotic", False),
        family=entry.get("family", ""),
    )


# ---- files without a manifest


def _bare_suite(name: str, where: Path, paths: Sequence[Path]) -> Suite:
    problems = []
    for path in paths:
        reason = why_no_name(_file_name(path))
        found = [f"{reason}; rename the file"] if reason is not None else content_problems(path)
        problems += [f"program {_file_name(path)!r:.80}: {p}" for p in found]
    names = map(_file_name, paths)
    problems += [f"there are several programs called {name!r:.80}" for name in duplicate_names(names)]
    if problems:
        raise ManifestError.of(where, problems)
    return Suite(name, tuple(_bare_program(path, name) for path in paths))


def _dumped_suite(dump: Dump) -> Suite:
    """Return the modules of a dump that can be measured, and warn of the others: JAX dumps trivial ones too."""
    problems = {path: content_problems(path) for path in dump.files}
    kept = [path for path, found in problems.items() if not found]
    left_out = [f"{_file_name(path)} ({found[0]})" for path, found in problems.items() if found]
    if kept and left_out:
        warnings.warn(f"{dump.folder}: modules left out of the suite: {'; '.join(left_out)}", stacklevel=3)
    return _bare_suite(dump.folder.resolve().name, dump.folder, kept or dump.files)


def _bare_program(path: Path, suite: str) -> Program:
    return Program(_file_name(path), suite, "extra", path, "")


def _file_name(path: Path) -> str:
    """Return the name of the program in a file: that of the module for dumps of XLA, else without the ending."""
    return dump_program_name(path) or path.stem
