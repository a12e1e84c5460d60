"""Data that comes from outside (files, text, choices of callers): read strictly, and shown briefly in messages."""

from __future__ import annotations

import json
import os
import re
import reprlib
import stat
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from compiler.errors import HlogymError

__all__ = ["MAX_JSON_BYTES", "MAX_JSON_DEPTH", "JsonError", "is_name", "parse_json", "read_json", "shown",
           "whole_number", "write_whole"]  # fmt: skip

MAX_JSON_BYTES = 64 << 20
"""Largest JSON file that is read; as Python objects it takes some twenty times as much."""
MAX_JSON_DEPTH = 64
"""Deepest nesting that is read. The parser of the standard library recurses in C, so its own limit is the stack."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
_SHORT.maxlevel = 2


class JsonError(HlogymError, ValueError):
    """A file or text that cannot be read as JSON, and why."""


def shown(value: object) -> str:
    """A value for a message: its repr, cut short, on one line."""
    try:
        return " ".join(_SHORT.repr(value).split())
    except Exception:  # what a foreign __repr__ may raise, and integers of too many digits do
        return f"a {type(value).__name__}"


def whole_number(value: object) -> int | None:
    """A whole number of Python or of numpy as an int; None for everything else, True and False included."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return None
    return int(value)


def is_name(value: object) -> bool:
    """Whether a value can be a name: a text that is not empty and holds no control characters or lone surrogates."""
    return isinstance(value, str) and value != "" and value.isprintable()


# ---- JSON


def read_json(path: str | Path) -> Any:
    """What a JSON file holds.

    Raises:
        JsonError: the file cannot be read, is too large, or is not JSON as `parse_json` takes it.
    """
    try:
        # Without O_NONBLOCK a named pipe that nobody writes to would be waited for for ever.
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            state = os.fstat(file.fileno())
            if not stat.S_ISREG(state.st_mode):
                raise JsonError("it is no regular file")
            data = file.read(MAX_JSON_BYTES + 1)
    except (OSError, ValueError) as e:
        if isinstance(e, JsonError):
            raise
        raise JsonError(f"it cannot be read: {getattr(e, 'strerror', None) or e}") from None
    if len(data) > MAX_JSON_BYTES:
        raise JsonError(f"it is larger than {MAX_JSON_BYTES >> 20} MiB")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise JsonError(f"it is not UTF-8: {e.reason} at byte {e.start}") from None
    return parse_json(text)


def parse_json(text: str) -> Any:
    """What a JSON text says. Names that stand twice in an object, NaN and infinities, and deep nesting are refused.

    Raises:
        JsonError: with line and column where that is known.
    """
    if _depth(text) > MAX_JSON_DEPTH:
        raise JsonError(f"it nests deeper than {MAX_JSON_DEPTH} levels")
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)
    except json.JSONDecodeError as e:
        raise JsonError(f"not JSON, line {e.lineno} column {e.colno}: {e.msg}") from None
    except JsonError:
        raise
    except ValueError as e:  # a number of more digits than Python converts
        raise JsonError(f"not JSON: {shown(str(e))}") from None


def _depth(text: str) -> int:
    """Deepest nesting of brackets outside of strings."""
    if text.count("[") + text.count("{") <= MAX_JSON_DEPTH:
        return 0
    codes = np.frombuffer(_STRING.sub("", text).encode("utf-32-le", "surrogatepass"), np.uint32)
    steps = np.isin(codes, (ord("["), ord("{"))).astype(np.int64) - np.isin(codes, (ord("]"), ord("}")))
    return int(np.cumsum(steps).max(initial=0))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise JsonError(f"an object has two entries {shown(twice)}")
    return found


def _constant(word: str) -> NoReturn:
    raise JsonError(f"{word} is not JSON")


def _float(word: str) -> float:
    value = float(word)
    if value in (float("inf"), float("-inf")):
        raise JsonError(f"the number {shown(word)} is too large")
    return value


# ---- writing


def write_whole(path: str | Path, text: str) -> None:
    """Write a text file so that it is whole or as it was before, whatever happens on the way.

    Raises:
        OSError: it cannot be written.
    """
    target = Path(path).resolve()  # a link stays one, and what it points to is replaced
    if target.exists() and not target.is_file():
        target.write_text(text, encoding="utf-8")  # a device or a pipe cannot be replaced
        return
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}-", suffix=".tmp")
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.chmod(target.stat().st_mode & 0o7777 if target.exists() else 0o666 & ~_umask())
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _umask() -> int:
    """The permissions that new files of this process go without."""
    try:
        line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("Umask"))
        return int(line.split()[1], 8)
    except (OSError, StopIteration, ValueError):
        return 0o022
