"""Start Python processes that import the same modules as this one, and nothing from the current folder.

`python -m` and `python -c` search the current folder first, so a user's `env.py` or `numpy.py` would replace the
real one. These processes run in Python's isolated mode with an explicit import path, and start in a folder where
relative entries of any search path lead nowhere.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["NEUTRAL_FOLDER", "ROOT", "child_environment", "import_path", "python_command"]

ROOT = Path(__file__).resolve().parent.parent
"""The folder of hlogym's packages: a checkout, or site-packages."""
NEUTRAL_FOLDER = os.path.abspath(os.sep)  # noqa: PTH100 - pathlib has no name for the root of the current drive

# The standard library comes first, then the explicit path, and last what isolated mode found.
_PREFIX = """
import os, sys
library = os.path.dirname(os.__file__)
standard = [p for p in sys.path if p.endswith(".zip") or p in (library, os.path.join(library, "lib-dynload"))]
count = int(sys.argv[1])
sys.path[:] = dict.fromkeys([*standard, *sys.argv[2 : 2 + count], *sys.path])
del sys.argv[1 : 2 + count]
"""
_FOLDERS = ("HLOGYM_CACHE", "XDG_CACHE_HOME", "HOME", "TMPDIR", "CC")


def python_command(code: str, *arguments: str) -> list[str]:
    """Return a command that runs Python code with this process's import path.

    Run it with `child_environment()` in NEUTRAL_FOLDER.

    Args:
        code: Python source, as for `python -c`.
        arguments: `sys.argv[1:]` of the code.
    """
    path = import_path()
    return [sys.executable, "-I", "-c", _PREFIX + code, str(len(path)), *path, *arguments]


def import_path() -> list[str]:
    """Return ROOT, then this process's `sys.path` as absolute paths without the current folder."""
    here = _current_folder()
    kept = [os.path.join(here, entry) for entry in sys.path if entry and (here or os.path.isabs(entry))]  # noqa: PTH117, PTH118
    return list(dict.fromkeys([str(ROOT), *(entry for entry in kept if not here or not _same(entry, here))]))


def child_environment() -> dict[str, str]:
    """Return the environment variables of this process, with absolute folders and the import path in PYTHONPATH."""
    here = _current_folder()
    made = dict(os.environ)
    for name in _FOLDERS:
        value = made.get(name, "")
        # A bare command such as CC=gcc is looked up on PATH and stays as it is.
        if value and here and not Path(value).is_absolute() and (name != "CC" or os.sep in value):
            made[name] = str(Path(here) / value)
    return {**made, "PYTHONPATH": os.pathsep.join(import_path()), "PYTHONSAFEPATH": "1"}


def _current_folder() -> str:
    """Return the current folder; empty if it has been removed."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
