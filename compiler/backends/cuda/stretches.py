"""Stretches: launches that follow each other without the host, replayed as a CUDA graph once the same addresses return.

A graph has the addresses of arguments and results built in, so a stretch keeps a graph per combination of the addresses
that it reads. The first time a combination is met, its steps are launched one by one, which also loads what CUDA and
cuBLAS load at first use and which a capture must not do; the second time they are captured.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from compiler.backends.cuda.failures import cuda_error_types
from compiler.backends.cuda.steps import AddressTable, RepeatStep, Step

__all__ = ["MOST_LAUNCHES", "Stretch"]

MOST_LAUNCHES = 20_000
"""Maximum number of launches in one graph."""
LEAST_LAUNCHES = 2
"""Launches from which a graph is faster than launching."""
MOST_GRAPHS = 8
MOST_SEEN = 64


class Stretch:
    """Steps that are launched one after the other.

    Args:
        xp: CuPy.
        table: the addresses that steps read.
        steps: at least one.
        recent: the steps that were launched last, to which those of this stretch are added.
    """

    def __init__(self, xp: Any, table: AddressTable, steps: list[Step], recent: deque[Step]) -> None:
        self.steps = steps
        self.launches = sum(s.launches for s in steps)
        self.refusal: str | None = None if self.launches >= LEAST_LAUNCHES else "it is a single launch"
        self._xp, self._table, self._recent = xp, table, recent
        self._outside = table.outside(n for s in steps for n in s.slots)
        self._graphs: OrderedDict[tuple[int, ...], Any] = OrderedDict()
        self._seen: OrderedDict[tuple[int, ...], None] = OrderedDict()

    def run(self, stream: Any, capturing: Any, synchronous: bool = False) -> None:
        """Launch the steps, by themselves or as a graph.

        Args:
            stream: where they run.
            capturing: a stream of our own, on which graphs are captured.
            synchronous: launch them by themselves and wait for each.
        """
        key = tuple(map(self._table.address, self._outside))
        if synchronous:
            self._seen[key] = None
            self.launch(stream.ptr, stream.synchronize)
            return
        if self.refusal is not None:
            self.launch(stream.ptr)
            return
        graph = self._graphs.get(key)
        if graph is None and key in self._seen:
            graph = self._capture(capturing)
        if graph is None:
            self._seen[key] = None
            if len(self._seen) > MOST_SEEN:
                self._seen.popitem(last=False)
            self.launch(stream.ptr)
            return
        self._graphs[key] = graph
        self._graphs.move_to_end(key)
        if len(self._graphs) > MOST_GRAPHS:
            self._graphs.popitem(last=False)
        self._recent.extend(self.steps)
        graph.launch(stream)

    @property
    def is_one_launch(self) -> bool:
        """Whether it is launched at once: as a graph, or because it is one launch."""
        return self.refusal is None or self.launches == 1

    def launch(self, stream: int, after_each: Callable[[], None] | None = None) -> None:
        """Launch the steps by themselves on the stream with this handle; call a function after each."""
        for s in _flat(self.steps) if after_each else self.steps:
            self._recent.append(s)
            s.launch(stream)
            if after_each:
                after_each()
                self._recent.clear()  # it has run

    def _capture(self, stream: Any) -> Any:
        """Return the graph of the steps for the present addresses, or None if CUDA does not capture them."""
        errors = cuda_error_types(self._xp)
        graph = None
        try:
            stream.begin_capture()
            try:
                for s in self.steps:
                    s.launch(stream.ptr)
            finally:
                graph = stream.end_capture()
        except errors as e:
            self.refusal = (str(e).splitlines() or [type(e).__name__])[0]
            warnings.warn(
                f"the launches from %{self.steps[0].name} to %{self.steps[-1].name} are not captured as a CUDA graph, "
                f"which makes calls slower: {self.refusal}",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        return graph


def _flat(steps: list[Step]) -> list[Step]:
    out: list[Step] = []
    for s in steps:
        out += _flat(list(s.body)) * s.count if isinstance(s, RepeatStep) else [s]
    return out
