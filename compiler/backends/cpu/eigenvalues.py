"""Eigenvalues of real symmetric matrices and singular values as kernels that call SciPy's LAPACK, without Python."""

from __future__ import annotations

from compiler.backends.cpu.lapack_routines import KIND, ROUTINES
from compiler.backends.cpu.matrix_kernels import by_kernels, matrix_kernel
from compiler.codegen.kernel_spec import KernelSpec
from compiler.interpreter.custom_calls import options
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T
from compiler.runtime.implementations import KernelImplementation

__all__ = ["eigenvalues_of"]

_TYPES = {
    T.F32: ("float", "float"), T.F64: ("double", "double"), T.C64: ("float _Complex", "float"),
    T.C128: ("double _Complex", "double"),
}  # fmt: skip
"""The types of the elements and of their parts in C."""
_LETTERS = {T.F32: "s", T.F64: "d", T.C64: "c", T.C128: "z"}
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
  typedef void (*routine_t)(char *, int *, int *, number *, int *, real *, number *, int *, number *, int *, number *,
                            int *, MORE);
  const number *const x = (const number *)arguments[0] + item * ROWS * COLUMNS;
  number *const same = (number *)arguments[1] + item * ROWS * COLUMNS;
  real *const values = (real *)arguments[2] + item * LESS;
  number *const left = (number *)arguments[3] + item * ROWS * LEFT;
  number *const right = (number *)arguments[4] + item * RIGHT * COLUMNS;
  int32_t *const info = (int32_t *)arguments[5] + item;
  const routine_t routine = (routine_t)hlogym_lapack[ROUTINE];
  int m = ROWS, n = COLUMNS, rows_of_right = RIGHT, size = -1, integers[8 * LESS];
  char mode = MODE;
  number best = 0;
  *info = 1;
  if (!routine) return;
  const int64_t taken = ROWS * COLUMNS + ROWS * LEFT + RIGHT * COLUMNS;
  routine(&mode, &m, &n, same, &m, values, left, &m, right, &rows_of_right, &best, &size, QUERY);
  size = (int)(*(real *)&best * 1.0001) + 1; /* the size may be rounded to the precision of its type */
  number *const a = ALLOCATE(sizeof(number) * (taken + size) + sizeof(real) * REALS);
  number *const u = a + ROWS * COLUMNS, *const v = u + ROWS * LEFT;
  if (!a) return;
  TRANSPOSE(a, x, ROWS, COLUMNS);
  for (int64_t k = 0; k < ROWS * LEFT + RIGHT * COLUMNS; k++) u[k] = 0; /* where the routine writes no vectors */
  routine(&mode, &m, &n, a, &m, values, u, &m, v, &rows_of_right, a + taken, &size, REST);
  if (same != x) memcpy(same, x, sizeof(number) * ROWS * COLUMNS);
  TRANSPOSE(left, u, LEFT, ROWS);
  TRANSPOSE(right, v, COLUMNS, RIGHT);
  __builtin_free(a);
"""
_OF_REAL: dict[str, str | int] = {
    "MORE": "int *, int *",
    "QUERY": "integers, info",
    "REST": "integers, info",
    "REALS": 0,
}
_OF_COMPLEX: dict[str, str | int] = {
    "MORE": "real *, int *, int *", "QUERY": "values, integers, info",
    "REST": "(real *)(a + taken + size), integers, info",
    "REALS": "(LESS * (5 * LESS + 7 > 2 * (ROWS + COLUMNS) + 1 ? 5 * LESS + 7 : 2 * (ROWS + COLUMNS) + 1))",
}  # fmt: skip
"""What a singular value decomposition of real and of complex matrices passes to LAPACK after the size of its memory."""
_MACROS = {
    "ALLOCATE(bytes)": "(number *)__builtin_malloc(bytes)",
    "TRANSPOSE(to, from, rows, columns)": (
        "for (int64_t i = 0; i < (rows); i++) "
        "for (int64_t j = 0; j < (columns); j++) (to)[j * (rows) + i] = (from)[i * (columns) + j]"
    ),
}


def eigenvalues_of(backend: str) -> KernelImplementation:
    """Return the implementation by LAPACK for one backend, given its name."""
    return by_kernels(
        KIND,
        backend,
        _kernel,
        lambda i: _text(i) is not None,
        "it has no eigenvalues or singular values that a kernel computes",
    )


def _text(i: HloInstruction) -> tuple[str, dict[str, str | int]] | None:
    """Return C text for one matrix and its macros, or None if it is no such call or the matrix is empty."""
    if i.opcode is not Opcode.CUSTOM_CALL or len(i.operands) != 1:
        return None
    a = i.operand(0).shape
    if not a.is_array or a.is_dynamic or a.element_type not in _TYPES or a.rank < 2 or a.num_elements == 0:
        return None
    target, given, letter = str(i.attr("custom_call_target")), options(i), _LETTERS[a.element_type]
    rows, columns = a.dimensions[-2:]
    number, real = _TYPES[a.element_type]
    macros: dict[str, str | int] = {"number": number, "real": real, "ROWS": rows}
    if target == f"lapack_{letter}syevd_ffi":
        macros |= {"MODE": f"'{chr(given['mode'])}'", "PART": f"'{chr(given['uplo'])}'"}
        return _EIGENVALUES, {**macros, "ROUTINE": ROUTINES.index(f"{letter}syevd")}
    if target != f"lapack_{letter}gesdd_ffi":
        return None
    leaves = list(i.shape.leaves())
    return _SINGULAR_VALUES, {
        **macros, "COLUMNS": columns, "LESS": min(rows, columns), "ROUTINE": ROUTINES.index(f"{letter}gesdd"),
        "LEFT": leaves[2].dimensions[-1], "RIGHT": leaves[3].dimensions[-2], "MODE": f"'{chr(given['mode'])}'",
        **(_OF_COMPLEX if a.element_type.is_complex else _OF_REAL),
    }  # fmt: skip


def _kernel(i: HloInstruction) -> KernelSpec:
    found = _text(i)
    assert found is not None  # noqa: S101 - the instruction was not refused
    text, macros = found
    rows, columns = i.operand(0).shape.dimensions[-2:]
    operations = 9 * rows * columns * min(rows, columns)
    return matrix_kernel(i, KIND, text, {**_MACROS, **macros}, operations, 1, (0, 1))
