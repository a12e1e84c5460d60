"""The driver: all thunks of a program as one C function with its control flow, so that a call is one foreign call."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import resources

from compiler.ir.types import PrimitiveType as T
from compiler.runtime.buffers import Buffer, BufferKind
from compiler.runtime.gemm import BLAS_TYPES
from compiler.runtime.thunks import (
    ConditionalThunk,
    CopyThunk,
    GemmThunk,
    HostThunk,
    KernelThunk,
    LibraryThunk,
    Thunk,
    ThunkVisitor,
    WhileThunk,
    walk,
)

_ENTRY = """
void hlogym_program(char *arena, char *const *parameters, char *const *results, char *const *constants,
                    struct context *context) {
"""


@dataclass
class Driver:
    """The C source of a program and the contents of the tables that it refers to.

    Attributes:
        source: the C source.
        kernels: symbols of the kernels in the order of their table.
        host: host thunks by the number that the source passes to the callback.
        library: library calls in the order of their table of steps.
    """

    source: str = ""
    kernels: list[str] = field(default_factory=list)
    host: list[HostThunk] = field(default_factory=list)
    library: list[LibraryThunk] = field(default_factory=list)


def address(b: Buffer) -> str:
    """Return the C expression for the address of a buffer."""
    b = b.resolve()
    table = {BufferKind.PARAMETER: "parameters", BufferKind.OUTPUT: "results", BufferKind.CONSTANT: "constants"}
    if b.kind is BufferKind.TEMPORARY:
        return f"(arena + {b.index})"
    return f"{table[b.kind]}[{b.index}]"


def print_driver(thunks: list[Thunk]) -> Driver:
    """Return the driver of a program whose temporaries have arena offsets."""
    printer = _Printer()
    printer.sequence(thunks)
    before, after = ["unsigned iterations = 0;", "hlogym_begin(&context->call);"], ["hlogym_end(&context->call);"]
    if any(isinstance(t, GemmThunk) for t in walk(thunks)):
        threading = "context->get_blas_threads, context->set_blas_threads"
        before.append(f"if (context->set_blas_threads) hlogym_blas_enter({threading});")
        after.insert(0, "if (context->set_blas_threads) hlogym_blas_leave(context->set_blas_threads);")
    lines = [*(f"  {line}" for line in before), *printer.lines, "end:", *(f"  {line}" for line in after)]
    head = resources.files("compiler.backends.cpu").joinpath("driver_head.c").read_text()
    printer.driver.source = head + _ENTRY + "\n".join(lines) + "\n}\n"
    return printer.driver


class _Printer(ThunkVisitor[None]):
    """A printer of thunks as C statements, with one method per kind of thunk."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.slots: dict[str, int] = {}
        self.lines: list[str] = []
        self.depth = 1

    def emit(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    def sequence(self, thunks: list[Thunk]) -> None:
        for t in thunks:
            t.accept(self)

    def nested(self, thunks: list[Thunk]) -> None:
        self.depth += 1
        self.sequence(thunks)
        self.depth -= 1

    def kernel(self, t: KernelThunk) -> None:
        slot = self.slots.setdefault(t.spec.symbol, len(self.slots))
        if slot == len(self.driver.kernels):
            self.driver.kernels.append(t.spec.symbol)
        pointers = ", ".join(address(b) for b in (*t.inputs, *t.outputs))
        self.emit(f"{{ void *a[] = {{{pointers}}}; context->kernels[{slot}](a); }}")

    def copy(self, t: CopyThunk) -> None:
        self.emit(f"__builtin_memmove({address(t.target)}, {address(t.source)}, {t.source.size}L);")

    def gemm(self, t: GemmThunk) -> None:
        element = t.out.shape.element_type
        sizes = ", ".join(map(str, (element.byte_size, t.batch, t.m, t.n, t.k)))
        sides = f"{int(t.lhs_transposed)}, {int(t.rhs_transposed)}, {address(t.lhs)}, {address(t.rhs)}"
        self.emit(f"gemm(context, context->{BLAS_TYPES[element]}, {sizes}, {sides}, {address(t.out)});")

    def library(self, t: LibraryThunk) -> None:
        pointers = ", ".join(address(b) for b in (*t.inputs, t.out))
        scratch = "0, 0" if t.scratch is None else f"{address(t.scratch)}, {t.scratch.size}L"
        step = f"context->steps[{len(self.driver.library)}]"
        self.emit(f"{{ char *a[] = {{{pointers}}}; context->run_step({step}, a, {scratch}); }}")
        self.driver.library.append(t)

    def host(self, t: HostThunk) -> None:
        self.emit(f"context->host({len(self.driver.host)});")
        self.emit("if (hlogym_interrupted()) goto end;")
        self.driver.host.append(t)

    def loop(self, t: WhileThunk) -> None:
        self.emit("for (;;) {")
        self.nested(t.condition)
        self.depth += 1
        # Signals are not checked in every iteration, because a check costs as much as a small kernel.
        self.emit("if (++iterations % 16 == 0 && hlogym_interrupted()) goto end;")
        self.emit(f"if (!*(unsigned char *){address(t.predicate)}) break;")
        self.depth -= 1
        self.nested(t.body)
        self.emit("}")

    def conditional(self, t: ConditionalThunk) -> None:
        if t.selector.shape.element_type is T.PRED:
            self.emit(f"switch (*(unsigned char *){address(t.selector)} ? 0 : 1) {{")
        else:
            self.emit(f"switch (*(int *){address(t.selector)}) {{")
        for n, branch in enumerate(t.branches):
            self.emit(f"case {n}: {{" if n < len(t.branches) - 1 else "default: {")
            self.nested(branch)
            self.emit("break; }")
        self.emit("}")
