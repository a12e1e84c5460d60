"""Eigenvalues of symmetric matrices and singular values as kernels that call SciPy's LAPACK, without Python.

The routines are given to the runtime when a program that needs them is loaded, because SciPy takes long to import.
"""

from __future__ import annotations

import ctypes
from typing import Any

from compiler.backends.cpu.blas import lapack_address
from compiler.backends.cpu.matrix_kernels import matrix_kernel
from compiler.codegen.kernel_spec import KernelSpec
from compiler.codegen.schedules.kernel_choice import BoundKernel
from compiler.interpreter.custom_calls import options
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T
from compiler.runtime.implementations import KernelImplementation
from compiler.runtime.thunk_emitter import ThunkEmitter

__all__ = ["KIND", "eigenvalues_of", "provide_lapack"]

KIND = "lapack"
"""The kind of these kernels."""
ROUTINES = ("ssyevd", "dsyevd", "sgesdd", "dgesdd")
"""The routines in the order of `hlogym_lapack` in runtime.c."""
_TYPES = {T.F32: "float", T.F64: "double"}
_EIGENVALUES = """\
  extern void *hlogym_lapack[];
  typedef void (*routine_t)(char *, char *, int *, real *, int *, real *, real *, int *, int *, int *, int *);
  const real *const x = (const real *)arguments[0] + item * ROWS * ROWS;
  real *const vectors = (real *)arguments[1] + item * ROWS * ROWS;
  real *const values = (real *)arguments[2] + item * ROWS;
  int32_t *const info = (int32_t *)arguments[3] + item;
  int n = ROWS, size = 1 + 6 * ROWS + 2 * ROWS * ROWS, integers = 3 + 5 * ROWS;
  char mode = MODE, part = PART;
  real *const a = ALLOCATE(sizeof(real) * (ROWS * ROWS + (int64_t)size) + sizeof(int) * (int64_t)integers);
  real *const work = a + ROWS * ROWS;
  *info = 1;
  if (!a || !hlogym_lapack[ROUTINE]) return;
  TRANSPOSE(a, x, ROWS, ROWS);
  int *const rest = (int *)(work + size);
  ((routine_t)hlogym_lapack[ROUTINE])(&mode, &part, &n, a, &n, values, work, &size, rest, &integers, info);
  TRANSPOSE(vectors, a, ROWS, ROWS);
  __builtin_free(a);
"""
_SINGULAR_VALUES = """\
  extern void *hlogym_lapack[];
  typedef void (*routine_t)(char *, int *, int *, real *, int *, real *, real *, int *, real *, int *, real *, int *,
                            int *, int *);
  const real *const x = (const real *)arguments[0] + item * ROWS * COLUMNS;
  real *const same = (real *)arguments[1] + item * ROWS * COLUMNS;
  real *const values = (real *)arguments[2] + item * LESS;
  real *const left = (real *)arguments[3] + item * ROWS * LEFT;
  real *const right = (real *)arguments[4] + item * RIGHT * COLUMNS;
  int32_t *const info = (int32_t *)arguments[5] + item;
  const routine_t routine = (routine_t)hlogym_lapack[ROUTINE];
  int m = ROWS, n = COLUMNS, rows_of_right = RIGHT, size = -1, integers[8 * LESS];
  char mode = MODE;
  real best = 0;
  *info = 1;
  if (!routine) return;
  routine(&mode, &m, &n, same, &m, values, left, &m, right, &rows_of_right, &best, &size, integers, info);
  size = (int)(best * 1.0001) + 1; /* the size may be rounded to the precision of its type */
  const int64_t taken = ROWS * COLUMNS + ROWS * LEFT + RIGHT * COLUMNS;
  real *const a = ALLOCATE(sizeof(real) * (taken + size)), *const u = a + ROWS * COLUMNS, *const v = u + ROWS * LEFT;
  if (!a) return;
  TRANSPOSE(a, x, ROWS, COLUMNS);
  for (int64_t k = 0; k < ROWS * LEFT + RIGHT * COLUMNS; k++) u[k] = 0; /* where the routine writes no vectors */
  routine(&mode, &m, &n, a, &m, values, u, &m, v, &rows_of_right, a + taken, &size, integers, info);
  if (same != x) memcpy(same, x, sizeof(real) * ROWS * COLUMNS);
  TRANSPOSE(left, u, LEFT, ROWS);
  TRANSPOSE(right, v, COLUMNS, RIGHT);
  __builtin_free(a);
"""
_MACROS = {
    "ALLOCATE(bytes)": "(real *)__builtin_malloc(bytes)",
    "TRANSPOSE(to, from, rows, columns)": (
        "for (int64_t i = 0; i < (rows); i++) "
        "for (int64_t j = 0; j < (columns); j++) (to)[j * (rows) + i] = (from)[i * (columns) + j]"
    ),
}


