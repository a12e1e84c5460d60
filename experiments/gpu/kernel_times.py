"""Times of single kernels with their default choices, for the fit of the device model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from compiler.api import compile as compile_hlo
from compiler.codegen.kernel_spec import KernelSpec
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.runtime.executable import Executable
from compiler.runtime.kernel_sites import KernelSite
from experiments.gpu.correctness import built_alone, kernel_inputs
from experiments.gpu.device import Device
from experiments.gpu.job import Job
from experiments.gpu.programs import chosen_programs, find

__all__ = ["SUITES", "default_kernels", "run", "time_kernels"]

SUITES = ("kernels", "quickstart")
TASK_SECONDS = 30.0
REPEATS = 15
FLUSHED_BYTES = 256 << 20
"""More than the level 2 cache of any GPU."""


def run(job: Job) -> None:
    """Time the kernels of the programs, one program at a time."""
    requests = [
        {"op": "time_kernels", "name": f"{p.suite}/{p.name}", "suite": p.suite, "program": p.name,
         "seed": job.settings.seed} for p in chosen_programs(job.settings, SUITES)
    ]  # fmt: skip
    for request, reply in job.run([r for r in requests if r["name"] not in job.done()], TASK_SECONDS):
        job.record(request, reply)


def default_kernels(suite: str, program: str, backend: str) -> list[tuple[KernelSite, KernelSpec]]:
    """Return the distinct generated kernels that a program has by default."""
    found: dict[str, tuple[KernelSite, KernelSpec]] = {}

    def collect(site: KernelSite) -> KernelChoice:
        if site.spec is not None:
            found.setdefault(site.spec.symbol, (site, site.spec))
        return site.default

    compile_hlo(find(suite, program).text(), backend, kernel_selector=collect)
    return list(found.values())


def time_kernels(device: Device, request: Mapping[str, Any]) -> dict[str, Any]:
    """Time each kernel of a program alone; return `{"kernels": [...]}`.

    `seconds` are those with an empty level 2 cache, as in a program that moves much, and `warm_seconds` those of
    executions that follow each other.
    """
    found: list[dict[str, Any]] = []
    for site, spec in default_kernels(request["suite"], request["program"], device.backend):
        module = site.module()
        held = [device.hold(a) for a in kernel_inputs(module, request["seed"])]
        executable = built_alone(site, module, site.default)
        executable(*held)
        warm = float(median(executable.benchmark(held, REPEATS if device.cupy is not None else 1)))
        cold = warm if device.cupy is None else cold_seconds(device.cupy, executable, held)
        found.append({**spec.to_json(), "seconds": cold, "warm_seconds": warm})
    return {"kernels": found}


def cold_seconds(cupy: Any, executable: Executable, held: Sequence[Any]) -> float:
    """Return the median seconds of executions before each of which the level 2 cache is filled with other data."""
    other = cupy.empty(FLUSHED_BYTES, cupy.uint8)
    pairs = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(REPEATS)]
    for start, stop in pairs:
        other.data.memset_async(0, FLUSHED_BYTES)  # takes longer than a launch, so the host is ahead of the GPU
        start.record()
        executable(*held)
        stop.record()
    pairs[-1][1].synchronize()
    return float(median(cupy.cuda.get_elapsed_time(start, stop) / 1e3 for start, stop in pairs))
