"""Rules that instructions keep beyond their shapes: fusions, async pairs, collectives, aliases, channels."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

from compiler.ir.attributes import Raw
from compiler.ir.computation import HloComputation, has_side_effect
from compiler.ir.header import Aliases, subshape
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape
from compiler.ir.types import PrimitiveType

Rule = Callable[[HloInstruction], list[str]]

_ASYNC = (Opcode.ASYNC_START, Opcode.ASYNC_UPDATE, Opcode.ASYNC_DONE)
_CARRIERS = frozenset(
    {
        Opcode.TUPLE, Opcode.GET_TUPLE_ELEMENT, Opcode.WHILE, Opcode.CALL, Opcode.CONDITIONAL, Opcode.PARAMETER,
        Opcode.OPTIMIZATION_BARRIER, Opcode.BITCAST, Opcode.COPY,
    }
)  # fmt: skip
"""What passes an async state on, around loops and into calls."""
_COMPOSITE_NAME = re.compile(r'composite\.name\s*=\s*"[^"]')
_COMPOSITE_VERSION = re.compile(r'composite\.version\s*=\s*"([^"]*)"')
_GROUP = re.compile(r"\{([\d,\s]*)\}")
_IOTA_GROUPS = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?$")


def constant(i: HloInstruction) -> list[str]:
    """A literal of the instruction's shape."""
    if i.literal is None:
        return [f"%{i.name}: a constant without a literal"]
    if not i.literal.shape.compatible(i.shape):
        return [f"%{i.name}: literal of shape {i.literal.shape} in a constant of shape {i.shape}"]
    a = i.literal.array
    if a is not None and (a.shape != i.shape.dimensions or a.dtype != i.shape.dtype):
        return [f"%{i.name}: literal holds an array of {a.dtype}{list(a.shape)}, expected {i.shape}"]
    return []


def parameter(i: HloInstruction) -> list[str]:
    """A number, and replication flags one for each leaf."""
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
    """The body is this fusion's own, everything in it is used, and the root by nobody."""
    body = i.attr("calls")
    findings = []
    if body.root.users:
        findings.append(f"%{i.name}: the root %{body.root.name} of fused computation %{body.name} has users there")
    for fused in body.instructions:
        if fused is body.root or fused.users:
            continue
        if fused.opcode is not Opcode.PARAMETER and not has_side_effect(fused):
            findings.append(f"%{i.name}: %{fused.name} in fused computation %{body.name} is not used")
    return findings


def aliases(i: HloInstruction) -> list[str]:
    """Each aliased part exists on both sides and has one shape."""
    value = i.attr("output_to_operand_aliasing")
    if not isinstance(value, Aliases):
        return []
    findings = []
    for a in value.entries:
        if not 0 <= a.source < len(i.operands):
            findings.append(f"%{i.name}: alias {a} names operand {a.source} of {len(i.operands)}")
            continue
        ours, theirs = subshape(i.shape, a.output), subshape(i.operands[a.source].shape, a.index)
        if ours is None or theirs is None:
            whole = i.shape if ours is None else i.operands[a.source].shape
            findings.append(f"%{i.name}: alias {a} names a part that {whole} does not have")
        elif not _unwrapped(ours).compatible(_unwrapped(theirs)):
            findings.append(f"%{i.name}: alias {a} is between different shapes, {ours} and {theirs}")
    return findings


def async_aliases(i: HloInstruction) -> list[str]:
    """The same for an async start, whose results stand from the second part of its shape on."""
    value = i.attr("output_to_operand_aliasing")
    empty = [a for a in value.entries if not a.output] if isinstance(value, Aliases) else []
    return [f"%{i.name}: alias {a} must name a part of the result" for a in empty] or aliases(i)


def _unwrapped(shape: Shape) -> Shape:
    """What a buffer holds: pinning a value makes a buffer of it in place."""
    return shape.tuple_shapes[0] if shape.element_type is PrimitiveType.BUFFER else shape


def custom_call(i: HloInstruction) -> list[str]:
    """Constrained layouts go with the operands, one each."""
    constraints = i.attr("operand_layout_constraints")
    target = i.attr("custom_call_target")
    if target == "GetRngSeed" and (i.operands or not i.shape.compatible(Shape(PrimitiveType.U64))):
        return [f"%{i.name}: GetRngSeed takes nothing and returns u64[], not {i.shape}"]
    if constraints is None:
        return []
    given = _top_level_items(str(constraints)[1:-1])
    if given != len(i.operands):
        return [f"%{i.name}: operand_layout_constraints has {given} shapes for {len(i.operands)} operands"]
    return []


def _top_level_items(text: str) -> int:
    depth, count = 0, 1 if text.strip() else 0
    for c in text:
        depth += (c in "{([") - (c in "})]")
        count += c == "," and depth == 0
    return count


# ---- collectives


