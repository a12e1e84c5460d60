"""Parser of shapes: `f32[2,<=3]{1,0:T(8,128)}`, tuples, tokens, buffers."""

from __future__ import annotations

import re
from dataclasses import replace

from compiler.errors import ShapeError
from compiler.ir.shape import UNBOUNDED, Layout, Shape, default_layout
from compiler.ir.types import BY_TEXT, PrimitiveType
from compiler.text.scanner import MAX_DEPTH, Scanner

_SIMPLE = re.compile(r"[a-z][a-z0-9]*\[[0-9, ]*\](?:\{[0-9, ]*\})?(?!\s*\{\s*[\d:]|[{\w])")
_LAYOUT_FOLLOWS = re.compile(r"\s*\{\s*[\d:]|\{\}")
_TYPE = re.compile(r"[a-z][a-z0-9]*")
_TYPED = re.compile(r"([a-z][a-z0-9]*)\s*\[")
_DIM = re.compile(r"(<=)?(\d+|\?)")
_SUFFIX = re.compile(r"(?:[^{}()]|\([^{}()]*(?:\([^{}()]*\)[^{}()]*)*\))*")
_KNOWN_SUFFIX = re.compile(
    r"(?:D\([DCS,]*\))?(?:T(?:\([\d*,\s]*\))+)?(?:L\(\d+\))?(?:#\(u\d+\))?(?:\*\(u\d+\))?(?:E\(\d+\))?(?:S\(\d+\))?"
    r"(?:SC(?:\([\d,:\s-]*\))+)?(?:M\(\d+\))?"
)
"""Dimension levels, tiles, padding, index and pointer types, element size, memory space, split, prefix."""
_cache: dict[str, Shape] = {}


def at_shape(s: Scanner) -> bool:
    """Check whether a shape comes next, not a name."""
    s.skip()
    if s.text.startswith(("(", "b("), s.pos):
        return True
    m = _TYPED.match(s.text, s.pos)
    return m is not None and m.group(1) in BY_TEXT


def parse_shape(s: Scanner, depth: int = 0) -> Shape:
    """Parse a shape."""
    s.skip()
    m = _SIMPLE.match(s.text, s.pos)
    if m is not None:
        found = _cache.get(m.group())
        if found is not None:
            s.pos = m.end()
            return found
    start = s.pos
    if depth > MAX_DEPTH:
        s.fail(f"shape nested deeper than {MAX_DEPTH}")
    if s.text.startswith("(", s.pos):
        s.pos += 1
        shapes: list[Shape] = []
        while not s.accept(")"):
            if shapes:
                s.expect(",", "or ')' in a tuple shape")
            shapes.append(parse_shape(s, depth + 1))
        return _composed(s, PrimitiveType.TUPLE, shapes, start)
    if s.text.startswith("b(", s.pos):
        s.pos += 2
        inner = parse_shape(s, depth + 1)
        s.expect(")", "after a buffer's shape")
        return _composed(s, PrimitiveType.BUFFER, [inner], start)
    shape = _array(s)
    if m is not None and m.end() == s.pos and len(_cache) < 10000:
        _cache[s.text[start : s.pos]] = shape
    return shape


def _composed(s: Scanner, element_type: PrimitiveType, shapes: list[Shape], start: int) -> Shape:
    try:
        return Shape(element_type, tuple_shapes=tuple(shapes))
    except ShapeError as e:
        s.fail(str(e), start)


def _array(s: Scanner) -> Shape:
    m = s.match(_TYPE)
    if m is None:
        s.fail(f"expected a shape, found {s.next_token()}")
    element_type = BY_TEXT.get(m.group())
    if element_type in (PrimitiveType.TUPLE, PrimitiveType.BUFFER):
        element_type = None  # written with parentheses
    if element_type is None:
        s.fail(f"unknown element type '{m.group()}'", m.start())
    s.expect("[", "after the element type")
    dims: list[int] = []
    dynamic: list[bool] = []
    while not s.accept("]"):
        if dims:
            s.expect(",", "or ']' in a shape")
        d = s.match(_DIM)
        if d is None:
            s.fail(f"expected a dimension, found {s.next_token()}")
        if len(d.group(2)) > 19 or (d.group(2) != "?" and int(d.group(2)) >= 1 << 63):
            s.fail("dimension out of range", d.start())
        dims.append(UNBOUNDED if d.group(2) == "?" else int(d.group(2)))
        dynamic.append(d.group(1) is not None or d.group(2) == "?")
    if element_type in (PrimitiveType.TOKEN, PrimitiveType.OPAQUE):
        if dims:
            s.fail(f"{element_type.text} has no dimensions", m.start())
        return Shape(element_type)
    layout = None
    if _LAYOUT_FOLLOWS.match(s.text, s.pos):
        layout = parse_layout(s, len(dims), element_type)
    return Shape(element_type, tuple(dims), layout, tuple(dynamic) if any(dynamic) else ())


def parse_layout(s: Scanner, rank: int | None = None, element_type: PrimitiveType | None = None) -> Layout | None:
    """Parse `{1,0:T(8,128)}`; return None for the default layout, also if it has the natural sub-byte element size."""
    start = s.pos
    s.expect("{")
    order: list[int] = []
    while not s.peek("}") and not s.peek(":"):
        if order:
            s.expect(",", "or '}' in a layout")
        order.append(s.integer("a dimension number"))
    suffix = ""
    if s.accept(":"):
        s.skip()
        m = _SUFFIX.match(s.text, s.pos)
        suffix = "" if m is None else m.group().strip()
        if _KNOWN_SUFFIX.fullmatch(suffix) is None:
            known = _KNOWN_SUFFIX.match(suffix)
            rest = suffix[known.end() if known is not None else 0 :]
            s.fail(f"a layout takes D, T, L, #, *, E, S, SC and M, in that order, not '{rest}'")
        s.pos += 0 if m is None else m.end() - m.start()
    s.expect("}", "at the end of a layout")
    if rank is not None and sorted(order) != list(range(rank)) and (order or not suffix):
        s.fail(f"layout is not a permutation of the {rank} dimensions", start)
    if element_type is not None and element_type.bits < 8 and suffix == f"E({element_type.bits})":
        suffix = ""
    layout = Layout(tuple(order), suffix)
    if layout == default_layout(len(order)):
        return None
    return layout


def with_moved_layout(shape: Shape, operand: Shape, dimensions: tuple[int, ...]) -> Shape:
    """Return the shape of a transpose with the layout that makes it a bitcast of the operand."""
    order = operand.layout.minor_to_major if operand.layout is not None else tuple(reversed(range(operand.rank)))
    layout = Layout(tuple(dimensions.index(d) for d in order))
    return replace(shape, layout=None if layout == default_layout(shape.rank) else layout)
