"""Predicted times of whole programs on a GPU, without one: kernels by the emulator, products by a model of cuBLAS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.backends.cuda.cubins import Resources, compile_cubins
from compiler.backends.cuda.device_times import KernelWork, kernel_seconds, product_seconds, work_of
from compiler.backends.cuda.emulation.kernel_traffic import TrafficCounter
from compiler.backends.cuda.gpu_models import GpuModel, gpu_model
from compiler.codegen.kernel_spec import KernelSpec
from compiler.errors import BackendError
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

__all__ = ["PredictedTimes", "ProgramTime"]

HOST_SECONDS = 2e-5
"""To stop for the host, and to continue."""
HOST_BANDWIDTH = 2.5e10
"""Bytes per second between GPU and host."""
LIBRARY_EFFICIENCY = 0.5
"""Share of the peak rate at which a library computes."""


@dataclass(frozen=True)
class ProgramTime:
    """The predicted time of a program.

    Attributes:
        seconds: per call, the sum over its steps.
        steps: name, executions per call and seconds of one execution of each step that takes time.
    """

    seconds: float
    steps: tuple[tuple[str, float, float], ...]


class PredictedTimes(ThunkVisitor[float]):
    """Predicts times on one GPU. Everything it computes is deterministic.

    Args:
        gpu: a model, or the name of one in `GPUS`.
        assemble: whether kernels are compiled for the GPU, to know their registers and shared memory; without NVRTC
            they count as `USUAL_REGISTERS` and none.
        keep: whether counts are kept on disk.
    """

    def __init__(self, gpu: GpuModel | str = "h100", assemble: bool = True, keep: bool = True) -> None:
        self.gpu = gpu_model(gpu) if isinstance(gpu, str) else gpu
        self._assemble = assemble
        self._counter = TrafficCounter(keep)
        self._work: dict[tuple[str, str], KernelWork] = {}

    def work(self, specs: Sequence[KernelSpec]) -> dict[str, KernelWork]:
        """Return the work of kernels by symbol.

        Raises:
            BackendError: g++ is missing, or a kernel fails in the emulator.
            CodegenError: a compiler rejects a kernel.
        """
        missing = [s for s in specs if (s.symbol, s.signature) not in self._work]
        if missing:
            counts = self._counter.counts(missing)
            resources = self._resources(missing)
            for s in missing:
                r = resources.get(s.symbol)
                known = () if r is None else (r.registers, r.shared_bytes)
                self._work[s.symbol, s.signature] = work_of(s, counts[s.symbol], *known)
        return {s.symbol: self._work[s.symbol, s.signature] for s in specs}

    def kernels(self, specs: Sequence[KernelSpec]) -> dict[str, float]:
        """Return the seconds of one launch of each kernel by symbol; errors are those of `work`."""
        return {symbol: kernel_seconds(w, self.gpu) for symbol, w in self.work(specs).items()}

    def program(self, thunks: Sequence[Thunk]) -> ProgramTime:
        """Return the time of a program from its thunks, those inside loops and branches included.

        Errors are those of `work`.
        """
        specs = {(t.spec.symbol, t.spec.signature): t.spec for t in thunks if isinstance(t, KernelThunk)}
        while specs:  # equal kernels may have arguments of different shapes: each of them in a round of its own
            once = {symbol: s for (symbol, _), s in specs.items()}
            self.work(list(once.values()))
            specs = {key: s for key, s in specs.items() if s is not once[key[0]]}
        # The conditions of counted loops are never launched.
        counted = (t for t in thunks if isinstance(t, WhileThunk) and t.trip_count is not None)
        idle = {id(x) for t in counted for x in walk(t.condition)}
        steps = tuple((t.name, t.executions, t.accept(self)) for t in thunks if id(t) not in idle)
        return ProgramTime(sum(n * s for _, n, s in steps), tuple(step for step in steps if step[2] > 0))

    def _resources(self, specs: Sequence[KernelSpec]) -> dict[str, Resources]:
        if not self._assemble:
            return {}
        try:
            cubins = compile_cubins(specs, self.gpu.architecture)
        except BackendError:  # NVRTC is not installed
            return {}
        return {symbol: c.resources for symbol, c in cubins.items()}

    # ---- seconds of one execution, by kind of thunk

    def kernel(self, t: KernelThunk) -> float:
        """Implement `ThunkVisitor.kernel`."""
        return kernel_seconds(self._work[t.spec.symbol, t.spec.signature], self.gpu)

    def copy(self, t: CopyThunk) -> float:
        """Implement `ThunkVisitor.copy`."""
        return self.gpu.launch + t.traffic()[0] / self.gpu.memory_bandwidth

    def gemm(self, t: GemmThunk) -> float:
        """Implement `ThunkVisitor.gemm`."""
        element = t.lhs.shape.element_type
        return product_seconds(
            t.batch, t.m, t.n, t.k, element.byte_size, self.gpu, element.is_half
        )  # fmt: skip

    def library(self, t: LibraryThunk) -> float:
        """Implement `ThunkVisitor.library`."""
        size, flops = t.traffic()
        g = self.gpu
        rate = 2 * g.float_rate * g.clock * g.multiprocessors * LIBRARY_EFFICIENCY
        return g.launch + max(size / g.memory_bandwidth, flops / rate)

    def host(self, t: HostThunk) -> float:
        """Implement `ThunkVisitor.host`."""
        return HOST_SECONDS + t.traffic()[0] / HOST_BANDWIDTH

    def loop(self, t: WhileThunk) -> float:
        """Implement `ThunkVisitor.loop`: what it costs besides its body, whose executions count its iterations."""
        return 0.0 if t.trip_count is not None else HOST_SECONDS * t.condition[0].executions if t.condition else 0.0

    def conditional(self, t: ConditionalThunk) -> float:
        """Implement `ThunkVisitor.conditional`."""
        del t
        return HOST_SECONDS
