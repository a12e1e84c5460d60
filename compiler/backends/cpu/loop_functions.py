"""Loops of small steps as C functions: their kernels are inlined, so that an iteration is not a series of calls.

The driver runs a `while` step by step, and each kernel reads and writes memory. Where kernels take only some
nanoseconds, calls and memory take longer than the work. Such a loop becomes one function with the loops and
conditionals inside it: values of some bytes are local variables of the function, which the compiler keeps in registers,
and what does not change is read once. The steps remain: a timed run of the program makes them one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from compiler.codegen.kernel_spec import KernelSpec, kernel_symbol
from compiler.codegen.languages import C
from compiler.ir.types import PrimitiveType as T
from compiler.runtime.buffers import Buffer, BufferKind
from compiler.runtime.thunk_emitter import ThunkProgram
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

__all__ = ["LoopFunction", "loop_functions"]

LOCAL_BYTES = 256
"""Maximum size of a value that is a local variable of the function."""
SCALAR_BYTES = 8
"""Maximum size of a value that is not an array."""
MAX_FLOPS = 10_000
"""Maximum work of one kernel: beside more of it the time of a call does not count."""
MAX_CHARACTERS = 40_000
"""Maximum length of the kernels of a loop: inlining longer ones takes the compiler longer than the loop saves."""
MIN_RUNS = 8
"""Least expected number of executions of all kernels of a loop."""
UNCHECKED_TRIPS = 1024
"""An inner loop of at most this many iterations runs without a look at signals."""
CHECKED_ITERATIONS = 64
"""Number of iterations after which a loop looks for signals."""
_MAIN = re.compile(r"^(?:VECTOR_BITS\((\d+)\) )?void (hk_\w+)\(void \*const \*arguments\) \{$", re.MULTILINE)
_VECTOR_BITS = re.compile(r"VECTOR_BITS\((\d+)\) ")
_WRITABLE = (BufferKind.TEMPORARY, BufferKind.OUTPUT)


@dataclass(frozen=True)
class LoopFunction:
    """The function of one loop.

    Attributes:
        spec: its source; it has the type of a kernel.
        buffers: its arguments in order, one buffer for each place in memory that the loop accesses.
    """

    spec: KernelSpec
    buffers: tuple[Buffer, ...]


def loop_functions(program: ThunkProgram) -> dict[Thunk, LoopFunction]:
    """Return the functions of the outermost loops that can have one; temporaries have their arena offsets.

    A program that is loaded from a file has equal functions, because they depend on places in memory and not on the
    identity of buffers.
    """
    return dict(_found(program.thunks, program.constants))


def _found(thunks: Sequence[Thunk], constants: Sequence[np.ndarray]) -> Iterator[tuple[Thunk, LoopFunction]]:
    for t in thunks:
        made = _function(t, constants) if isinstance(t, WhileThunk) else None
        if made is not None:
            yield t, made
            continue
        for block in t.blocks():
            yield from _found(block, constants)


def _function(loop: WhileThunk, constants: Sequence[np.ndarray]) -> LoopFunction | None:
    """Return the function of a loop, or None if its steps are not small."""
    inside = list(walk([loop]))
    if not _is_small(inside):
        return None
    places = _Places(inside)
    if places.has_mixed_types():
        return None
    writer = _Writer(places, constants)
    loop.accept(writer)
    source = writer.source()
    symbol = kernel_symbol(source)
    spec = KernelSpec(
        loop.name, "loop-function", C.name, source.replace(_Writer.SYMBOL, symbol), symbol, (), (), bytes=0, flops=0
    )
    return LoopFunction(spec, tuple(p.buffer for p in places.places.values()))


def _is_small(inside: Sequence[Thunk]) -> bool:
    """Check whether the steps of a loop are calls of small kernels that run on one thread."""
    if any(isinstance(t, GemmThunk | HostThunk | LibraryThunk) for t in inside):
        return False
    kernels = [t for t in inside if isinstance(t, KernelThunk)]
    if not kernels or sum(len(t.spec.source) for t in kernels) > MAX_CHARACTERS:
        return False
    if sum(t.executions for t in kernels) < MIN_RUNS or any(_is_large(t.spec) for t in kernels):
        return False
    return all(t.source.size <= MAX_FLOPS for t in inside if isinstance(t, CopyThunk))


def _is_large(k: KernelSpec) -> bool:
    return k.flops > MAX_FLOPS or k.flags != 0 or "hlogym_parallel" in k.source or _MAIN.search(k.source) is None


# ---- places in memory


@dataclass
class _Place:
    """A place in memory that a loop accesses: a buffer, or several of which one follows the other.

    Attributes:
        buffer: one of them.
        number: number of the place among the arguments of the function.
        size: bytes of the largest of them.
        types: types of the elements that kernels read and write there.
        written: whether the loop writes to it.
        alone: whether no other place overlaps it.
    """

    buffer: Buffer
    number: int
    size: int = 0
    types: set[T] = field(default_factory=set)
    written: bool = False
    alone: bool = True

    @property
    def is_local(self) -> bool:
        """Whether it is a local variable of the function.

        Arrays that are only read are not, unless their values are known: gcc would hold those of the size of a vector
        in a register, and makes no vectors of loops that read elements of it.
        """
        is_held = self.written or self.buffer.kind is BufferKind.CONSTANT or self.size <= SCALAR_BYTES
        return self.alone and is_held and self.size <= LOCAL_BYTES

    @property
    def name(self) -> str:
        return f"{'s' if self.is_local else 'a'}{self.number}"


class _Places:
    """The places that the thunks of a loop access, by owner and number or offset."""

    def __init__(self, inside: Sequence[Thunk]) -> None:
        self.places: dict[tuple[BufferKind, int], _Place] = {}
        for t in inside:
            for b in t.reads():
                self._access(b, b.shape.element_type if isinstance(t, KernelThunk) else None)
            for b in t.writes():
                self._access(b, b.shape.element_type if isinstance(t, KernelThunk) else None).written = True
            if isinstance(t, WhileThunk):
                self._access(t.predicate, T.PRED)
        arena = sorted((i, p) for (kind, i), p in self.places.items() if kind is BufferKind.TEMPORARY)
        end, last = -1, None
        self._overlaps: list[tuple[_Place, _Place]] = []
        for offset, place in arena:
            if last is not None and offset < end:
                place.alone = last.alone = False
                self._overlaps.append((last, place))
            if offset + place.size > end:
                end, last = offset + place.size, place

    def _access(self, b: Buffer, element_type: T | None) -> _Place:
        owner = b.resolve()
        place = self.places.setdefault((owner.kind, owner.index), _Place(owner, len(self.places)))
        place.size = max(place.size, b.size)
        if element_type is not None:
            place.types.add(element_type)
        return place

    def of(self, b: Buffer) -> _Place:
        """Return the place of a buffer."""
        owner = b.resolve()
        return self.places[owner.kind, owner.index]

    def has_mixed_types(self) -> bool:
        """Check whether memory holds values of several types, whose accesses a C compiler might exchange."""
        mixed = any(len(p.types) > 1 and p.written and not p.is_local for p in self.places.values())
        return mixed or any(len(p.types | q.types) > 1 for p, q in self._overlaps)


# ---- source


class _Writer(ThunkVisitor[None]):
    """A visitor that writes the statements of thunks."""

    SYMBOL = "HLOGYM_LOOP"

    def __init__(self, places: _Places, constants: Sequence[np.ndarray]) -> None:
        self.places = places
        self.constants = constants
        self.lines: list[str] = []
        self.functions: dict[str, tuple[str, str]] = {}  # the name and the text of each kernel, by its symbol
        self.bits = 0
        self._depth = 0
        self._loops = 0

    def source(self) -> str:
        """Return the source of the function, whose name is SYMBOL."""
        places = list(self.places.places.values())
        parameters, before, after = [], [], []
        for p in places:
            const, restrict = "" if p.written else "const ", "restrict " if p.alone else ""
            parameters.append(f"{const}uint8_t *{restrict}a{p.number}")
            if not p.is_local:
                continue
            declaration = f"uint8_t s{p.number}[{p.size}] __attribute__((aligned(64)))"
            if p.buffer.kind is BufferKind.CONSTANT and not p.written:
                values = ", ".join(map(str, self.constants[p.buffer.index].tobytes().ljust(p.size, b"\0")))
                before.append(f"  static const {declaration} = {{{values}}};")
                continue
            before += [f"  {declaration};", f"  __builtin_memcpy(s{p.number}, a{p.number}, {p.size});"]
            if p.written:
                after.append(f"  __builtin_memcpy(a{p.number}, s{p.number}, {p.size});")
        bits = f"VECTOR_BITS({self.bits}) " if self.bits else ""
        run = f"{self.SYMBOL}_run"
        arguments = ", ".join(f"(uint8_t *)arguments[{p.number}]" for p in places)
        return "\n".join([
            *(text for _, text in self.functions.values()),
            f"{bits}static __attribute__((noinline)) void {run}({', '.join(parameters)}) {{",
            *before, *self.lines, *after, "}", "",
            f"void {self.SYMBOL}(void *const *arguments) {{ {run}({arguments}); }}", "",
        ])  # fmt: skip

    def _add(self, line: str) -> None:
        self.lines.append("  " * (self._depth + 1) + line)

    def _block(self, thunks: Sequence[Thunk]) -> None:
        self._depth += 1
        for t in thunks:
            t.accept(self)
        self._depth -= 1

    def kernel(self, t: KernelThunk) -> None:
        name = self._inlined(t.spec)
        names = ", ".join(f"(void *){self.places.of(b).name}" for b in (*t.inputs, *t.outputs))
        self._add(f"{{ void *const x[] = {{{names}}}; {name}(x); }}")

    def _inlined(self, k: KernelSpec) -> str:
        """Return the name of the copy of a kernel that is inlined."""
        found = self.functions.get(k.symbol)
        if found is None:
            name = f"{self.SYMBOL}_{len(self.functions)}"
            self.bits = max([self.bits, *(int(bits) for bits in _VECTOR_BITS.findall(k.source))])
            text = _MAIN.sub(r"INLINE void \2(void *const *arguments) {", k.source)
            text = _VECTOR_BITS.sub("", text).replace(k.symbol, name)
            found = self.functions[k.symbol] = name, text
        return found[0]

    def copy(self, t: CopyThunk) -> None:
        target, source = self.places.of(t.target), self.places.of(t.source)
        self._add(f"__builtin_memmove({target.name}, {source.name}, {t.source.shape.byte_size});")

    def loop(self, t: WhileThunk) -> None:
        number, outermost = self._loops, not self._loops
        self._loops += 1
        checked = outermost or t.trip_count is None or t.trip_count > UNCHECKED_TRIPS
        self._add(f"for (int64_t w{number} = 1;; w{number}++) {{")
        self._block(t.condition)
        self._add(f"  if (!{self.places.of(t.predicate).name}[0]) break;")
        self._block(t.body)
        if checked:
            self._add(f"  if (w{number} % {CHECKED_ITERATIONS} == 0 && hlogym_interrupted()) return;")
        self._add("}")

    def conditional(self, t: ConditionalThunk) -> None:
        selector, count = self.places.of(t.selector).name, len(t.branches)
        if t.selector.shape.element_type is T.PRED:
            self._add(f"switch ({selector}[0] ? 0 : 1) {{")
        else:
            self._add(f"switch (*(const int32_t *){selector}) {{")
        for n, branch in enumerate(t.branches):
            self._add(f"{'default' if n == count - 1 else f'case {n}'}: {{")
            self._block(branch)
            self._add("} break;")
        self._add("}")

    def gemm(self, t: GemmThunk) -> None:
        raise self._unexpected(t)

    def host(self, t: HostThunk) -> None:
        raise self._unexpected(t)

    def library(self, t: LibraryThunk) -> None:
        raise self._unexpected(t)

    def _unexpected(self, t: Thunk) -> TypeError:
        return TypeError(f"%{t.name}: a loop with a step of kind {t.kind} has no function")
