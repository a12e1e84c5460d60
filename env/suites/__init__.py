"""Suites of programs to train and judge on: HLO files, and a manifest that says what to feed them.

A suite is a folder of `.hlo` files, with or without a `manifest.json`:

    {"programs": [{"name": "softmax", "file": "softmax.hlo", "split": "train", "description": "...",
                   "inputs": [{"kind": "normal", "mean": 0, "std": 1}],
                   "tolerance": {"rtol": 1e-4, "atol": [1e-6, 0], "mismatch_fraction": 0}, "chaotic": false}]}

`inputs` has one entry for each parameter of the entry computation, in order; it, `description`, `tolerance` and
`chaotic` may be left out, and so may each part of a tolerance. `atol` is one number, or one for each output. A file
lies inside the folder. What is wrong with a suite is said at once and as a whole when it is loaded; the contents of
the suites that come with hlogym are checked by its tests instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import ml_dtypes
import numpy as np
import numpy.typing as npt

from compiler.errors import HlogymError, UnknownNameError
from compiler.support.json_reading import read_object
from compiler.support.memory import SMALL, check_memory
from compiler.support.safe_names import why_no_name
from env.suites.checks import content_problems, entry_problems, input_problems, names_twice, path_problem

__all__ = [
    "JAX",
    "LINEAR_ALGEBRA",
    "QUICKSTART",
    "SUITE_NAMES",
    "InputSpec",
    "ManifestError",
    "Normal",
    "Program",
    "Randint",
    "Split",
    "Suite",
    "Tolerance",
    "Uniform",
    "find_program",
    "load_suite",
    "program_in",
    "random_inputs",
]

_HERE = Path(__file__).parent
QUICKSTART, JAX, LINEAR_ALGEBRA = _HERE / "quickstart", _HERE / "jax", _HERE / "linear_algebra"
_FOLDERS = {folder.name: folder for folder in (QUICKSTART, JAX, LINEAR_ALGEBRA)}
SUITE_NAMES = ("quickstart", "train", "validation", "test", "jax", "jax/train", "jax/validation", "jax/test",
               "linear_algebra")  # fmt: skip
"""The suites that come with hlogym, and their splits; a split alone is one of the quickstart's."""

Split: TypeAlias = Literal["train", "validation", "test", "extra"]
"""What a program is for: "test" is held out from learning; "extra" belongs to no split."""


class ManifestError(HlogymError, ValueError):
    """A suite that cannot be used: its folder or manifest, and all that is wrong with it, by program.

    Attributes:
        problems: one text each.
    """

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        self.problems = tuple(problems)
        super().__init__(message)

    @staticmethod
    def of(where: Path, problems: Sequence[str]) -> ManifestError:
        """With every problem, or the first twenty."""
        if len(problems) == 1:
            return ManifestError(f"{where}: {problems[0]}", problems)
        shown = "".join(f"\n  - {p}" for p in problems[:20])
        more = f"\n  ... and {len(problems) - 20} more" if len(problems) > 20 else ""
        return ManifestError(f"{where} has {len(problems)} problems:{shown}{more}", problems)


@dataclass(frozen=True)
class Normal:
    """Values from a normal distribution."""

    mean: float = 0.0
    std: float = 1.0

    def draw(self, rng: np.random.Generator, dtype: np.dtype[Any], dims: Sequence[int]) -> npt.NDArray[Any]:
        """An array of such values; complex types get both parts."""
        values: npt.NDArray[Any] = rng.standard_normal(dims, dtype=np.float32 if dtype.itemsize <= 4 else np.float64)
        if np.issubdtype(dtype, np.complexfloating):
            values = values + 1j * rng.standard_normal(dims)
        return np.asarray(values * self.std + self.mean).astype(dtype)

    def to_json(self) -> dict[str, Any]:
        """As a manifest spells it."""
        return {"kind": "normal", **asdict(self)}


