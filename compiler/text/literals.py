"""Parser of literals of a given shape.

As in XLA's parser, commas between values are optional, a bare value may stand for an array (it becomes the first
element, the others are zero), and a finite number out of the range of its type is an error. In contrast to it, `-0` is
parsed as negative zero, because XLA prints negative zero like that.
"""

from __future__ import annotations

import re
from typing import Any, cast

import numpy as np

from compiler.ir.literal import Literal
from compiler.ir.nan_bits import NAN_FORMATS, nan_with
from compiler.ir.shape import Shape, too_large
from compiler.ir.types import PrimitiveType
from compiler.support.memory import check_memory
from compiler.text.scanner import MAX_DEPTH, Scanner

Array = np.ndarray[Any, Any]

_NUMBER = r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf|nan(?:\(0x[0-9a-fA-F]+\))?)"
_TOKEN = re.compile(
    r"(?:\s|,|/\*(?:[^*]|\*(?!/))*\*/|//[^\n]*)*"
    rf"(?:([{{}}])|(true|false)(?![\w.])|({_NUMBER})(?![\w.])"
    rf"|\(\s*({_NUMBER})\s*,\s*({_NUMBER})\s*\))"
)
_ELISION = re.compile(r"\{\s*\.\.\.\s*\}")
_COMPONENT = re.compile(_NUMBER)
_NOT_PLAIN = re.compile(r"[^\d\s{},.eE+\-]")
_SPLIT = re.compile(r"[{},\s]+")
MAX_RANK = 64
"""Largest number of dimensions of a numpy array."""

ELIDED_HELP = (
    "the value of the constant is elided in this text ({...}); print the module with large constants "
    "(XLA: HloPrintOptions print_large_constants, or --xla_dump_large_constants), or ask for a fill"
)


def parse_literal(s: Scanner, shape: Shape, fill_elided: bool = False, depth: int = 0) -> Literal:
    """Parse a literal of the given shape.

    `fill_elided`: fill an elided constant (`{...}`) with a fixed pattern instead of raising an error.
    """
    if depth > MAX_DEPTH:
        s.fail(f"literal nested deeper than {MAX_DEPTH}")
    if shape.is_tuple:
        return _tuple(s, shape, fill_elided, depth)
    if shape.is_token:
        s.accept("token[]") or s.accept("token")
        return Literal(shape)
    if not shape.is_array:
        s.fail(f"a literal cannot have the shape {shape}")
    if shape.rank > MAX_RANK or any(d < 0 for d in shape.dimensions):
        s.fail(f"a literal cannot have the shape {shape}: at most {MAX_RANK} dimensions, all bounded, are allowed")
    s.skip()
    at = s.pos
    try:
        _check_size(shape)
        if _ELISION.match(s.text, at):
            return _elided(s, shape, fill_elided)
        array = _fast_array(s, shape)
        return Literal.adopt(_checked_array(s, shape) if array is None else array, shape)
    except MemoryError as e:
        s.fail(f"a constant of shape {shape} does not fit into memory{_why(e)}", at)


def _tuple(s: Scanner, shape: Shape, fill_elided: bool, depth: int) -> Literal:
    s.expect("(", "at the start of a tuple literal")
    elements = []
    for i, part in enumerate(shape.tuple_shapes):
        if i:
            s.expect(",", "between the elements of a tuple literal")
        elements.append(parse_literal(s, part, fill_elided, depth + 1))
    s.expect(")", "at the end of a tuple literal")
    return Literal(shape, None, tuple(elements))


def _elided(s: Scanner, shape: Shape, fill_elided: bool) -> Literal:
    if not fill_elided:
        s.fail(ELIDED_HELP)
    s.pos = s.text.index("}", s.pos) + 1
    pattern = np.arange(7)
    t = shape.element_type
    if t.is_float or t.is_complex:
        filled: Any = (pattern - 3) / 4
    else:
        filled = pattern % (2 if t.bits < 4 or t is PrimitiveType.PRED else 7)
    return Literal.adopt(np.resize(filled.astype(shape.dtype), shape.dimensions), shape)


def _check_size(shape: Shape) -> None:
    if too_large(shape.element_type, shape.dimensions):
        raise MemoryError("it would take 2^63 bytes or more")
    check_memory(shape.num_elements * shape.dtype.itemsize, "it")


def _why(error: MemoryError) -> str:
    return f": {error}" if str(error) else ""


