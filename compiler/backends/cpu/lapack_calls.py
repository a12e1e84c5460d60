"""Linear algebra that has no kernel of its own as kernels that call SciPy's LAPACK, without Python.

These are general eigenvalues, Schur and Hessenberg forms, tridiagonal systems, QR with pivots, and factorizations of
complex matrices. LAPACK stores matrices by columns, programs by rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compiler.backends.cpu.lapack_routines import KIND, ROUTINES
from compiler.backends.cpu.matrix_kernels import by_kernels, matrix_kernel
from compiler.codegen.kernel_spec import KernelSpec, distinct_operands
from compiler.interpreter.custom_calls import options
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T
from compiler.runtime.implementations import KernelImplementation

__all__ = ["lapack_of"]

_LETTERS = {T.F32: "s", T.F64: "d", T.C64: "c", T.C128: "z"}
_NUMBERS = {"s": "float", "d": "double", "c": "float _Complex", "z": "double _Complex"}
_REALS = {"s": "float", "d": "double", "c": "float", "z": "double"}
_MACROS = {
    "GET(n, type, size)": "((const type *)arguments[n] + item * (int64_t)(size))",
    "PUT(n, type, size)": "((type *)arguments[n] + item * (int64_t)(size))",
    "TRANSPOSE(to, from, rows, columns)": (
        "for (int64_t i = 0; i < (rows); i++) "
        "for (int64_t j = 0; j < (columns); j++) (to)[j * (rows) + i] = (from)[i * (columns) + j]"
    ),
}
_CALL = """\
  extern void *hlogym_lapack[];
  void (*const routine)() = (void (*)())hlogym_lapack[ROUTINE]; /* all arguments are pointers */
  int32_t unused, *const info = STATUS;
  number *const a = (number *)__builtin_malloc(sizeof(number) * (int64_t)(SPACE));
  number best = 0, *work = &best;
  int size = -1;
  *info = 1;
  if (!a || !routine) return;
BEFORE
  if (HAS_WORK) {
    routine(ARGUMENTS); /* asks for the size of the memory */
    size = (int)(*(real *)&best * 1.0001) + 1; /* the size may be rounded to the precision of its type */
    work = (number *)__builtin_malloc(sizeof(number) * (int64_t)size);
    if (!work) return;
  }
  routine(ARGUMENTS);
AFTER
  if (HAS_WORK) __builtin_free(work);
  __builtin_free(a);
