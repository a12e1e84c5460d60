"""Small factorizations and triangular solves as CUDA kernels: LU, Cholesky, substitution; LAPACK would run on the host.

A group of threads computes one matrix of a batch in shared memory. Threads of a warp wait for each other, larger groups
are a block. Blocks load and store their matrices together, in the order of memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from compiler.codegen.kernel_spec import KernelSpec, distinct_operands, spec_of_text
from compiler.codegen.languages import CUDA
from compiler.codegen.schedules.kernel_choice import BoundKernel
from compiler.interpreter.custom_calls import options
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape
from compiler.ir.types import PrimitiveType
from compiler.runtime.implementations import KernelImplementation
from compiler.runtime.thunk_emitter import ThunkEmitter

__all__ = ["matrix_kernels_of"]

LARGEST = 128
"""Most rows and columns of a matrix."""
SHARED_BYTES = 96 << 10
"""Most shared memory of a block."""
THREADS = 128
"""Threads of a block, if there are enough matrices for them."""
WARP = 32
MULTIPROCESSORS = 132
_LETTERS = {PrimitiveType.F32: "s", PrimitiveType.F64: "d"}
_TYPES = {PrimitiveType.F32: "float", PrimitiveType.F64: "double"}
_DIVISION = 16
"""Operations that a division or a root counts as in a chain."""

_CHOLESKY = """\
  int failed = 0;
  for (int k = 0; k < ROWS; k++) {
    SYNC();
    const real square = lane < NO_LANE ? a[AT(k, k)] : 1, diagonal = SQRT(square);
    if (!failed && !(square > 0)) failed = k + 1;
    real factor = 0;
    if (lane > k && lane < ROWS) a[AT(lane, k)] = factor = a[AT(lane, k)] / diagonal;
    SYNC();
    if (lane == k) a[AT(k, k)] = diagonal;
    if (lane < ROWS)
      for (int j = k + 1; j <= lane; j++) a[AT(lane, j)] -= factor * a[AT(j, k)];
  }
"""
_KEEP_STATUS = """\
  if (lane == 0) o1[item] = failed;
"""
_CLEAN = """\
  if (lane < ROWS)
    for (int j = 0; j < ROWS; j++)
      if (failed) a[AT(lane, j)] = NAN;
      else if (j > lane) a[AT(lane, j)] = 0;
"""
_LU = """\
  int failed = 0;
  for (int k = 0; k < STEPS; k++) {
    SYNC();
    int pivot = k;
    real largest = 0;
    if (lane < NO_LANE) {
      largest = ABS(a[AT(k, k)]);
      for (int i = k + 1; i < ROWS; i++) {
        const real size = ABS(a[AT(i, k)]);
        if (size > largest) largest = size, pivot = i;
      }
    }
    if (lane == 0) o1[item * STEPS + k] = pivot + 1;
    if (!failed && largest == 0) failed = k + 1;
    SYNC();
    if (pivot != k)
      for (int j = lane; j < COLUMNS; j += GROUP) {
        const real above = a[AT(k, j)];
        a[AT(k, j)] = a[AT(pivot, j)];
        a[AT(pivot, j)] = above;
      }
    SYNC();
    if (lane > k && lane < ROWS && largest != 0) {
      const real factor = a[AT(lane, k)] / a[AT(k, k)];
      a[AT(lane, k)] = factor;
      for (int j = k + 1; j < COLUMNS; j++) a[AT(lane, j)] -= factor * a[AT(k, j)];
    }
  }
  if (lane == 0) o2[item] = failed;
"""
_SOLVE = """\
  for (int n = 0; n < ROWS; n++) {
    const int k = LOWER ? n : ROWS - 1 - n;
    SYNC();
    if (!UNIT)
      for (int c = lane; c < COLUMNS; c += GROUP) b[PLACE(k, c)] /= a[AT(k, k)];
    SYNC();
    for (int e = lane; e < (ROWS - 1 - n) * COLUMNS; e += GROUP) {
      const int i = e / COLUMNS + (LOWER ? k + 1 : 0), c = e % COLUMNS;
      b[PLACE(i, c)] -= a[AT(i, k)] * b[PLACE(k, c)];
    }
  }
