"""Literals in HLO text, given their shape."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from compiler.ir.literal import Literal
from compiler.ir.shape import Shape
from compiler.ir.types import PrimitiveType
from compiler.text.scanner import MAX_DEPTH, Scanner

_FLOAT = re.compile(r"[+-]?(?:inf|nan(?:\(0x[0-9a-fA-F]+\))?|0x[0-9a-fA-F.p+\-]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)")
_WORD = re.compile(r"true|false|-?\d+")
_PLAIN_NUMBERS = re.compile(r"[^(){}a-zA-Z/]*(?:[eE][^(){}a-zA-Z/]*)*")
_SPLIT = re.compile(r"[{},\s]+")

ELIDED_HELP = (
    "the constant's value was left out of this text ({...}); print the module with large constants "
    "(XLA: HloPrintOptions print_large_constants, or --xla_dump_large_constants), or ask for a fill"
)


def parse_literal(s: Scanner, shape: Shape, fill_elided: bool = False, depth: int = 0) -> Literal:
    """The literal of `shape` that stands here.

    `fill_elided`: fill a constant left out of the text (`{...}`) with a fixed pattern, instead of an error.
    """
    if depth > MAX_DEPTH:
        s.fail(f"literal nested deeper than {MAX_DEPTH}")
    if shape.is_tuple:
        return _tuple(s, shape, fill_elided, depth)
    if shape.is_token:
        s.accept("token")
        return Literal(shape)
    if not shape.is_array:
        s.fail(f"no literal has the shape {shape}")
    if s.peek("{"):
        start = s.pos
        if re.compile(r"\{\s*\.\.\.\s*\}").match(s.text, s.pos):
            return _elided(s, shape, fill_elided)
        fast = _fast_array(s, shape)
        if fast is not None:
            return fast
        s.pos = start
    values: list[Any] = []
    _nested(s, shape, 0, values)
    array = _to_array(s, shape, values)
    return Literal.from_array(array, shape)


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
    pattern = np.arange(shape.num_elements) % 7
    if shape.element_type.is_float or shape.element_type.is_complex:
        filled: Any = (pattern - 3) / 4
    else:
        filled = pattern % (2 if shape.element_type.bits < 4 or shape.element_type is PrimitiveType.PRED else 7)
    return Literal.from_array(filled.astype(shape.dtype).reshape(shape.dimensions), shape)


def _fast_array(s: Scanner, shape: Shape) -> Literal | None:
    """Large plain numeric arrays in one go; None where only the careful path will do."""
    t = shape.element_type
    if t.bits < 32 or t.is_complex or shape.num_elements < 16:
        return None
    # Comments of the form /*i0=3*/ and words (inf, nan) are left to the careful path.
    depth, pos, text = 0, s.pos, s.text
    end = re.compile(r"[^\d\s{},.eE+\-]").search(text, pos)
    limit = end.start() if end else len(text)
    stop = pos
    while stop < limit:
        close = text.find("}", stop, limit)
        if close < 0:
            return None
        depth += text.count("{", stop, close) - 1
        stop = close + 1
        if depth == 0:
            break
    else:
        return None
    words = _SPLIT.sub(" ", text[pos:stop]).split()
    if len(words) != shape.num_elements or not _regular(text[pos:stop], shape):
        return None
    try:
        array = np.array(words, dtype=np.float64 if t.is_float else object)
        if not t.is_float:
            info = np.iinfo(shape.dtype)
            ints = [int(w) for w in words]
            if min(ints) < info.min or max(ints) > info.max:
                return None
            array = np.array(ints, dtype=shape.dtype)
        elif t is PrimitiveType.F32:
            array = np.array(words, dtype=np.float32)
    except (ValueError, OverflowError):
        return None
    s.pos = stop
    return Literal.from_array(array.astype(shape.dtype).reshape(shape.dimensions), shape)


def _regular(text: str, shape: Shape) -> bool:
    """Whether the braces of `text` nest as `shape` wants."""
    braces = re.sub(r"[^{}]", "", text)
    want = "{}"
    for d in reversed(shape.dimensions[:-1]):
        want = "{" + want * d + "}"
        if len(want) > len(braces):
            return False
    return braces == want


def _nested(s: Scanner, shape: Shape, level: int, out: list[Any]) -> None:
    if level == shape.rank:
        out.append(_element(s, shape.element_type))
        return
    s.expect("{", f"in a literal of shape {shape}")
    for i in range(shape.dimensions[level]):
        if i:
            s.expect(",", f"in a literal of shape {shape} (dimension {level} has {shape.dimensions[level]} elements)")
        _nested(s, shape, level + 1, out)
    s.expect("}", f"in a literal of shape {shape} (dimension {level} has {shape.dimensions[level]} elements)")


def _element(s: Scanner, t: PrimitiveType) -> Any:
    if t.is_complex:
        if not s.accept("("):
            return complex(_float(s), 0.0)
        re_part = _float(s)
        s.expect(",", "in a complex number")
        im_part = _float(s)
        s.expect(")", "at the end of a complex number")
        return complex(re_part, im_part)
    if t.is_float:
        return _float(s)
    m = s.match(_WORD)
    if m is None:
        s.fail(f"expected a value of type {t.text}, found {s.shown()}")
    word = m.group()
    if word in ("true", "false"):
        return int(word == "true")
    value = int(word) if len(word) < 40 else 1 << 100
    if t is PrimitiveType.PRED:
        if value not in (0, 1):
            s.fail(f"expected true, false, 0 or 1, found {word}", m.start())
        return value
    low, high = (-(1 << (t.bits - 1)), (1 << (t.bits - 1)) - 1) if t.is_signed else (0, (1 << t.bits) - 1)
    if not low <= value <= high:
        s.fail(f"{word[:40]} does not fit {t.text}", m.start())
    return value


def _float(s: Scanner) -> float:
    m = s.match(_FLOAT)
    if m is None:
        if s.keyword("true"):
            return 1.0
        if s.keyword("false"):
            return 0.0
        s.fail(f"expected a number, found {s.shown()}")
    text = m.group()
    if "nan" in text:
        return float("-nan") if text[0] == "-" else float("nan")
    if "0x" in text:
        try:
            return float.fromhex(text)
        except (ValueError, OverflowError):
            s.fail(f"malformed hexadecimal number {text}", m.start())
    return float(text)


def _to_array(s: Scanner, shape: Shape, values: list[Any]) -> np.ndarray[Any, Any]:
    t = shape.element_type
    if t.is_integer or t is PrimitiveType.PRED:
        wide = np.array(values, dtype=np.int64 if t.is_signed else np.uint64)
        return wide.astype(shape.dtype).reshape(shape.dimensions)
    if t.is_complex:
        return np.array(values, dtype=np.complex128).astype(shape.dtype).reshape(shape.dimensions)
    with np.errstate(over="ignore"):
        return np.array(values, dtype=np.float64).astype(shape.dtype).reshape(shape.dimensions)
