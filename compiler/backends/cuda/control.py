"""Control flow of a program on a GPU: stretches of launches, and what the host decides between them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from compiler.backends.cuda.stretches import Stretch

__all__ = ["BranchNode", "CallNode", "CountedNode", "LoopNode", "Node", "PinnedValue", "StretchNode", "run_nodes"]


@dataclass(slots=True)
class Run:
    """How nodes run.

    Attributes:
        stream: where.
        capturing: the stream on which graphs are captured.
        synchronous: wait after each launch.
    """

    stream: Any
    capturing: Any
    synchronous: bool


class Node(Protocol):
    """A part of a program."""

    def run(self, run: Run) -> None:
        """Run it; what it launches may not be complete when this returns."""
        ...


def run_nodes(nodes: Sequence[Node], stream: Any, capturing: Any, synchronous: bool = False) -> None:
    """Run the parts of a program one after the other on a stream."""
    _sequence(nodes, Run(stream, capturing, synchronous))


def _sequence(nodes: Sequence[Node], run: Run) -> None:
    for n in nodes:
        n.run(run)


class PinnedValue:
    """A number in pinned host memory, which the GPU writes and the host waits for.

    Args:
        xp: CuPy.
        size: bytes; 1 for a predicate, 4 for an index.
    """

    def __init__(self, xp: Any, size: int) -> None:
        self._memory = xp.cuda.alloc_pinned_memory(max(size, 8))
        self._written = xp.cuda.Event(disable_timing=True)
        self._type = ctypes.c_int8 if size == 1 else ctypes.c_int32
        self.address = int(self._memory.ptr)

    def wait(self, stream: Any) -> int:
        """Return the number once the stream has come to its copy; other work of the GPU continues."""
        self._written.record(stream)
        self._written.synchronize()
        return int(self._type.from_address(self.address).value)


@dataclass
class StretchNode:
    """Launches without the host."""

    stretch: Stretch

    def run(self, run: Run) -> None:
        self.stretch.run(run.stream, run.capturing, run.synchronous)


@dataclass
class CallNode:
    """A call of a function that takes the stream: an op of the interpreter, or of a library that allocates."""

    function: Callable[[Any], None]

    def run(self, run: Run) -> None:
        self.function(run.stream)


@dataclass
class CountedNode:
    """A loop with a known number of iterations."""

    body: list[Node]
    count: int

    def run(self, run: Run) -> None:
        for _ in range(self.count):
            _sequence(self.body, run)


@dataclass
class LoopNode:
    """A loop whose condition the GPU computes.

    Attributes:
        first: the condition, with a copy of its predicate to the host.
        again: body and condition with that copy, so that the host waits once per iteration.
        predicate: where the copy goes.
    """

    first: list[Node]
    again: list[Node]
    predicate: PinnedValue

    def run(self, run: Run) -> None:
        _sequence(self.first, run)
        while self.predicate.wait(run.stream):
            _sequence(self.again, run)


@dataclass
class BranchNode:
    """A conditional.

    Attributes:
        selector: a predicate (true: the first branch) or an index (out of range: the last branch).
        is_predicate: which of both.
        branches: its branches.
    """

    selector: PinnedValue
    is_predicate: bool
    branches: list[list[Node]]

    def run(self, run: Run) -> None:
        value = self.selector.wait(run.stream)
        branch = 1 - bool(value) if self.is_predicate else value
        _sequence(self.branches[branch if 0 <= branch < len(self.branches) else -1], run)
