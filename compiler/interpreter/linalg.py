"""Evaluators of cholesky, triangular-solve and the batch norms."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.interpreter.machine import Machine
from compiler.interpreter.precision import F32, narrow, widen
from compiler.interpreter.registry import Array, Value, array_evaluator, arrays, evaluator
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode


def matrices(x: Array) -> Array:
    """Merge all batch dimensions into one."""
    return x.reshape(int(np.prod(x.shape[:-2], dtype=np.int64)), *x.shape[-2:])


@array_evaluator(Opcode.CHOLESKY)
def _cholesky(instruction: HloInstruction, x: Array) -> Array:
    """Factor a batch of matrices; the other triangle is zero, and matrices that are not positive definite give NaN."""
    t = instruction.shape.element_type
    wide = widen(x, t)
    return narrow(factor_cholesky(wide, instruction.attr("lower", False))[0], t)


def factor_cholesky(x: Array, lower: bool) -> tuple[Array, Array]:
    """Return the factors of a batch of matrices, and the LAPACK status of each (0: success)."""
    from scipy.linalg import lapack  # importing it takes long, and few programs factor matrices

    out = np.empty_like(x)
    flat_out, flat_in = matrices(out), matrices(x)
    status = np.zeros(len(flat_in), np.int32)
    potrf: Any = lapack.get_lapack_funcs("potrf", (x,))
    for k, a in enumerate(flat_in):
        factor, info = potrf(a, lower=lower, clean=True) if a.size else (a, 0)
        flat_out[k] = np.nan if info else factor
        status[k] = info
    return flat_out.reshape(x.shape), status.reshape(x.shape[:-2])


_TRANSPOSES = {"NO_TRANSPOSE": 0, "TRANSPOSE": 1, "ADJOINT": 2}


@array_evaluator(Opcode.TRIANGULAR_SOLVE)
def _triangular_solve(instruction: HloInstruction, a: Array, b: Array) -> Array:
    t, attr = instruction.shape.element_type, instruction.attr
    solved = solve_triangular(
        widen(a, t),
        widen(b, t),
        left=attr("left_side", False),
        lower=attr("lower", False),
        transpose=_TRANSPOSES[attr("transpose_a", "NO_TRANSPOSE")],
        unit=attr("unit_diagonal", False),
    )
    return narrow(solved, t)


def solve_triangular(a: Array, b: Array, *, left: bool, lower: bool, transpose: int, unit: bool) -> Array:
    """Solve op(a) x = b (`left`) or x op(a) = b for a batch; a zero on the diagonal divides by zero."""
    from scipy.linalg import blas  # as above

    out = np.empty(b.shape, b.dtype)
    flat = matrices(out)
    trsm: Any = blas.get_blas_funcs("trsm", (a, b))
    for k, (left_hand, right_hand) in enumerate(zip(matrices(a), matrices(b), strict=True)):
        if right_hand.size:
            flat[k] = trsm(
                1.0, left_hand, right_hand, side=0 if left else 1, lower=int(lower), trans_a=transpose, diag=int(unit)
            )
    return flat.reshape(b.shape)


def _feature(x: Array, vector: Array, at: int) -> Array:
    """Reshape a vector with one element per feature so that it broadcasts with `x`."""
    shape = [1] * x.ndim
    shape[at] = len(vector)
    return vector.reshape(shape)


@evaluator(Opcode.BATCH_NORM_TRAINING)
def _batch_norm_training(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    x, scale, offset = arrays(values)
    t, at = instruction.operands[0].shape.element_type, instruction.attr("feature_index")
    wide = x.astype(np.float64)
    dims = tuple(d for d in range(x.ndim) if d != at)
    mean, variance = wide.mean(dims), wide.var(dims)
    normal = (wide - _feature(x, mean, at)) / np.sqrt(_feature(x, variance, at) + _epsilon(instruction))
    y = normal * _feature(x, scale.astype(np.float64), at) + _feature(x, offset.astype(np.float64), at)
    return y.astype(t.dtype), mean.astype(t.dtype), variance.astype(t.dtype)


@evaluator(Opcode.BATCH_NORM_INFERENCE)
def _batch_norm_inference(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    x, scale, offset, mean, variance = (v.astype(np.float64) for v in arrays(values))
    at = instruction.attr("feature_index")
    scaled = _feature(x, scale / np.sqrt(variance + _epsilon(instruction)), at)
    y = (x - _feature(x, mean, at)) * scaled + _feature(x, offset, at)
    return np.asarray(y).astype(instruction.shape.dtype)


@evaluator(Opcode.BATCH_NORM_GRAD)
def _batch_norm_grad(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
    t, at = instruction.operands[0].shape.element_type, instruction.attr("feature_index")
    x, scale, mean, variance, grad = (v.astype(np.float64) for v in arrays(values))
    dims = tuple(d for d in range(x.ndim) if d != at)
    inverse = 1 / np.sqrt(variance + _epsilon(instruction))
    normal = (x - _feature(x, mean, at)) * _feature(x, inverse, at)
    grad_offset = grad.sum(dims)
    grad_scale = (grad * normal).sum(dims)
    count = x.size // max(1, x.shape[at])
    centred = grad - _feature(x, grad_offset / count, at) - normal * _feature(x, grad_scale / count, at)
    grad_x = centred * _feature(x, scale * inverse, at)
    return grad_x.astype(t.dtype), grad_scale.astype(t.dtype), grad_offset.astype(t.dtype)


def _epsilon(instruction: HloInstruction) -> float:
    """Return the attribute as a float32, like XLA."""
    return float(F32.type(instruction.attr("epsilon")))