def eigenvalues_of(backend: str) -> KernelImplementation:
    """Return the implementation by LAPACK for one backend, given its name."""

    def refusal(i: HloInstruction, target: str) -> str | None:
        if target != backend:
            return f"it is a kernel of the {backend} backend"
        return None if _text(i) is not None else "it has no eigenvalues or singular values of real matrices"

    return KernelImplementation(KIND, refusal, _emit, prefers=lambda i, target: True)


def provide_lapack(runtime: ctypes.CDLL) -> None:
    """Give the runtime the addresses of the routines that the kernels call."""
    table = (ctypes.c_void_p * len(ROUTINES)).in_dll(runtime, "hlogym_lapack")
    for n, name in enumerate(ROUTINES):
        table[n] = lapack_address(name)


def _emit(
    emitter: ThunkEmitter, i: HloInstruction, operands: list[Any], thunks: list[Any], runs: float, bound: BoundKernel
) -> Any:
    return emitter.launch(_kernel(i), i.shape, list(operands), thunks, runs)


def _text(i: HloInstruction) -> tuple[str, dict[str, str | int]] | None:
    """Return C text for one matrix and its macros, or None if it is no call of `ROUTINES` or the matrix is empty."""
    if i.opcode is not Opcode.CUSTOM_CALL or len(i.operands) != 1:
        return None
    a = i.operand(0).shape
    if not a.is_array or a.is_dynamic or a.element_type not in _TYPES or a.rank < 2 or a.num_elements == 0:
        return None
    target, given = str(i.attr("custom_call_target")), options(i)
    name = target.removeprefix("lapack_").removesuffix("_ffi")
    if target != f"lapack_{name}_ffi" or name not in ROUTINES or ROUTINES.index(name) % 2 != (a.element_type is T.F64):
        return None
    rows, columns = a.dimensions[-2:]
    leaves = list(i.shape.leaves())
    macros: dict[str, str | int]
    mode = f"'{chr(given['mode'])}'"
    macros = {"real": _TYPES[a.element_type], "ROUTINE": ROUTINES.index(name), "ROWS": rows, "MODE": mode}
    if name.endswith("syevd"):
        return _EIGENVALUES, {**macros, "PART": f"'{chr(given['uplo'])}'"}
    sizes = {"COLUMNS": columns, "LESS": min(rows, columns)}
    return _SINGULAR_VALUES, {
        **macros, **sizes, "LEFT": leaves[2].dimensions[-1], "RIGHT": leaves[3].dimensions[-2],
    }  # fmt: skip


def _kernel(i: HloInstruction) -> KernelSpec:
    found = _text(i)
    assert found is not None  # noqa: S101 - the instruction was not refused
    text, macros = found
    rows, columns = i.operand(0).shape.dimensions[-2:]
    operations = 9 * rows * columns * min(rows, columns)
    return matrix_kernel(i, KIND, text, {**_MACROS, **macros}, operations, 1, (0, 1))