"""
_READ = "  TRANSPOSE(a, GET(0, number, ROWS * COLUMNS), ROWS, COLUMNS);"
_WRITE = "  TRANSPOSE(PUT(INPUTS, number, ROWS * COLUMNS), a, COLUMNS, ROWS);"
_REAL_VECTORS = """\
  for (int which = 0; which < 2; which++) {
    real *const out = (real *)arguments[which ? 4 : 3] + 2 * item * ROWS * ROWS;
    const real *const from = which ? right : left, *const signs = PUT(2, real, ROWS);
    const int wanted = (which ? of_right : of_left) == 'V';
    for (int j = 0; j < ROWS; j++) {
      const int paired = wanted && signs[j] > 0 && j + 1 < ROWS; /* two columns hold the parts of two vectors */
      for (int i = 0; i < ROWS; i++) {
        real *const x = out + 2 * (i * ROWS + j);
        x[0] = wanted ? from[j * ROWS + i] : 0;
        x[1] = paired ? from[(j + 1) * ROWS + i] : 0;
        if (paired) x[2] = x[0], x[3] = -x[1];
      }
      j += paired;
    }
  }"""
_COMPLEX_VECTORS = """\
  for (int k = 0; k < ROWS * ROWS && of_left != 'V'; k++) left[k] = 0;
  for (int k = 0; k < ROWS * ROWS && of_right != 'V'; k++) right[k] = 0;
  TRANSPOSE(PUT(2, number, ROWS * ROWS), left, ROWS, ROWS);
  TRANSPOSE(PUT(3, number, ROWS * ROWS), right, ROWS, ROWS);"""


@dataclass(frozen=True)
class _Call:
    """A call of a routine for one matrix.

    Attributes:
        arguments: the arguments in C.
        before: C statements that declare them and fill `a`.
        after: C statements that store the results.
        info: number of the result that holds the status; None if there is none.
        space: number of elements of `a`.
        has_work: whether the routine needs memory, for whose size it is asked.
        in_place: number of the operand that may share its memory with the first result.
        rank: rank of a matrix or vector of the first operand.
    """

    arguments: str
    before: str = _READ
    after: str = _WRITE
    info: int | None = None
    space: str = "ROWS * COLUMNS"
    has_work: bool = True
    in_place: int = 0
    rank: int = 2


def _char(name: str, given: dict[str, int], option: str) -> str:
    return f"  char {name} = '{chr(given[option])}';"


def _geev(o: dict[str, int], is_complex: bool) -> _Call:
    values = "PUT(1, number, ROWS)" if is_complex else "PUT(1, real, ROWS), PUT(2, real, ROWS)"
    before = [
        _char("of_left", o, "compute_left"), _char("of_right", o, "compute_right"),
        "  number *const left = a + ROWS * ROWS, *const right = left + ROWS * ROWS;", "  real rest[2 * ROWS];",
        "  int n = ROWS;", _READ,
    ]  # fmt: skip
    rest = "rest, " if is_complex else ""
    return _Call(
        f"&of_left, &of_right, &n, a, &n, {values}, left, &n, right, &n, work, &size, {rest}info",
        "\n".join(before), _COMPLEX_VECTORS if is_complex else _REAL_VECTORS, 3 if is_complex else 4, "3 * ROWS * ROWS",
    )  # fmt: skip


def _gees(o: dict[str, int], is_complex: bool) -> _Call:
    values = "PUT(3, number, ROWS)" if is_complex else "PUT(3, real, ROWS), PUT(4, real, ROWS)"
    before = [
        _char("mode", o, "mode"), "  char sorted = 'N';", "  number *const vectors = a + ROWS * ROWS;",
        f"  int n = ROWS, flags[ROWS], *const chosen = PUT({4 if is_complex else 5}, int32_t, 1);",
        "  real rest[ROWS];", "  for (int k = 0; k < ROWS * ROWS; k++) vectors[k] = 0;", _READ,
    ]  # fmt: skip
    rest = "rest, " if is_complex else ""
    return _Call(
        f"&mode, &sorted, (void *)0, &n, a, &n, chosen, {values}, vectors, &n, work, &size, {rest}flags, info",
        "\n".join(before), f"{_WRITE}\n  TRANSPOSE(PUT(2, number, ROWS * ROWS), vectors, ROWS, ROWS);",
        4 if is_complex else 5, "2 * ROWS * ROWS",
    )  # fmt: skip


def _gehrd(o: dict[str, int], is_complex: bool) -> _Call:
    before = f"  int n = ROWS, low = {o['low']}, high = {o['high']};\n{_READ}"
    return _Call("&n, &low, &high, a, &n, PUT(2, number, ROWS - 1), work, &size, info", before, info=2)


def _sytrd(o: dict[str, int], is_complex: bool) -> _Call:
    outputs = "PUT(2, real, ROWS), PUT(3, real, ROWS - 1), PUT(4, number, ROWS - 1)"
    before = "\n".join([_char("part", o, "uplo"), "  int n = ROWS;", _READ])
    return _Call(f"&part, &n, a, &n, {outputs}, work, &size, info", before, info=4)


def _gtsv(o: dict[str, int], is_complex: bool) -> _Call:
    before = [
        "  int n = ROWS, count = COLUMNS;",
        *(f"  number *const {name} = PUT({4 + n}, number, ROWS);" for n, name in enumerate(("lower", "mid", "upper"))),
        *(
            f"  if ({name} != GET({n}, number, ROWS)) memcpy({name}, GET({n}, number, ROWS), sizeof(number) * ROWS);"
            for n, name in enumerate(("lower", "mid", "upper"))
        ),
        "  TRANSPOSE(a, GET(3, number, ROWS * COLUMNS), ROWS, COLUMNS);",
    ]
    # The first and the last element outside of the diagonal are not used.
    return _Call(
        "&n, &count, lower + 1, mid, upper, a, &n, info", "\n".join(before),
        "  TRANSPOSE(PUT(7, number, ROWS * COLUMNS), a, COLUMNS, ROWS);", 4, has_work=False, rank=1,
    )  # fmt: skip


def _heevd(o: dict[str, int], is_complex: bool) -> _Call:
    before = [
        _char("mode", o, "mode"), _char("part", o, "uplo"),
        "  int n = ROWS, reals = 1 + 5 * ROWS + 2 * ROWS * ROWS, integers = 3 + 5 * ROWS;",
        "  real *const rest = (real *)(a + ROWS * ROWS);", "  int *const more = (int *)(rest + reals);", _READ,
    ]  # fmt: skip
    # There is room for reals and integers, which are smaller than two numbers.
    return _Call(
        "&mode, &part, &n, a, &n, PUT(2, real, ROWS), work, &size, rest, &reals, more, &integers, info",
        "\n".join(before), info=2, space="2 * ROWS * ROWS + 10 * ROWS + 8",
    )  # fmt: skip


def _getrf(o: dict[str, int], is_complex: bool) -> _Call:
    before = f"  int m = ROWS, n = COLUMNS;\n{_READ}"
    return _Call("&m, &n, a, &m, PUT(2, int32_t, LESS), info", before, info=2, has_work=False)


def _potrf(o: dict[str, int], is_complex: bool) -> _Call:
    before = "\n".join([_char("part", o, "uplo"), "  int n = ROWS;", _READ])
    return _Call("&part, &n, a, &n, info", before, info=1, has_work=False)


def _geqrf(o: dict[str, int], is_complex: bool) -> _Call:
    before = f"  int m = ROWS, n = COLUMNS;\n{_READ}"
    return _Call("&m, &n, a, &m, PUT(2, number, LESS), work, &size, info", before)


def _geqp3(o: dict[str, int], is_complex: bool) -> _Call:
    before = "\n".join(
        [
            "  int m = ROWS, n = COLUMNS, *const pivots = PUT(3, int32_t, COLUMNS);", "  real rest[2 * COLUMNS];",
            "  for (int j = 0; j < COLUMNS; j++) pivots[j] = 0;", _READ,
        ]
    )  # fmt: skip
    rest = "rest, " if is_complex else ""
    return _Call(f"&m, &n, a, &m, pivots, PUT(4, number, LESS), work, &size, {rest}info", before)


def _ungqr(o: dict[str, int], is_complex: bool) -> _Call:
    before = f"  int m = ROWS, n = COLUMNS, count = REFLECTORS;\n{_READ}"
    return _Call("&m, &n, &count, a, &m, (void *)GET(1, number, REFLECTORS), work, &size, info", before)


def _trsm(o: dict[str, int], is_complex: bool) -> _Call:
    """Return the call that solves for the transposes, which are what is stored by columns."""
    side, part = "R" if o["side"] == ord("L") else "L", "U" if o["uplo"] == ord("L") else "L"
    before = [
        f"  char side = '{side}', part = '{part}';", _char("form", o, "trans_x"), _char("unit", o, "diag"),
        "  int n = ROWS, m = COLUMNS, k = ORDER;", "  number one = 1, *const x = PUT(2, number, ROWS * COLUMNS);",
        "  const number *const b = GET(1, number, ROWS * COLUMNS);",
        "  if (x != b) memcpy(x, b, sizeof(number) * ROWS * COLUMNS);",
    ]  # fmt: skip
    return _Call(
        "&side, &part, &form, &unit, &m, &n, &one, (void *)GET(0, number, ORDER * ORDER), &k, x, &m",
        "\n".join(before), "", space="1", has_work=False, in_place=1,
    )  # fmt: skip


_CALLS: dict[str, Callable[[dict[str, int], bool], _Call]] = {
    "geev": _geev, "gees": _gees, "gehrd": _gehrd, "sytrd": _sytrd, "hetrd": _sytrd, "gtsv": _gtsv, "heevd": _heevd,
    "getrf": _getrf, "potrf": _potrf, "geqrf": _geqrf, "geqp3": _geqp3, "ungqr": _ungqr, "trsm": _trsm,
}  # fmt: skip


def lapack_of(backend: str) -> KernelImplementation:
    """Return the implementation by LAPACK for one backend, given its name."""
    return by_kernels(
        "lapack-call", backend, _kernel, lambda i: _routine(i) is not None, "no kernel calls LAPACK for it"
    )


def _routine(i: HloInstruction) -> str | None:
    """Return the routine that an instruction calls, or None if it calls none of `_CALLS` or an operand is empty."""
    if i.opcode is not Opcode.CUSTOM_CALL or not i.operands or len(distinct_operands(i)) < len(i.operands):
        return None
    if any(not o.shape.is_array or o.shape.is_dynamic or o.shape.num_elements == 0 for o in i.operands):
        return None
    target, letter = str(i.attr("custom_call_target")), _LETTERS.get(i.operand(0).shape.element_type, "")
    name = target.removeprefix("lapack_").removesuffix("_ffi")
    if target != f"lapack_{name}_ffi" or name not in ROUTINES or name[0] != letter or name[1:] not in _CALLS:
        return None
    return name


def _kernel(i: HloInstruction) -> KernelSpec:
    name = _routine(i)
    assert name is not None  # noqa: S101 - the instruction was not refused
    letter, inputs = name[0], len(i.operands)
    call = _CALLS[name[1:]](options(i), letter in "cz")
    # The matrix that is solved for, of a system, or the only one.
    shape = i.operand({"gtsv": 3, "trsm": 1}.get(name[1:], 0)).shape
    rows, columns = shape.dimensions[-2:]
    macros: dict[str, str | int] = {
        **_MACROS, "number": _NUMBERS[letter], "real": _REALS[letter], "ROUTINE": ROUTINES.index(name),
        "INPUTS": inputs, "ROWS": rows, "COLUMNS": columns, "LESS": min(rows, columns), "SPACE": call.space,
        "HAS_WORK": int(call.has_work), "ARGUMENTS": call.arguments,
        "STATUS": "&unused" if call.info is None else f"PUT({inputs + call.info}, int32_t, 1)",
        "REFLECTORS": i.operand(1).shape.dimensions[-1] if name.endswith("ungqr") else 0,
        "ORDER": i.operand(0).shape.dimensions[-1],
    }  # fmt: skip
    text = _CALL.replace("BEFORE", call.before).replace("AFTER", call.after)
    operations = 9 * rows * columns * min(rows, columns)
    return matrix_kernel(i, KIND, text, macros, operations, 1, (call.in_place, inputs), call.rank)
