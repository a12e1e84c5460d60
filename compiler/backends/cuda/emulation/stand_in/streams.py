"""Streams, events and graphs, as CuPy has them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from compiler.backends.cuda.emulation.stand_in.gpu import Gpu, Work
from compiler.backends.cuda.emulation.stand_in.memory import FaultError
from compiler.backends.cuda.emulation.stand_in.ordering import LEGACY, Clock

__all__ = ["Event", "Graph", "Hardware", "Stream", "elapsed_time", "of_hardware"]


@dataclass
class Hardware:
    """A simulated GPU and the current stream of each thread.

    Attributes:
        gpu: the GPU.
        default: the legacy default stream.
    """

    gpu: Gpu
    default: Any = None
    _threads: threading.local = field(default_factory=threading.local)

    def current(self) -> Any:
        """Return the current stream of this thread."""
        return getattr(self._threads, "stream", self.default)

    def use(self, stream: Any) -> None:
        """Make a stream the current one of this thread."""
        self._threads.stream = stream


def of_hardware(base: type, hardware: Hardware) -> Any:
    """Return a class like one of this package, whose objects are on this hardware; CuPy's classes do not take it."""
    return type(base.__name__, (base,), {"hardware": hardware})


class Event:
    """A point of a stream."""

    hardware: ClassVar[Hardware]

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        del block, interprocess
        self.clock: Clock | None = None
        self.time, self.timed = 0.0, not disable_timing

    def record(self, stream: Any = None) -> None:
        """Stand for what the stream has been given so far."""
        gpu = self.hardware.gpu
        gpu.check_alive()
        self.clock = gpu.snapshot((stream or self.hardware.current()).ptr)
        self.time = time.perf_counter()

    def synchronize(self) -> None:
        """Let the host wait."""
        self.hardware.gpu.check_alive()
        if self.clock is not None:
            self.hardware.gpu.wait(self.clock)

    @property
    def done(self) -> bool:
        """Whether the stream has come there; work runs when it is submitted."""
        return True


def elapsed_time(start: Event, stop: Event) -> float:
    """Return the milliseconds between two events."""
    if not (start.timed and stop.timed):
        raise FaultError("the time of an event without timing is asked for")
    return 1e3 * (stop.time - start.time)


class Graph:
    """Captured work."""

    hardware: ClassVar[Hardware]

    def __init__(self, works: Sequence[Work]) -> None:
        self._works = list(works)

    def launch(self, stream: Any = None) -> None:
        """Run the work on a stream."""
        gpu = self.hardware.gpu
        gpu.check_alive()
        gpu.replay((stream or self.hardware.current()).ptr, self._works)


class Stream:
    """A queue of work."""

    hardware: ClassVar[Hardware]

    def __init__(
        self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: int | None = None
    ) -> None:
        del ptds, priority
        gpu = self.hardware.gpu
        gpu.forbid_in_capture("a stream is created")
        self.ptr = LEGACY if null else gpu.order.new_stream(blocking=not non_blocking)
        self._before: list[Any] = []

    def __enter__(self) -> Any:
        self._before.append(self.hardware.current())
        self.hardware.use(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.hardware.use(self._before.pop())

    def synchronize(self) -> None:
        """Let the host wait for what the stream has been given."""
        self.hardware.gpu.check_alive()
        self.hardware.gpu.synchronize(self.ptr)

    def wait_event(self, event: Any) -> None:
        """Let what the stream is given next wait for an event."""
        self.hardware.gpu.check_alive()
        if event.clock is not None:
            self.hardware.gpu.order.join(self.ptr, event.clock)

    def launch_host_func(self, callback: Callable[[Any], object], arg: Any) -> None:
        """Call a function of the host; it may wait for what the host does next, which here is done before."""
        threading.Thread(target=callback, args=(arg,), daemon=True).start()

    def begin_capture(self, mode: int | None = None) -> None:
        """Collect the work that the stream is given from now on."""
        del mode
        self.hardware.gpu.begin_capture(self.ptr)

    def end_capture(self) -> Any:
        """Return the graph of the work that was collected."""
        return of_hardware(Graph, self.hardware)(self.hardware.gpu.end_capture(self.ptr))
