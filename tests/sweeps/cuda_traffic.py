"""Traffic, resources and predicted times of the generated CUDA kernels of some suites, without a GPU.

python -m tests.sweeps.cuda_traffic [--suite kernels ...] [--out results/cuda/traffic]

Rules hold for kernels of the suite "kernels": warps need at least 80% of the bytes in the sectors that they touch
(coalescing), a launch has at least as many blocks as the GPU has multiprocessors if there is work for them, and no
registers spill.
Kernels that break a rule are listed as offenders, unless their counts or `REASONS` say why that does no harm.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from compiler import compile
from compiler.backends.cuda.cubins import Resources, compile_cubins
from compiler.backends.cuda.device_times import kernel_limits, kernel_seconds, work_of
from compiler.backends.cuda.emulation import KernelCounts, TrafficCounter
from compiler.backends.cuda.gpu_models import GpuModel, gpu_model, resident_blocks
from compiler.codegen.kernel_spec import KernelSpec
from compiler.errors import HlogymError
from compiler.passes.reductions.reduce_stages import SECOND_STAGE
from env.suites import Program, load_suite
from experiments.provenance import provenance

SUITES = ("kernels", "models", "quickstart")
LEAST_COALESCING = 0.8
MULTIPROCESSORS = 132
"""Those of an H100."""
WORK = 1 << 20
"""Bytes of a launch from which there is work for all multiprocessors: 256 threads of each move 32 bytes."""
SMALL = 64 * 1024
"""Bytes of arrays of which a launch takes longer than their traffic, at any coalescing."""
ONCE = 1.25
"""Times that each byte may come from the L2 cache, on average, if the L1 caches serve the rest of the sectors."""
HIDDEN = 0.5
"""Share of the time that memory and the L2 cache may take alone where something else limits a kernel: with the exponent
of `device_times.SHARPNESS`, such traffic makes it 2% longer."""
DIVISIBLE = frozenset({"reduction", "column-reduction", "block", "scan", "top-k", "sort", "attention", "product"})
"""Kinds of kernels whose rows, columns or tiles only a second kernel could put together again from several blocks."""
CLOSE = 1.1
"""Times that each byte may come from memory, and that a kernel may take of what memory alone would, at most, if it is
as fast as others of its traffic."""
BUSY = 0.9
"""Share of the multiprocessors that have blocks from which on more blocks would change little."""
GPU = gpu_model("h100")
ELSEWHERE = {"sm_80": gpu_model("a100"), "sm_100": gpu_model("h100")}
"""GPUs of other architectures, for what kernels need there. A multiprocessor of a B200 holds as many threads, registers
and bytes of shared memory as that of an H100."""
REASONS: dict[str, str] = {
    "take_along_rows_*/*": "each element comes from a random column of its row",
    "cross_entropy_grad_*/fusion": "one update per row in an array that is otherwise unchanged",
}
"""Why kernels cannot keep a rule, by patterns of `program/kernel`."""


@dataclass(frozen=True)
class Row:
    """The traffic of one kernel.

    Attributes:
        suite, program, kernel, kind: what it is.
        grid, block: blocks, and threads per block.
        bytes: those of its arguments, each moved once.
        coalescing: needed sectors over sectors that are touched, from 0 to 1.
        memory: bytes from and to memory over `bytes`; fewer than 1 if parts of arguments are not needed.
        l2: bytes between the level 1 caches and the level 2 cache over `bytes`.
        conflicts: additional turns of the banks of shared memory per turn.
        lanes: mean number of lanes that take part in an access.
        updates: atomic updates of the address that has most.
        registers: per thread, on an H100.
        shared: bytes of static shared memory per block.
        spills: bytes per thread that are stored because registers ran out.
        occupancy: threads that a multiprocessor holds over those that it could.
        microseconds: predicted time on an H100.
        limit: what limits it most.
        traffic: seconds that memory and the level 2 cache alone would take, over the predicted ones.
        error: why it was not counted.
        elsewhere: registers, spills and occupancy on GPUs of other architectures, by name of the architecture.
    """

    suite: str
    program: str
    kernel: str
    kind: str
    grid: int
    block: int
    bytes: int
    coalescing: float = 1.0
    memory: float = 0.0
    l2: float = 0.0
    conflicts: float = 0.0
    lanes: float = 32.0
    updates: float = 0.0
    registers: int = 0
    shared: int = 0
    spills: int = 0
    occupancy: float = 0.0
    microseconds: float = 0.0
    limit: str = ""
    traffic: float = 1.0
    error: str = ""
    elsewhere: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def faults(self) -> list[str]:
        """The rules that the kernel breaks."""
        out = []
        if self.coalescing < LEAST_COALESCING:
            out.append(f"coalescing {self.coalescing:.0%}")
        if self.grid < MULTIPROCESSORS and self.bytes >= WORK:
            out.append(f"{self.grid} blocks for {self.bytes / 1e6:.1f} MB")
        if self.spills:
            out.append(f"{self.spills} bytes spilled")
        out += [f"{e['spills']:g} bytes spilled on {name}" for name, e in self.elsewhere.items() if e["spills"]]
        if self.error:
            out.append(self.error)
        return out

    @property
    def reason(self) -> str:
        """Why it cannot keep its rules, or why that does no harm by its counts; "" if one has no reason."""
        name = f"{self.program}/{self.kernel}"
        named = next((r for pattern, r in REASONS.items() if fnmatch.fnmatchcase(name, pattern)), "")
        spills = self.spills or any(e["spills"] for e in self.elsewhere.values())
        if named or spills or self.error or not self.faults:
            return named
        reasons = []
        if self.coalescing < LEAST_COALESCING:
            reasons.append(self._reason_for_sectors())
        if self.grid < MULTIPROCESSORS and self.bytes >= WORK:
            reasons.append(self._reason_for_blocks())
        return "; ".join(reasons) if all(reasons) else ""

    def _reason_for_sectors(self) -> str:
        if self.bytes < SMALL:
            return f"arrays of {self.bytes / 1e3:.1f} kB"
        if self.l2 <= ONCE:
            return f"the L1 caches serve the rest of the sectors: each byte comes {self.l2:.2f} times from the L2 cache"
        if self.traffic <= HIDDEN and self.limit not in ("memory", "l2"):
            return f"memory and the L2 cache take {self.traffic:.0%} of the time, which {self.limit} limits"
        alone = 1e6 * (GPU.launch + self.memory * self.bytes / GPU.memory_bandwidth)
        if 0 < self.memory <= CLOSE and self.microseconds <= CLOSE * alone:
            return f"takes {self.microseconds / alone:.2f} times as long as memory alone, which moves no byte twice"
        return ""

    def _reason_for_blocks(self) -> str:
        if self.grid >= BUSY * MULTIPROCESSORS:
            return f"{self.grid / MULTIPROCESSORS:.0%} of the multiprocessors have a block"
        if self.memory * self.bytes < WORK:
            return f"touches {self.memory * self.bytes / 1e3:.0f} kB of its arrays"
        saved = (self.microseconds - 1e6 * GPU.launch) * (1 - self.grid / MULTIPROCESSORS)
        if self.kind in DIVISIBLE and saved < 1e6 * SECOND_STAGE:
            return f"blocks for all multiprocessors would save {max(saved, 0):.1f} us, less than a second kernel takes"
        return ""


def rows_of(suite: str, programs: Sequence[Program]) -> Iterator[Row]:
    """Yield the rows of all kernels of programs; equal kernels of a suite have one row."""
    counter, seen = TrafficCounter(), set[str]()
    for program in programs:
        kernels = [k for k in compile(program.text(), backend="cuda").kernels if k.symbol not in seen]
        seen |= {k.symbol for k in kernels}
        try:
            counts = counter.counts(kernels)
        except HlogymError:  # one of them cannot be counted
            counts = {}
        found = {a: _resources(kernels, a) for a in (GPU.architecture, *ELSEWHERE)}
        for k in kernels:
            row = _row(suite, program.name, k, counts.get(k.symbol), counter, found[GPU.architecture].get(k.symbol))
            others = {a: _needed(k, found[a][k.symbol], gpu) for a, gpu in ELSEWHERE.items() if k.symbol in found[a]}
            yield replace(row, elsewhere=others)


def _resources(kernels: Sequence[KernelSpec], architecture: str) -> dict[str, Resources]:
    """Return what kernels need on an architecture, by symbol; nothing if NVRTC is missing or rejects one of them."""
    try:
        return {symbol: c.resources for symbol, c in compile_cubins(kernels, architecture).items()}
    except HlogymError:
        return {}


def _needed(k: KernelSpec, resources: Resources, gpu: GpuModel) -> dict[str, float]:
    held = occupancy(k, resources, gpu)
    return {"registers": resources.registers, "spills": resources.spill_stores, "occupancy": held}


def occupancy(k: KernelSpec, resources: Resources, gpu: GpuModel) -> float:
    """Return the threads of a kernel that a multiprocessor holds over those that it could hold."""
    resident = resident_blocks(gpu, k.block, resources.registers, resources.shared_bytes)
    return round(resident * k.block / gpu.most_threads, 3)


def _row(
    suite: str,
    program: str,
    k: KernelSpec,
    counts: KernelCounts | None,
    counter: TrafficCounter,
    resources: Resources | None,
) -> Row:
    head = Row(suite, program, k.name, k.kind, k.grid, k.block, k.bytes)
    try:
        c = counts or counter.counts([k])[k.symbol]
    except HlogymError as error:
        return Row(**{**asdict(head), "error": str(error).splitlines()[0]})
    size = max(1, k.bytes)
    work = work_of(k, c, *((resources.registers, resources.shared_bytes) if resources else ()))
    limits = kernel_limits(work, GPU)
    measured = {
        "coalescing": c.coalescing, "memory": c.memory_bytes(GPU.l2_bytes) / size, "l2": c.l2_bytes / size,
        "conflicts": c.bank_conflicts, "lanes": c.active_lanes, "updates": c.most_updates,
        "microseconds": 1e6 * kernel_seconds(work, GPU),
        "traffic": max(limits["memory"], limits["l2"]) / kernel_seconds(work, GPU),
    }  # fmt: skip
    needed: dict[str, float] = {}
    if resources:
        needed = {**_needed(k, resources, GPU), "shared": resources.shared_bytes}
    rounded = {name: round(value, 3) for name, value in measured.items()}
    return Row(**{**asdict(head), **rounded, **needed, "limit": max(limits, key=lambda name: limits[name])})


def report(rows: Sequence[Row], source: dict[str, object]) -> str:
    """Return the tables as Markdown: the offenders, and all kernels."""
    offenders = [r for r in rows if r.faults and not r.reason]
    lines = [
        "# Traffic, resources and predicted times of the CUDA kernels",
        "",
        f"{len(rows)} kernels, counted by the emulator on a sample of their blocks. `{source['command']}`, "
        f"commit {source['commit']}, {source['machine']}, {source['date']}.",
        "",
        "Coalescing: needed over touched sectors. Memory and L2: bytes over those of the arguments, with "
        f"{GPU.l2_bytes / 1e6:.0f} MB of L2. Conflicts: additional turns of shared memory. Lanes: active ones of 32. "
        "Registers per thread and occupancy: by NVRTC for sm_80, sm_90, sm_100 (A100, H100, B200). Traffic: time that "
        "memory and L2 alone would take, of the predicted time. us: predicted for an H100 in a graph, not measured.",
        "",
        f"## Offenders ({len(offenders)})",
        "",
        f"Coalescing below {LEAST_COALESCING:.0%}, fewer blocks than {MULTIPROCESSORS} multiprocessors for at least "
        f"{WORK / 1e6:.0f} MB, or registers that spill.",
        "",
        "| suite | program | kernel | kind | rules |",
        "|---|---|---|---|---|",
        *(f"| {r.suite} | {r.program} | {r.kernel} | {r.kind} | {'; '.join(r.faults)} |" for r in offenders),
        "",
    ]
    excused = [r for r in rows if r.faults and r.reason]
    if excused:
        lines += ["## With a reason", "", "| program | kernel | rules | reason |", "|---|---|---|---|"]
        lines += [f"| {r.program} | {r.kernel} | {'; '.join(r.faults)} | {r.reason} |" for r in excused]
        lines.append("")
    head = (
        "| program | kernel | kind | blocks | threads | MB | coalescing | memory | L2 | conflicts | lanes "
        "| registers | occupancy | traffic | us | limit |"
    )
    lines += ["## All kernels", "", head, "|---|---|---|" + "---:|" * 12 + "---|"]
    lines += [
        f"| {r.program} | {r.kernel} | {r.kind} | {r.grid} | {r.block} | {r.bytes / 1e6:.2f} | {r.coalescing:.0%} | "
        f"{r.memory:.2f} | {r.l2:.2f} | {r.conflicts:.2f} | {r.lanes:.0f} | {_each(r, 'registers')} | "
        f"{_each(r, 'occupancy')} | {r.traffic:.0%} | {r.microseconds:.1f} | {r.limit} |"
        for r in rows
    ]
    return "\n".join([*lines, ""])


def _each(r: Row, what: str) -> str:
    """Return a number of a row for each architecture, in their order, or one if all are equal."""
    style = "{:.0%}" if what == "occupancy" else "{:g}"
    values = [e[what] for e in r.elsewhere.values()]
    shown = [style.format(v) for v in (*values[:1], getattr(r, what), *values[1:])]
    return shown[0] if len(set(shown)) == 1 else " / ".join(shown)


def main() -> None:
    """Count the kernels of the suites and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", nargs="+", default=SUITES)
    parser.add_argument("--out", type=Path, help="path of the tables without its ending")
    options = parser.parse_args()
    source = provenance()
    rows: list[Row] = []
    for n, suite in enumerate(options.suite):
        for row in rows_of(suite, load_suite(suite).programs):
            rows.append(row)
            if row.faults and not row.reason:
                print(f"{suite}/{row.program}/{row.kernel} ({row.kind}): {'; '.join(row.faults)}", flush=True)
        done = " ".join(options.suite[: n + 1])
        if options.out:
            _write(options.out, rows, {**source, "command": f"python -m tests.sweeps.cuda_traffic --suite {done}"})


def _write(out: Path, rows: Sequence[Row], source: dict[str, object]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    data = {"provenance": source, "kernels": [asdict(r) for r in rows]}
    out.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n")
    out.with_suffix(".md").write_text(report(rows, source))


if __name__ == "__main__":
    main()
