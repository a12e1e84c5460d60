"""Evaluators of collectives on one device, async ops, and host transfers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from compiler.errors import InterpreterError, UnsupportedError
from compiler.interpreter.machine import Machine
from compiler.interpreter.registry import TOKEN, Array, Value, arrays, evaluator
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape


def _grouped(instruction: HloInstruction, values: Sequence[Value]) -> Value:
    """Return a single operand as it is, and several as a tuple."""
    return tuple(values) if instruction.shape.is_tuple else values[0]


@evaluator(
    Opcode.ALL_REDUCE,
    Opcode.ALL_GATHER,
    Opcode.REDUCE_SCATTER,
    Opcode.COLLECTIVE_BROADCAST,
    Opcode.ALL_TO_ALL,
    Opcode.ALL_REDUCE_START,
)
def _alone(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    """Return the operands: with one replica these collectives are the identity."""
    found = arrays(values)
    _refuse_other_shapes(instruction, found, instruction.shape)
    return _grouped(instruction, found)


def _refuse_other_shapes(instruction: HloInstruction, given: Sequence[Array], result: Shape) -> None:
    for x, shape in zip(given, result.leaves(), strict=True):
        if x.shape != shape.dimensions:
            raise UnsupportedError(
                f"%{instruction.name}: {instruction.opcode.text} between several devices; "
                "the interpreter runs one replica on one device"
            )


@evaluator(Opcode.ALL_GATHER_START)
def _all_gather_start(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    """Return operands and result."""
    given = values[0] if len(values) == 1 else tuple(values)
    _refuse_other_shapes(instruction, arrays(values), instruction.shape.tuple_shapes[1])
    return given, given


@evaluator(Opcode.COLLECTIVE_PERMUTE, Opcode.COLLECTIVE_PERMUTE_START)
def _collective_permute(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    """Return the data if device 0 sends to itself, else zeros, because no other device exists."""
    pairs = str(instruction.attr("source_target_pairs")).replace(" ", "")
    found = arrays(values)
    results: list[Value] = [x if "{0,0}" in pairs else np.zeros_like(x) for x in found]
    if instruction.opcode is Opcode.COLLECTIVE_PERMUTE:
        return _grouped(instruction, results)
    started = (values[0], results[0]) if len(found) == 1 else (tuple(values), tuple(results))
    return *started, *map(_idle, instruction.shape.tuple_shapes[2:])


@evaluator(Opcode.ALL_REDUCE_DONE)
def _all_reduce_done(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    return values[0]


@evaluator(Opcode.ALL_GATHER_DONE, Opcode.COLLECTIVE_PERMUTE_DONE)
def _second(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    return values[0][1]


@evaluator(Opcode.RAGGED_ALL_TO_ALL)
def _ragged_all_to_all(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    """Copy rows of the input to their offsets in the output, from device 0 to itself."""
    data, out, input_offsets, send_sizes, output_offsets, _ = arrays(values)
    result = out.copy()
    for start, size, target in zip(input_offsets, send_sizes, output_offsets, strict=True):
        result[int(target) : int(target) + int(size)] = data[int(start) : int(start) + int(size)]
    return result


@evaluator(Opcode.PARTITION_ID, Opcode.REPLICA_ID)
def _device_number(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    return np.zeros((), instruction.shape.dtype)


@evaluator(Opcode.COPY_START)
def _copy_start(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    return values[0], values[0], np.zeros((), np.uint32)


@evaluator(Opcode.COPY_DONE)
def _copy_done(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    return values[0][0]


@evaluator(Opcode.ASYNC_START)
def _async_start(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    """Run the computation at once, and return its result with the operands."""
    calls = instruction.called_computations()
    if not calls:
        raise InterpreterError(f"%{instruction.name}: async-start calls no computation")
    return tuple(values), machine.run(calls[0], values), *map(_idle, instruction.shape.tuple_shapes[2:])


def _idle(shape: Shape) -> Value:
    """Return a placeholder for the context of a transfer that has finished."""
    if shape.is_tuple:
        return tuple(map(_idle, shape.tuple_shapes))
    return np.zeros(shape.dimensions, shape.dtype) if shape.is_array else TOKEN


@evaluator(Opcode.ASYNC_UPDATE)
def _async_update(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    return values[0]


@evaluator(Opcode.ASYNC_DONE)
def _async_done(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    return values[0][1]


@evaluator(Opcode.INFEED)
def _infeed(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    """Return the next value of the context's queue, and a token."""
    queue = machine.context.infeed
    if not queue:
        raise InterpreterError(
            f"%{instruction.name}: the infeed is empty; pass evaluate a Context(infeed=deque([...]))"
        )
    return queue.popleft(), TOKEN


@evaluator(Opcode.OUTFEED)
def _outfeed(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    machine.context.outfeed.append(values[0])
    return TOKEN


@evaluator(Opcode.SEND)
def _send(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    """Append the value to the queue of its channel."""
    machine.context.channels.setdefault(instruction.attr("channel_id", 0), deque()).append(values[0])
    return values[0], np.zeros((), np.uint32), TOKEN


@evaluator(Opcode.SEND_DONE)
def _send_done(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    return TOKEN


@evaluator(Opcode.RECV)
def _recv(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    channel = instruction.attr("channel_id", 0)
    waiting = machine.context.channels.get(channel)
    if not waiting:
        raise InterpreterError(f"%{instruction.name}: nothing was sent on channel {channel}")
    return waiting.popleft(), np.zeros((), np.uint32), TOKEN


@evaluator(Opcode.RECV_DONE)
def _recv_done(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    return values[0][0], TOKEN
