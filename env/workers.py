"""Where plans are measured: on this machine or on a Ray cluster, and by how many workers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from compiler.errors import HlogymError
from compiler.support.untrusted import short_repr
from env.measurement import Measurer, MeasurerOptions
from env.service import MeasuringService
from env.store import PlanStore

__all__ = ["LOCAL", "Workers", "WorkersError", "parse_workers"]


class WorkersError(HlogymError, ValueError):
    """A value of `workers` that does not say where to measure."""


@dataclass(frozen=True)
class Workers:
    """Where plans are measured.

    Attributes:
        address: of a Ray cluster, as `ray.init` takes it; None: this machine, without Ray.
        count: number of workers.
        reserve: whether a worker on a Ray cluster reserves its cores; see `RayMeasurer`.
    """

    address: str | None = None
    count: int = 1
    reserve: bool = True

    def __str__(self) -> str:
        if self.address is None:
            return "local" if self.count == 1 else f"local:{self.count}"
        where = "ray" if self.address == "auto" else self.address
        return where if self.count == 1 else f"{where}#{self.count}"

    def measurer(self, store: str | Path, options: MeasurerOptions) -> Measurer:
        """Return a measurer with one worker.

        Args:
            store: file of times; on a Ray cluster, a file on the node that this process runs on, or is connected to.
            options: how to measure.

        Raises:
            RayError: Ray is not installed, or there is no cluster at the address.
            StoreError: the file cannot be used.
        """
        if self.address is None:
            return Measurer(PlanStore(store, options.keep_seconds), options)
        from env.ray_measurer import RayMeasurer

        return RayMeasurer(store, options, self.address, self.reserve)

    def service(self, store: str | Path, options: MeasurerOptions) -> MeasuringService:
        """Return a service with all workers; arguments and errors are those of `measurer`."""
        if self.address is not None:  # here, because Ray expects to be started by the main thread
            from env.ray_measurer import connect

            connect(self.address)
        return MeasuringService(self.count, None, options, lambda _, own: self.measurer(store, own))


LOCAL = Workers()
_LOCAL = re.compile(r"local(?::(\d+))?")
_RAY = re.compile(r"(ray|ray://[^#\s]+)(?:#(\d+))?")


def parse_workers(text: str) -> Workers:
    """Return where to measure, read from a string.

    Args:
        text: `local` or `local:N` for N worker processes on this machine; `ray` for the Ray cluster that runs on this
            machine, `ray://HOST:PORT` for one elsewhere, either with `#N` for N workers.

    Raises:
        WorkersError: it is none of these, or N is 0.
    """
    match = _LOCAL.fullmatch(text) if isinstance(text, str) else None
    address = None
    if match is not None:
        count = int(match[1] or 1)
    elif isinstance(text, str) and (match := _RAY.fullmatch(text)) is not None:
        address, count = "auto" if match[1] == "ray" else match[1], int(match[2] or 1)
    else:
        count = 0
    if count < 1:
        raise WorkersError(
            f"cannot read {short_repr(text)} as workers; write local, local:4, ray, ray#4 or ray://HOST:PORT#4"
        )
    return Workers(address, count)