@dataclass(frozen=True)
class Uniform:
    """Values spread evenly over [low, high)."""

    low: float
    high: float

    def draw(self, rng: np.random.Generator, dtype: np.dtype[Any], dims: Sequence[int]) -> npt.NDArray[Any]:
        """An array of such values."""
        return np.asarray(rng.uniform(self.low, self.high, dims)).astype(dtype)

    def to_json(self) -> dict[str, Any]:
        """As a manifest spells it."""
        return {"kind": "uniform", **asdict(self)}


@dataclass(frozen=True)
class Randint:
    """Whole numbers from low to high - 1."""

    low: int
    high: int

    def draw(self, rng: np.random.Generator, dtype: np.dtype[Any], dims: Sequence[int]) -> npt.NDArray[Any]:
        """An array of such values."""
        wide = np.uint64 if self.high > 1 << 63 else np.int64
        return np.asarray(rng.integers(self.low, self.high, dims, dtype=wide)).astype(dtype)

    def to_json(self) -> dict[str, Any]:
        """As a manifest spells it."""
        return {"kind": "randint", **asdict(self)}


InputSpec: TypeAlias = Normal | Uniform | Randint

_SPECS: Mapping[str, type[InputSpec]] = {"normal": Normal, "uniform": Uniform, "randint": Randint}


@dataclass(frozen=True)
class Tolerance:
    """How close each element of the outputs must be to the reference's: |a - b| <= atol + rtol |b|.

    What rounding is seen to move an element by is allowed besides (see `env.comparison`).

    Attributes:
        rtol: relative part; None: some units in the last place of the output's type.
        atol: absolute part, one number or one for each output; None: the smallest numbers of the type.
        mismatch_fraction: which part of an output's elements may differ nevertheless, if they are scattered over it.
    """

    rtol: float | None = None
    atol: float | tuple[float, ...] | None = None
    mismatch_fraction: float = 0.0

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Tolerance:
        """A tolerance as a manifest spells it."""
        atol = values.get("atol")
        return Tolerance(**{**values, "atol": tuple(atol) if isinstance(atol, list) else atol})

    def to_json(self) -> dict[str, Any]:
        """As a manifest spells it; what is left to the types is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Program:
    """One program of a suite.

    Attributes:
        suite: name of the suite it stands in, or the folder's name.
        inputs: one spec for each entry parameter; empty when no manifest says, and then defaults by type are drawn.
        tolerance: None leaves the comparison to the comparer's own default.
        chaotic: a simulator in which rounding may change a decision, after which some elements differ altogether.
    """

    name: str
    suite: str
    split: Split
    path: Path
    description: str
    inputs: tuple[InputSpec, ...] = ()
    tolerance: Tolerance | None = None
    chaotic: bool = False

    def text(self) -> str:
        """The program's HLO text."""
        return self.path.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Suite:
    """A named list of programs."""

    name: str
    programs: tuple[Program, ...]

    def split(self, name: Split) -> tuple[Program, ...]:
        """The programs of one split."""
        return tuple(p for p in self.programs if p.split == name)

    def find(self, name: str) -> Program:
        """The program of that name.

        Raises:
            UnknownNameError: no program here is called so.
        """
        for program in self.programs:
            if program.name == name:
                return program
        raise UnknownNameError("program", name, (p.name for p in self.programs))


def load_suite(name: str | Path) -> Suite:
    """A suite by name ("jax"), or a split of it ("jax/train"; "train" is the quickstart's), or HLO files.

    Programs in folders and files of the user are read and checked, each once until it changes.

    Args:
        name: one of SUITE_NAMES, or a folder of HLO files with or without a manifest, or an HLO file; or several of
            these with commas between.

    Raises:
        UnknownNameError: neither a suite's name, nor a folder with HLO files, nor an HLO file.
        ManifestError: the manifest or a program cannot be used; all that is wrong with the suite.
    """
    if name in SUITE_NAMES:
        return _named_suite(str(name))
    path = Path(name)
    if isinstance(name, str) and "," in name and not path.exists():
        return _joined(name)
    if path.suffix == ".hlo" and path.is_file():
        return _bare_suite(path.stem, path, [path])
    if str(name).strip() and path.is_dir() and (suite := _load_folder(path)).programs:
        return suite
    raise UnknownNameError("suite, folder of .hlo files or .hlo file", str(name), SUITE_NAMES)


