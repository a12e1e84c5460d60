"""The peers on their native programs, each in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.errors import BackendError
from env.isolated import python_command
from env.suites import Program
from env.worker_process import WorkerCrashedError, WorkerLostError, WorkerProcess, WorkerTimeoutError
from experiments.peers import Contestant

__all__ = ["NATIVE_SUITES", "Loaded", "NativePeer", "native_difference"]

NATIVE_SUITES = ("kernels", "models")
COMPILE_SECONDS = 600.0

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Loaded:
    """A native program that a peer has compiled.

    Attributes:
        contestant: runs it.
        seconds: time from the function to its first result.
        peak_bytes: peak memory of a call with its arguments; None if it is not known.
        rtol: how far the outputs of two compilers may differ, relative to the size of the output's elements.
    """

    contestant: Contestant
    seconds: float
    peak_bytes: float | None
    rtol: float


class NativePeer:
    """A peer that runs the native programs of a suite.

    Args:
        name: the name of the peer: xla, inductor or eager.
        cache: folder of compiled code; None: the peer's own.
    """

    def __init__(self, name: str, cache: Path | None = None) -> None:
        self._name = name
        serve = "from experiments.natives.worker import main; main()"
        self._process = WorkerProcess(python_command(serve, name, str(cache or "")))

    def load(self, program: Program, seed: int) -> Loaded:
        """Compile the native version of a program.

        Raises:
            BackendError: the peer cannot run the program.
        """
        reply = self._ask("load", suite=program.suite, program=program.name, seed=seed)
        contestant = Contestant(self._name, self._outputs, self._sample)
        return Loaded(contestant, reply["seconds"], reply["bytes"], reply["rtol"])

    def close(self) -> None:
        """End the process."""
        self._process.kill()

    def _sample(self, repeats: int) -> float:
        return float(self._ask("sample", repeats=repeats)["seconds"])

    def _outputs(self) -> list[Array]:
        with TemporaryDirectory() as folder:
            file = Path(folder) / "outputs.npz"
            self._ask("outputs", file=str(file))
            with np.load(file, allow_pickle=False) as archive:
                return [archive[f"out{n}"] for n in range(len(archive.files))]

    def _ask(self, op: str, **values: Any) -> dict[str, Any]:
        try:
            reply = self._process.ask({"op": op, **values}, COMPILE_SECONDS)
        except (WorkerCrashedError, WorkerLostError, WorkerTimeoutError) as error:
            raise BackendError(f"{self._name}: {error}") from error
        if "error" in reply:
            raise BackendError(f"{self._name}: {(reply['error'].splitlines() or ['?'])[0]}")
        return reply


def native_difference(got: list[Array], want: list[Array], rtol: float) -> str | None:
    """Return how the outputs of a native program differ from the reference, or None.

    Two authors of one program sum in other orders, and PyTorch counts in int64. So types need not agree, and an element
    may be off by `rtol` of its size plus `rtol` of the root mean square of its array.
    """
    if len(got) != len(want):
        return f"{len(got)} outputs instead of {len(want)}"
    for n, (g, w) in enumerate(zip(got, want, strict=True)):
        if g.shape != w.shape:
            return f"output {n}: {list(g.shape)} instead of {list(w.shape)}"
        a, b = g.astype(np.float64), w.astype(np.float64)
        allowed = 0.0 if w.dtype.kind in "iu" else rtol * (np.abs(b) + np.sqrt((b * b).sum() / max(b.size, 1)))
        wrong = ~((np.abs(a - b) <= allowed) | (a == b) | (np.isnan(a) & np.isnan(b)))
        if wrong.any():
            at = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), w.shape))
            count = f"{int(wrong.sum())} of {w.size} elements differ"
            return f"output {n}: {count}, the first at {list(at)}: {a[at]} instead of {b[at]}"
    return None
