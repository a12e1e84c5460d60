"""Opcodes that the interpreter or the code generator does not handle, with reasons; a test checks the lists."""

from __future__ import annotations

from compiler.ir.opcodes import Opcode

_OTHER_DEVICES = "communicates with other devices or the host; the interpreter defines its meaning on one device"
_LIBRARY = "a library call, or the interpreter's evaluator if there is none"
_SEQUENCE = "a thunk of its own or none, not part of a kernel"

NOT_INTERPRETED: dict[Opcode, str] = {
    Opcode.CONSTANT: "already a value: the literal",
    Opcode.PARAMETER: "already a value: the argument",
}
"""Opcodes without an evaluator."""

NOT_EMITTED: dict[Opcode, str] = {
    **dict.fromkeys(
        (
            Opcode.ALL_GATHER, Opcode.ALL_REDUCE, Opcode.ALL_TO_ALL, Opcode.COLLECTIVE_BROADCAST,
            Opcode.COLLECTIVE_PERMUTE, Opcode.RAGGED_ALL_TO_ALL, Opcode.REDUCE_SCATTER, Opcode.PARTITION_ID,
            Opcode.REPLICA_ID, Opcode.ALL_GATHER_START, Opcode.ALL_GATHER_DONE, Opcode.ALL_REDUCE_START,
            Opcode.ALL_REDUCE_DONE, Opcode.COLLECTIVE_PERMUTE_START, Opcode.COLLECTIVE_PERMUTE_DONE, Opcode.SEND,
            Opcode.SEND_DONE, Opcode.RECV, Opcode.RECV_DONE, Opcode.INFEED, Opcode.OUTFEED,
        ),
        _OTHER_DEVICES,
    ),
    **dict.fromkeys(
        (
            Opcode.DOT, Opcode.RAGGED_DOT, Opcode.SCALED_DOT, Opcode.CONVOLUTION, Opcode.CHOLESKY,
            Opcode.TRIANGULAR_SOLVE, Opcode.FFT, Opcode.SORT, Opcode.TOPK, Opcode.CUSTOM_CALL, Opcode.RNG,
            Opcode.RNG_BIT_GENERATOR, Opcode.RNG_GET_AND_UPDATE_STATE, Opcode.BATCH_NORM_TRAINING,
            Opcode.BATCH_NORM_INFERENCE, Opcode.BATCH_NORM_GRAD, Opcode.REDUCE_WINDOW, Opcode.SELECT_AND_SCATTER,
            Opcode.SCAN, Opcode.SCATTER, Opcode.STOCHASTIC_CONVERT,
        ),
        _LIBRARY,
    ),
    **dict.fromkeys(
        (
            Opcode.CALL, Opcode.CONDITIONAL, Opcode.WHILE, Opcode.FUSION, Opcode.AFTER_ALL, Opcode.ADD_DEPENDENCY,
            Opcode.OPTIMIZATION_BARRIER, Opcode.DOMAIN, Opcode.COPY_START, Opcode.COPY_DONE, Opcode.ASYNC_START,
            Opcode.ASYNC_UPDATE, Opcode.ASYNC_DONE,
        ),
        _SEQUENCE,
    ),
    Opcode.REDUCE_PRECISION: "is computed on the bits of its operand, by integer ops",
    **dict.fromkeys(
        (Opcode.DYNAMIC_RESHAPE, Opcode.GET_DIMENSION_SIZE, Opcode.SET_DIMENSION_SIZE),
        "sizes known only at run time are supported by the interpreter only",
    ),
}  # fmt: skip
"""Opcodes that generated kernels do not contain."""