def _joined(names: str) -> Suite:
    programs = [p for part in names.split(",") for p in load_suite(part.strip()).programs]
    twice = names_twice(p.name for p in programs)
    if twice:
        raise ManifestError(f"suites {names}: there are several programs called {twice[0]!r}")
    return Suite(names, tuple(programs))


def program_in(path: Path) -> Program:
    """The program in an HLO file, with what the manifest of its folder says of it, where there is one.

    Other programs of the folder are not looked at.

    Raises:
        ManifestError: the manifest's entry for this program cannot be used.
    """
    manifest = path.parent / "manifest.json"
    entries: Any = None
    if manifest.is_file():
        entries = read_object(manifest, ManifestError).get("programs")
    for entry in entries if isinstance(entries, list) else ():
        file = entry.get("file") if isinstance(entry, dict) else None
        if not isinstance(file, str) or path_problem(path.parent, file) or not (path.parent / file).samefile(path):
            continue
        if problems := [*_entry_problems(entry), *_input_problems(path, entry)]:
            raise ManifestError.of(manifest, [f"program {entry.get('name')!r:.80}: {p}" for p in problems])
        return _program(path.parent, entry)
    return _bare_program(path, path.stem)


def find_program(name: str | Path) -> Program:
    """A program of the suites that come with hlogym by name (of two, the quickstart's), or the one in an HLO file.

    Raises:
        UnknownNameError: neither a program's name nor an HLO file.
    """
    path = Path(name)
    if path.suffix == ".hlo" and path.is_file():
        return _bare_program(path, path.stem)
    programs = {p.name: p for folder in reversed(_FOLDERS) for p in _named_suite(folder).programs}
    if str(name) not in programs:
        raise UnknownNameError("program", str(name), programs)
    return programs[str(name)]


def random_inputs(
    program: Program, shapes: Iterable[tuple[npt.DTypeLike, Sequence[int]]], seed: int
) -> list[npt.NDArray[Any]]:
    """Inputs for a program, the same ones for the same seed.

    Args:
        program: whose input specs to follow.
        shapes: numpy dtype and dimensions of every entry parameter, in order.
        seed: of numpy's generator.

    Raises:
        ManifestError: the manifest has specs for another number of parameters.
        MemoryLimitError: the inputs do not fit into memory.
    """
    wanted = [(np.dtype(dtype), tuple(dims)) for dtype, dims in shapes]
    _check_room(program, wanted)
    specs = program.inputs or tuple(_default_spec(dtype) for dtype, _ in wanted)
    if len(specs) != len(wanted):
        raise ManifestError(f"{program.name}: {len(specs)} input specs for {len(wanted)} parameters")
    rng = np.random.default_rng(seed)
    return [spec.draw(rng, dtype, dims) for spec, (dtype, dims) in zip(specs, wanted, strict=True)]


def _check_room(program: Program, wanted: Sequence[tuple[np.dtype[Any], tuple[int, ...]]]) -> None:
    """Refuse to draw inputs that do not fit; numbers are drawn in 64 bits, one array after the other."""
    sizes = [(math.prod(dims) * dtype.itemsize, math.prod(dims), dtype, dims) for dtype, dims in wanted]
    drawn = max([8 * count for _, count, dtype, _ in sizes if dtype.itemsize < 8], default=0)
    held = sum([size for size, *_ in sizes])
    if held + drawn <= SMALL:
        return
    _, _, dtype, dims = max(sizes, key=lambda s: s[0])
    check_memory(held + drawn, f"drawing inputs for {program.name} (the largest is {dtype}{list(dims)})")


