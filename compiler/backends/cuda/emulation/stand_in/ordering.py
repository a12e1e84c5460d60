"""Happens-before between the host and the streams of a simulated GPU, by vector clocks.

Each stream counts the work that is submitted to it, and knows how much work of each other stream is complete before its
own next work begins: through events it has waited for, and through the host, if that had waited before it submitted.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

__all__ = ["HOST", "LEGACY", "Clock", "Order", "Stamp"]

HOST, LEGACY = -1, 0
"""Names of the host, and of the legacy default stream, which waits for all blocking streams and they for it."""
Clock = dict[int, int]


@dataclass(frozen=True)
class Stamp:
    """A piece of work: the n-th of a stream."""

    actor: int
    number: int

    def is_before(self, clock: Clock) -> bool:
        """Check whether the work is complete for one that knows `clock`."""
        return clock.get(self.actor, 0) >= self.number


@dataclass
class Order:
    """The clocks of the host and of all streams.

    Attributes:
        clocks: what is complete before the next work of each stream, by its handle, and of the host.
        blocking: the streams that synchronize with the legacy default stream.
    """

    clocks: dict[int, Clock] = field(default_factory=lambda: {HOST: {}, LEGACY: {}})
    blocking: set[int] = field(default_factory=set)
    _handles: itertools.count[int] = field(default_factory=lambda: itertools.count(0x1000, 0x10))

    def new_stream(self, blocking: bool) -> int:
        """Return the handle of a new stream."""
        handle = next(self._handles)
        self.clocks[handle] = {}
        if blocking:
            self.blocking.add(handle)
        return handle

    def submit(self, stream: int) -> tuple[Stamp, Clock]:
        """Submit work to a stream; return its stamp, and what is complete before it begins."""
        clock = self.clocks[stream]
        _merge(clock, self.clocks[HOST])
        if stream == LEGACY:
            for other in self.blocking:
                _merge(clock, self.clocks[other])
        elif stream in self.blocking:
            _merge(clock, self.clocks[LEGACY])
        before = dict(clock)
        clock[stream] = clock.get(stream, 0) + 1
        return Stamp(stream, clock[stream]), before

    def snapshot(self, stream: int) -> Clock:
        """Return what an event recorded on a stream stands for."""
        _merge(self.clocks[stream], self.clocks[HOST])
        return dict(self.clocks[stream])

    def join(self, actor: int, clock: Clock) -> None:
        """Let a stream, or the host, continue only when what `clock` knows is complete."""
        _merge(self.clocks[actor], clock)


def _merge(into: Clock, other: Clock) -> None:
    for actor, number in other.items():
        if number > into.get(actor, 0):
            into[actor] = number
