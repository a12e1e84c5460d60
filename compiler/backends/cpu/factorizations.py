"""Small factorizations and triangular solves as kernels: LU, QR, Cholesky, substitution; LAPACK costs a call.

LAPACK runs outside of the compiled program, in the interpreter, which takes longer than the work on small matrices. The
matrices of a batch are computed in parallel.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from compiler.backends.cpu.matrix_kernels import by_kernels, matrix_kernel
from compiler.codegen.kernel_spec import KernelSpec, distinct_operands
from compiler.interpreter.custom_calls import options
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape
from compiler.ir.types import PrimitiveType
from compiler.runtime.implementations import KernelImplementation

LARGEST = 128
"""Rows of the largest matrix; LAPACK, which works on blocks, is faster with larger ones."""
BLOCKS = (64, 16)
"""Systems that are transposed together, so that vectors run over systems; the most that a matrix has."""
MOST_OPERATIONS = 1 << 25
"""Operations of the largest solve for many right-hand sides: BLAS divides larger ones among threads."""
_GRAIN = 20_000
"""Arithmetic operations of a parallel task."""
_LETTERS = {PrimitiveType.F32: "s", PrimitiveType.F64: "d"}
_TYPES = {PrimitiveType.F32: "float", PrimitiveType.F64: "double"}

_LU = """\
  int32_t *const pivots = (int32_t *)arguments[2] + item * (ROWS < COLUMNS ? ROWS : COLUMNS);
  int32_t *const info = (int32_t *)arguments[3] + item;
  const real *const x = (const real *)arguments[0] + item * ROWS * COLUMNS;
  real *const a = (real *)arguments[1] + item * ROWS * COLUMNS;
  if (a != x) memcpy(a, x, sizeof(real) * ROWS * COLUMNS);
  int32_t failed = 0;
  for (int k = 0; k < (ROWS < COLUMNS ? ROWS : COLUMNS); k++) {
    int pivot = k;
    real largest = ABS(a[k * COLUMNS + k]);
    for (int i = k + 1; i < ROWS; i++) {
      const real size = ABS(a[i * COLUMNS + k]);
      if (size > largest) largest = size, pivot = i;
    }
    pivots[k] = pivot + 1;
    if (largest == 0) {
      if (!failed) failed = k + 1;
      continue;
    }
    if (pivot != k)
      for (int j = 0; j < COLUMNS; j++) {
        const real above = a[k * COLUMNS + j];
        a[k * COLUMNS + j] = a[pivot * COLUMNS + j];
        a[pivot * COLUMNS + j] = above;
      }
    const real *const top = a + k * COLUMNS;
    for (int i = k + 1; i < ROWS; i++) {
      real *const row = a + i * COLUMNS;
      const real factor = row[k] / top[k];
      row[k] = factor;
      #pragma omp simd
      for (int j = k + 1; j < COLUMNS; j++) row[j] -= factor * top[j];
    }
  }
  *info = failed;
"""
_CHOLESKY = """\
  const real *const x = (const real *)arguments[0] + item * ROWS * ROWS;
  real *const a = (real *)arguments[1] + item * ROWS * ROWS;
  if (a != x) memcpy(a, x, sizeof(real) * ROWS * ROWS);
  int32_t failed = 0;
  for (int k = 0; k < ROWS; k++) {
    const real square = a[k * ROWS + k];
    if (!(square > 0)) {
      failed = k + 1;
      break;
    }
    const real diagonal = SQRT(square);
    real column[ROWS];
    a[k * ROWS + k] = diagonal;
    for (int i = k + 1; i < ROWS; i++) column[i] = a[AT(i, k)] /= diagonal;
    for (int i = k + 1; i < ROWS; i++) {
      real *const row = a + i * ROWS;
      const real factor = column[i];
      #pragma omp simd
      for (int j = FROM; j < TO; j++) row[j] -= factor * column[j];
    }
  }
