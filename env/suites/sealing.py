"""Sealed test programs: loading them is refused unless they are opened, and each opening is recorded.

What is tuned on test programs proves nothing. The test families of the suite "corpus" are therefore frozen by a hash,
and only `hlogym evaluate`, or a command with `--open-test PURPOSE`, opens them. An opening is one line of JSON in
`test_openings.jsonl` in the user's cache folder, and in the folders that the caller names.
"""

from __future__ import annotations

import getpass
import json
import platform
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from compiler.errors import HlogymError
from env.suites.locations import cache_folder

__all__ = [
    "LOG_NAME",
    "MARKER",
    "Opening",
    "SealedError",
    "open_test_programs",
    "read_openings",
    "require_file_open",
    "require_open",
]

LOG_NAME = "test_openings.jsonl"
MARKER = "SEALED"
"""A file of this name marks a folder of sealed programs."""


class SealedError(HlogymError, PermissionError):
    """Test programs that are loaded without being opened, or that are not the frozen ones."""


@dataclass(frozen=True)
class Opening:
    """One opening of test programs.

    Attributes:
        when: UTC, as ISO 8601.
        user: name of the user.
        host: name of the machine.
        command: the command line.
        purpose: why they were opened.
        policy: the policy that is evaluated, or "".
        suite: what was loaded.
        programs: how many programs.
        frozen: hash of the frozen programs, or "" for a file by itself.
    """

    when: str
    user: str
    host: str
    command: str
    purpose: str
    policy: str
    suite: str
    programs: int
    frozen: str


@dataclass(frozen=True)
class _Permission:
    purpose: str
    policy: str
    folders: tuple[Path, ...]


_PERMISSION: ContextVar[_Permission | None] = ContextVar("test programs", default=None)


@contextmanager
def open_test_programs(purpose: str, policy: str = "", folders: Sequence[Path] = ()) -> Iterator[None]:
    """Allow sealed test programs to be loaded inside a `with` statement; each loading is recorded.

    Args:
        purpose: why; it is recorded.
        policy: the policy that is evaluated.
        folders: where to record openings besides the user's cache folder.

    Raises:
        SealedError: the purpose is empty.
    """
    if not purpose.strip():
        raise SealedError("opening test programs needs a purpose, which is recorded")
    token = _PERMISSION.set(_Permission(purpose.strip(), policy, tuple(folders)))
    try:
        yield
    finally:
        _PERMISSION.reset(token)


def require_open(suite: str, programs: int, frozen: str) -> None:
    """Record that test programs are loaded.

    Raises:
        SealedError: they are not open, or the opening cannot be recorded.
    """
    permission = _PERMISSION.get()
    if permission is None:
        raise SealedError(
            f"{suite} is sealed: its {programs} test programs are for `hlogym evaluate` alone, which records each "
            "opening. Use corpus/train or corpus/validation; to look at test programs all the same, add "
            "--open-test PURPOSE to the command, or use env.suites.open_test_programs(purpose), which record it too"
        )
    opening = Opening(
        time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), _user(), platform.node(), _command(),
        permission.purpose, permission.policy, suite, programs, frozen,
    )  # fmt: skip
    for folder in dict.fromkeys((cache_folder(), *permission.folders)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / LOG_NAME).open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(opening)) + "\n")
        except OSError as error:
            raise SealedError(f"the opening of {suite} cannot be recorded in {folder}: {error.strerror}") from error


def require_file_open(path: Path) -> None:
    """Record that a file or folder of sealed programs is loaded, if it is one.

    Raises:
        SealedError: it is sealed and not open.
    """
    folder = path if path.is_dir() else path.parent
    if (folder / MARKER).is_file():
        require_open(str(path), len(list(folder.glob("*.hlo"))) if path.is_dir() else 1, "")


def read_openings(folder: Path | None = None) -> list[dict[str, Any]]:
    """Return the openings recorded in a folder (default: the user's cache folder), oldest first."""
    path = (cache_folder() if folder is None else folder) / LOG_NAME
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _command() -> str:
    """Return the command of this process, without the folders in which its program and Python are."""
    program, *arguments = sys.argv or [""]
    return shlex.join([Path(program).name, *arguments])


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name
        return "unknown"