def replica_groups(text: str) -> list[list[int]] | None:
    """The groups that an attribute lists; None for the forms that name axes of a mesh."""
    m = _IOTA_GROUPS.match(text)
    if m is not None:
        dims, reshape = ([int(n) for n in m.group(k).split(",")] for k in (1, 2))
        ids = _iota(reshape, [int(n) for n in m.group(3).split(",")] if m.group(3) else None)
        if len(dims) != 2 or math.prod(dims) != len(ids):
            return [[-1]]
        return [ids[g * dims[1] : (g + 1) * dims[1]] for g in range(dims[0])]
    if not text.startswith("{"):
        return None
    return [[int(n) for n in g.split(",") if n.strip()] for g in _GROUP.findall(text[1:-1])]


def _iota(reshape: list[int], transpose: list[int] | None) -> list[int]:
    """0, 1, 2... laid out in `reshape`, transposed, and read off again."""
    order = transpose or list(range(len(reshape)))
    if sorted(order) != list(range(len(reshape))):
        return []
    strides = [math.prod(reshape[d + 1 :]) for d in range(len(reshape))]
    ids = [0]
    for d in order:
        ids = [base + k * strides[d] for base in ids for k in range(reshape[d])]
    return ids


def groups(i: HloInstruction) -> list[str]:
    """Replica groups name every device from 0 once, and are of one size unless they only reduce."""
    raw = i.attr("replica_groups")
    found = replica_groups(str(raw)) if raw is not None else None
    if not found:
        return []
    members = [m for g in found for m in g]
    if any(not g for g in found):
        return [f"%{i.name}: replica_groups has an empty group"]
    if sorted(members) != list(range(len(members))):
        return [f"%{i.name}: replica_groups must name each of 0 to {len(members) - 1} once, is {raw}"]
    uneven = i.opcode not in (Opcode.ALL_REDUCE, Opcode.ALL_REDUCE_START) and len({len(g) for g in found}) > 1
    return [f"%{i.name}: replica_groups must be of one size, is {raw}"] if uneven else []


def channel(i: HloInstruction) -> list[str]:
    """An all-reduce's channel ids count from 1; global device ids need one."""
    number = i.attr("channel_id")
    if number is not None and number <= 0 and i.opcode is Opcode.ALL_REDUCE:
        return [f"%{i.name}: channel_id must be greater than 0, is {number}"]
    if i.attr("use_global_device_ids", False) and number is None:
        return [f"%{i.name}: use_global_device_ids needs a channel_id"]
    return []


def source_targets(i: HloInstruction) -> list[str]:
    """Pairs, no device sending or receiving twice."""
    pairs = replica_groups(str(i.attr("source_target_pairs"))) or []
    if "slice_sizes" in i.attributes:
        return []  # each device may send several slices
    if any(len(p) != 2 for p in pairs):
        return [f"%{i.name}: source_target_pairs must be pairs, is {i.attr('source_target_pairs')}"]
    findings = []
    for side, what in ((0, "source"), (1, "target")):
        devices = [p[side] for p in pairs]
        twice = next((d for d in devices if devices.count(d) > 1), None) if len(devices) < 4096 else None
        if twice is not None:
            findings.append(f"%{i.name}: device {twice} is a {what} twice in source_target_pairs")
    return findings


# ---- starts and dones


def _pair(start: Opcode, done: Opcode) -> tuple[Rule, Rule]:
    """Rules for both ends: one done for each start, and nothing else in between."""

    def check_start(i: HloInstruction) -> list[str]:
        wrapped = i.is_root and i.parent is not None
        users = list(i.users)
        if wrapped and not users:
            return []
        if len(users) != 1 or users[0].opcode is not done:
            shown = ", ".join(f"%{u.name} ({u.opcode.text})" for u in users) or "nothing"
            return [f"%{i.name}: {start.text} must be used by one {done.text}, is used by {shown}"]
        return []

    def check_done(i: HloInstruction) -> list[str]:
        o = i.operands[0]
        return (
            []
            if o.opcode is start
            else [f"%{i.name}: {done.text} goes with a {start.text}, not %{o.name} ({o.opcode.text})"]
        )

    return check_start, check_done


def async_start(i: HloInstruction) -> list[str]:
    """One user, an update or a done or what carries it there; a computation of one instruction; one thread."""
    ends = (Opcode.ASYNC_UPDATE, Opcode.ASYNC_DONE)
    users = [u for u in i.users if u.opcode in ends]
    others = [u for u in i.users if u.opcode not in ends and u.opcode not in _CARRIERS]
    findings = []
    carried = len(i.users) > len(users) or (i.is_root and i.parent is not None and not _is_entry(i.parent))
    if others or len(users) > 1 or not (users or carried):
        shown = ", ".join(f"%{u.name} ({u.opcode.text})" for u in i.users) or "nothing"
        findings.append(
            f"%{i.name}: {i.opcode.text} must be used by one async-update or async-done, is used by {shown}"
        )
    body = i.attr("calls")
    if body is None:
        return findings
    if "execution_thread" not in body.attributes and not _may_hold_many(i, body):
        findings.append(f"%{i.name}: async computation %{body.name} may hold parameters and one instruction only")
    ours = i.attr("async_execution_thread", "main")
    theirs = body.attributes.get("execution_thread", ours)
    if ours != theirs:
        findings.append(f"%{i.name} runs on thread {ours}, its computation %{body.name} on {theirs}")
    return findings


