"""Rules of single instructions beyond their shapes (constants, fusions, calls, aliases, memory), and their table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from compiler.ir import verifier_async as chains
from compiler.ir import verifier_collectives as collectives
from compiler.ir.attributes import Raw
from compiler.ir.computation import has_side_effect
from compiler.ir.header import Aliases, subshape
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape, default_layout
from compiler.ir.shape_query import same_buffer
from compiler.ir.types import PrimitiveType
from compiler.ir.verifier_sharding import CONSISTENT, split

Rule = Callable[[HloInstruction], list[str]]

_LAYOUT = re.compile(r"\{[^{}]*\}")
_COMMENT = re.compile(r"/\*.*?\*/")
_COMPOSITE_NAME = re.compile(r'composite\.name\s*=\s*"[^"]')
_COMPOSITE_NOTHING = re.compile(r'composite\.attributes\s*=\s*""')
_COMPOSITE_VERSION = re.compile(r'composite\.version\s*=\s*"([^"]*)"')


def constant(i: HloInstruction) -> list[str]:
    """Check that the literal has the shape of the instruction."""
    if i.literal is None:
        return [f"%{i.name}: a constant without a literal"]
    if not i.literal.shape.compatible(i.shape):
        return [f"%{i.name}: literal of shape {i.literal.shape} in a constant of shape {i.shape}"]
    a = i.literal.array
    if a is not None and (a.shape != i.shape.dimensions or a.dtype != i.shape.dtype):
        return [f"%{i.name}: literal holds an array of {a.dtype}{list(a.shape)}, expected {i.shape}"]
    return []


def parameter(i: HloInstruction) -> list[str]:
    """Check the parameter number, and that there is one replication flag per leaf."""
    findings = []
    if i.parameter_number is None or i.parameter_number < 0:
        findings.append(f"%{i.name}: a parameter needs a number from 0, has {i.parameter_number}")
    replication = i.attr("parameter_replication")
    if replication is not None:
        given, leaves = len(re.findall(r"true|false", str(replication))), sum(1 for _ in i.shape.leaves())
        if given != leaves:
            findings.append(f"%{i.name}: parameter_replication has {given} entries, the shape {leaves} leaves")
    return findings


def fusion(i: HloInstruction) -> list[str]:
    """Check that everything in the fused computation is used and that its root has no users."""
    body = i.attr("calls")
    findings = []
    if body.root.users:
        findings.append(f"%{i.name}: the root %{body.root.name} of fused computation %{body.name} has users in it")
    for fused in body.instructions:
        if fused is body.root or fused.users:
            continue
        if fused.opcode is not Opcode.PARAMETER and not has_side_effect(fused):
            findings.append(f"%{i.name}: %{fused.name} in fused computation %{body.name} is not used")
    return findings


def aliases(i: HloInstruction) -> list[str]:
    """Check that aliased parts exist and have the same shape; only Pin and Unpin alias an array and a buffer."""
    value = i.attr("output_to_operand_aliasing")
    if not isinstance(value, Aliases):
        return []
    fits = same_buffer if i.attr("custom_call_target") in ("Pin", "Unpin") else Shape.compatible
    unchecked = "xla_skip_custom_call_alias_shape_check" in str(i.attr("frontend_attributes", ""))
    findings = []
    for a in value.entries:
        if not 0 <= a.source < len(i.operands):
            findings.append(f"%{i.name}: alias {a} names operand {a.source} of {len(i.operands)}")
            continue
        ours, theirs = subshape(i.shape, a.output), subshape(i.operands[a.source].shape, a.index)
        if ours is None or theirs is None:
            whole = i.shape if ours is None else i.operands[a.source].shape
            findings.append(f"%{i.name}: alias {a} names a part that {whole} does not have")
        elif not unchecked and not fits(ours, theirs):
            findings.append(f"%{i.name}: alias {a} is between different shapes, {ours} and {theirs}")
    return findings


def custom_call(i: HloInstruction) -> list[str]:
    """Check operand layout constraints, one per operand, and the signature of GetRngSeed."""
    target = i.attr("custom_call_target")
    if target == "GetRngSeed" and (i.operands or not i.shape.compatible(Shape(PrimitiveType.U64))):
        return [f"%{i.name}: GetRngSeed takes no operands and returns u64[], not {i.shape}"]
    constraints = i.attr("operand_layout_constraints")
    if constraints is None or target in ("LayoutConstraint", "control_dep"):
        return []
    given = [_plain(part) for part in split(_COMMENT.sub("", str(constraints).strip()[1:-1]))]
    if len(given) != len(i.operands):
        return [f"%{i.name}: operand_layout_constraints has {len(given)} shapes for {len(i.operands)} operands"]
    return [
        f"%{i.name}: operand {k} is {o.shape}, operand_layout_constraints has {said}"
        for k, (said, o) in enumerate(zip(given, i.operands, strict=True))
        if said != _plain(_COMMENT.sub("", str(o.shape)))
    ]


def _plain(text: str) -> str:
    """Return the text of a shape without layouts and markers of dynamic dimensions."""
    return "".join(_LAYOUT.sub("", text).replace("<=", "").split())


def call(i: HloInstruction) -> list[str]:
    """Check that a composite call has a name and, if given, a valid version."""
    if not i.attr("is_composite", False):
        return []
    said: Raw | None = i.attr("frontend_attributes")
    if said is None or _COMPOSITE_NAME.search(said.text) is None:
        return [f"%{i.name}: a composite call needs frontend_attributes with composite.name"]
    if _COMPOSITE_NOTHING.search(said.text) is not None:
        return [f"%{i.name}: composite.attributes must not be an empty string; use {{}} or omit it"]
    version = _COMPOSITE_VERSION.search(said.text)
    if version is not None and not version.group(1).isdigit():
        return [f"%{i.name}: composite.version must be a number from 0, is {version.group(1)}"]
    return []


def threads(i: HloInstruction) -> list[str]:
    """Check that called computations run on the caller's thread; async-start is exempt."""
    ours = i.parent.attributes.get("execution_thread", "main") if i.parent is not None else "main"
    findings = []
    for callee in i.called_computations():
        theirs = callee.attributes.get("execution_thread", "main")
        if theirs != ours:
            findings.append(f"%{i.name} runs on thread {ours}, but %{callee.name}, which it calls, on {theirs}")
    return findings


