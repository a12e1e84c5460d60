"""Folders that XLA dumped (`--xla_dump_to=FOLDER`): which files are programs, before and after XLA's passes.

`FOLDER:after` means the modules after optimization, and `FOLDER:NAME` those whose name contains NAME, such as
`dump:jit_step` or `dump:jit_step:after`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from compiler.support.paths import is_folder

__all__ = ["Dump", "dump_of", "dump_program_name"]

BEFORE, AFTER = "before_optimizations", "after_optimizations"
_FILE = re.compile(
    rf"(?P<module>module_(?P<number>\d+)\.(?P<name>.+?))\.(?:\w+_)?(?P<stage>{BEFORE}|{AFTER})\.(?:txt|hlo|hlo\.pb|pb)"
)


@dataclass(frozen=True)
class Dump:
    """The modules of a folder that XLA dumped.

    Attributes:
        folder: the folder.
        after: whether they are the modules after optimization.
        files: one file per module; its text if XLA dumped text and protos.
    """

    folder: Path
    after: bool
    files: tuple[Path, ...]


def dump_of(name: str | Path) -> Dump | None:
    """Return the modules in a folder of XLA's dumps, or None if it is not such a folder.

    Args:
        name: the folder, with `:after` and `:NAME` if wanted (see the module).
    """
    folder, after, wanted = _parts(str(name))
    if folder is None:
        return None
    chosen: dict[tuple[int, str], Path] = {}
    known = False
    for path in sorted(folder.iterdir()):
        match = _FILE.fullmatch(path.name)
        if match is None or not path.is_file():
            continue
        known = True
        if (match["stage"] == AFTER) != after or wanted not in match["module"]:
            continue
        key = (int(match["number"]), match["name"])
        if key not in chosen or not path.name.endswith(".pb"):
            chosen[key] = path
    return Dump(folder, after, tuple(chosen[k] for k in sorted(chosen))) if known else None


def dump_program_name(path: Path) -> str | None:
    """Return the name of the module in a dumped file, such as `module_0004.jit_step`; None for other files."""
    match = _FILE.fullmatch(path.name)
    return None if match is None else match["module"]


def _parts(name: str) -> tuple[Path | None, bool, str]:
    """Split a name into the folder, whether modules after optimization are meant, and a part of their names."""
    if is_folder(name):
        return Path(name), False, ""
    folder, *rest = name.split(":")
    if not rest or not folder or len(rest) > 2 or not is_folder(folder):
        return None, False, ""
    after = rest[-1] == "after"
    if after:
        rest.pop()
    return (Path(folder), after, rest[0] if rest else "") if len(rest) < 2 else (None, False, "")