def _is_entry(computation: HloComputation) -> bool:
    module = computation.parent
    return module is not None and module.has_entry and module.entry is computation


def _may_hold_many(i: HloInstruction, body: HloComputation) -> bool:
    """One instruction beside parameters, or a group of collectives or a barrier of what it waits for."""
    allowed = (Opcode.PARAMETER, Opcode.GET_TUPLE_ELEMENT)
    barrier = all(j is body.root or j.opcode in allowed for j in body.instructions)
    return barrier or "_collectives_group" in str(i.attr("frontend_attributes", ""))


def async_end(i: HloInstruction) -> list[str]:
    """Goes on from a start or an update, or from what carries its state."""
    o = i.operands[0]
    if o.opcode in (Opcode.ASYNC_START, Opcode.ASYNC_UPDATE) or o.opcode in _CARRIERS:
        return []
    wanted = "an async-start or async-update"
    return [f"%{i.name}: {i.opcode.text} goes on from {wanted}, not from %{o.name} ({o.opcode.text})"]


def _one_user(i: HloInstruction) -> list[str]:
    if len(i.users) == 1 or (i.is_root and not i.users):
        return []
    return [f"%{i.name}: {i.opcode.text} must have one user, has {len(i.users)}"]


def _same_channel(i: HloInstruction) -> list[str]:
    """Send and recv have the channel and the kind of transfer of their dones."""
    o = i.operands[0]
    findings: list[str] = []
    if o.opcode not in (Opcode.SEND, Opcode.RECV):
        return findings
    if (o.opcode is Opcode.SEND) is not (i.opcode is Opcode.SEND_DONE):
        return [f"%{i.name}: {i.opcode.text} cannot end %{o.name} ({o.opcode.text})"]
    if i.attr("channel_id") != o.attr("channel_id"):
        findings.append(f"%{i.name} has channel_id {i.attr('channel_id')}, %{o.name} has {o.attr('channel_id')}")
    if i.attr("is_host_transfer", False) != o.attr("is_host_transfer", False):
        findings.append(f"%{i.name} and %{o.name} must both be host transfers or neither")
    return findings


def call(i: HloInstruction) -> list[str]:
    """A composite says what it stands for, and in which version."""
    if not i.attr("is_composite", False):
        return []
    said: Raw | None = i.attr("frontend_attributes")
    if said is None or _COMPOSITE_NAME.search(said.text) is None:
        return [f"%{i.name}: a composite call needs frontend_attributes with composite.name"]
    version = _COMPOSITE_VERSION.search(said.text)
    if version is not None and not version.group(1).isdigit():
        return [f"%{i.name}: composite.version must be a number from 0, is {version.group(1)}"]
    return []


def threads(i: HloInstruction) -> list[str]:
    """What an instruction calls runs on its own thread, unless it starts another."""
    ours = i.parent.attributes.get("execution_thread", "main") if i.parent is not None else "main"
    findings = []
    for callee in i.called_computations():
        theirs = callee.attributes.get("execution_thread", "main")
        if theirs != ours:
            findings.append(f"%{i.name} runs on thread {ours}, %{callee.name}, which it calls, on {theirs}")
    return findings


def flattened_groups(i: HloInstruction) -> list[str]:
    """Global device ids make sense only in groups that are spelled out."""
    raw = i.attr("replica_groups")
    if i.attr("use_global_device_ids", False) and (raw is None or str(raw) == "{}"):
        return [f"%{i.name}: use_global_device_ids needs replica_groups"]
    return []


def _table() -> dict[Opcode, tuple[Rule, ...]]:
    found: dict[Opcode, list[Rule]] = {
        Opcode.CONSTANT: [constant],
        Opcode.PARAMETER: [parameter],
        Opcode.FUSION: [fusion, aliases],
        Opcode.CALL: [call],
        Opcode.CUSTOM_CALL: [custom_call, aliases],
        Opcode.ASYNC_START: [async_start, async_aliases],
        Opcode.ASYNC_UPDATE: [async_end, async_start],
        Opcode.ASYNC_DONE: [async_end],
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
        at_start, at_done = _pair(start, done)
        add([start], at_start)
        add([done], at_done)
    add((op for op in Opcode if "replica_groups" in op.row.optional), groups, channel)
    add((op for op in Opcode if "use_global_device_ids" in op.row.optional), flattened_groups)
    calling = {"to_apply", "calls", "condition", "branch_computations", "true_computation", "select"}
    callers = (op for op in Opcode if calling & {*op.row.required, *op.row.optional})
    add((op for op in callers if op not in _ASYNC), threads)
    add([Opcode.COLLECTIVE_PERMUTE, Opcode.COLLECTIVE_PERMUTE_START], source_targets, channel)
    # The state of a send or recv may be carried around a loop, so that its done stands elsewhere.
    add([Opcode.SEND, Opcode.RECV], _one_user)
    add([Opcode.SEND_DONE, Opcode.RECV_DONE], _same_channel)
    return {opcode: tuple(rules) for opcode, rules in found.items()}


RULES: dict[Opcode, tuple[Rule, ...]] = _table()
"""Rules by opcode, beyond those every instruction keeps."""
