"""Rules of async ops: pairs of start and done, chains of async-start, -update and -done, sends and receives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from compiler.ir.computation import HloComputation
from compiler.ir.header import Aliases, subshape
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.printing import PrintOptions, print_computation
from compiler.ir.shape import Shape, tuple_shape
from compiler.ir.shape_query import is_prefix, same_buffer

Rule = Callable[[HloInstruction], list[str]]
Callers = Mapping[HloComputation, Sequence[HloInstruction]]

ASYNC = (Opcode.ASYNC_START, Opcode.ASYNC_UPDATE, Opcode.ASYNC_DONE)
_PRODUCERS = (Opcode.ASYNC_START, Opcode.ASYNC_UPDATE)
_CONSUMERS = (Opcode.ASYNC_UPDATE, Opcode.ASYNC_DONE)
_CARRIERS = frozenset(
    {
        Opcode.TUPLE, Opcode.GET_TUPLE_ELEMENT, Opcode.WHILE, Opcode.CALL, Opcode.CONDITIONAL, Opcode.PARAMETER,
        Opcode.OPTIMIZATION_BARRIER, Opcode.DOMAIN, Opcode.COPY,
    }
)  # fmt: skip
"""Opcodes that forward an async state, through loops and into calls."""
_ANNOTATIONS = frozenset(
    {
        "Sharding", "LocalToGlobalShape", "GlobalToLocalShape", "xla.sdy.LocalToGlobalShape",
        "xla.sdy.GlobalToLocalShape", "xla.sdy.FuncResultSharding",
    }
)  # fmt: skip
"""Custom calls that only annotate the value they forward."""


def _carries(i: HloInstruction) -> bool:
    return i.opcode in _CARRIERS or (i.opcode is Opcode.CUSTOM_CALL and i.attr("custom_call_target") in _ANNOTATIONS)


def _wraps(i: HloInstruction) -> bool:
    """Check whether it forwards a whole state, not an element of it."""
    return _carries(i) and i.opcode is not Opcode.GET_TUPLE_ELEMENT


def _is_argument(i: HloInstruction) -> bool:
    """Check whether it is a parameter of the entry computation."""
    module = i.parent.parent if i.parent is not None else None
    return i.opcode is Opcode.PARAMETER and module is not None and module.has_entry and module.entry is i.parent


def _listing(instructions: Sequence[HloInstruction]) -> str:
    return ", ".join(f"%{u.name} ({u.opcode.text})" for u in instructions) or "nothing"


# ---- starts and dones with opcodes of their own


def pair(start: Opcode, done: Opcode) -> tuple[Rule, Rule]:
    """Return the rules for a start and its done: one done per start, with only loop-carried state in between."""

    def check_start(i: HloInstruction) -> list[str]:
        users = [u for u in i.users if u.attr("custom_call_target") != "control_dep"]
        if not users and i.is_root:
            return []  # wrapped: the done is in the calling computation
        if len(users) == 1 and (users[0].opcode is done or _wraps(users[0])):
            return []
        return [f"%{i.name}: {start.text} must be used by one {done.text}, is used by {_listing(users)}"]

    def check_done(i: HloInstruction) -> list[str]:
        o = i.operands[0]
        if o.opcode is start or (_carries(o) and o.opcode is not Opcode.TUPLE and not _is_argument(o)):
            return []
        return [f"%{i.name}: {done.text} goes with a {start.text}, not %{o.name} ({o.opcode.text})"]

    return check_start, check_done


def one_user(i: HloInstruction) -> list[str]:
    """Check that a send or recv is used only by its done, or by a tuple that carries it there."""
    done = Opcode.SEND_DONE if i.opcode is Opcode.SEND else Opcode.RECV_DONE
    users = [u for u in i.users if u.attr("custom_call_target") != "control_dep"]
    if (len(users) == 1 and (users[0].opcode is done or _wraps(users[0]))) or (i.is_root and not users):
        return []
    return [f"%{i.name}: {i.opcode.text} must have one user, a {done.text} or a tuple, is used by {_listing(users)}"]


def same_channel(i: HloInstruction) -> list[str]:
    """Check that a send or recv and its done agree on channel and kind of transfer."""
    o = i.operands[0]
    findings: list[str] = []
    start = Opcode.SEND if i.opcode is Opcode.SEND_DONE else Opcode.RECV
    if o.opcode is not start:
        return [] if _carries(o) else [f"%{i.name}: {i.opcode.text} does not match %{o.name} ({o.opcode.text})"]
    if i.attr("channel_id") != o.attr("channel_id"):
        findings.append(f"%{i.name} has channel_id {i.attr('channel_id')}, %{o.name} has {o.attr('channel_id')}")
    if i.attr("is_host_transfer", False) != o.attr("is_host_transfer", False):
        findings.append(f"%{i.name} and %{o.name} must both be host transfers or neither")
    return findings


def check_host_transfers(transfers: Sequence[HloInstruction]) -> Iterator[tuple[HloInstruction, str]]:
    """Check that host transfers on the same channel have equal signatures."""
    first: dict[int, HloInstruction] = {}
    for i in transfers:
        channel = i.attr("channel_id")
        if channel is None or not i.attr("is_host_transfer", False):
            continue
        other = first.setdefault(channel, i)
        if _signature(other) != _signature(i):
            yield i, f"%{i.name} and %{other.name} share host channel {channel}, but have different signatures"


def _signature(i: HloInstruction) -> tuple[object, ...]:
    shapes = tuple(str(o.shape) for o in i.operands)
    return i.opcode, str(i.shape), shapes, "".join(str(i.attr("frontend_attributes", "{}")).split())


# ---- async-start, -update and -done by themselves


def start(i: HloInstruction) -> list[str]:
    """Check the async computation, its thread, and that one update or done uses the state."""
    findings = _users(i)
    body = i.attr("calls")
    if body is None:
        return findings
    if "execution_thread" not in body.attributes and not _may_hold_many(i, body):
        findings.append(f"%{i.name}: async computation %{body.name} may hold parameters and one instruction only")
    ours = i.attr("async_execution_thread", "main")
    theirs = body.attributes.get("execution_thread", ours)
    if ours != theirs:
        findings.append(f"%{i.name} runs on thread {ours}, but its computation %{body.name} on {theirs}")
    return findings


def _users(i: HloInstruction) -> list[str]:
    ends = [u for u in i.users if u.opcode in _CONSUMERS]
    others = [u for u in i.users if u.opcode not in _CONSUMERS and not _carries(u)]
    if others or len(ends) > 1 or not (i.users or i.is_root):
        return [
            f"%{i.name}: {i.opcode.text} must be used by one async-update or async-done, is used by "
            + _listing([*i.users])
        ]
    misplaced = next((u for u in ends if any(o is i for o in u.operands[1:])), None)
    return [f"%{i.name} must be the first operand of %{misplaced.name}"] if misplaced is not None else []


def _may_hold_many(i: HloInstruction, body: HloComputation) -> bool:
    """Check whether the body is one instruction besides parameters and tuple elements, or a group of collectives."""
    allowed = (Opcode.PARAMETER, Opcode.GET_TUPLE_ELEMENT)
    barrier = all(j is body.root or j.opcode in allowed for j in body.instructions)
    return barrier or "_collectives_group" in str(i.attr("frontend_attributes", ""))


def start_aliases(i: HloInstruction) -> list[str]:
    """Check aliases between parameters of the computation and parts of ((parameters...), result, context...)."""
    value, body = i.attr("output_to_operand_aliasing"), i.attr("calls")
    if not isinstance(value, Aliases) or body is None:
        return []
    whole = tuple_shape(tuple_shape(*body.parameter_shapes), body.result_shape, *i.shape.tuple_shapes[2:])
    findings = []
    for a in value.entries:
        if not 0 <= a.source < len(body.parameter_shapes):
            findings.append(
                f"%{i.name}: alias {a} names operand {a.source} of {len(body.parameter_shapes)}, "
                f"the parameters of %{body.name}"
            )
            continue
        ours, theirs = subshape(whole, a.output), subshape(body.parameter_shapes[a.source], a.index)
        if not a.output:
            findings.append(f"%{i.name}: alias {a} must name a part of the result")
        elif ours is None or theirs is None:
            findings.append(f"%{i.name}: alias {a} names a part that does not exist")
        elif not same_buffer(ours, theirs):
            findings.append(f"%{i.name}: alias {a} is between different shapes, {ours} and {theirs}")
    return findings


def update_aliases(i: HloInstruction) -> list[str]:
    """Check that an update only aliases parts of the context, the third part of the previous state."""
    value = i.attr("output_to_operand_aliasing")
    findings = []
    for a in value.entries if isinstance(value, Aliases) else ():
        ours, theirs = subshape(i.shape, a.output), subshape(i.operands[0].shape, a.index)
        if a.source != 0:
            findings.append(f"%{i.name}: alias {a} must be of operand 0, the state before")
        elif a.index[:1] != (2,) or a.output[:1] != (2,):
            findings.append(f"%{i.name}: alias {a} must be between parts of the context, {{2,...}}")
        elif ours is None or theirs is None:
            findings.append(f"%{i.name}: alias {a} names a part that does not exist")
        elif not same_buffer(ours, theirs):
            findings.append(f"%{i.name}: alias {a} is between different shapes, {ours} and {theirs}")
    return findings


def end(i: HloInstruction) -> list[str]:
    """Check that the first operand is an async state."""
    o = i.operands[0]
    if o.opcode in _PRODUCERS or _carries(o):
        return []
    wanted = "an async-start or async-update"
    return [f"%{i.name}: {i.opcode.text} must continue {wanted}, not %{o.name} ({o.opcode.text})"]


# ---- whole chains, also through loops


def check_chains(instructions: Sequence[HloInstruction], callers: Callers) -> Iterator[tuple[HloInstruction, str]]:
    """Check that each done ends the chain of one start, each update is in one chain, and each chain is consistent.

    Args:
        instructions: every async-start, -update and -done of the module.
        callers: the callers of each computation.
    """
    # Follow each chain backwards, from its done to its start. If the start of some done cannot be determined, any
    # start without a done could be its own, so starts without a done are then not reported.
    ended: dict[HloInstruction, HloInstruction] = {}
    passed: dict[HloInstruction, HloInstruction] = {}
    lost = False
    for done in instructions:
        if done.opcode is not Opcode.ASYNC_DONE:
            continue
        node: HloInstruction | None = done
        while node is not None and node.opcode is not Opcode.ASYNC_START:
            if node.opcode is Opcode.ASYNC_UPDATE and passed.setdefault(node, done) is not done:
                yield node, f"%{node.name} is a part of two chains, those of %{passed[node].name} and %{done.name}"
                break
            node = _before(node, callers)
        else:
            if node is None:
                lost = True
                yield from _without_start(done, callers)
                continue
            other = ended.setdefault(node, done)
            if other is not done:
                yield node, f"%{node.name} is ended twice, by %{other.name} and %{done.name}"
            yield from _same_computation(done, node, callers)
    for i in instructions:
        open_end = i.opcode in _PRODUCERS and i not in ended and i not in passed
        if open_end and not lost and not _enters_loop(i, callers):
            yield i, f"%{i.name}: {i.opcode.text} has no matching async-done"


def _without_start(done: HloInstruction, callers: Callers) -> Iterator[tuple[HloInstruction, str]]:
    origin = _origin(done.operands[0], callers)
    if origin.opcode is not Opcode.PARAMETER or len(callers.get(_parent(origin), ())) == 0:
        yield done, f"%{done.name}: async-done does not lead back to an async-start, only to %{origin.name}"


def _before(i: HloInstruction, callers: Callers) -> HloInstruction | None:
    """Return the previous op of the chain, or None if it cannot be determined."""
    found = _origin(i.operands[0], callers) if i.operands else None
    return found if found is not None and found.opcode in _PRODUCERS else None


def _origin(i: HloInstruction, callers: Callers) -> HloInstruction:
    """Return the async-start or -update that made this state, or the instruction at which the search ended."""
    path: list[int] = []
    seen: set[tuple[HloInstruction, int]] = set()
    while i.opcode not in _PRODUCERS and (i, len(path)) not in seen:
        seen.add((i, len(path)))
        following = _source(i, path, callers)
        if following is None:
            return i
        i = following
    return i


def _source(i: HloInstruction, path: list[int], callers: Callers) -> HloInstruction | None:
    """Return the instruction that defines the part of `i` at `path`, which is updated; its last index is outermost."""
    if i.opcode is Opcode.GET_TUPLE_ELEMENT:
        path.append(i.attr("index"))
        return i.operands[0]
    if i.opcode is Opcode.TUPLE:
        return i.operands[path.pop()] if path and path[-1] < len(i.operands) else None
    if i.opcode is Opcode.WHILE:
        body: HloComputation = i.attr("body")
        return body.root
    if i.opcode is Opcode.CALL:
        callee: HloComputation = i.attr("to_apply")
        return callee.root
    if i.opcode is not Opcode.PARAMETER:
        return i.operands[0] if _carries(i) and i.opcode is not Opcode.CONDITIONAL and i.operands else None
    calling = callers.get(_parent(i), ())
    if len(calling) != 1 or calling[0].opcode not in (Opcode.WHILE, Opcode.CALL):
        return None
    number = i.parameter_number if calling[0].opcode is Opcode.CALL else 0
    return calling[0].operands[number or 0]


def _parent(i: HloInstruction) -> HloComputation:
    if i.parent is None:
        raise ValueError(f"%{i.name} is in no computation")
    return i.parent


def _same_computation(
    done: HloInstruction, first: HloInstruction, callers: Callers
) -> Iterator[tuple[HloInstruction, str]]:
    body: HloComputation = first.attr("calls")
    node: HloInstruction | None = done
    while node is not None and node is not first:
        ours = node.attr("calls")
        if ours is not None and ours is not body and _text(ours) != _text(body):
            yield node, f"%{node.name} calls %{ours.name}, but %{first.name}, which it continues, calls %{body.name}"
        state = node.shape if node.opcode is Opcode.ASYNC_UPDATE else None
        yield from _bound(node, state, body)
        node = _before(node, callers)
    given, params = done.operands[0].shape.tuple_shapes[0], body.parameter_shapes
    if not given.compatible(tuple_shape(*params)):
        yield done, f"%{done.name}: only {given} of the operands {tuple_shape(*params)} of %{body.name} are bound"


def _bound(node: HloInstruction, state: Shape | None, body: HloComputation) -> Iterator[tuple[HloInstruction, str]]:
    """Check that an update binds prefixes of the parameters and the result, and a done the whole result."""
    if state is None:
        if not node.shape.compatible(body.result_shape):
            yield node, f"%{node.name}: shape is {node.shape}, %{body.name} returns {body.result_shape}"
        return
    params = tuple_shape(*body.parameter_shapes)
    for said, whole, what in ((0, params, "takes"), (1, body.result_shape, "returns")):
        if not is_prefix(state.tuple_shapes[said], whole):
            yield node, f"%{node.name}: shape has {state.tuple_shapes[said]}, %{body.name} {what} {whole}"


def _text(c: HloComputation) -> str:
    return print_computation(c, PrintOptions.canonical())


def _enters_loop(i: HloInstruction, callers: Callers) -> bool:
    """Check whether a loop carries the state."""
    seen: set[HloInstruction] = set()
    waiting = [i]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        for caller in callers.get(_parent(node), ()) if node.is_root else ():
            if caller.opcode is Opcode.WHILE:
                return True
            waiting.append(caller)
        for user in node.users:
            if user.opcode is Opcode.WHILE:
                return True
            if user.opcode is Opcode.ASYNC_UPDATE or _carries(user):
                waiting.append(user)
    return False
