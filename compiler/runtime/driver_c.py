"""The sequence of thunks, control flow included, as one C function: a call of the program is one foreign call."""

from __future__ import annotations

from dataclasses import dataclass, field

from compiler.ir.types import PrimitiveType as T
from compiler.runtime.buffers import Buffer, BufferKind
from compiler.runtime.gemm import BLAS_TYPES
from compiler.runtime.thunks import (
    ConditionalThunk,
    CopyThunk,
    GemmThunk,
    HostThunk,
    KernelThunk,
    Thunk,
    WhileThunk,
)

_HEAD = """\
typedef void (*kernel_t)(void *const *);
typedef void (*host_t)(int);
typedef void (*gemm_t)(char *, char *, int *, int *, int *, void *, void *, int *, void *, int *, void *, void *, int *);
struct context {{
  const kernel_t *kernels;
  host_t host;
  gemm_t sgemm, dgemm;
  int failed;
}};

static void gemm(gemm_t blas, int width, int batch, int m, int n, int k, int lhs_t, int rhs_t,
                 char *lhs, char *rhs, char *out) {{
  /* Fortran sees the transposes: out' = rhs' lhs'. */
  float one_f = 1, zero_f = 0;
  double one_d = 1, zero_d = 0;
  void *one = width == 4 ? (void *)&one_f : (void *)&one_d, *zero = width == 4 ? (void *)&zero_f : (void *)&zero_d;
  int lda = rhs_t ? k : n, ldb = lhs_t ? m : k;
  char ta = rhs_t ? 'T' : 'N', tb = lhs_t ? 'T' : 'N';
  for (int b = 0; b < batch; b++) {{
    blas(&ta, &tb, &n, &m, &k, one, rhs + (long)b * k * n * width, &lda, lhs + (long)b * m * k * width, &ldb, zero,
         out + (long)b * m * n * width, &n);
  }}
}}

void hlogym_program(char *arena, char *const *parameters, char *const *results, char *const *constants,
                    struct context *context) {{
"""


@dataclass
class Driver:
    """C text of a program, and what must be put into its tables before it runs.

    Attributes:
        kernels: symbols, by slot. host: thunks computed in Python, by number.
    """

    source: str = ""
    kernels: list[str] = field(default_factory=list)
    host: list[HostThunk] = field(default_factory=list)


def address(b: Buffer) -> str:
    """C expression for a buffer's first byte."""
    b = b.resolve()
    table = {BufferKind.PARAMETER: "parameters", BufferKind.OUTPUT: "results", BufferKind.CONSTANT: "constants"}
    if b.kind is BufferKind.TEMPORARY:
        return f"(arena + {b.index})"
    return f"{table[b.kind]}[{b.index}]"


def print_driver(thunks: list[Thunk]) -> Driver:
    """The program's C source; buffers must have their places."""
    printer = _Printer()
    printer.sequence(thunks)
    printer.driver.source = _HEAD.format() + "\n".join(printer.lines) + "\n}\n"
    return printer.driver


class _Printer:
    def __init__(self) -> None:
        self.driver = Driver()
        self.slots: dict[str, int] = {}
        self.lines: list[str] = []
        self.depth = 1

    def emit(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    def sequence(self, thunks: list[Thunk]) -> None:
        for t in thunks:
            self.thunk(t)

    def inside(self, thunks: list[Thunk]) -> None:
        self.depth += 1
        self.sequence(thunks)
        self.depth -= 1

    def thunk(self, t: Thunk) -> None:
        if isinstance(t, KernelThunk):
            slot = self.slots.setdefault(t.spec.symbol, len(self.slots))
            if slot == len(self.driver.kernels):
                self.driver.kernels.append(t.spec.symbol)
            pointers = ", ".join(address(b) for b in (*t.inputs, *t.outputs))
            self.emit(f"{{ void *a[] = {{{pointers}}}; context->kernels[{slot}](a); }}")
        elif isinstance(t, CopyThunk):
            self.emit(f"__builtin_memmove({address(t.target)}, {address(t.source)}, {t.source.size}L);")
        elif isinstance(t, GemmThunk):
            routine = BLAS_TYPES[t.out.shape.element_type]
            self.emit(
                f"gemm(context->{routine}, {t.out.shape.element_type.byte_size}, {t.batch}, {t.m}, {t.n}, {t.k}, "
                f"{int(t.lhs_transposed)}, {int(t.rhs_transposed)}, {address(t.lhs)}, {address(t.rhs)}, {address(t.out)});"
            )
        elif isinstance(t, HostThunk):
            self.emit(f"context->host({len(self.driver.host)});")
            self.emit("if (context->failed) return;")
            self.driver.host.append(t)
        elif isinstance(t, WhileThunk):
            self._while(t)
        elif isinstance(t, ConditionalThunk):
            self._conditional(t)

    def _while(self, t: WhileThunk) -> None:
        self.emit("for (;;) {")
        self.inside(t.condition)
        self.depth += 1
        self.emit(f"if (!*(unsigned char *){address(t.predicate)}) break;")
        self.depth -= 1
        self.inside(t.body)
        self.emit("}")

    def _conditional(self, t: ConditionalThunk) -> None:
        if t.selector.shape.element_type is T.PRED:
            self.emit(f"switch (*(unsigned char *){address(t.selector)} ? 0 : 1) {{")
        else:
            self.emit(f"switch (*(int *){address(t.selector)}) {{")
        for n, branch in enumerate(t.branches):
            self.emit(f"case {n}: {{" if n < len(t.branches) - 1 else "default: {")
            self.inside(branch)
            self.emit("break; }")
        self.emit("}")
