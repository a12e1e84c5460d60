"""Streams, events and graphs, as CuPy has them."""

from __future__ import annotations

import threading
import time
from typing import Any, ClassVar

from compiler.backends.cuda.emulation.stand_in.gpu import Gpu, Work
from compiler.backends.cuda.emulation.stand_in.memory import FaultError
from compiler.backends.cuda.emulation.stand_in.ordering import LEGACY, Clock

__all__ = ["Streams"]


class Streams:
    """The classes and functions of `cupy.cuda` that concern streams, for one simulated GPU.

    Attributes:
        stream: the class `Stream`.
        event: the class `Event`.
        graph: the class of captured graphs.
    """

    def __init__(self, gpu: Gpu) -> None:
        current = threading.local()

        class Event:
            """A point of a stream."""

            def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
                del block, interprocess
                self.clock: Clock | None = None
                self.time, self.timed = 0.0, not disable_timing

            def record(self, stream: Any = None) -> None:
                gpu.check_alive()
                self.clock = gpu.snapshot((stream or get_current_stream()).ptr)
                self.time = time.perf_counter()

            def synchronize(self) -> None:
                gpu.check_alive()
                if self.clock is not None:
                    gpu.wait(self.clock)

            @property
            def done(self) -> bool:
                return True

        class Graph:
            """Captured work."""

            def __init__(self, works: list[Work]) -> None:
                self.works = works

            def launch(self, stream: Any = None) -> None:
                gpu.check_alive()
                gpu.replay((stream or get_current_stream()).ptr, self.works)

            def upload(self, stream: Any = None) -> None:
                del stream

        class Stream:
            """A queue of work."""

            null: ClassVar[Any]

            def __init__(
                self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: int | None = None
            ) -> None:
                del ptds, priority
                gpu.forbid_in_capture("a stream is created")
                self.ptr = LEGACY if null else gpu.order.new_stream(blocking=not non_blocking)
                self._before: list[Any] = []

            def __enter__(self) -> Any:
                self._before.append(get_current_stream())
                current.stream = self
                return self

            def __exit__(self, *_: object) -> None:
                current.stream = self._before.pop()

            def use(self) -> Any:
                current.stream = self
                return self

            def synchronize(self) -> None:
                gpu.check_alive()
                gpu.synchronize(self.ptr)

            def record(self, event: Any = None) -> Any:
                event = event or Event()
                event.record(self)
                return event

            def wait_event(self, event: Any) -> None:
                gpu.check_alive()
                if event.clock is not None:
                    gpu.order.join(self.ptr, event.clock)

            def launch_host_func(self, callback: Any, arg: Any) -> None:
                # It may wait for what the host does next, which here is done before.
                threading.Thread(target=callback, args=(arg,), daemon=True).start()

            def begin_capture(self, mode: int | None = None) -> None:
                del mode
                gpu.begin_capture(self.ptr)

            def end_capture(self) -> Graph:
                return Graph(gpu.end_capture(self.ptr))

        def get_current_stream() -> Any:
            return getattr(current, "stream", Stream.null)

        def get_elapsed_time(start: Any, stop: Any) -> float:
            if not (start.timed and stop.timed):
                raise FaultError("the time of an event without timing is asked for")
            return float(1e3 * (stop.time - start.time))

        Stream.null = Stream(null=True)
        self.stream, self.event, self.graph = Stream, Event, Graph
        self.get_current_stream, self.get_elapsed_time = get_current_stream, get_elapsed_time
