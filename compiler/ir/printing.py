"""How a module is spelled as HLO text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.ir.attributes import ATTRIBUTE_KINDS, AttrKind, ConvDimLabels, PadDim, Raw, SliceDim, Window
from compiler.ir.literal import Literal
from compiler.ir.opcodes import Opcode

if TYPE_CHECKING:
    from compiler.ir.computation import HloComputation
    from compiler.ir.instruction import HloInstruction
    from compiler.ir.module import HloModule


@dataclass(frozen=True, slots=True)
class PrintOptions:
    """What to show.

    Attributes:
        metadata: print metadata={...} and the tables it refers to.
        layouts: print layouts of array shapes.
        max_constant_elements: larger constants become `{...}`; None prints all (needed to read the text back).
        canonical_names: instructions and computations are renumbered, so that equal programs print equal.
    """

    metadata: bool = True
    layouts: bool = True
    max_constant_elements: int | None = None
    canonical_names: bool = False

    @staticmethod
    def canonical() -> PrintOptions:
        """The text that fingerprints are made of."""
        return PrintOptions(metadata=False, layouts=True, canonical_names=True)


_HIDDEN_IN_CANONICAL = frozenset({"metadata", "frontend_attributes", "statistics", "origin"})


class _Names:
    """Names of instructions and computations: their own, or canonical numbers."""

    def __init__(self, canonical: bool) -> None:
        self.canonical = canonical
        self._numbers: dict[Any, str] = {}

    def of(self, thing: HloInstruction | HloComputation, prefix: str) -> str:
        if not self.canonical:
            return thing.name
        found = self._numbers.get(thing)
        if found is None:
            found = self._numbers[thing] = f"{prefix}{len(self._numbers)}"
        return found


def print_module(module: HloModule, options: PrintOptions) -> str:
    names = _Names(options.canonical_names)
    reachable = module.post_order()
    if options.canonical_names:
        computations, header = reachable, "HloModule m"
    else:
        live = set(reachable)
        others = module.post_order([c for c in module.computations if c not in live])
        computations = [c for c in others if c not in live] + reachable
        header = f"HloModule {module.name}"
        header += "".join(f", {k}={v}" for k, v in module.header.items())
    parts = [header, ""]
    if options.metadata and module.tables:
        parts += [*module.tables, ""]
    for c in computations:
        parts += [print_computation(c, options, names, entry=c is module.entry), ""]
    return "\n".join(parts)


def print_computation(
    computation: HloComputation, options: PrintOptions, names: _Names | None = None, entry: bool = False
) -> str:
    """One computation with its body."""
    names = names or _Names(options.canonical_names)
    params = ", ".join(
        f"{names.of(p, 'v')}: {p.shape.to_text(options.layouts)}" for p in computation.parameters
    )
    result = computation.root.shape.to_text(options.layouts)
    head = f"{'ENTRY ' if entry else ''}%{names.of(computation, 'c')} ({params}) -> {result} {{"
    lines = [head]
    lines += ["  " + print_instruction(i, options, names) for i in computation.post_order()]
    tail = "".join(f', {k}="{v}"' for k, v in computation.attributes.items())
    return "\n".join([*lines, "}" + tail])


def print_instruction(instruction: HloInstruction, options: PrintOptions, names: _Names | None = None) -> str:
    """One line, without indentation."""
    i = instruction
    names = names or _Names(options.canonical_names)
    root = "ROOT " if i.is_root else ""
    operands = _operand_text(i, options, names)
    text = f"{root}%{names.of(i, 'v')} = {i.shape.to_text(options.layouts)} {i.opcode.text}({operands})"
    for name, value in i.attributes.items():
        if name == "metadata" and not options.metadata:
            continue
        if options.canonical_names and name in _HIDDEN_IN_CANONICAL:
            continue
        text += f", {name}={_attribute_text(name, value, names)}"
    return text


def _operand_text(i: HloInstruction, options: PrintOptions, names: _Names) -> str:
    if i.opcode is Opcode.PARAMETER:
        return str(i.parameter_number)
    if i.opcode is Opcode.CONSTANT:
        return print_literal(i.value, options.max_constant_elements)
    parts = [
        (f"/*index={n}*/" if n and n % 5 == 0 else "") + "%" + names.of(o, "v") for n, o in enumerate(i.operands)
    ]
    return ", ".join(parts)


def _attribute_text(name: str, value: Any, names: _Names) -> str:
    kind = ATTRIBUTE_KINDS.get(name, AttrKind.RAW)
    if isinstance(value, Raw):
        return value.text
    if kind is AttrKind.INTS:
        return "{" + ",".join(map(str, value)) + "}"
    if kind is AttrKind.BOOL:
        return "true" if value else "false"
    if kind is AttrKind.STRING:
        return quote(value)
    if kind is AttrKind.COMPUTATION:
        return "%" + names.of(value, "c")
    if kind is AttrKind.COMPUTATIONS:
        return "{" + ", ".join("%" + names.of(c, "c") for c in value) + "}"
    if kind is AttrKind.INSTRUCTIONS:
        return "{" + ", ".join("%" + names.of(v, "v") for v in value) + "}"
    if kind is AttrKind.SLICE:
        return slice_text(value)
    if kind is AttrKind.WINDOW:
        return window_text(value)
    if kind is AttrKind.PADDING:
        return padding_text(value)
    if isinstance(value, ConvDimLabels | int | float | str):
        return float_text(value) if isinstance(value, float) else str(value)
    return str(value)


def quote(text: str) -> str:
    """A string in double quotes with C escapes."""
    out = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
    return f'"{out}"'


def slice_text(dims: tuple[SliceDim, ...]) -> str:
    parts = [f"[{d.start}:{d.limit}" + (f":{d.stride}" if d.stride != 1 else "") + "]" for d in dims]
    return "{" + ", ".join(parts) + "}"


def padding_text(dims: tuple[PadDim, ...]) -> str:
    return "x".join(f"{d.low}_{d.high}" + (f"_{d.interior}" if d.interior else "") for d in dims)


def window_text(window: Window) -> str:
    """`{size=3x3 stride=2x2 pad=1_1x1_1 ...}`, fields at their default left out."""
    dims = window.dims
    fields = [("size", [str(d.size) for d in dims], None)] if dims else []
    fields += [
        ("stride", [str(d.stride) for d in dims], "1"),
        ("pad", [f"{d.pad_low}_{d.pad_high}" for d in dims], "0_0"),
        ("lhs_dilate", [str(d.lhs_dilate) for d in dims], "1"),
        ("rhs_dilate", [str(d.rhs_dilate) for d in dims], "1"),
        ("rhs_reversal", [str(int(d.reversal)) for d in dims], "0"),
    ]
    shown = [f"{n}={'x'.join(v)}" for n, v, default in fields if any(x != default for x in v)]
    return "{" + " ".join(shown) + "}"


def float_text(value: Any) -> str:
    """Shortest text that reads back as the same float of its own type."""
    if value != value:
        return "nan"
    if value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    text = str(value)
    return text[:-2] if text.endswith(".0") else text


def element_text(value: Any) -> str:
    """One element of a literal (a numpy scalar)."""
    if isinstance(value, np.bool_ | bool):
        return "true" if value else "false"
    if isinstance(value, np.complexfloating):
        return f"({float_text(value.real)}, {float_text(value.imag)})"
    if isinstance(value, int | np.integer):
        return str(int(value))
    return float_text(value)


def print_literal(literal: Literal, max_elements: int | None = None) -> str:
    """Nested braces; a tuple in parentheses; `{...}` for an array past `max_elements`."""
    if literal.array is None:
        return "(" + ", ".join(print_literal(e, max_elements) for e in literal.elements) + ")"
    a = literal.array
    if max_elements is not None and a.size > max_elements:
        return "{...}"
    if literal.shape.element_type.is_integer:
        a = a.astype(np.int64 if literal.shape.element_type.is_signed else np.uint64)
    if a.ndim == 0:
        return element_text(a[()])
    return _nested(a)


def _nested(a: np.ndarray[Any, Any]) -> str:
    if a.ndim == 1:
        return "{" + ", ".join([element_text(x) for x in a]) + "}"
    return "{ " + ", ".join(_nested(x) for x in a) + " }"
