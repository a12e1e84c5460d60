"""Prints modules as HLO text."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.ir.attributes import ATTRIBUTE_KINDS, AttrKind, ConvDimLabels, PadDim, Raw, SliceDim, Window
from compiler.ir.computation import NOTABLE
from compiler.ir.header import Aliases
from compiler.ir.literal import Literal
from compiler.ir.nan_bits import nan_text
from compiler.ir.opcodes import Opcode
from compiler.ir.quoting import quote as quote
from compiler.ir.quoting import unquote

if TYPE_CHECKING:
    from compiler.ir.computation import HloComputation
    from compiler.ir.instruction import HloInstruction
    from compiler.ir.module import HloModule


@dataclass(frozen=True, slots=True)
class PrintOptions:
    """What the printer includes.

    Attributes:
        metadata: print metadata={...} and the tables it refers to.
        layouts: print the layouts of array shapes.
        max_constant_elements: print larger constants as `{...}`; None prints all, so that the text can be parsed again.
        canonical_names: renumber instructions and computations, so that equal programs have equal text.
    """

    metadata: bool = True
    layouts: bool = True
    max_constant_elements: int | None = None
    canonical_names: bool = False

    @staticmethod
    def canonical() -> PrintOptions:
        """Return the options for the text that fingerprints are computed from."""
        return PrintOptions(metadata=False, layouts=True, canonical_names=True)


_CARRIED = frozenset(
    {"metadata", "frontend_attributes", "statistics", "origin", "sharding", "parameter_replication", "result_accuracy"}
)
"""Attributes without effect on what an instruction computes on one device; omitted from canonical text."""
_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "is_stable": (False,),
    "indices_are_sorted": (False,),
    "unique_indices": (False,),
    "constrain_layout": (False,),
    "use_global_device_ids": (False,),
    "custom_call_has_side_effect": (False,),
    "is_host_transfer": (False,),
    "is_reverse": (False,),
    "is_associative": (False,),
    "is_composite": (False,),
    "feature_group_count": (1,),
    "batch_group_count": (1,),
    "replica_groups": (Raw("{}"),),
    "operand_precision": (Raw("{default,default}"),),
    "output_to_operand_aliasing": (Aliases(),),
    "control-predecessors": ((),),
    "called_computations": ((),),
    "window": (Window(),),
    "type": ("FLOAT", "SIGNED", "UNSIGNED"),
    "dimensions": ((),),
    "lhs_contracting_dims": ((),),
    "rhs_contracting_dims": ((),),
    "lhs_batch_dims": ((),),
    "rhs_batch_dims": ((),),
    "operand_batching_dims": ((),),
    "start_indices_batching_dims": ((),),
    "input_batching_dims": ((),),
    "scatter_indices_batching_dims": ((),),
    "algorithm": ("unset",),
    "async_execution_thread": ("main",),
    "schedule": ("SCHEDULE_NONE",),
    "api_version": ("API_VERSION_ORIGINAL",),
    "infeed_config": ("",),
    "outfeed_config": ("",),
    "backend_config": (Raw("{}"), Raw('""')),
}
"""Values equivalent to omitting the attribute."""
_SPACES = re.compile(r'("(?:[^"\\]|\\.)*")|\s+')


class _Names:
    """Names of instructions and computations, their own or canonical numbers, and a cache of printed shapes."""

    def __init__(self, canonical: bool) -> None:
        self.canonical = canonical
        self.numbers: dict[Any, str] = {}
        self._shapes: dict[int, str] = {}

    def of(self, thing: HloInstruction | HloComputation, prefix: str) -> str:
        if not self.canonical:
            return thing.name
        found = self.numbers.get(thing)
        if found is None:
            found = self.numbers[thing] = f"{prefix}{len(self.numbers)}"
        return found

    def shape_of(self, i: HloInstruction, layouts: bool) -> str:
        key = id(i.shape)  # unique while the instruction lives; shared by many instructions
        found = self._shapes.get(key)
        if found is None:
            found = self._shapes[key] = i.shape.to_text(layouts)
        return found


def print_module(module: HloModule, options: PrintOptions) -> str:
    """Return the text of a module, callees before callers and the entry last."""
    names = _Names(options.canonical_names)
    orders: dict[HloComputation, list[HloInstruction]] = {}
    if options.canonical_names:
        orders = canonical_computations(module.entry)
        computations, header = list(orders), "HloModule m"
    else:
        reachable = module.post_order()
        live = set(reachable)
        # Unreachable computations come first, followed by what only the entry reaches.
        others = module.post_order([c for c in module.computations if c not in live])
        first = set(others)
        computations = others + [c for c in reachable if c not in first]
        header = f"HloModule {module.name}"
        header += "".join(f", {k}={v}" for k, v in module.header.items())
    parts = [header, ""]
    if options.metadata and module.tables:
        parts += [*module.tables, ""]
    for c in computations:
        parts += [print_computation(c, options, names, c is module.entry, orders.get(c)), ""]
    return "\n".join(parts)


def print_computation(
    computation: HloComputation,
    options: PrintOptions,
    names: _Names | None = None,
    entry: bool = False,
    order: Sequence[HloInstruction] | None = None,
) -> str:
    """Return the text of a computation; `order` is its `canonical_order`, if already known."""
    names = names or _Names(options.canonical_names)
    if order is None:
        order = canonical_order(computation) if options.canonical_names else computation.post_order()
    params = ", ".join(f"{names.of(p, 'v')}: {names.shape_of(p, options.layouts)}" for p in computation.parameters)
    result = names.shape_of(computation.root, options.layouts)
    head = f"{'ENTRY ' if entry else ''}%{names.of(computation, 'c')} ({params}) -> {result} {{"
    lines = [head]
    if options.canonical_names and options.layouts:
        lines += _canonical_lines(order, computation.root, options, names)
    else:
        lines += ["  " + print_instruction(i, options, names) for i in order]
    tail = "" if options.canonical_names else "".join(f', {k}="{v}"' for k, v in computation.attributes.items())
    return "\n".join([*lines, "}" + tail])


def canonical_order(computation: HloComputation) -> list[HloInstruction]:
    """Return an order that depends on the graph only: parameters, then what the root needs depth first, then the rest.

    Insertion order does not matter for what the root reaches, so programs that differ in it get the same fingerprint.
    """
    order: dict[HloInstruction, None] = dict.fromkeys(computation.parameters)
    ends = (i for i in computation.instructions if not i.users)
    edges = computation.may_have_control_edges
    for start in (computation.root, *ends, *computation.instructions):
        if start in order:
            continue
        stack = [(start, iter(_needs(start) if edges else start.operands))]
        path = {start}
        while stack:
            node, pending = stack[-1]
            for following in pending:
                if following in order or following in path:
                    continue
                needs = _needs(following) if edges else following.operands
                for need in needs:
                    if need not in order:
                        break
                else:  # most have been visited after their operands
                    order[following] = None
                    continue
                path.add(following)
                stack.append((following, iter(needs)))
                break
            else:
                stack.pop()
                order[node] = None
    return list(order)


def _needs(i: HloInstruction) -> tuple[HloInstruction, ...]:
    return (*i.operands, *i.control_predecessors)


def canonical_computations(entry: HloComputation) -> dict[HloComputation, list[HloInstruction]]:
    """Return the computations reachable from the entry, callees first in order of the calls, with canonical orders."""
    done: dict[HloComputation, list[HloInstruction]] = {}
    orders = {entry: canonical_order(entry)}
    stack = [(entry, _callees(orders[entry]))]
    while stack:
        node, pending = stack[-1]
        following = next((c for c in pending if c not in orders), None)
        if following is None:
            stack.pop()
            done[node] = orders[node]
            continue
        orders[following] = canonical_order(following)
        stack.append((following, _callees(orders[following])))
    return done


def canonical_key(module: HloModule) -> str:
    """Return a hash that is equal for modules with the same canonical text; see `HloModule.canonical_key`."""
    numbers: dict[HloComputation, int] = {}
    found = hashlib.sha256()
    met = {module.entry}
    stack = [(module.entry, _calls(module.entry))]
    while stack:
        node, calls = stack[-1]
        following = next((c for c in calls if c not in met), None)
        if following is not None:
            met.add(following)
            stack.append((following, _calls(following)))
            continue
        stack.pop()
        numbers[node] = len(numbers)
        found.update(_canonical_part(node)[0])
        found.update(f"{[numbers[c] for c in calls]}".encode())
    return found.hexdigest()


def _calls(computation: HloComputation) -> list[HloComputation]:
    """Return the computations that another one calls, in canonical order of the calls."""
    callers = map(computation.find, _canonical_part(computation)[1])
    return [c for i in callers if i is not None for c in i.called_computations()]


def _canonical_part(computation: HloComputation) -> tuple[bytes, tuple[str, ...]]:
    """Return a hash of a computation, and the names of its instructions that call others, in canonical order.

    The hash is equal for computations that differ in nothing but names and what they call.
    """
    part: tuple[bytes, tuple[str, ...]] | None = computation.facts.get(_PART)
    if part is None:
        order = canonical_order(computation)
        numbers = {i: n for n, i in enumerate(order)}
        number = numbers.__getitem__
        lines = [f"{numbers[computation.root]}"]
        for i in order:
            lines.append(f"{i.described or _describe(i)}{list(map(number, i.operands))}")
            if i.attributes and (before := i.control_predecessors):
                lines.append(f"after {sorted(map(number, before))}")
        digest = hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).digest()
        callers = tuple([i.name for i in order if i.opcode in NOTABLE and i.called_computations()])
        part = computation.facts[_PART] = digest, callers
    return part


_PART = "canonical part"
_MOST_ELEMENTS = 64
"""Number of elements up to which the text of a constant is kept."""


def _describe(i: HloInstruction) -> str:
    """Return the canonical text of an instruction without names, operands and control predecessors.

    The instruction keeps it, unless it is long or depends on more than the instruction.
    """
    names = _Names(True)  # callees are numbered for each instruction
    own = i.opcode in (Opcode.PARAMETER, Opcode.CONSTANT)
    value = _operand_text(i, PrintOptions.canonical(), names) if own else ""
    attributes = _canonical_attributes(i, names, without=_PREDECESSORS) if i.attributes else ()
    text = f"{i.shape.to_text()} {i.opcode.text}({value}){''.join(attributes)}"
    if i.opcode not in NOTABLE and (i.opcode is not Opcode.CONSTANT or i.shape.num_elements <= _MOST_ELEMENTS):
        i.described = text
    return text


_PREDECESSORS = "control-predecessors"


def _callees(order: Iterable[HloInstruction]) -> Iterator[HloComputation]:
    return (c for i in order if i.attributes for c in i.called_computations())


def print_instruction(instruction: HloInstruction, options: PrintOptions, names: _Names | None = None) -> str:
    """Return the text of an instruction: one line, without indentation."""
    i = instruction
    names = names or _Names(options.canonical_names)
    root = "ROOT " if i.is_root else ""
    operands = _operand_text(i, options, names)
    text = f"{root}%{names.of(i, 'v')} = {names.shape_of(i, options.layouts)} {i.opcode.text}({operands})"
    if not i.attributes:
        return text
    if options.canonical_names:
        return text + "".join(_canonical_attributes(i, names))
    for name, value in i.attributes.items():
        if name == "metadata" and not options.metadata:
            continue
        text += f", {name}={_attribute_text(name, value, names)}"
    return text


def _canonical_lines(
    order: Sequence[HloInstruction], root: HloInstruction, options: PrintOptions, names: _Names
) -> list[str]:
    """Return the canonical text of instructions as `print_instruction` does: fingerprints are taken very often."""
    lines: list[str] = []
    known = names.numbers
    for i in order:
        operands = i.operands
        try:
            if len(operands) == 1:
                read = f"%{known[operands[0]]}"
            elif len(operands) == 2:
                read = f"%{known[operands[0]]}, %{known[operands[1]]}"
            elif operands and len(operands) <= 5:
                read = "%" + ", %".join([known[o] for o in operands])
            else:
                read = _operand_text(i, options, names)
        except KeyError:  # an operand without a name yet
            read = _operand_text(i, options, names)
        own = known.get(i)
        if own is None:
            own = known[i] = f"v{len(known)}"
        line = f"{'  ROOT %' if i is root else '  %'}{own} = {i.shape.to_text()} {i.opcode.text}({read})"
        lines.append(line + "".join(_canonical_attributes(i, names)) if i.attributes else line)
    return lines


def _canonical_attributes(i: HloInstruction, names: _Names, without: str = "") -> list[str]:
    attributes = i.attributes
    printed = [name for name in attributes if name not in _CARRIED and name != without]
    if not printed:
        return []
    if len(printed) == 1:  # the most frequent cases
        (name,) = printed
        if name == "dimensions" and i.opcode is not Opcode.MAP and attributes[name]:
            return [f", dimensions={{{','.join(map(str, attributes[name]))}}}"]
        if name == "index":
            return [f", index={attributes[name]}"]
    found = []
    if i.opcode is Opcode.CUSTOM_CALL and "to_apply" in attributes:
        attributes = {**attributes, "called_computations": (attributes["to_apply"],)}
        del attributes["to_apply"]
    for name, value in sorted(attributes.items()):
        if name in _CARRIED or name == without or (name, i.opcode) == ("dimensions", Opcode.MAP):
            continue
        if name in _DEFAULTS and value in _DEFAULTS[name] and name not in i.opcode.row.required:
            continue
        if name == "control-predecessors":
            value = tuple(sorted(value, key=lambda v: names.of(v, "v")))
        if name == "outfeed_shape" and value == i.operands[0].shape:
            continue
        text = _attribute_text(name, value, names)
        if name == "backend_config":
            # XLA prints the same config with or without quotes.
            text = unquote(text)
            if "".join(text.split()) == "{}":
                continue
        if isinstance(value, Raw):
            text = _SPACES.sub(lambda m: m.group(1) or "", text)
        found.append(f", {name}={text}")
    return found


def _operand_text(i: HloInstruction, options: PrintOptions, names: _Names) -> str:
    if i.opcode is Opcode.PARAMETER:
        return str(i.parameter_number)
    if i.opcode is Opcode.CONSTANT:
        return print_literal(i.value, options.max_constant_elements)
    count = len(i.operands)
    if count == 0:
        return ""
    if count == 1:
        return "%" + names.of(i.operands[0], "v")
    if count <= 5:
        return ", ".join(["%" + names.of(o, "v") for o in i.operands])
    parts = [(f"/*index={n}*/" if n and n % 5 == 0 else "") + "%" + names.of(o, "v") for n, o in enumerate(i.operands)]
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
    if kind is AttrKind.SHAPE:
        return str(value.to_text())
    if kind is AttrKind.LITERAL:
        return typed_literal(value)
    if kind is AttrKind.SLICE:
        return slice_text(value)
    if kind is AttrKind.WINDOW:
        return window_text(value)
    if kind is AttrKind.PADDING:
        return padding_text(value)
    if isinstance(value, ConvDimLabels | int | float | str):
        return float_text(value) if isinstance(value, float) else str(value)
    return str(value)


def typed_literal(literal: Literal) -> str:
    """Print a literal with its shape in front of each array."""
    if literal.array is None:
        return "(" + ", ".join(map(typed_literal, literal.elements)) + ")"
    return f"{literal.shape.to_text()} {print_literal(literal)}"


def slice_text(dims: tuple[SliceDim, ...]) -> str:
    """Print slice dimensions: `{[0:4], [1:8:2]}`."""
    parts = [f"[{d.start}:{d.limit}" + (f":{d.stride}" if d.stride != 1 else "") + "]" for d in dims]
    return "{" + ", ".join(parts) + "}"


def padding_text(dims: tuple[PadDim, ...]) -> str:
    """Print a padding config: `0_1x2_2_1`."""
    return "x".join(f"{d.low}_{d.high}" + (f"_{d.interior}" if d.interior else "") for d in dims)


def window_text(window: Window) -> str:
    """Print a window: `{size=3x3 stride=2x2 pad=1_1x1_1 ...}`, without fields that have their default."""
    dims = window.dims
    fields: list[tuple[str, list[str], str | None]] = [("size", [str(d.size) for d in dims], None)] if dims else []
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
    """Return the shortest text that parses as the same float of the same type."""
    if value != value:
        return nan_text(value)
    if value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    text = str(value)
    # XLA's parser reads -0 as an integer, and loses the sign of zero.
    return "-0.0" if text in ("-0", "-0.0") else text.removesuffix(".0")


def element_text(value: Any) -> str:
    """Print one element of a literal (a numpy scalar)."""
    if isinstance(value, np.bool_ | bool):
        return "true" if value else "false"
    if isinstance(value, np.complexfloating):
        return f"({float_text(value.real)}, {float_text(value.imag)})"
    if isinstance(value, int | np.integer):
        return str(int(value))
    return float_text(value)


def print_literal(literal: Literal, max_elements: int | None = None) -> str:
    """Print nested braces for an array, parentheses for a tuple, `{...}` for an array of over `max_elements`."""
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