"""
_KEEP_STATUS = "  ((int32_t *)arguments[2])[item] = failed;\n"
_CLEAN = """\
  for (int i = 0; i < ROWS; i++)
    for (int j = 0; j < ROWS; j++)
      if (failed) a[i * ROWS + j] = NAN;
      else if (OUTSIDE) a[i * ROWS + j] = 0;
"""
_REFLECT_ROWS = """\
    real sums[COLUMNS];
    #pragma omp simd
    for (int j = k + 1; j < COLUMNS; j++) sums[j] = a[AT(k, j)];
    for (int i = k + 1; i < ROWS; i++) {
      #pragma omp simd
      for (int j = k + 1; j < COLUMNS; j++) sums[j] += v[i] * a[AT(i, j)];
    }
    #pragma omp simd
    for (int j = k + 1; j < COLUMNS; j++) a[AT(k, j)] -= sums[j] *= tau[k];
    for (int i = k + 1; i < ROWS; i++) {
      #pragma omp simd
      for (int j = k + 1; j < COLUMNS; j++) a[AT(i, j)] -= v[i] * sums[j];
    }
"""
"""Reflects the columns after `k`: A -= tau v (v' A), where v[k] is 1 and not stored."""
_REFLECT_COLUMNS = """\
    for (int j = k + 1; j < COLUMNS; j++) {
      real sum = a[AT(k, j)];
      #pragma omp simd reduction(+: sum)
      for (int i = k + 1; i < ROWS; i++) sum += v[i] * a[AT(i, j)];
      sum *= tau[k];
      a[AT(k, j)] -= sum;
      #pragma omp simd
      for (int i = k + 1; i < ROWS; i++) a[AT(i, j)] -= v[i] * sum;
    }
"""
"""The same with vectors along columns, of a matrix that is stored by columns."""
_IN_ROWS = """\
  real *const a = result;
  if (a != x) memcpy(a, x, sizeof(real) * ROWS * COLUMNS);
WORK
"""
_IN_COLUMNS = """\
  real a[ROWS * COLUMNS];
  for (int i = 0; i < ROWS; i++)
    for (int j = 0; j < COLUMNS; j++) a[AT(i, j)] = x[i * COLUMNS + j];
WORK
  for (int i = 0; i < ROWS; i++)
    for (int j = 0; j < COLUMNS; j++) result[i * COLUMNS + j] = a[AT(i, j)];
"""
TALL = 4
"""A matrix with that many times as many rows as columns is reflected by columns."""
_QR = """\
  const real *const x = (const real *)arguments[0] + item * ROWS * COLUMNS;
  real *const result = (real *)arguments[1] + item * ROWS * COLUMNS;
  real *const tau = (real *)arguments[2] + item * REFLECTORS;
"""
_QR_WORK = """\
  for (int k = 0; k < REFLECTORS; k++) {
    real v[ROWS];
    const real top = a[AT(k, k)];
    real largest = ABS(top);
    int zeros = 1;
    for (int i = k + 1; i < ROWS; i++) {
      v[i] = a[AT(i, k)];
      if (ABS(v[i]) > largest) largest = ABS(v[i]);
      zeros &= v[i] == 0;
    }
    tau[k] = 0;
    if (zeros) continue;
    if (largest == 0) largest = 1; /* among NaN */
    real squares = (top / largest) * (top / largest); /* which do not overflow */
    #pragma omp simd reduction(+: squares)
    for (int i = k + 1; i < ROWS; i++) squares += (v[i] / largest) * (v[i] / largest);
    const real diagonal = -__builtin_copysign(largest * SQRT(squares), top);
    tau[k] = (diagonal - top) / diagonal;
    a[AT(k, k)] = diagonal;
    #pragma omp simd
    for (int i = k + 1; i < ROWS; i++) a[AT(i, k)] = v[i] /= top - diagonal;
REFLECT
  }
"""
_Q = """\
  const real *const x = (const real *)arguments[0] + item * ROWS * COLUMNS;
  const real *const tau = (const real *)arguments[1] + item * REFLECTORS;
  real *const result = (real *)arguments[2] + item * ROWS * COLUMNS;
"""
_Q_WORK = """\
  for (int i = 0; i < ROWS; i++)
    for (int j = REFLECTORS; j < COLUMNS; j++) a[AT(i, j)] = i == j;
  for (int k = REFLECTORS - 1; k >= 0; k--) {
    real v[ROWS];
    for (int i = k + 1; i < ROWS; i++) v[i] = a[AT(i, k)];
REFLECT
    for (int i = 0; i < k; i++) a[AT(i, k)] = 0;
    a[AT(k, k)] = 1 - tau[k];
    for (int i = k + 1; i < ROWS; i++) a[AT(i, k)] = -tau[k] * v[i];
  }
"""
_SUBSTITUTE = """\
  for (int n = 0; n < ROWS; n++) {
    const int i = LOWER ? n : ROWS - 1 - n;
    real *const row = b + i * WIDTH;
    const int last = LOWER ? i : ROWS;
    int k = LOWER ? 0 : i + 1;
    for (; k + 4 <= last; k += 4) { /* four rows at once, because a row is loaded and stored each time */
      const real f0 = a[ELEMENT(i, k)], f1 = a[ELEMENT(i, k + 1)], f2 = a[ELEMENT(i, k + 2)], f3 = a[ELEMENT(i, k + 3)];
      const real *const known = b + k * WIDTH;
      #pragma omp simd
      for (int j = 0; j < WIDTH; j++)
        row[j] -= f0 * known[j] + f1 * known[j + WIDTH] + f2 * known[j + 2 * WIDTH] + f3 * known[j + 3 * WIDTH];
    }
    for (; k < last; k++) {
      const real factor = a[ELEMENT(i, k)], *const known = b + k * WIDTH;
      #pragma omp simd
      for (int j = 0; j < WIDTH; j++) row[j] -= factor * known[j];
    }
    if (UNIT) continue;
    const real diagonal = a[i * ROWS + i];
    #pragma omp simd
    for (int j = 0; j < WIDTH; j++) row[j] /= diagonal;
  }
"""
_SOLVE_ROWS = f"""\
  const real *const a = (const real *)arguments[0] + item * ROWS * ROWS;
  const real *const x = (const real *)arguments[1] + item * ROWS * COLUMNS;
  real *const b = (real *)arguments[2] + item * ROWS * COLUMNS;
  if (b != x) memcpy(b, x, sizeof(real) * ROWS * COLUMNS);
{_SUBSTITUTE}"""
_SOLVE_BLOCKS = f"""\
  const real *const a = (const real *)arguments[0] + item * ROWS * ROWS;
  const real *const x = (const real *)arguments[1] + item * ROWS * COLUMNS;
  real *const result = (real *)arguments[2] + item * ROWS * COLUMNS;
  for (int first = 0; first < COLUMNS; first += WIDTH) {{
    real b[ROWS * WIDTH] __attribute__((aligned(64)));
    const int count = COLUMNS - first < WIDTH ? COLUMNS - first : WIDTH;
    if (count < WIDTH) memset(b, 0, sizeof b);
    for (int j = 0; j < count; j++)
      for (int i = 0; i < ROWS; i++) b[i * WIDTH + j] = x[(first + j) * ROWS + i];
{textwrap.indent(_SUBSTITUTE, "  ")}\
    for (int j = 0; j < count; j++)
      for (int i = 0; i < ROWS; i++) result[(first + j) * ROWS + i] = b[i * WIDTH + j];
  }}
"""
_SOLVE_VECTORS = """\
  const real *const a = (const real *)arguments[0] + item * ROWS * ROWS;
  const real *const x = (const real *)arguments[1] + item * ROWS * COLUMNS;
  real *const b = (real *)arguments[2] + item * ROWS * COLUMNS;
  for (int c = 0; c < COLUMNS; c++) {
    real v[ROWS];
    for (int i = 0; i < ROWS; i++) v[i] = x[PLACE(i, c)];
    for (int n = 0; n < ROWS; n++) {
      const int i = LOWER ? n : ROWS - 1 - n;
      SUBSTITUTE
    }
    for (int i = 0; i < ROWS; i++) b[PLACE(i, c)] = v[i];
  }
"""
_BY_ROW = """\
real sum = 0;
      #pragma omp simd reduction(+: sum)
      for (int k = LOWER ? 0 : i + 1; k < (LOWER ? i : ROWS); k++) sum += a[i * ROWS + k] * v[k];
      v[i] = UNIT ? v[i] - sum : (v[i] - sum) / a[i * ROWS + i];"""
_BY_COLUMN = """\
const real found = UNIT ? v[i] : v[i] / a[i * ROWS + i], *const column = a + i * ROWS;
      v[i] = found;
      #pragma omp simd
      for (int k = LOWER ? i + 1 : 0; k < (LOWER ? ROWS : i); k++) v[k] -= column[k] * found;"""


@dataclass(frozen=True)
class _Work:
    """What an instruction computes for each matrix of a batch.

    Attributes:
        text: C text.
        macros: the macros of the text.
        operations: number of arithmetic operations.
        in_place: number of the operand that may share its memory with the first result; -1 is the last one.
    """

    text: str
    macros: dict[str, str | int]
    operations: int
    in_place: int = -1


def factorizations_of(backend: str) -> KernelImplementation:
    """Return the implementation of small factorizations and triangular solves for one backend, given its name."""
    return by_kernels(
        "factorization",
        backend,
        _kernel,
        lambda i: _work(i) is not None,
        "it is no LU, QR, Cholesky or triangular solve of small real matrices",
    )


def _kernel(i: HloInstruction) -> KernelSpec:
    work = _work(i)
    assert work is not None  # noqa: S101 - the instruction was not refused
    element = i.operand(0).shape.element_type
    suffix = "f" if element is PrimitiveType.F32 else ""
    macros = {"real": _TYPES[element], "ABS": f"fabs{suffix}", "SQRT": f"sqrt{suffix}", **work.macros}
    grain = max(1, _GRAIN // max(1, work.operations))
    inputs = len(i.operands)
    return matrix_kernel(
        i, "factorization", work.text, macros, work.operations, grain, (work.in_place % inputs, inputs)
    )


def _work(i: HloInstruction) -> _Work | None:
    """Return what an instruction computes, or None if it is computed otherwise."""
    if not i.operands or not _is_small(i.operand(0).shape) or len(distinct_operands(i)) < len(i.operands):
        return None
    a = i.operand(0).shape
    if i.opcode is Opcode.CHOLESKY:
        return _cholesky(a, bool(i.attr("lower", False)), custom=False)
    if i.opcode is Opcode.TRIANGULAR_SOLVE:
        left, lower, unit = (bool(i.attr(name, False)) for name in ("left_side", "lower", "unit_diagonal"))
        transposed = i.attr("transpose_a", "NO_TRANSPOSE") != "NO_TRANSPOSE"
        return _solve(a, i.operand(1).shape, left, lower, unit, transposed)
    if i.opcode is not Opcode.CUSTOM_CALL:
        return None
    target, given, letter = str(i.attr("custom_call_target")), options(i), _LETTERS[a.element_type]

    def is_set(name: str, value: str) -> bool:
        return given.get(name) == ord(value)

    if target == f"lapack_{letter}getrf_ffi":
        rows, columns = a.dimensions[-2:]
        return _Work(_LU, {"ROWS": rows, "COLUMNS": columns}, rows * columns * min(rows, columns))
    if target == f"lapack_{letter}geqrf_ffi":
        rows, columns = a.dimensions[-2:]
        return _reflections(_QR, _QR_WORK, rows, columns, min(rows, columns))
    if target == f"lapack_{letter}orgqr_ffi":
        (rows, columns), reflectors = a.dimensions[-2:], i.operand(1).shape.dimensions[-1]
        return _reflections(_Q, _Q_WORK, rows, columns, reflectors) if rows >= columns >= reflectors else None
    if target == f"lapack_{letter}potrf_ffi":
        return _cholesky(a, is_set("uplo", "L"), custom=True)
    if target == f"lapack_{letter}trsm_ffi":
        left, lower, unit = is_set("side", "L"), is_set("uplo", "L"), is_set("diag", "U")
        return _solve(a, i.operand(1).shape, left, lower, unit, not is_set("trans_x", "N"))
    return None


def _is_small(shape: Shape) -> bool:
    if not shape.is_array or shape.is_dynamic or shape.element_type not in _TYPES or len(shape.dimensions) < 2:
        return False
    return shape.num_elements > 0 and shape.dimensions[-2] <= LARGEST and shape.dimensions[-1] <= LARGEST


def _cholesky(a: Shape, lower: bool, custom: bool) -> _Work:
    """Return the work of a Cholesky factorization; the custom call returns a status, the op NaN and zeros."""
    rows = a.dimensions[-1]
    macros: dict[str, str | int] = {"ROWS": rows}
    if lower:
        macros |= {"AT(i, k)": "((i) * ROWS + (k))", "FROM": "k + 1", "TO": "i + 1", "OUTSIDE": "j > i"}
    else:
        macros |= {"AT(i, k)": "((k) * ROWS + (i))", "FROM": "i", "TO": "ROWS", "OUTSIDE": "j < i"}
    return _Work(_CHOLESKY + (_KEEP_STATUS if custom else _CLEAN), macros, rows**3 // 3)


def _reflections(pointers: str, work: str, rows: int, columns: int, reflectors: int) -> _Work:
    """Return the work of a QR factorization, or of the matrix Q of its reflectors."""
    tall = rows >= TALL * columns
    storage, reflect = (_IN_COLUMNS, _REFLECT_COLUMNS) if tall else (_IN_ROWS, _REFLECT_ROWS)
    text = pointers + storage.replace("WORK\n", work).replace("REFLECT\n", reflect)
    macros: dict[str, str | int] = {
        "ROWS": rows, "COLUMNS": columns, "REFLECTORS": reflectors,
        "AT(i, j)": "((j) * ROWS + (i))" if tall else "((i) * COLUMNS + (j))",
    }  # fmt: skip
    return _Work(text, macros, 2 * rows * columns * reflectors, in_place=0)


def _solve(a: Shape, b: Shape, left: bool, lower: bool, unit: bool, transposed: bool) -> _Work | None:
    """Return the work of op(A) X = B or X op(A) = B, the second as op(A)' X' = B'; None if B is empty or large."""
    rows, columns = b.dimensions[-2:] if left else b.dimensions[:-3:-1]
    if b.is_dynamic or not b.num_elements or (not _is_small(b) and rows**2 * columns > MOST_OPERATIONS):
        return None
    across = transposed == left  # whether row i of the system is column i of A
    macros: dict[str, str | int] = {
        "ROWS": rows, "COLUMNS": columns, "LOWER": int(lower != across), "UNIT": int(unit),
        "ELEMENT(i, k)": "((k) * ROWS + (i))" if across else "((i) * ROWS + (k))",
        "PLACE(i, c)": "((i) * COLUMNS + (c))" if left else "((c) * ROWS + (i))",
    }  # fmt: skip
    text = _SOLVE_VECTORS.replace("SUBSTITUTE", _BY_COLUMN if across else _BY_ROW)
    if left and columns >= 4:
        text, macros["WIDTH"] = _SOLVE_ROWS, columns
    elif columns >= BLOCKS[-1]:
        text, macros["WIDTH"] = _SOLVE_BLOCKS, next(n for n in BLOCKS if n <= columns)
    return _Work(text, macros, rows * rows * columns)
