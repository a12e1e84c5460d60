"""Parsers of attribute values, by kind."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from compiler.ir.attributes import PRECISIONS, AttrKind, ConvDimLabels, PadDim, Raw, SliceDim, Window, WindowDim
from compiler.ir.literal import Literal
from compiler.text.header import parse_aliases
from compiler.text.literals import parse_literal
from compiler.text.raw import parse_raw
from compiler.text.scanner import MAX_DEPTH, Scanner
from compiler.text.shapes import parse_shape

_FLOAT = re.compile(r"[+-]?(?:inf|nan|\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)")
_DIM_LABELS = re.compile(r"([0-9bf?]+)_([0-9io?]+)->([0-9bf?]+)")
_PLAIN_INTS = re.compile(r"\{((?:-?\d{1,18}(?:,\s*-?\d{1,18})*)?)\}")
_NESTED_INTS = re.compile(r"\{\s*\{")
_PADDING = re.compile(r"-?\d+_-?\d+(?:_-?\d+)?(?:x-?\d+_-?\d+(?:_-?\d+)?)*")
_WINDOW_VALUE = re.compile(r"-?\d+(?:_-?\d+)?(?:x-?\d+(?:_-?\d+)?)*")
_GROUPS = re.compile(r"[{\[]|(?:maximal_)?mesh\b")
_SPACES = re.compile(r"\s+")


def _ints(s: Scanner) -> tuple[int, ...] | Raw:
    m = s.match(_PLAIN_INTS)
    if m is not None:
        return tuple(map(int, m.group(1).split(","))) if m.group(1) else ()
    if _NESTED_INTS.match(s.text, s.pos):
        # Combined collective permutes have one list of sizes per operand.
        return Raw(_SPACES.sub("", s.balanced()))
    out: list[int] = []
    if not s.accept("{"):
        return (s.integer("a list of integers in braces"),)
    while not s.accept("}"):
        if out:
            s.expect(",", "or '}' in a list of integers")
        out.append(s.integer())
    return tuple(out)


def _bool(s: Scanner) -> bool:
    value = s.keyword("true") or s.keyword("1")
    if not value and not (s.keyword("false") or s.keyword("0")):
        s.fail(f"expected true or false, found {s.next_token()}")
    return value


def _float(s: Scanner) -> float:
    m = s.match(_FLOAT)
    if m is None:
        s.fail(f"expected a number, found {s.next_token()}")
    return float(m.group())


def _slice(s: Scanner) -> tuple[SliceDim, ...]:
    out: list[SliceDim] = []
    s.expect("{", "at the start of a slice")
    while not s.accept("}"):
        if out:
            s.expect(",", "or '}' in a slice")
        s.expect("[", "at the start of a slice dimension")
        start = s.integer()
        s.expect(":", "in a slice dimension")
        limit = s.integer()
        stride = s.integer() if s.accept(":") else 1
        s.expect("]", "at the end of a slice dimension")
        if stride <= 0:
            s.fail(f"slice stride must be positive, is {stride}")
        out.append(SliceDim(start, limit, stride))
    return tuple(out)


def _padding(s: Scanner) -> tuple[PadDim, ...]:
    m = s.match(_PADDING)
    if m is None:
        # The padding of a scalar operand is empty.
        return ()
    return tuple(PadDim(*map(int, d.split("_"))) for d in m.group().split("x"))


_ONE_BY_DEFAULT = ("size", "stride", "lhs_dilate", "rhs_dilate")


def _window(s: Scanner) -> Window:
    s.expect("{", "at the start of a window")
    fields: dict[str, list[list[int]]] = {}
    while not s.accept("}"):
        at = s.pos
        name = s.name("a window field")
        s.expect("=", "after a window field's name")
        m = s.match(_WINDOW_VALUE)
        if m is None:
            s.fail(f"expected the value of window field '{name}', found {s.next_token()}")
        if name not in ("size", "stride", "pad", "lhs_dilate", "rhs_dilate", "rhs_reversal"):
            s.fail(f"unknown window field '{name}'", at)
        fields[name] = [[int(v) for v in d.split("_")] for d in m.group().split("x")]
    rank = len(fields["size"]) if "size" in fields else max((len(v) for v in fields.values()), default=0)
    if any(len(v) not in (rank, 1) for v in fields.values()):
        s.fail("window fields differ in their number of dimensions")
    for name, values in fields.items():
        if len(values) != rank:
            fields[name] = values + [[0, 0] if name == "pad" else [int(name in _ONE_BY_DEFAULT)]] * (rank - len(values))

    def at_dim(name: str, i: int, default: int) -> int:
        return fields[name][i][0] if name in fields else default

    dims = []
    for i in range(rank):
        pad = fields["pad"][i] if "pad" in fields else [0, 0]
        if len(pad) != 2:
            s.fail("window pad takes low_high for each dimension")
        dims.append(
            WindowDim(
                at_dim("size", i, 1), at_dim("stride", i, 1), pad[0], pad[1],
                at_dim("lhs_dilate", i, 1), at_dim("rhs_dilate", i, 1), bool(at_dim("rhs_reversal", i, 0)),
            )
        )  # fmt: skip
    return Window(tuple(dims))


def _dim_labels(s: Scanner) -> ConvDimLabels:
    m = s.match(_DIM_LABELS)
    if m is None:
        s.fail(f"expected dim_labels like bf01_oi01->bf01, found {s.next_token()}")
    labels = ConvDimLabels(*[text.rstrip("?") for text in m.groups()])
    if "?" not in m.group() and not len(labels.lhs) == len(labels.rhs) == len(labels.out) >= 2:
        s.fail("input, kernel and output must have the same number of dimensions", m.start())
    for text, letters in ((labels.lhs, "bf"), (labels.rhs, "io"), (labels.out, "bf")):
        spatial = [c for c in text if c not in "bfio?"]
        if sorted(c for c in text if c.isalpha()) != list(letters) and "?" not in text:
            s.fail(f"'{text}' must name each of {letters[0]} and {letters[1]} once", m.start())
        if len(set(spatial)) != len(spatial) or any(int(c) >= len(text) - 2 for c in spatial):
            s.fail(f"'{text}' must number its spatial dimensions from 0, each once", m.start())
    if len({sum(c.isdigit() for c in text) for text in (labels.lhs, labels.rhs, labels.out)}) > 1:
        s.fail("input, kernel and output must have the same number of spatial dimensions", m.start())
    return labels


def _groups(s: Scanner) -> Raw:
    s.skip()
    if _GROUPS.match(s.text, s.pos) is None:
        s.fail(f"expected groups of devices like {{{{0,1}},{{2,3}}}}, [2,2]<=[4] or mesh[...], found {s.next_token()}")
    raw = parse_raw(s)
    return Raw(_SPACES.sub("", raw.text)) if raw.text.startswith("{") else raw


def _layouts(s: Scanner) -> Raw:
    """Parse shapes in braces and print them with explicit layouts."""
    shapes: list[str] = []
    s.expect("{", "at the start of the operands' layouts")
    while not s.accept("}"):
        if shapes:
            s.expect(",", "or '}' after a shape")
        shapes.append(parse_shape(s).to_text())
    return Raw("{" + ", ".join(shapes) + "}")


def _precision(s: Scanner) -> Raw:
    """Parse precisions, one per operand, in any case: `{high,default}`."""
    found: list[str] = []
    s.expect("{", "at the start of the operands' precisions")
    while not s.accept("}"):
        if found:
            s.expect(",", "or '}' after a precision")
        s.skip()
        at = s.pos
        name = s.name("a precision")
        if name.lower() not in PRECISIONS:
            s.fail(f"unknown precision '{name}', expected one of {', '.join(PRECISIONS)}", at)
        found.append(name.lower())
    return Raw("{" + ",".join(found) + "}")


def _literal(s: Scanner, depth: int = 0) -> Literal:
    """Parse a literal with its shape, `s32[2] {1, 2}`, or a tuple of them in parentheses."""
    if depth > MAX_DEPTH:
        s.fail(f"literal nested deeper than {MAX_DEPTH}")
    if not s.accept("("):
        return parse_literal(s, parse_shape(s))
    parts: list[Literal] = []
    while not s.accept(")"):
        if parts:
            s.expect(",", "or ')' in a tuple literal")
        parts.append(_literal(s, depth + 1))
    return Literal.from_tuple(tuple(parts))


PARSERS: dict[AttrKind, Callable[[Scanner], Any]] = {
    AttrKind.INTS: _ints,
    AttrKind.INT: lambda s: s.integer(),
    AttrKind.FLOAT: _float,
    AttrKind.BOOL: _bool,
    AttrKind.NAME: lambda s: s.name(),
    AttrKind.GROUPS: _groups,
    AttrKind.PRECISION: _precision,
    AttrKind.LAYOUTS: _layouts,
    AttrKind.ALIASES: parse_aliases,
    AttrKind.SHAPE: parse_shape,
    AttrKind.LITERAL: _literal,
    AttrKind.STRING: lambda s: s.string(),
    AttrKind.CONFIG: parse_raw,
    AttrKind.RAW: parse_raw,
    AttrKind.SLICE: _slice,
    AttrKind.WINDOW: _window,
    AttrKind.DIM_LABELS: _dim_labels,
    AttrKind.PADDING: _padding,
}
