"""Rules of buffers, `b(f32[2])`: values pinned in place, each with at most one writer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache

from compiler.ir.computation import HloComputation
from compiler.ir.header import Aliases, Index, index_text
from compiler.ir.instruction import HloInstruction
from compiler.ir.module import HloModule
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape
from compiler.ir.types import PrimitiveType

Callers = Mapping[HloComputation, Sequence[HloInstruction]]
_WRITERS = frozenset(
    {
        Opcode.CALL, Opcode.FUSION, Opcode.CUSTOM_CALL, Opcode.ASYNC_START, Opcode.ASYNC_UPDATE, Opcode.ASYNC_DONE,
        Opcode.WHILE, Opcode.CONDITIONAL, Opcode.DYNAMIC_UPDATE_SLICE,
    }
)  # fmt: skip
"""Opcodes that may write to a buffer operand; each counts as one writer, whatever it calls."""
_ASYNC = (Opcode.ASYNC_START, Opcode.ASYNC_UPDATE, Opcode.ASYNC_DONE)
_LOOPED = (Opcode.WHILE, Opcode.DYNAMIC_UPDATE_SLICE)
_FREE = (Opcode.GET_TUPLE_ELEMENT, Opcode.TUPLE)


def check_buffers(module: HloModule, callers: Callers) -> Iterator[tuple[HloInstruction, str]]:
    """Yield the findings in a module that contains buffers."""
    for c in module.computations:
        if any(caller.opcode in _ASYNC for caller in callers.get(c, ())):
            if c.root.opcode is Opcode.CUSTOM_CALL:
                yield from _named(c.root, _custom_call(c.root, callers))
            continue
        for i in c.instructions:
            special = i.opcode is Opcode.CUSTOM_CALL and i.attr("custom_call_target") in _TARGETS
            if special or has_buffer(i.shape) or any(has_buffer(o.shape) for o in i.operands):
                yield from _named(i, _check(i, module, callers))


def _named(i: HloInstruction, findings: Iterator[str]) -> Iterator[tuple[HloInstruction, str]]:
    return ((i, f"%{i.name}: {f}") for f in findings)


@lru_cache(maxsize=4096)
def has_buffer(shape: Shape) -> bool:
    """Check whether a shape is or contains a buffer."""
    return _is_buffer(shape) or (shape.is_tuple and any(map(has_buffer, shape.tuple_shapes)))


def _is_buffer(shape: Shape) -> bool:
    return shape.element_type is PrimitiveType.BUFFER


def _buffers(shape: Shape, prefix: Index = ()) -> Iterator[Index]:
    if _is_buffer(shape):
        yield prefix
    for k, part in enumerate(shape.tuple_shapes if shape.is_tuple else ()):
        yield from _buffers(part, (*prefix, k))


def _check(i: HloInstruction, module: HloModule, callers: Callers) -> Iterator[str]:
    streamed = i.opcode is Opcode.CALL and "_xla_stream_annotation" in str(i.attr("frontend_attributes", ""))
    if i.opcode in _ASYNC or i.opcode in _FREE or streamed:
        return
    if i.opcode is Opcode.CUSTOM_CALL:
        yield from _custom_call(i, callers)
    elif i.opcode in _LOOPED or (i.opcode is Opcode.PARAMETER and i.parent is not module.entry):
        yield from _one_writer_each(i, callers)
    else:
        operands = [str(o.shape) for o in i.operands]
        yield f"{i.opcode.text} cannot take or yield buffers here, got {i.shape} of {operands}"


# ---- custom calls


def _entries(i: HloInstruction) -> Aliases:
    value = i.attr("output_to_operand_aliasing")
    return value if isinstance(value, Aliases) else Aliases()


def _custom_call(i: HloInstruction, callers: Callers) -> Iterator[str]:
    special = _TARGETS.get(i.attr("custom_call_target"))
    if special is not None:
        yield from special(i)
    else:
        yield from _forwarded(i)
    if i.attr("custom_call_target") != "Unpin":
        yield from _one_writer_each(i, callers)


def _forwarded(i: HloInstruction) -> Iterator[str]:
    entries = _entries(i).entries
    taken, given = Counter((a.source, a.index) for a in entries), Counter(a.output for a in entries)
    for k, o in enumerate(i.operands):
        for index in _buffers(o.shape):
            if taken[k, index] != 1:
                often = "not aliased to any result" if not taken[k, index] else "aliased to several results"
                yield f"buffer {index_text(index)} of operand {k} is {often}, expected one"
    for index in _buffers(i.shape):
        if given[index] != 1:
            often = "not aliased to any operand" if not given[index] else "aliased to several operands"
            yield f"buffer {index_text(index)} of the result is {often}, expected one"


def _pin(i: HloInstruction) -> Iterator[str]:
    if len(i.operands) != 1 or not i.operands[0].shape.is_array:
        yield f"Pin takes one array, got {[str(o.shape) for o in i.operands]}"
    elif not _is_buffer(i.shape) or not i.shape.tuple_shapes[0].compatible(i.operands[0].shape):
        yield f"Pin yields b({i.operands[0].shape}), not {i.shape}"
    elif len(_entries(i).entries) != 1:
        yield "Pin must alias its result to its operand"


def _unpin(i: HloInstruction) -> Iterator[str]:
    if len(i.operands) != 1 or not _is_buffer(i.operands[0].shape):
        yield f"Unpin takes one buffer, got {[str(o.shape) for o in i.operands]}"
    elif not i.operands[0].shape.tuple_shapes[0].compatible(i.shape):
        yield f"Unpin yields {i.operands[0].shape.tuple_shapes[0]}, not {i.shape}"
    elif len(_entries(i).entries) != 1:
        yield "Unpin must alias its result to its operand"


def _create(i: HloInstruction) -> Iterator[str]:
    if i.operands or not _is_buffer(i.shape):
        yield f"CreateBuffer takes no operands and yields one buffer, not {i.shape}"


_TARGETS: dict[str, Callable[[HloInstruction], Iterator[str]]] = {
    "Pin": _pin,
    "Unpin": _unpin,
    "CreateBuffer": _create,
}


# ---- writers


def _one_writer_each(i: HloInstruction, callers: Callers) -> Iterator[str]:
    for index in _buffers(i.shape):
        writers = list(_writers(i, index, callers))
        if len(writers) > 1:
            names = ", ".join(f"%{w.name}" for w in writers)
            yield f"buffer {index_text(index)} has {len(writers)} writers ({names}), expected one at most"


def _writers(i: HloInstruction, index: Index, callers: Callers) -> Iterator[HloInstruction]:
    for user in i.users:
        if user.opcode in _WRITERS:
            yield user
        elif user.opcode is Opcode.GET_TUPLE_ELEMENT:
            if index and user.attr("index") == index[0]:
                yield from _writers(user, index[1:], callers)
        elif user.opcode is Opcode.TUPLE and not user.is_root:
            yield from _writers(user, (next(user.operand_indices(i)), *index), callers)
        elif user.opcode is Opcode.TUPLE and user.parent is not None and _is_looped(user.parent, callers):
            yield user  # the next iteration may write


def _is_looped(computation: HloComputation, callers: Callers) -> bool:
    return any(c.opcode is Opcode.WHILE for c in callers.get(computation, ()))