"""


@dataclass(frozen=True)
class _Matrix:
    """A matrix that a group has in shared memory.

    Attributes:
        name: of the pointer to it.
        rows, columns: its dimensions in memory.
        source: the argument from which it is loaded.
        target: the argument to which it is stored; None if it is only read.
    """

    name: str
    rows: int
    columns: int
    source: str
    target: str | None

    @property
    def stride(self) -> int:
        """Elements from one row to the next in shared memory: odd, so that a column lies in different banks."""
        return self.columns | 1


@dataclass(frozen=True)
class _Work:
    """What an instruction computes for each matrix of a batch.

    Attributes:
        text: statements that compute the matrix `item` with the thread `lane` of a group.
        macros: the macros of the text.
        matrices: those in shared memory.
        threads: threads that have work for one matrix.
        operations: number of arithmetic operations.
        chain: see `KernelSpec`.
    """

    text: str
    macros: dict[str, str | int]
    matrices: tuple[_Matrix, ...]
    threads: int
    operations: int
    chain: int


def matrix_kernels_of(backend: str) -> KernelImplementation:
    """Return the implementation of small factorizations and triangular solves on the backend with this name."""

    def refusal(i: HloInstruction, target: str) -> str | None:
        if target != backend:
            return f"it is a kernel of the backend {backend!r}"
        return None if _work(i) is not None else "it is no LU, Cholesky or triangular solve of small real matrices"

    return KernelImplementation("matrix-kernel", refusal, _emit, prefers=lambda i, target: target == backend)


def _emit(
    emitter: ThunkEmitter, i: HloInstruction, operands: list[Any], thunks: list[Any], runs: float, bound: BoundKernel
) -> Any:
    del bound
    return emitter.launch(_kernel(i), i.shape, list(operands), thunks, runs)


def _kernel(i: HloInstruction) -> KernelSpec:
    work = _work(i)
    assert work is not None  # noqa: S101 - the instruction was not refused
    element = i.operand(0).shape.element_type
    batch = math.prod(i.operand(0).shape.dimensions[:-2])
    group = max(2, 1 << (work.threads - 1).bit_length())
    held = sum(m.rows * m.stride for m in work.matrices)
    # Few matrices are spread over the multiprocessors.
    most = min(THREADS // group, SHARED_BYTES // (held * element.byte_size), -(-batch // MULTIPROCESSORS))
    matrices = max(1, WARP // group if group < WARP else 1, 1 << (most.bit_length() - 1) if most > 0 else 1)
    inputs, outputs = tuple(o.shape for o in i.operands), tuple(i.shape.leaves())
    macros: dict[str, str | int] = {
        "real": _TYPES[element], "ABS": "fabsf" if element is PrimitiveType.F32 else "fabs",
        "SQRT": "sqrtf" if element is PrimitiveType.F32 else "sqrt", "GROUP": group, "MATRICES": matrices,
        "THREADS": group * matrices, "BLOCKS": f"{-(-batch // matrices)}LL", "BATCH": f"{batch}LL", "NO_LANE": 1 << 20,
        "SYNC()": "__syncwarp()" if group <= WARP else "__syncthreads()", **work.macros,
    }  # fmt: skip
    source = _source(work, macros, inputs, outputs)
    return replace(
        spec_of_text(i, "factorization", CUDA.name, source, inputs, outputs, batch * work.operations),
        in_place=tuple((int(m.source[1:]), len(inputs)) for m in work.matrices if m.target is not None),
        grid=-(-batch // matrices),
        block=group * matrices,
        shared_bytes=matrices * held * element.byte_size,
        chain=work.chain,
    )


def _source(work: _Work, macros: Mapping[str, str | int], inputs: tuple[Shape, ...], outputs: tuple[Shape, ...]) -> str:
    """Return the function of a kernel."""
    names = {PrimitiveType.F32: "float", PrimitiveType.F64: "double", PrimitiveType.S32: "int32_t"}
    parameters = [f"const {names[s.element_type]} *p{n}" for n, s in enumerate(inputs)]
    parameters += [f"{names[s.element_type]} *o{n}" for n, s in enumerate(outputs)]
    places, loads, stores, at = list[str](), list[str](), list[str](), 0
    for m in work.matrices:
        size = m.rows * m.columns
        each = f"  for (int t = threadIdx.x; t < MATRICES * {size} && t < left_ * {size}; t += GROUP * MATRICES)"
        held = f"all_{m.name}[t / {m.columns} * {m.stride} + t % {m.columns}]"
        places += [
            f"  real *const all_{m.name} = (real *)dynamic_ + {at} * MATRICES;",
            f"  real *const {m.name} = all_{m.name} + threadIdx.x / GROUP * {m.rows * m.stride};",
        ]
        loads += [f"  {each} {held} = {m.source}[first_ * {size} + t];"]
        stores += [f"  {each} {m.target}[first_ * {size} + t] = {held};"] if m.target is not None else []
        at += m.rows * m.stride
    lines = [
        *(f"#define {name} {value}" for name, value in macros.items()),
        f'extern "C" __global__ void __launch_bounds__({macros["THREADS"]}) HLOGYM_KERNEL({", ".join(parameters)}) {{',
        "  extern __shared__ __align__(16) unsigned char dynamic_[];",
        *places,
        "  for (int64_t block_ = blockIdx.x; block_ < BLOCKS; block_ += gridDim.x) {",
        "    const int64_t first_ = block_ * MATRICES, left_ = BATCH - first_, item = first_ + threadIdx.x / GROUP;",
        "    const int lane = item < BATCH ? threadIdx.x % GROUP : NO_LANE;",
        *loads,
        "    __syncthreads();",
        *(f"  {line}" for line in work.text.splitlines()),
        "    __syncthreads();",
        *stores,
        "    __syncthreads();",
        "  }",
        "}",
        *(f"#undef {name.split('(')[0]}" for name in macros),
        "",
    ]
    return "\n".join(lines)


def _work(i: HloInstruction) -> _Work | None:
    """Return what an instruction computes, or None if it is computed otherwise."""
    if not i.operands or not _is_small(i.operand(0).shape) or len(distinct_operands(i)) < len(i.operands):
        return None
    a = i.operand(0).shape
    if i.opcode is Opcode.CHOLESKY:
        return _within(_cholesky(a, bool(i.attr("lower", False)), custom=False), a)
    if i.opcode is Opcode.TRIANGULAR_SOLVE:
        left, lower, unit = (bool(i.attr(name, False)) for name in ("left_side", "lower", "unit_diagonal"))
        transposed = i.attr("transpose_a", "NO_TRANSPOSE") != "NO_TRANSPOSE"
        return _within(_solve(a, i.operand(1).shape, left, lower, unit, transposed), a)
    if i.opcode is not Opcode.CUSTOM_CALL:
        return None
    target, given, letter = str(i.attr("custom_call_target")), options(i), _LETTERS[a.element_type]

    def is_set(name: str, value: str) -> bool:
        return given.get(name) == ord(value)

    if target == f"lapack_{letter}getrf_ffi":
        return _within(_lu(a), a)
    if target == f"lapack_{letter}potrf_ffi":
        return _within(_cholesky(a, is_set("uplo", "L"), custom=True), a)
    if target == f"lapack_{letter}trsm_ffi":
        left, lower, unit = is_set("side", "L"), is_set("uplo", "L"), is_set("diag", "U")
        return _within(_solve(a, i.operand(1).shape, left, lower, unit, not is_set("trans_x", "N")), a)
    return None


def _within(work: _Work | None, a: Shape) -> _Work | None:
    """Return the work if its matrices fit into shared memory."""
    if work is None:
        return None
    held = sum(m.rows * m.stride for m in work.matrices) * a.element_type.byte_size
    return work if held <= SHARED_BYTES else None


def _is_small(shape: Shape) -> bool:
    if not shape.is_array or shape.is_dynamic or shape.element_type not in _TYPES or len(shape.dimensions) < 2:
        return False
    return shape.num_elements > 0 and shape.dimensions[-2] <= LARGEST and shape.dimensions[-1] <= LARGEST


def _lu(a: Shape) -> _Work:
    rows, columns = a.dimensions[-2:]
    steps = min(rows, columns)
    matrix = _Matrix("a", rows, columns, "p0", "o0")
    macros: dict[str, str | int] = {
        "ROWS": rows, "COLUMNS": columns, "STEPS": steps, "AT(i, j)": f"((i) * {matrix.stride} + (j))",
    }  # fmt: skip
    chain = steps * (_DIVISION + rows + columns // 2)
    return _Work(_LU, macros, (matrix,), rows, rows * columns * steps, chain)


def _cholesky(a: Shape, lower: bool, custom: bool) -> _Work:
    """Return the work of a Cholesky factorization; the custom call returns a status, the op NaN and zeros."""
    rows = a.dimensions[-1]
    matrix = _Matrix("a", rows, rows, "p0", "o0")
    across, along = ("i", "j") if lower else ("j", "i")
    macros: dict[str, str | int] = {"ROWS": rows, "AT(i, j)": f"(({across}) * {matrix.stride} + ({along}))"}
    text = _CHOLESKY + (_KEEP_STATUS if custom else _CLEAN)
    return _Work(text, macros, (matrix,), rows, rows**3 // 3, rows * (2 * _DIVISION + rows // 2))


def _solve(a: Shape, b: Shape, left: bool, lower: bool, unit: bool, transposed: bool) -> _Work | None:
    """Return the work of op(A) X = B or X op(A) = B, the second as op(A)' X' = B'; None if B is large."""
    if not _is_small(b):
        return None
    rows, columns = b.dimensions[-2:] if left else b.dimensions[:-3:-1]
    across = transposed == left  # whether row i of the system is column i of A
    known = _Matrix("a", rows, rows, "p0", None)
    solved = _Matrix("b", b.dimensions[-2], b.dimensions[-1], "p1", "o0")
    macros: dict[str, str | int] = {
        "ROWS": rows, "COLUMNS": columns, "LOWER": int(lower != across), "UNIT": int(unit),
        "AT(i, k)": f"((k) * {known.stride} + (i))" if across else f"((i) * {known.stride} + (k))",
        "PLACE(i, c)": f"((i) * {solved.stride} + (c))" if left else f"((c) * {solved.stride} + (i))",
    }  # fmt: skip
    threads = min(THREADS, rows * columns)
    chain = rows * (_DIVISION + 2 * -(-rows * columns // (2 * threads)))
    return _Work(_SOLVE, macros, (known, solved), threads, rows * rows * columns, chain)