# ---- large numeric arrays


def _fast_array(s: Scanner, shape: Shape) -> Array | None:
    """Parse a plain numeric array at once; return None if only `_checked_array` can parse it or report the error."""
    t = shape.element_type
    if not (t.is_integer or t.is_float) or t.bits < 8 or shape.num_elements < 16 or not s.text.startswith("{", s.pos):
        return None
    stop = _end_of_braces(s.text, s.pos)
    if stop is None:
        return None
    text = s.text[s.pos : stop]
    words = _SPLIT.sub(" ", text).split()
    if len(words) != shape.num_elements or not _regular(text, shape):
        return None
    try:
        with np.errstate(over="ignore"):
            array = np.array(words, dtype=np.float64).astype(shape.dtype) if t.is_float else _integers(words, shape)
    except (ValueError, OverflowError):
        return None
    if t.is_float and not np.isfinite(array.astype(np.float32 if t.bits < 32 else array.dtype)).all():
        return None
    s.pos = stop
    return array.reshape(shape.dimensions)


def _integers(words: list[str], shape: Shape) -> Array:
    values = [int(w) for w in words]
    info = np.iinfo(shape.dtype)
    if min(values) < info.min or max(values) > info.max:
        raise OverflowError
    return np.array(values, dtype=shape.dtype)


def _end_of_braces(text: str, pos: int) -> int | None:
    """Return the position after the brace that closes the one at `pos`; None unless all in between is plain numbers."""
    end = _NOT_PLAIN.search(text, pos)
    limit = end.start() if end else len(text)
    depth, stop = 0, pos
    while True:
        close = text.find("}", stop, limit)
        if close < 0:
            return None
        depth += text.count("{", stop, close) - 1
        stop = close + 1
        if depth == 0:
            return stop


def _regular(text: str, shape: Shape) -> bool:
    """Check whether the braces of `text` nest as `shape` requires."""
    braces = re.sub(r"[^{}]", "", text)
    want = "{}"
    for d in reversed(shape.dimensions[:-1]):
        if len(want) * d > len(braces):
            return False
        want = "{" + want * d + "}"
    return braces == want


# ---- any literal, value by value


def _checked_array(s: Scanner, shape: Shape) -> Array:
    # `level` is the current brace depth; `seen[d]` counts the elements so far along dimension d.
    rank, dims, total = shape.rank, shape.dimensions, shape.num_elements
    seen = [0] * rank
    level = 0
    values: list[Any] = []
    reader = _READERS[_kind(shape.element_type)]
    while True:
        m = s.match(_TOKEN)
        if m is None:
            s.fail(
                f"expected {'a value' if level == rank else '{'} in a literal of shape {shape}, found {s.next_token()}"
            )
        brace = m.group(1)
        if brace == "{":
            if level == rank:
                s.fail(f"too many '{{' in a literal of shape {shape}", m.start(1))
            if level:
                seen[level - 1] += 1
            level += 1
        elif brace == "}":
            if level == 0:
                s.fail(f"unexpected '}}' in a literal of shape {shape}", m.start(1))
            level -= 1
            if seen[level] != dims[level]:
                s.fail(
                    f"dimension {level} of a literal of shape {shape} has {seen[level]} elements, not {dims[level]}",
                    m.start(1),
                )
            seen[level] = 0
        else:
            if level not in (0, rank):
                s.fail(f"expected '{{' in a literal of shape {shape}, found {m.group().strip()[:40]!r}", m.end() - 1)
            if level:
                seen[rank - 1] += 1
            if len(values) >= max(total, 1):
                s.fail(f"too many values in a literal of shape {shape}", m.end() - 1)
            values.append(reader(s, shape, m))
        if level == 0:
            break
    # A bare value for a whole array: XLA sets the first element and leaves the others zero.
    bare = brace != "}" and rank > 0
    if bare and total == 0:
        s.fail(f"a literal of shape {shape} has no elements")
    return _finish(shape, values, bare)


def _kind(t: PrimitiveType) -> str:
    return "complex" if t.is_complex else "float" if t.is_float else "pred" if t is PrimitiveType.PRED else "int"


