"""Parse untrusted JSON; every problem is raised as one error of the caller's class."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from compiler.support.files import read_up_to

__all__ = ["MAX_DEPTH", "parse_json", "parse_object", "read_object"]

MAX_BYTES = 64 << 20
"""Longest input accepted; the parsed Python objects take some twenty times as much memory."""
MAX_DEPTH = 100
"""Deepest nesting accepted: Python functions that recurse over nested values fail at deeper levels."""
MAX_INTEGER = 1 << 128
"""Largest absolute value of an integer; larger ones overflow when they are converted to float."""

ErrorClass = Callable[[str], Exception]
"""Makes the exception from its message; usually a subclass of HlogymError."""


def read_object(path: str | Path, error: ErrorClass, *, finite: bool = True) -> dict[str, Any]:
    """Return the JSON object stored in a file.

    Args:
        path: a UTF-8 file.
        error: the exception to raise; its message names the file.
        finite: refuse NaN and Infinity, which are not valid JSON.

    Raises:
        error: the file cannot be read, is not UTF-8 or not JSON, is nested deeper than MAX_DEPTH, repeats a key, or
            holds something other than an object.
    """
    try:
        data = read_up_to(Path(path), MAX_BYTES)
    except (OSError, ValueError) as e:  # ValueError: a path with a null character
        raise error(f"cannot read {path}: {getattr(e, 'strerror', None) or e}") from e
    return parse_object(data, str(path), error, finite=finite)


def parse_object(text: str | bytes, where: str, error: ErrorClass, *, finite: bool = True) -> dict[str, Any]:
    """Return the JSON object in a string; arguments and errors are those of `parse_json` and `read_object`."""
    value = parse_json(text, where, error, finite=finite)
    if not isinstance(value, dict):
        raise error(f"{where}: expected a JSON object, got {_kind(value)}")
    return value


def parse_json(text: str | bytes, where: str, error: ErrorClass, *, finite: bool = True) -> Any:
    """Return the JSON value in a string.

    Args:
        text: the JSON source; bytes are decoded as UTF-8.
        where: describes the source in error messages.
        error: the exception to raise.
        finite: refuse NaN and Infinity, which are not valid JSON.

    Raises:
        error: the string cannot be parsed; see `read_object`.
    """
    try:
        # Some editors start a file with a byte order mark, which utf-8-sig skips.
        decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        value = json.loads(decoded, object_pairs_hook=_object)
    except UnicodeDecodeError as e:
        raise error(f"{where} is not UTF-8 text: {e.reason} at byte {e.start}") from e
    except json.JSONDecodeError as e:
        raise error(f"{where}: not JSON, line {e.lineno} column {e.colno}: {e.msg}") from e
    except RecursionError as e:
        raise error(f"{where}: nested deeper than {MAX_DEPTH} levels") from e
    except ValueError as e:  # a repeated key, or a number of thousands of digits
        raise error(f"{where}: {e}") from e
    problem = _problem(value, finite)
    if problem is not None:
        raise error(f"{where}: {problem}")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {_short(twice)} appears twice")
    return found


def _problem(value: Any, finite: bool) -> str | None:
    """Return what is wrong with a parsed value, or None: nested too deep, surrogates, numbers out of range."""
    # One level at a time, not by recursion: the nesting may be deeper than Python's recursion limit.
    level, depth = [[value]], 0
    inner: list[Iterable[Any]]
    while level:
        if depth > MAX_DEPTH:
            return f"nested deeper than {MAX_DEPTH} levels"
        inner = []
        for v in (v for values in level for v in values):
            if isinstance(v, dict):
                inner += [v, v.values()]
            elif isinstance(v, list):
                inner.append(v)
            elif isinstance(v, str):
                if not v.isascii() and not _is_text(v):
                    return f"the string {_short(v)} contains an unpaired surrogate"
            elif isinstance(v, float):
                if finite and not math.isfinite(v):
                    return f"the number {v} is not finite"
            elif isinstance(v, int) and abs(v) > MAX_INTEGER:
                return f"the number {str(v)[:20]}... is too large"
        level, depth = inner, depth + 1  # type: ignore[assignment]
    return None


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _short(text: str) -> str:
    return ascii(text if len(text) <= 60 else f"{text[:60]}...")


def _kind(value: Any) -> str:
    return {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")
