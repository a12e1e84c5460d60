"""Sites of expansions and loops in numbers with units, for models that can be read.

A row describes the site and one of its choices. Values keep their units (elements, instructions, iterations) because
trees, which learn on them, do not depend on the scale and print their conditions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from compiler.analysis.flops import instruction_flops
from compiler.expansions import ExpansionSite
from compiler.ir import HloInstruction, HloModule, Opcode, Trait
from compiler.ir.attributes import Window
from compiler.loops import FULL, KEEP, KERNEL, LoopSite, find_loop, unroll_factor_of

__all__ = [
    "CHOICE_COLUMNS",
    "EXPANSION_FEATURES",
    "FEATURE_VERSION",
    "LOOP_FEATURES",
    "MOST_READ",
    "OP_COLUMNS",
    "UNROLLED_COLUMN",
    "Feature",
    "default_loop",
    "expansion_rows",
    "loop_rows",
]

FEATURE_VERSION = 1
"""Changes with the meaning of any feature here; models learned on another version are refused."""
MOST_READ = 4000
"""Largest body of a loop, in instructions, that is described: reading it must take less than a millisecond or so."""


@dataclass(frozen=True)
class Feature:
    """One number of a row.

    Attributes:
        name: what it is.
        unit: what it counts; empty for yes or no.
    """

    name: str
    unit: str = ""


_OPS = (Opcode.DOT, Opcode.CONVOLUTION, Opcode.SCATTER, Opcode.REDUCE_WINDOW, Opcode.TOPK)
_WAYS = ("keep", "slices", "prefix-sums", "product", "patches", "loop", "ranks", "sort", "loops")

EXPANSION_FEATURES: tuple[Feature, ...] = (
    *(Feature(f"op is {op.text}") for op in _OPS),
    Feature("result", "elements"),
    Feature("first operand", "elements"),
    Feature("second operand", "elements"),
    Feature("work", "flops"),
    Feature("work per result", "flops"),
    Feature("rows", "elements"),
    Feature("columns", "elements"),
    Feature("contraction", "elements"),
    Feature("batch", "elements"),
    Feature("window", "elements"),
    Feature("rank of result", "dimensions"),
    Feature("innermost dimension of result", "elements"),
    Feature("innermost dimension of first operand", "elements"),
    Feature("element", "bits"),
    Feature("elementwise operands", "ops"),
    Feature("elementwise users", "ops"),
    Feature("inside a loop or branch"),
    *(Feature(f"choice is {way}") for way in _WAYS),
    *(Feature(f"default is {way}") for way in _WAYS),
)
"""The entries of a row of `expansion_rows`."""

LOOP_FEATURES: tuple[Feature, ...] = (
    Feature("trip count", "iterations"),
    Feature("trip count is known"),
    Feature("body", "instructions"),
    Feature("carried arrays", "arrays"),
    Feature("carried data", "bytes"),
    Feature("largest carried array", "elements"),
    Feature("largest result in the body", "elements"),
    Feature("work per iteration", "flops"),
    Feature("elementwise ops", "ops"),
    Feature("expensive ops", "ops"),
    Feature("reductions", "ops"),
    Feature("products and convolutions", "ops"),
    Feature("slices and updates at run-time positions", "ops"),
    Feature("gathers and scatters", "ops"),
    Feature("sorts", "ops"),
    Feature("inner loops and branches", "ops"),
    Feature("kernel is possible"),
    Feature("choice is keep"),
    Feature("choice is kernel"),
    Feature("choice is full"),
    Feature("copies of the body", "copies"),
    Feature("body after unrolling", "instructions"),
)
"""The entries of a row of `loop_rows`."""

CHOICE_COLUMNS: Mapping[str, frozenset[int]] = {
    "expansions": frozenset(n for n, f in enumerate(EXPANSION_FEATURES) if f.name.startswith("choice is ")),
    "loops": frozenset(range(len(LOOP_FEATURES) - 5, len(LOOP_FEATURES))),
}
"""By phase the entries that describe the choice; the others describe the site."""
OP_COLUMNS: Mapping[str, tuple[int, ...]] = {"expansions": tuple(range(len(_OPS))), "loops": ()}
"""By phase the entries that say which op a site has."""
UNROLLED_COLUMN = len(LOOP_FEATURES) - 1
"""The feature of a choice for a loop that holds the number of instructions of its body after unrolling."""
_DYNAMIC = frozenset({Opcode.DYNAMIC_SLICE, Opcode.DYNAMIC_UPDATE_SLICE})
_INDEXED = frozenset({Opcode.GATHER, Opcode.SCATTER})


def described(site: ExpansionSite) -> ExpansionSite:
    """Return a site without the choices that rows do not describe, because they are newer than the features.

    A site whose default they do not describe stays as it is.
    """
    return replace(site, choices=tuple(c for c in site.choices if c in _WAYS)) if site.default in _WAYS else site


def expansion_rows(site: ExpansionSite) -> list[list[float]] | None:
    """Return a row for each of `site.choices`, in their order.

    None if the site does not name its instruction, or has choices that rows do not describe.
    """
    i = site.instruction
    if i is None or not set(site.choices) <= set(_WAYS):
        return None
    about = _of_op(i)
    default = [float(site.default == way) for way in _WAYS]
    return [[*about, *(float(choice == way) for way in _WAYS), *default] for choice in site.choices]


def _of_op(i: HloInstruction) -> list[float]:
    shape = next(iter(i.shape.leaves()), i.shape)
    dims = shape.dimensions
    elements = max(1, shape.num_elements)
    sizes = [o.shape.num_elements if o.shape.is_array else 0 for o in i.operands[:2]]
    first, second = (*sizes, 0, 0)[:2]
    inner = i.operands[0].shape.dimensions if i.operands and i.operands[0].shape.is_array else ()
    flops = instruction_flops(i)
    rows, columns, contraction, batch = _of_dot(i) if i.opcode is Opcode.DOT else (0, 0, 0, 0)
    window = i.attr("window", None)
    return [
        *(float(i.opcode is op) for op in _OPS),
        elements,
        first,
        second,
        flops,
        flops / elements,
        rows,
        columns,
        contraction,
        batch,
        _window_elements(window) if isinstance(window, Window) else 0,
        shape.rank if shape.is_array else 0,
        dims[-1] if dims else 1,
        inner[-1] if inner else 1,
        shape.element_type.bits if shape.is_array else 0,
        sum(o.opcode.is_elementwise for o in i.operands),
        sum(u.opcode.is_elementwise for u in i.users),
        float(_is_inside(i)),
    ]


def _is_inside(i: HloInstruction) -> bool:
    """Check whether an instruction belongs to a loop, a branch or a function."""
    return i.parent is not None and i.parent.parent is not None and i.parent is not i.parent.parent.entry


def _of_dot(i: HloInstruction) -> tuple[int, int, int, int]:
    """Return rows, columns, contracted and batch elements of a product."""
    lhs, rhs = (o.shape.dimensions for o in i.operands[:2])
    contracted = _product([lhs[d] for d in i.attr("lhs_contracting_dims", ())])
    batch = _product([lhs[d] for d in i.attr("lhs_batch_dims", ())])
    shared = max(1, contracted * batch)
    return _product(lhs) // shared, _product(rhs) // shared, contracted, batch


def _product(values: tuple[int, ...] | list[int]) -> int:
    found = 1
    for v in values:
        found *= v
    return found


def _window_elements(window: Window) -> int:
    return _product([d.size for d in window.dims])


def default_loop(site: LoopSite) -> str:
    """Return the choice of the hand-written rules: one kernel where that is possible, else the loop as it is."""
    return KERNEL if KERNEL in site.choices else KEEP


def loop_rows(site: LoopSite, module: HloModule) -> list[list[float]] | None:
    """Return a row for each of `site.choices`, in their order; None for a loop that is gone or too large to read."""
    loop = find_loop(module, site)
    if loop is None or site.size > MOST_READ:
        return None
    about = [*_of_loop(site, loop), float(KERNEL in site.choices)]
    rows = []
    for choice in site.choices:
        copies = (site.trip_count or 1) if choice == FULL else unroll_factor_of(choice) or 1
        chosen = [choice == KEEP, choice == KERNEL, choice == FULL, copies, copies * site.size]
        rows.append([*about, *map(float, chosen)])
    return rows


def _of_loop(site: LoopSite, loop: HloInstruction) -> list[float]:
    carried = [s for s in loop.shape.leaves() if s.is_array]
    body = next((c for c in loop.called_computations() if c.root.shape == loop.shape), None)
    inside = [] if body is None else [i for i in body.instructions if not i.opcode.has(Trait.LEAF)]
    results = [s.num_elements for i in inside for s in i.shape.leaves() if s.is_array]
    flops = sum(instruction_flops(i) for i in inside if not i.opcode.has(Trait.CONTROL))
    opcodes = [i.opcode for i in inside]
    return [
        float(-1 if site.trip_count is None else site.trip_count),
        float(site.trip_count is not None),
        float(site.size),
        float(len(carried)),
        float(sum(s.byte_size for s in carried)),
        float(max((s.num_elements for s in carried), default=0)),
        float(max((n for n in results if n), default=0)),
        float(flops),
        float(sum(o.is_elementwise for o in opcodes)),
        float(sum(o.has(Trait.EXPENSIVE) for o in opcodes)),
        float(sum(o.has(Trait.REDUCTION) for o in opcodes)),
        float(sum(o.has(Trait.LIBRARY) for o in opcodes)),
        float(sum(o in _DYNAMIC for o in opcodes)),
        float(sum(o in _INDEXED for o in opcodes)),
        float(sum(o is Opcode.SORT for o in opcodes)),
        float(sum(o.has(Trait.CONTROL) for o in opcodes)),
    ]