def _read_int(s: Scanner, shape: Shape, m: re.Match[str]) -> int:
    t = shape.element_type
    word = m.group(2) or m.group(3) or ""
    if word in ("true", "false"):
        return int(word == "true")
    if not word.lstrip("+-").isdigit():
        s.fail(f"expected a value of type {t.text}, found {(word or m.group().strip())[:40]!r}", m.end() - 1)
    # int() refuses strings of more than some thousand digits.
    value = int(word) if len(word) < 40 else 1 << 100
    low, high = (-(1 << (t.bits - 1)), (1 << (t.bits - 1)) - 1) if t.is_signed else (0, (1 << t.bits) - 1)
    if t is PrimitiveType.U64 and -(1 << 63) <= value < 0:
        value += 1 << 64
    if not low <= value <= high:
        s.fail(f"{word[:40]} does not fit {t.text}: it holds {low} to {high}", m.start(3))
    return value


def _read_pred(s: Scanner, shape: Shape, m: re.Match[str]) -> int:
    word = m.group(2) or m.group(3) or ""
    if word in ("true", "false"):
        return int(word == "true")
    if not word.lstrip("+-").isdigit():
        s.fail(f"expected true, false, 0 or 1, found {(word or m.group().strip())[:40]!r}", m.end() - 1)
    return int(any(c not in "+-0" for c in word))


def _read_float(s: Scanner, shape: Shape, m: re.Match[str]) -> Any:
    if m.group(2):
        return float(m.group(2) == "true")
    if m.group(3) is None:
        s.fail(f"expected a number, found {m.group().strip()[:40]!r}", m.end() - 1)
    return _component(s, shape.element_type, m.group(3), m.start(3))


def _read_complex(s: Scanner, shape: Shape, m: re.Match[str]) -> tuple[Any, Any]:
    part = PrimitiveType.F32 if shape.element_type is PrimitiveType.C64 else PrimitiveType.F64
    if m.group(4) is not None:
        return (
            _component(s, part, m.group(4), m.start(4)),
            _component(s, part, m.group(5), m.start(5)),
        )
    if m.group(3) is None:
        s.fail(f"expected a complex number (re, im), found {m.group().strip()[:40]!r}", m.end() - 1)
    return _component(s, part, m.group(3), m.start(3)), 0.0


_READERS = {"int": _read_int, "pred": _read_pred, "float": _read_float, "complex": _read_complex}


def _component(s: Scanner, t: PrimitiveType, word: str, at: int) -> Any:
    """Parse a floating-point number: return a Python float, or for a NaN a numpy scalar, which has its exact bits."""
    if "nan" in word:
        payload = int(word[word.index("x") + 1 : -1], 16) if "x" in word else None
        if payload is not None and not _fits(t, payload):
            s.fail(f"NaN payload 0x{payload:x} does not fit {t.text}", at)
        return nan_with(t.dtype, word[0] == "-", payload)
    value = float(word)
    if "inf" in word:
        return value
    with np.errstate(over="ignore"):
        stored = float(cast(Any, np.array(value)).astype(t.dtype))
    if abs(value) == np.inf or not np.isfinite(stored):
        s.fail(f"{word[:40]} is out of range for {t.text}", at)
    return value


def _fits(t: PrimitiveType, payload: int) -> bool:
    bits = NAN_FORMATS.get(t.dtype)
    return bits is not None and 0 < payload < (1 << bits.mantissa)


def _finish(shape: Shape, values: list[Any], bare: bool) -> Array:
    t = shape.element_type
    if bare:
        array = np.zeros(shape.dimensions, shape.dtype)
        array.reshape(-1)[:1] = _finish(shape.with_dimensions(()), values, False)
        return array
    if t.is_complex:
        part = np.float32 if t is PrimitiveType.C64 else np.float64
        flat = _floats([c for v in values for c in v], np.dtype(part)).view(shape.dtype)
    elif t.is_float:
        flat = _floats(values, shape.dtype)
    else:
        flat = np.array(values, dtype=np.int64 if t.is_signed else np.uint64).astype(shape.dtype)
    return flat.reshape(shape.dimensions)


def _floats(values: list[Any], dtype: np.dtype[Any]) -> Array:
    array = np.array([float(v) for v in values], dtype=np.float64).astype(dtype)
    for i, v in enumerate(values):
        # Copy NaNs bit by bit: a cast would make them quiet or lose the payload.
        if not isinstance(v, float) or v != v:
            array[i : i + 1].view(np.uint8)[:] = np.array([v], dtype=dtype).view(np.uint8)
    return array
