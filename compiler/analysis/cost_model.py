"""A deterministic cost model: estimates run time from what kernels read, write and compute.

exec = c + m - 0.95 * min(c, m) + launch, where c is the compute time and m the memory time: almost the maximum of the
two, as in XLA's GPU performance model (xla/service/gpu/model/gpu_performance_model_base.h).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from compiler.analysis.kernel_summary import Input, KernelSummary, summarize, summary_key
from compiler.analysis.library_work import library_flops
from compiler.analysis.loop_marks import assumed_trips, is_kernel_loop, kernel_loop_of
from compiler.analysis.trip_count import trip_count_of
from compiler.errors import UnknownNameError
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, Trait
from compiler.ir.module import is_control_flow
from compiler.support.threads import program_threads


@dataclass(frozen=True)
class DeviceModel:
    """A device in a few numbers; the presets are round figures, meant to rank choices, not to predict times.

    Attributes:
        name: for display.
        units: cores of a CPU, multiprocessors of a GPU.
        flops_per_unit: scalar operations per second of one unit in vectorized elementwise code.
        loop_flops_per_unit: the same in a loop kernel, whose state stays in registers.
        gemm_flops_per_unit: the same in a matrix product.
        memory_bandwidth: bytes per second from main memory, for all units together.
        cache_bandwidth: bytes per second of one unit, of an array of which a kernel accesses at most half of
            `cache_bytes`.
        cache_bytes: size of the cache.
        launch: seconds to launch a kernel on one unit.
        parallel_launch: additional seconds to launch it on all units.
        grain: elements per unit below which an additional unit does not help.
        loop_iteration: seconds of overhead per iteration of a while loop.
        counted_iteration: the same if the trip count is known, so that nothing waits for the condition; None: as
            `loop_iteration`.
        lanes: elements in flight that a unit needs for its full rate. One element alone waits for the result of each
            operation, so fewer elements compute proportionally slower; 0: none.
        default_trip_count: for loops with unknown trip count.
        splits_reductions: whether units share the work of a reduction with fewer results than units.
        nest_launch: additional seconds of each further loop nest of a kernel.
        parallel_scatters: whether units share the updates of a scatter.
        element_work: operations and loads that count as another element, because units share work rather than
            elements; 0: elements alone count.
        product_tile: elements of a result of which one unit computes a generated product at its full rate, so that few
            tiles of long sums leave units idle; 0: units share all of it. A library divides the sums, too.
        product_wait: seconds that a thread of a generated product waits for an element that it loads in ops before or
            after the product: it has many of them and few neighbours that work meanwhile; 0: none.
        strided_work: scalar operations that take as long as an element that a reduction reads across the rows of an
            array; other kernels read tiles.
        rounding: scalar operations that take as long as to round an element of a result to 16 bits.
        serial_slowdown: how much longer expensive functions take one element at a time than in vectors.
        row_elements: elements of a row that the threads of a unit keep for the loops after the one that reads it.
        has_convolutions: whether a library computes convolutions; if not, those by themselves are generated, too.
        has_epilogues: whether a call of a library computes a product or convolution with the elementwise ops after it.
    """

    name: str
    units: int
    flops_per_unit: float
    loop_flops_per_unit: float
    gemm_flops_per_unit: float
    memory_bandwidth: float
    cache_bandwidth: float
    cache_bytes: float
    launch: float
    parallel_launch: float
    grain: int
    loop_iteration: float
    default_trip_count: int = 100
    splits_reductions: bool = False
    nest_launch: float = 0.0
    parallel_scatters: bool = True
    counted_iteration: float | None = None
    lanes: int = 0
    element_work: int = 0
    product_tile: int = 0
    product_wait: float = 0.0
    strided_work: float = 0.0
    rounding: float = 0.0
    serial_slowdown: float = 1.0
    row_elements: int = 0
    has_convolutions: bool = True
    has_epilogues: bool = False


def cpu(cores: int | None = None) -> DeviceModel:
    """Return a CPU with this many cores (default: as many as programs have threads): 8 GFlop/s and 10 GB/s per core."""
    n = cores or program_threads()
    return DeviceModel(
        name=f"cpu-{n}", units=n, flops_per_unit=8e9, loop_flops_per_unit=3.2e10, gemm_flops_per_unit=4e10,
        memory_bandwidth=1e10 * min(n, 8), cache_bandwidth=4e10, cache_bytes=1 << 20,
        launch=1e-7, parallel_launch=2e-6, grain=16384, loop_iteration=5e-8,
        splits_reductions=True, nest_launch=1e-7, parallel_scatters=False,
        element_work=8, serial_slowdown=16.0, strided_work=30.0, rounding=2.0,
    )  # fmt: skip


def gpu(units: int = 108) -> DeviceModel:
    """Return a data center GPU: 108 units of 100 GFlop/s, 2 TB/s of memory bandwidth, 3 us per launch.

    Loops with a known trip count are launched without waiting, or captured in a graph, so an iteration costs its
    launches alone. With 256 elements in flight per unit, one element takes 2.6 ns per operation, some four cycles.
    """
    return DeviceModel(
        name=f"gpu-{units}", units=units, flops_per_unit=1e11, loop_flops_per_unit=1e11, gemm_flops_per_unit=4e11,
        memory_bandwidth=2e12, cache_bandwidth=4e10, cache_bytes=4e7,
        launch=3e-6, parallel_launch=0.0, grain=1024, loop_iteration=5e-6, counted_iteration=0.0, lanes=256,
        product_tile=4096, product_wait=6e-8, row_elements=55_000, has_convolutions=False,
    )  # fmt: skip


DEVICES = {"cpu": cpu, "gpu": gpu}


def device_model(name: str) -> DeviceModel:
    """Return a preset by name; raise UnknownNameError if there is none."""
    if name not in DEVICES:
        raise UnknownNameError("device model", name, DEVICES)
    return DEVICES[name]()


@dataclass(frozen=True)
class Cost:
    """The estimated run time of a module.

    Attributes:
        seconds: per run.
        by_instruction: seconds per run of each instruction, by names of computation and instruction, including
            repetitions by loops; instructions without cost are omitted.
    """

    seconds: float
    by_instruction: Mapping[tuple[str, str], float] = field(default_factory=dict)


_FREE = frozenset(
    {Opcode.PARAMETER, Opcode.CONSTANT, Opcode.BITCAST, Opcode.RESHAPE, Opcode.COPY, Opcode.CALL, Opcode.CONDITIONAL,
     Opcode.PARTITION_ID, Opcode.REPLICA_ID}
)  # fmt: skip
"""Opcodes without a kernel; in row-major order, reshapes and copies are the same bytes under another name."""


SMALLEST_TILE = 0.25
"""Share of its rate at which a unit multiplies at least, with the smallest tile of a result."""
THREAD_ELEMENTS = 16
"""Elements of its result that a thread of a generated product computes."""
SUM_THREADS = 4
"""Threads that divide the sums of a generated product where it has few results."""
UNIT_THREADS = 512
"""Threads of generated products that run on a unit at the same time: each needs many registers."""
_MAX_KNOWN = 100_000
"""Number of instruction costs that a cost model caches."""
_MAX_SUMMARIES = 10_000
"""Number of summaries of single instructions that it caches."""


class CostModel:
    """Estimates the time of kernels and instructions on one device, and caches that of single instructions.

    Attributes:
        name: names the model where its times are shown.
        device: the device.
    """

    name = "analytic cost model"

    def __init__(self, device: DeviceModel | None = None) -> None:
        self.device = device or cpu()
        self._known: dict[Hashable, float] = {}
        self._summaries: dict[Hashable, KernelSummary] = {}

    def kernel(self, summary: KernelSummary) -> float:
        """Return the seconds of one kernel."""
        d = self.device
        parallel = summary.elements
        if d.element_work and summary.elements > 1:
            # An operand that is repeated along a reduction saves loads, but the cores share as many elements as before.
            parallel = max(parallel, (summary.flops + summary.loads) / d.element_work, summary.reduced)
        if summary.looped_reduction:
            # Rows are few and large, so their number does not limit parallelism; the amount of work does.
            parallel = summary.loads if d.splits_reductions else max(summary.loads, summary.flops)
        units = min(d.units, max(1, int(parallel) // d.grain))
        if summary.looped_reduction and not d.splits_reductions:
            units = min(units, int(summary.elements))
        if summary.template is not None:  # as in a library
            parallel = summary.flops + summary.products
            units = min(d.units, max(1, int(parallel) // (d.grain * 64)))
        multiplying = float(units)
        if summary.template in (Opcode.DOT, Opcode.CONVOLUTION) and d.product_tile:
            multiplying = min(multiplying, max(SMALLEST_TILE, summary.elements / d.product_tile))
            units = max(1, int(multiplying))
        if summary.template is Opcode.SCATTER and not d.parallel_scatters:
            units = 1
        rate = d.flops_per_unit * units * self._busy(parallel, units)
        flops = summary.flops + summary.serial * (d.serial_slowdown - 1.0) + summary.rounded * d.rounding
        if summary.looped_reduction:
            flops += summary.strided * d.strided_work
        products = summary.called if d.has_epilogues and summary.called else summary.products
        compute = (flops + 0.5 * summary.loads) / rate + products / (d.gemm_flops_per_unit * multiplying)
        inputs = tuple(_different(summary.inputs))
        large = sum(size for i in inputs if self._is_large(size := i.bytes) and self._is_large(i.largest_part))
        nests = summary.nests
        if not self._keeps_block(summary):
            again = [i for i in inputs if i.sweeps > 1 and self._is_large(i.bytes)]
            large += sum((i.sweeps - 1) * i.bytes for i in again)
            nests += max((i.sweeps - 1 for i in again), default=0)  # each sweep is like a kernel of its own
        if self._is_large(summary.largest_output):
            large += summary.bytes_written
        memory = self._memory(summary.bytes_read + summary.bytes_written - large, large, units)
        seconds = self._combined(compute, memory, units)
        if nests > 1:
            # What one nest computes does not overlap with what another one accesses, and units are started for each.
            seconds = self._combined(compute + memory, 0.0, units)
            seconds += (nests - 1) * (d.nest_launch + (d.parallel_launch if units > 1 else 0.0))
        if summary.template is Opcode.DOT and d.product_wait:
            seconds = max(seconds, d.launch + self._product_wait(summary))
        return seconds

    def _product_wait(self, summary: KernelSummary) -> float:
        """Return the seconds that the threads of a generated product wait for what is loaded around it."""
        most = self.device.units * UNIT_THREADS
        threads = summary.elements / THREAD_ELEMENTS
        threads = min(most, max(threads, min(SUM_THREADS * threads, most / 4)))
        return summary.loads * self.device.product_wait / max(1.0, threads)

    def _keeps_block(self, summary: KernelSummary) -> bool:
        """Check whether a block along columns is still in the cache when it is read again.

        A CPU computes one block per core at a time; a GPU computes all of them, and keeps rows in registers.
        """
        if 0 < summary.row_elements <= self.device.row_elements:
            return True
        return self.device.splits_reductions and not self._is_large(summary.block_bytes)

    def instruction(self, i: HloInstruction) -> float:
        """Return the seconds of one execution of an instruction, without the computations it calls as control flow."""
        if i.opcode in _NO_KERNEL:
            return 0.0
        loop = kernel_loop_of(i)
        if loop is not None:
            return self._kernel_loop(loop)
        if i.opcode is Opcode.WHILE:
            return self._iteration(i) * self.trip_count(i)
        if i.opcode is Opcode.FUSION:
            return self.kernel(summarize(i))
        return self._single(i) if is_priced_as_kernel(i) else self._library(i)

    def _single(self, i: HloInstruction) -> float:
        key = summary_key(i)
        seconds = self._known.get(key)
        if seconds is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            seconds = self._known[key] = self.kernel(self.summary(i))
        return seconds

    def summary(self, i: HloInstruction) -> KernelSummary:
        """Return the summary of a kernel; that of a single instruction is found once for all that are like it."""
        if i.opcode is Opcode.FUSION:
            return summarize(i)
        key = summary_key(i)
        found = self._summaries.get(key)
        if found is None:
            if len(self._summaries) >= _MAX_SUMMARIES:
                self._summaries.clear()
            found = self._summaries[key] = summarize(i)
        return found

    def _kernel_loop(self, loop: HloInstruction) -> float:
        """Return the seconds of a loop in one kernel: its arithmetic, and one read and write of the carried values."""
        d = self.device
        flops = float(self._loop_flops(loop))
        carried = [leaf.byte_size for leaf in loop.shape.leaves()]
        units = min(d.units, max(1, int(flops) // (d.grain * 64)))
        rate = d.loop_flops_per_unit * units * self._busy(_positions(loop), units)
        return self._combined(flops / rate, 2.0 * self._arrays(carried, units), units)

    def _iteration(self, loop: HloInstruction) -> float:
        """Return the overhead of an iteration in seconds."""
        counted = self.device.counted_iteration
        return self.device.loop_iteration if counted is None or trip_count_of(loop) is None else counted

    def _busy(self, elements: float, units: int) -> float:
        """Return the share of the rate of some units that so many independent elements reach."""
        lanes = units * self.device.lanes
        return min(1.0, max(1.0, elements) / lanes) if lanes else 1.0

    def _loop_flops(self, loop: HloInstruction) -> int:
        """Return the flops of all iterations of a loop, with those of the loops in its body."""
        body: HloComputation = loop.attributes["body"]
        inner = (i for i in body.notable if i.opcode is Opcode.WHILE)
        once = sum(i.opcode.row.flops * i.shape.num_elements for i in body.instructions if i.shape.is_array)
        return self.trip_count(loop) * (once + sum(map(self._loop_flops, inner)))

    def trip_count(self, loop: HloInstruction) -> int:
        """Return the trip count of a while loop, or the device model's default if it is unknown."""
        known = trip_count_of(loop)
        return int(assumed_trips(loop, self.device.default_trip_count)) if known is None else known

    def weights(self, module: HloModule) -> dict[HloComputation, float]:
        """Return how often each instruction sequence of a module runs per run of the module."""
        order = module.control_flow_computations()
        found = {module.entry: 1.0}
        for c in reversed(order):
            for i in c.notable if c in found else ():
                if not is_control_flow(i) or is_kernel_loop(i):
                    continue  # its body is part of the kernel, not a sequence
                times = self.trip_count(i) if i.opcode is Opcode.WHILE else 1.0
                for callee in i.called_computations():
                    found[callee] = found.get(callee, 0.0) + times * found[c]
        return {c: found[c] for c in order if c in found}

    def _library(self, i: HloInstruction) -> float:
        d = self.device
        sizes = [leaf.byte_size for s in (*(o.shape for o in i.operands), i.shape) for leaf in s.leaves()]
        if i.opcode is Opcode.CONVOLUTION and not d.has_convolutions:
            return self.kernel(summarize(i))
        flops, rate = library_flops(i), d.gemm_flops_per_unit
        if i.opcode not in (Opcode.DOT, Opcode.CONVOLUTION):
            rate = d.flops_per_unit
        units = min(d.units, max(1, int(flops) // (d.grain * 64)))
        if i.opcode is Opcode.SCATTER and not d.parallel_scatters:
            units = 1
        return self._combined(flops / (rate * units), self._arrays(sizes, units), units)

    def _arrays(self, sizes: Sequence[float], units: int) -> float:
        """Return the seconds in which arrays of these sizes are accessed."""
        large = sum(s for s in sizes if self._is_large(s))
        return self._memory(sum(sizes) - large, large, units)

    def _is_large(self, size: float) -> bool:
        """Check whether an array leaves no room in the cache for another one, as a copy of it needs."""
        return 2 * size > self.device.cache_bytes

    def _memory(self, small: float, large: float, units: int) -> float:
        """Return the seconds of the accesses to small arrays and to those that do not fit into the cache, in bytes.

        The rate depends on each array and not on their sum: whether an array is in the cache depends on the kernels
        before this one, so one kernel accesses it as fast as two, and fusing them never costs memory time. For the
        same reason several slices of an array count as several arrays.
        """
        d = self.device
        seconds = (small + large) / (d.cache_bandwidth * units)
        if large:
            share = min(1.0, max(units / d.units, 1.0 / min(d.units, 8)))
            from_memory = large / (d.memory_bandwidth * share) - large / (d.cache_bandwidth * units)
            seconds += max(0.0, from_memory)
        return seconds

    def _combined(self, compute: float, memory: float, units: int) -> float:
        d = self.device
        launch = d.launch + (d.parallel_launch if units > 1 else 0.0)
        return compute + memory - 0.95 * min(compute, memory) + launch


def _positions(loop: HloInstruction) -> int:
    """Return the greatest number of independent positions that a loop can have: the elements of a carried array."""
    return max((s.num_elements for s in loop.shape.leaves()), default=1)


def _different(inputs: Sequence[Input]) -> Iterable[Input]:
    """Return the inputs without repetitions; operands that an instruction repeats share one."""
    return {id(i): i for i in inputs}.values() if len(inputs) > 1 else inputs


def is_priced_as_kernel(i: HloInstruction) -> bool:
    """Check whether the instruction is a generated kernel: a fusion, or an op treated as a fusion of one."""
    return i.opcode in _KERNELS


def _is_kernel(op: Opcode) -> bool:
    if op in (Opcode.FUSION, Opcode.REDUCE, Opcode.IOTA, Opcode.BITCAST_CONVERT):
        return True
    return op.is_elementwise or op.has(Trait.MOVEMENT)


_NO_KERNEL = frozenset({*_FREE, *(op for op in Opcode if op.has(Trait.TUPLE))})
_KERNELS = frozenset(op for op in Opcode if op not in _FREE and _is_kernel(op))


def module_cost(module: HloModule, on: DeviceModel | CostModel | None = None) -> Cost:
    """Estimate the time of one run of a module, including the trip counts of loops.

    Args:
        module: the program.
        on: the device, or a cost model of it, whose cache saves time if several modules have instructions in common.
    """
    model = on if isinstance(on, CostModel) else CostModel(on)
    by_instruction: dict[tuple[str, str], float] = {}
    for computation, weight in model.weights(module).items():
        for i in computation.post_order():
            seconds = model.instruction(i) * weight
            if seconds:
                by_instruction[computation.name, i.name] = seconds
    return Cost(math.fsum(by_instruction.values()), by_instruction)


def module_seconds(module: HloModule, model: CostModel) -> float:
    """Return the seconds of `module_cost`; those of a computation's instructions are found once until it changes."""
    times: list[float] = []
    stamps: dict[HloComputation, int] = {}
    key = module_seconds, model
    for computation, weight in model.weights(module).items():  # callees first
        seconds = computation.noted(key, stamps, partial(_seconds_of, computation, model))
        times += [s * weight for s in seconds]
    return math.fsum(times)


def _seconds_of(computation: HloComputation, model: CostModel) -> tuple[float, ...]:
    return tuple(filter(None, map(model.instruction, computation.instructions)))