def memory(i: HloInstruction) -> list[str]:
    """Check moves between host memory, S(5), and device memory: a copy keeps type and layout, a bitcast cannot move."""
    o = i.operands[0].shape
    to_host, from_host = _on_host(i.shape), _on_host(o)
    if to_host == from_host:
        return []
    if i.opcode is Opcode.COPY:
        if i.shape.element_type is o.element_type and (to_host or _order(i.shape) == _order(o)):
            return []
        return [f"%{i.name}: a copy from the host must keep type and layout: {i.shape.to_text()} from {o.to_text()}"]
    if i.opcode is Opcode.BITCAST:
        source = i.operands[0]
        while source.opcode is Opcode.COPY:
            source = source.operands[0]
        return [] if source.opcode is Opcode.CONSTANT else [f"%{i.name}: a bitcast cannot move between memories"]
    if i.opcode is Opcode.DYNAMIC_SLICE and to_host:
        return [f"%{i.name}: a dynamic-slice of device memory cannot be on the host"]
    if i.opcode is Opcode.DYNAMIC_UPDATE_SLICE and from_host:
        return [f"%{i.name}: a dynamic-update-slice of host memory cannot be on the device"]
    return []


def _on_host(shape: Shape) -> bool:
    return shape.layout is not None and "S(5)" in shape.layout.suffix


def _order(shape: Shape) -> tuple[int, ...]:
    return (shape.layout or default_layout(shape.rank)).minor_to_major


def _table() -> dict[Opcode, tuple[Rule, ...]]:
    found: dict[Opcode, list[Rule]] = {
        Opcode.CONSTANT: [constant],
        Opcode.PARAMETER: [parameter],
        Opcode.FUSION: [fusion, aliases],
        Opcode.CALL: [call],
        Opcode.CUSTOM_CALL: [custom_call, aliases],
        Opcode.ASYNC_START: [chains.start, chains.start_aliases],
        Opcode.ASYNC_UPDATE: [chains.end, chains.start, chains.update_aliases],
        Opcode.ASYNC_DONE: [chains.end],
        # The state of a send or recv may be carried by a loop, with the done in another computation.
        Opcode.SEND: [chains.one_user],
        Opcode.RECV: [chains.one_user],
        Opcode.SEND_DONE: [chains.same_channel],
        Opcode.RECV_DONE: [chains.same_channel],
        Opcode.ALL_TO_ALL: [collectives.exchanged],
    }

    def add(opcodes: Iterable[Opcode], *rules: Rule) -> None:
        for opcode in opcodes:
            found.setdefault(opcode, []).extend(rules)

    for start, done in (
        (Opcode.ALL_GATHER_START, Opcode.ALL_GATHER_DONE),
        (Opcode.ALL_REDUCE_START, Opcode.ALL_REDUCE_DONE),
        (Opcode.COLLECTIVE_PERMUTE_START, Opcode.COLLECTIVE_PERMUTE_DONE),
        (Opcode.COPY_START, Opcode.COPY_DONE),
    ):
        at_start, at_done = chains.pair(start, done)
        add([start], at_start)
        add([done], at_done)
    add((op for op in Opcode if "replica_groups" in op.row.optional), collectives.groups, collectives.channel)
    add((op for op in Opcode if "use_global_device_ids" in op.row.optional), collectives.flattened_groups)
    add([Opcode.ALL_GATHER, Opcode.ALL_GATHER_START, Opcode.REDUCE_SCATTER], collectives.shards)
    permutes = (Opcode.COLLECTIVE_PERMUTE, Opcode.COLLECTIVE_PERMUTE_START)
    add(permutes, collectives.in_place, collectives.source_targets, collectives.channel)
    calling = {"to_apply", "calls", "condition", "branch_computations", "true_computation", "select"}
    callers = (op for op in Opcode if calling & {*op.row.required, *op.row.optional})
    add((op for op in callers if op not in chains.ASYNC), threads)
    add([Opcode.COPY, Opcode.BITCAST, Opcode.DYNAMIC_SLICE, Opcode.DYNAMIC_UPDATE_SLICE], memory)
    for opcode, rule in CONSISTENT.items():
        add([opcode], rule)
    return {opcode: tuple(rules) for opcode, rules in found.items()}


RULES: dict[Opcode, tuple[Rule, ...]] = _table()
"""Rules by opcode, in addition to those of all instructions."""
