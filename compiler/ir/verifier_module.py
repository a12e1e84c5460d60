"""Rules of a whole module: computations and their callers, header, schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from compiler.ir.computation import HloComputation
from compiler.ir.header import Alias, Aliases, Donors, EntryLayout, subshape
from compiler.ir.instruction import HloInstruction
from compiler.ir.module import HloModule
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape
from compiler.ir.types import PrimitiveType
from compiler.ir.verifier_async import ASYNC, check_chains, check_host_transfers
from compiler.ir.verifier_buffers import check_buffers, has_buffer

_HOST = (Opcode.SEND, Opcode.RECV)
_WATCHED = frozenset({*ASYNC, *_HOST})


def with_line(i: HloInstruction, finding: str) -> str:
    """Return a finding prefixed with the source line of the instruction, if it was parsed."""
    return f"line {i.line}: {finding}" if i.line else finding


def check_structure(module: HloModule, callers: dict[HloComputation, list[HloInstruction]]) -> list[str]:
    """Check that computations belong to the module and call each other without cycles; fill in `callers`."""
    known = dict.fromkeys(module.computations)
    findings = [] if module.name else ["the module has no name"]
    if not known:
        return [*findings, f"module {module.name} has no computation"]
    entry = module.computations[-1] if not module.has_entry else module.entry
    if not module.has_entry or entry not in known:
        return [*findings, f"module {module.name} has no entry computation of its own"]
    for c in known:
        if c.parent is not module or module.find(c.name) is not c:
            findings.append(f"computation %{c.name} is listed in module {module.name}, but does not belong to it")
        for i in c.instructions:
            for callee in i.called_computations() if i.attributes else ():
                if callee not in known:
                    findings.append(with_line(i, f"%{i.name} calls %{callee.name}, which is not in the module"))
                callers.setdefault(callee, []).append(i)
    return findings or [*_check_callers(entry, callers), *_cycles(known)]


def _check_callers(entry: HloComputation, callers: dict[HloComputation, list[HloInstruction]]) -> Iterator[str]:
    if entry in callers:
        caller = callers[entry][0]
        yield with_line(caller, f"%{caller.name} calls the entry computation %{entry.name}")
    for callee, instructions in callers.items():
        if len(instructions) == 1:
            continue
        fusions = [i for i in instructions if i.opcode is Opcode.FUSION]
        if fusions:
            other = next(i for i in instructions if i is not fusions[0])
            alone = f"fused computation %{callee.name} of %{fusions[0].name} is also called by %{other.name}"
            yield with_line(other, alone)
        starts = [i for i in instructions if i.opcode is Opcode.ASYNC_START]
        other_callers = [i for i in instructions if i.opcode not in ASYNC]
        if starts and other_callers:
            i = other_callers[0]
            yield with_line(i, f"async computation %{callee.name} of %{starts[0].name} is also called by %{i.name}")


def _cycles(known: dict[HloComputation, None]) -> list[str]:
    """Return a finding if a computation calls itself, directly or indirectly."""
    # Iterative depth-first search; 1 marks computations on the stack, 2 those that are done.
    state: dict[HloComputation, int] = {}
    for start in known:
        if start in state:
            continue
        state[start] = 1
        stack = [(start, iter(start.called_computations()))]
        while stack:
            node, pending = stack[-1]
            following = next(pending, None)
            if following is None:
                state[node] = 2
                stack.pop()
            elif following not in state:
                state[following] = 1
                stack.append((following, iter(following.called_computations())))
            elif state[following] == 1:
                return [f"computation %{following.name} calls itself via %{node.name}"]
    return []


# ---- rules over all computations


def check_whole(module: HloModule, callers: Mapping[HloComputation, Sequence[HloInstruction]]) -> list[str]:
    """Return the findings in chains across computations, in buffers, and in the header.

    Args:
        module: a module whose computations are valid by themselves.
        callers: the callers of each computation, as `check_structure` filled them in.
    """
    chained: list[HloInstruction] = []
    transfers: list[HloInstruction] = []
    buffers = False
    for c in module.computations:
        for i in c.instructions:
            if i.opcode in _WATCHED:
                (transfers if i.opcode in _HOST else chained).append(i)
            element_type = i.shape.element_type
            if element_type is PrimitiveType.BUFFER or element_type is PrimitiveType.TUPLE:
                buffers = buffers or has_buffer(i.shape)
    found = [*check_chains(chained, callers), *check_host_transfers(transfers)]
    if buffers:
        found += check_buffers(module, callers)
    return [with_line(i, f) for i, f in found] or check_header(module)


def is_watched(i: HloInstruction) -> bool:
    """Check whether `check_whole` has more than the header to check in a module with this instruction."""
    return i.opcode in _WATCHED or has_buffer(i.shape)


# ---- header


def check_header(module: HloModule) -> list[str]:
    """Return the findings in the header: entry layout, aliases, donors, device counts, schedule."""
    findings = []
    layout = module.header.get("entry_computation_layout")
    if isinstance(layout, EntryLayout):
        findings += _entry_layout(module, layout)
    aliases = module.header.get("input_output_alias")
    if isinstance(aliases, Aliases) and not findings:
        findings += _aliases(module, aliases)
    donors = module.header.get("buffer_donor")
    if isinstance(donors, Donors) and not findings:
        findings += _donors(module, donors, aliases if isinstance(aliases, Aliases) else Aliases())
    for name in ("replica_count", "num_partitions"):
        value = str(module.header.get(name, "1"))
        if not value.isdigit() or int(value) < 1:
            findings.append(f"{name} must be at least 1, is {value}")
    if str(module.header.get("is_scheduled")) == "true":
        findings += _schedule(module)
    return [*findings, *_constrained_layouts(module)]


def _entry_layout(module: HloModule, layout: EntryLayout) -> list[str]:
    given, entry = module.parameter_shapes, f"entry computation %{module.entry.name}"
    if len(layout.parameters) != len(given):
        return [f"entry_computation_layout has {len(layout.parameters)} parameters, {entry} has {len(given)}"]
    findings = [
        f"entry_computation_layout has {said} for parameter {n} of {entry}, which is {shape}"
        for n, (said, shape) in enumerate(zip(layout.parameters, given, strict=True))
        if not said.compatible(shape)
    ]
    if not layout.result.compatible(module.result_shape):
        findings.append(
            f"entry_computation_layout has the result {layout.result}, {entry} returns {module.result_shape}"
        )
    return findings


def _parameter_part(module: HloModule, number: int, index: tuple[int, ...]) -> Shape | None:
    shapes = module.parameter_shapes
    return subshape(shapes[number], index) if 0 <= number < len(shapes) else None


def _aliases(module: HloModule, aliases: Aliases) -> list[str]:
    findings = []
    outputs: set[tuple[int, ...]] = set()
    inputs: set[tuple[int, tuple[int, ...]]] = set()
    for a in aliases.entries:
        findings += _alias(module, a)
        if a.output in outputs:
            findings.append(f"input_output_alias {a}: that part of the result is aliased twice")
        if (a.source, a.index) in inputs:
            findings.append(f"input_output_alias {a}: that parameter is aliased twice")
        outputs.add(a.output)
        inputs.add((a.source, a.index))
    return findings


def _alias(module: HloModule, a: Alias) -> list[str]:
    ours, theirs = subshape(module.result_shape, a.output), _parameter_part(module, a.source, a.index)
    if ours is None:
        return [f"input_output_alias {a}: the result {module.result_shape} has no such part"]
    if theirs is None:
        return [f"input_output_alias {a}: the parameters have no such part"]
    if not ours.is_array or not theirs.is_array:
        return [f"input_output_alias {a} must be between arrays, is between {ours} and {theirs}"]
    if a.kind == "must-alias" and not ours.compatible(theirs):
        return [f"input_output_alias {a} is between different shapes, {ours} and {theirs}"]
    if ours.byte_size != theirs.byte_size:
        return [f"input_output_alias {a} is between buffers of different size, {ours} and {theirs}"]
    return []


def _donors(module: HloModule, donors: Donors, aliases: Aliases) -> list[str]:
    findings = []
    aliased = {(a.source, a.index) for a in aliases.entries}
    for d in donors.entries:
        if _parameter_part(module, d.parameter, d.index) is None:
            findings.append(f"buffer_donor {d}: the parameters have no such part")
        if (d.parameter, d.index) in aliased:
            findings.append(f"buffer_donor {d}: that parameter is aliased to a result already")
    return findings


def _schedule(module: HloModule) -> list[str]:
    """Check that each instruction of a scheduled module comes after its dependencies."""
    for c in module.computations:
        seen: set[HloInstruction] = set()
        for i in c.instructions:
            late = next((o for o in (*i.operands, *i.control_predecessors) if o not in seen), None)
            if late is not None:
                return [
                    with_line(i, f"%{i.name} comes before %{late.name}, on which it depends, in a scheduled module")
                ]
            seen.add(i)
    return []


def _constrained_layouts(module: HloModule) -> list[str]:
    reductions = [
        i
        for c in module.computations
        for i in c.instructions
        if i.opcode is Opcode.ALL_REDUCE or i.opcode is Opcode.ALL_REDUCE_START
    ]
    if len({bool(i.attr("constrain_layout", False)) for i in reductions}) > 1:
        first = reductions[0]
        return [with_line(first, f"%{first.name} and other all-reduces must all constrain their layouts, or none")]
    return []
