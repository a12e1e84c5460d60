"""The best of the measured choices of each kernel against its default: what choosing can gain on the GPU."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from compiler.api import compile as compile_hlo
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.errors import CodegenError, PlanError, UnsupportedError
from compiler.runtime.executable import Executable
from compiler.runtime.kernel_sites import KernelSite
from experiments.gpu.correctness import built_alone, kernel_inputs
from experiments.gpu.device import Device
from experiments.gpu.job import Job
from experiments.gpu.programs import chosen_programs, find

__all__ = ["build_choices", "run", "time_choices"]

SUITES = ("kernels", "quickstart")
BUDGET, SMALL_BUDGET = 24, 2
"""Choices of a kernel, the default included."""
MOST_KERNELS = 2
"""Kernels of a program that are tried: those with the most memory traffic."""
BUILD_SHARE = 0.5
TASK_SECONDS = 40.0
ROUNDS = 5
REPEATS = 20


def run(job: Job) -> None:
    """Build the choices on all cores, then time them one kernel at a time, programs in random order."""
    budget = SMALL_BUDGET if job.settings.stand_in else BUDGET
    programs = chosen_programs(job.settings, SUITES)
    random.Random(job.settings.seed).shuffle(programs)  # so that those that are timed are a sample of all
    requests = [
        {"op": "time_choices", "name": f"{p.suite}/{p.name}", "suite": p.suite, "program": p.name,
         "seed": job.settings.seed, "budget": budget} for p in programs
    ]  # fmt: skip
    requests = [r for r in requests if r["name"] not in job.done()]
    if not job.settings.stand_in:
        building = [{**r, "op": "build_choices"} for r in requests]
        seconds = job.left() * BUILD_SHARE
        replies = job.run(building, TASK_SECONDS, job.settings.processes, seconds=seconds, optional=True)
        built = [request["name"] for request, _ in replies]
        requests.sort(key=lambda r: r["name"] not in built)
    for request, reply in job.run(requests, TASK_SECONDS):
        job.record(request, reply)
    job.facts = {"budget": budget, "programs": len(programs)}


# ---- in a worker


def build_choices(device: Device, request: Mapping[str, Any]) -> dict[str, Any]:
    """Build the choices of a program's kernels and run each once, so that their code is in the cache."""
    count = 0

    def build(site: KernelSite) -> None:
        nonlocal count
        count += len(built_choices(site, device, request))

    with_sites(device, request, build)
    return {"built": count}


def time_choices(device: Device, request: Mapping[str, Any]) -> dict[str, Any]:
    """Time the choices of a program's kernels; return `{"kernels": [...]}` with seconds by choice.

    The fastest choice is timed again beside the default, because the best of many timings is biased.
    """
    found: list[dict[str, Any]] = []

    def sweep(site: KernelSite) -> None:
        built, inputs = built_choices(site, device, request), kernel_inputs(site.module(), request["seed"])
        held = [device.hold(a) for a in inputs]
        if site.default not in built:
            return
        rounds = 1 if device.cupy is None else ROUNDS
        times = in_rounds(built, held, rounds)
        best = min(times, key=lambda c: median(times[c]))
        again = in_rounds({c: built[c] for c in dict.fromkeys((site.default, best))}, held, rounds)
        found.append(
            {
                "kernel": str(site),
                "fingerprint": site.fingerprint,
                "bytes": 0 if site.spec is None else site.spec.bytes,
                "times": {str(c): median(t) for c, t in times.items()},
                "choices": {str(c): c.to_json() for c in times},
                "default": again[site.default],
                "best": again[best],
                "best_choice": str(best),
            }
        )

    with_sites(device, request, sweep)
    return {"kernels": found}


def with_sites(device: Device, request: Mapping[str, Any], use: Callable[[KernelSite], None]) -> None:
    """Call a function with the kernels of a program that have the most memory traffic."""
    sites: list[KernelSite] = []

    def collect(site: KernelSite) -> KernelChoice:
        sites.append(site)
        return site.default

    compile_hlo(find(request["suite"], request["program"]).text(), device.backend, kernel_selector=collect)
    known = {s.fingerprint: s for s in sites if s.spec is not None}
    for site in sorted(known.values(), key=traffic, reverse=True)[:MOST_KERNELS]:
        use(site)


def traffic(site: KernelSite) -> float:
    """Return the bytes that a kernel moves per call of its program."""
    return 0.0 if site.spec is None else site.spec.bytes * site.runs


def built_choices(site: KernelSite, device: Device, request: Mapping[str, Any]) -> dict[KernelChoice, Executable]:
    """Return executables of the choices that can be built and run, each of which has run once."""
    module = site.module()
    held = [device.hold(a) for a in kernel_inputs(module, request["seed"])]
    built: dict[KernelChoice, Executable] = {}
    for choice in site.offered(request["budget"]):
        try:
            executable = built_alone(site, module, choice)
            executable(*held)
            device.wait()
        except (CodegenError, PlanError, UnsupportedError):
            continue  # a choice that cannot be built is not the fastest
        built[choice] = executable
    return built


def in_rounds(
    built: Mapping[KernelChoice, Executable], held: Sequence[Any], rounds: int
) -> dict[KernelChoice, list[float]]:
    """Return the seconds of each choice, timed in turns."""
    samples: dict[KernelChoice, list[float]] = {c: [] for c in built}
    order = list(built)
    for _ in range(rounds):
        for choice in order:
            samples[choice].append(float(median(built[choice].benchmark(held, REPEATS if rounds > 1 else 1))))
        order.reverse()
    return samples
