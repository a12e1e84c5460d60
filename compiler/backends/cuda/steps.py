"""Steps: what a program launches, prepared once. A step reads the addresses of its arrays from a table when it runs.

The table has a slot per argument, result and constant and per place in the arena. The driver takes pointers to the
parameters of a kernel, so the slots themselves are the parameters: for new arguments only their slots change.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from compiler.backends.cuda.blas import Blas, Product
from compiler.runtime.buffers import Buffer, BufferKind
from compiler.runtime.thunks import Thunk

__all__ = ["AddressTable", "CopyStep", "KernelStep", "ProductStep", "ReadStep", "RepeatStep", "Step", "kernel_symbols"]


class AddressTable:
    """The addresses of all buffers of a program.

    Args:
        thunks: all thunks of the program.
        others: buffers that no thunk has, such as a result that is an argument.
    """

    def __init__(self, thunks: Iterable[Thunk], others: Iterable[Buffer]) -> None:
        buffers = [b for t in thunks for b in (*t.reads(), *t.writes())]
        self._numbers: dict[tuple[BufferKind, int], int] = {}
        for b in (*buffers, *others):
            r = b.resolve()
            self._numbers.setdefault((r.kind, r.index), len(self._numbers))
        self.addresses = (ctypes.c_void_p * max(1, len(self._numbers)))()
        self._start = ctypes.addressof(self.addresses)

    def slot(self, b: Buffer) -> int:
        """Return the number of a buffer's slot."""
        r = b.resolve()
        return self._numbers[r.kind, r.index]

    def address(self, slot: int) -> int:
        """Return the address in a slot."""
        return self.addresses[slot] or 0

    def slot_address(self, slot: int) -> int:
        """Return the address of a slot itself."""
        return self._start + slot * ctypes.sizeof(ctypes.c_void_p)

    def fill(self, kind: BufferKind, addresses: Iterable[int]) -> None:
        """Set the slots of all buffers of one kind; those that the program does not use have none."""
        for index, address in enumerate(addresses):
            slot = self._numbers.get((kind, index))
            if slot is not None:
                self.addresses[slot] = address

    def place_arena(self, start: int) -> None:
        """Set the slots of the temporaries for an arena at some address."""
        for (kind, offset), slot in self._numbers.items():
            if kind is BufferKind.TEMPORARY:
                self.addresses[slot] = start + offset

    def outside(self, slots: Iterable[int]) -> tuple[int, ...]:
        """Return those of these slots that change from call to call: of arguments and results."""
        changing = {n for (kind, _), n in self._numbers.items() if kind in (BufferKind.PARAMETER, BufferKind.OUTPUT)}
        return tuple(sorted(changing.intersection(slots)))


class Step(Protocol):
    """What can be launched on a stream, and captured in a graph.

    Attributes:
        name: name of the HLO instruction.
    """

    @property
    def name(self) -> str: ...

    @property
    def launches(self) -> int:
        """Return the number of launches."""
        ...

    @property
    def slots(self) -> tuple[int, ...]:
        """Return the slots that it reads."""
        ...

    def launch(self, stream: int) -> None:
        """Launch on a stream."""
        ...


@dataclass(frozen=True)
class KernelStep:
    """The launch of a generated kernel.

    Attributes:
        name: see `Step`.
        symbol: name of the kernel.
        driver: CuPy's binding of the driver.
        function: handle of the kernel.
        grid, block: blocks, and threads per block.
        shared_bytes: dynamic shared memory per block.
        slots: its arguments.
        parameters: pointers to these slots, as the driver takes them.
    """

    name: str
    symbol: str
    driver: Any
    function: int
    grid: int
    block: int
    shared_bytes: int
    slots: tuple[int, ...]
    parameters: Any

    launches = 1

    def launch(self, stream: int) -> None:
        self.driver.launchKernel(
            self.function, self.grid, 1, 1, self.block, 1, 1, self.shared_bytes, stream,
            ctypes.addressof(self.parameters), 0,
        )  # fmt: skip

    def __str__(self) -> str:
        return f"the kernel {self.symbol} of %{self.name} ({self.grid} blocks of {self.block} threads)"


@dataclass(frozen=True)
class CopyStep:
    """A copy from one buffer of the GPU to another.

    Attributes:
        name: see `Step`.
        runtime: CuPy's binding of the runtime.
        table: where the addresses are.
        source, target: slots.
        size: bytes.
    """

    name: str
    runtime: Any
    table: AddressTable
    source: int
    target: int
    size: int

    launches = 1

    @property
    def slots(self) -> tuple[int, ...]:
        return (self.source, self.target)

    def launch(self, stream: int) -> None:
        target, source = self.table.address(self.target), self.table.address(self.source)
        if target != source:
            self.runtime.memcpyAsync(target, source, self.size, self.runtime.memcpyDeviceToDevice, stream)

    def __str__(self) -> str:
        return f"the copy of {self.size} bytes for %{self.name}"


@dataclass(frozen=True)
class ReadStep:
    """A copy of a value to pinned host memory, where the host reads it once the stream has run the copy.

    Attributes:
        name: see `Step`.
        runtime: CuPy's binding of the runtime.
        table: where the addresses are.
        source: slot of the value.
        target: address on the host.
        size: bytes.
    """

    name: str
    runtime: Any
    table: AddressTable
    source: int
    target: int
    size: int

    launches = 1

    @property
    def slots(self) -> tuple[int, ...]:
        return (self.source,)

    def launch(self, stream: int) -> None:
        source = self.table.address(self.source)
        self.runtime.memcpyAsync(self.target, source, self.size, self.runtime.memcpyDeviceToHost, stream)

    def __str__(self) -> str:
        return f"the host's reading of the condition of %{self.name}"


@dataclass(frozen=True)
class ProductStep:
    """A matrix product by cuBLAS.

    Attributes:
        name: see `Step`.
        blas: the handle.
        table: where the addresses are.
        product: the call.
        first, second, out: slots of its operands in cuBLAS's order, and of the result.
        workspace: address and size of memory for cuBLAS.
    """

    name: str
    blas: Blas
    table: AddressTable
    product: Product
    first: int
    second: int
    out: int
    workspace: tuple[int, int]

    launches = 1

    @property
    def slots(self) -> tuple[int, ...]:
        return (self.first, self.second, self.out)

    def launch(self, stream: int) -> None:
        first, second, out = (self.table.address(n) for n in self.slots)
        self.blas.multiply(self.product, first, second, out, stream, self.workspace)

    def __str__(self) -> str:
        p = self.product
        return f"the product %{self.name} ({p.batch} of {p.n} x {p.k} by {p.k} x {p.m})"


@dataclass(frozen=True)
class RepeatStep:
    """A counted loop, unrolled into the launches of its iterations.

    Attributes:
        name: see `Step`.
        body: the steps of an iteration.
        count: number of iterations.
    """

    name: str
    body: tuple[Step, ...]
    count: int

    @property
    def launches(self) -> int:
        return self.count * sum(s.launches for s in self.body)

    @property
    def slots(self) -> tuple[int, ...]:
        return tuple(n for s in self.body for n in s.slots)

    def launch(self, stream: int) -> None:
        for _ in range(self.count):
            for s in self.body:
                s.launch(stream)

    def __str__(self) -> str:
        return f"the loop %{self.name}"


def kernel_symbols(steps: Iterable[Step]) -> Iterator[str]:
    """Yield the symbols of the kernels that steps launch."""
    for s in steps:
        if isinstance(s, KernelStep):
            yield s.symbol
        elif isinstance(s, RepeatStep):
            yield from kernel_symbols(s.body)