def _default_spec(dtype: np.dtype[Any]) -> InputSpec:
    """Normal values for floats, 0 to 99 for integers (fewer where the type holds fewer), both truth values."""
    if dtype == np.bool_:
        return Randint(0, 2)
    try:
        return Randint(0, min(100, int(ml_dtypes.iinfo(dtype).max) + 1))  # type: ignore[no-untyped-call]
    except ValueError:  # not an integer type
        return Normal()


@cache
def _named_suite(name: str) -> Suite:
    if name in _FOLDERS:
        return _load_folder(_FOLDERS[name], check_contents=False)
    folder, _, split = name.rpartition("/")
    whole = _named_suite(folder or QUICKSTART.name)
    return Suite(name, tuple(p for p in whole.programs if p.split == split))


def _load_folder(folder: Path, check_contents: bool = True) -> Suite:
    name = folder.resolve().name
    manifest = folder / "manifest.json"
    if not manifest.exists():
        return _bare_suite(name, folder, sorted(folder.glob("*.hlo")))
    entries = read_object(manifest, ManifestError).get("programs")
    if not isinstance(entries, list) or not entries:
        raise ManifestError.of(manifest, ["'programs' must be a list of at least one program"])
    problems = [p for n, entry in enumerate(entries) for p in _program_problems(folder, n, entry, check_contents)]
    told = [e["name"] for e in entries if isinstance(e, dict) and isinstance(e.get("name"), str)]
    problems += [f"there are several programs called {twice!r:.80}" for twice in names_twice(told)]
    if problems:
        raise ManifestError.of(manifest, problems)
    return Suite(name, tuple(_program(folder, entry) for entry in entries))


def _program_problems(folder: Path, number: int, entry: Any, check_contents: bool) -> list[str]:
    name = entry.get("name") if isinstance(entry, dict) else None
    what = f"program {name!r:.80}" if isinstance(name, str) else f"program number {number}"
    found = _entry_problems(entry)
    if not found and (reason := path_problem(folder, entry["file"])) is not None:
        found = [reason]
    if not found and check_contents:
        path = folder / entry["file"]
        found = [*content_problems(path), *_input_problems(path, entry)]
    return [f"{what}: {p}" for p in found]


def _entry_problems(entry: Any) -> list[str]:
    return entry_problems(entry, get_args(Split), _SPECS, Tolerance)


def _input_problems(path: Path, entry: Mapping[str, Any]) -> list[str]:
    return input_problems(path, entry["inputs"]) if isinstance(entry.get("inputs"), list) else []


def _bare_suite(name: str, where: Path, paths: Sequence[Path]) -> Suite:
    problems = []
    for path in paths:
        reason = why_no_name(path.stem)
        found = [f"{reason}; rename the file"] if reason is not None else content_problems(path)
        problems += [f"program {path.stem!r:.80}: {p}" for p in found]
    problems += [f"there are several programs called {twice!r:.80}" for twice in names_twice(p.stem for p in paths)]
    if problems:
        raise ManifestError.of(where, problems)
    return Suite(name, tuple(_bare_program(path, name) for path in paths))


def _bare_program(path: Path, suite: str) -> Program:
    return Program(path.stem, suite, "extra", path, "")


def _program(folder: Path, entry: Mapping[str, Any]) -> Program:
    """The program of an entry that was checked."""
    return Program(
        name=entry["name"],
        suite=folder.resolve().name,
        split=entry["split"],
        path=folder / entry["file"],
        description=entry.get("description", ""),
        inputs=tuple(_input_spec(spec) for spec in entry.get("inputs", ())),
        tolerance=Tolerance.from_json(entry["tolerance"]) if "tolerance" in entry else None,
        chaotic=entry.get("chaotic", False),
    )


def _input_spec(spec: Mapping[str, Any]) -> InputSpec:
    values = dict(spec)
    return _SPECS[values.pop("kind")](**values)
