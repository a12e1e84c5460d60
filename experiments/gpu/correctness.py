"""All programs of the suites with default plans and with random schedules, compared with the interpreter."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.api import compile as compile_hlo
from compiler.backends.cuda.executable import CudaExecutable
from compiler.backends.registry import find_backend
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.errors import CodegenError, HlogymError, UnsupportedError
from compiler.ir import HloModule
from compiler.runtime.executable import Executable, parameter_leaves
from compiler.runtime.kernel_sites import KernelSite
from compiler.text import parse
from env.reference import Reference, fresh_outputs, on_host
from env.suites import Program
from experiments.gpu.device import Device
from experiments.gpu.job import Job
from experiments.gpu.pool import Request
from experiments.gpu.programs import chosen_programs, find, inputs_of, reference_of

__all__ = ["RandomChoices", "check", "locate", "run"]

CHECK_SECONDS = 120.0
"""Limit of one program, most of which the interpreter takes."""
ROUNDS = 4
"""Random schedules of each program."""
LOCATE_SHARE = 0.1
"""Share of the time that is kept for finding the kernels at fault."""
TRIES = 8
"""Random choices of a kernel that are tried until one is possible."""


def run(job: Job) -> None:
    """Check every program with its default plan, then as many as time allows with random schedules."""
    programs = chosen_programs(job.settings)
    job.facts = {"programs": len(programs), "workers": job.settings.processes}
    done = job.done()
    rounds = 1 if job.settings.stand_in else ROUNDS
    seeds = range(job.settings.seed + 1, job.settings.seed + 1 + rounds)
    orders = [_requests(job, programs, schedules) for schedules in (None, *seeds)]
    requests = [r for order in orders for r in order if r["name"] not in done]
    at_fault: list[Request] = []
    seconds = job.left() * (1.0 - LOCATE_SHARE)
    for number, (request, reply) in enumerate(
        job.run(requests, CHECK_SECONDS, job.settings.processes, seconds=seconds), start=1
    ):
        job.record(request, reply)
        if "error" in reply or reply["finding"]:
            at_fault.append(request)
        if number % 25 == 0 or number == len(requests):
            job.say(f"{number} of {len(requests)} checked, {len(at_fault)} of them wrong or failed")
    # A program may fail because of one of its kernels, which is named by running each alone in a fresh process.
    locating = [{**r, "op": "locate"} for r in at_fault]
    for request, reply in job.run(locating, CHECK_SECONDS, job.settings.processes, optional=True):
        _note_kernel(job, request["name"], reply)


def _requests(job: Job, programs: Sequence[Program], schedules: int | None) -> Iterator[Request]:
    for p in programs:
        name = f"{p.suite}/{p.name}" + ("" if schedules is None else f" schedules {schedules}")
        yield {"op": "check", "name": name, "suite": p.suite, "program": p.name, "seed": job.settings.seed,
               "schedules": schedules}  # fmt: skip


def _note_kernel(job: Job, name: str, reply: Mapping[str, Any]) -> None:
    found = reply.get("kernels") or reply.get("error", "")
    for entry in (*job.rows, *job.errors):
        if entry["name"] == name:
            entry["kernels_at_fault"] = found


# ---- in a worker


@dataclass
class RandomChoices:
    """Chooses a random implementation and schedule of each kernel, and keeps what it chose.

    Attributes:
        seed: of the choices.
        made: the site's id and the choice, for each kernel.
    """

    seed: int
    made: dict[str, KernelChoice] = field(default_factory=dict)

    def choose_kernel(self, site: KernelSite) -> KernelChoice:
        """Return a random choice that is possible, or the default."""
        drawn = random.Random(f"{self.seed}/{site.fingerprint}")
        for _ in range(TRIES):
            choice = site.choices[drawn.randrange(len(site.choices))]
            if site.check(choice) is None:
                break
        else:
            choice = site.default
        self.made[site.id] = choice
        return choice


def check(device: Device, request: Mapping[str, Any]) -> dict[str, Any]:
    """Compile a program, run it and compare its outputs; return the finding (None if they are right) and the seconds.

    Of random schedules, the choices that are not the default are returned, too.
    """
    start = time.perf_counter()
    program = find(request["suite"], request["program"])
    module, reference = reference_of(program, request["seed"])
    interpreted = time.perf_counter()
    schedules = request["schedules"]
    chooser = None if schedules is None else RandomChoices(schedules)
    executable = compile_hlo(module, device.backend, kernel_selector=chooser)
    outputs = fresh_outputs(executable, reference)
    ended = time.perf_counter()
    found = reference.difference(outputs, program.tolerance)
    return {
        "finding": found,
        "unchecked": reference.unchecked,
        "kernels": len(executable.kernels),
        "host_steps": sum(t.kind == "host" for t in executable.thunks),
        "seconds": ended - interpreted,
        "interpreter_seconds": interpreted - start,
        "choices": {} if chooser is None else {k: str(c) for k, c in chooser.made.items() if c.schedule},
    }


def locate(device: Device, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return which kernels of a program are at fault: `{"kernels": [{"kernel", "symbol", "choice", "problem"}]}`.

    First the program runs with a wait after each launch, which names a kernel that makes the device unusable; nothing
    runs after that. Then each kernel runs alone, and its outputs are compared with the interpreter's.
    """
    program = find(request["suite"], request["program"])
    module = parse(program.text())
    schedules = request["schedules"]
    chooser = None if schedules is None else RandomChoices(schedules)
    sites: list[tuple[KernelSite, KernelChoice]] = []

    def choose(site: KernelSite) -> KernelChoice:
        sites.append((site, site.default if chooser is None else chooser.choose_kernel(site)))
        return sites[-1][1]

    executable = compile_hlo(module, device.backend, kernel_selector=choose)
    if isinstance(executable, CudaExecutable):
        executable.synchronous = True
    try:
        executable(*inputs_of(program, module, request["seed"]))
        device.wait()
    except HlogymError as error:
        symbols = ", ".join(getattr(error, "kernels", ()))
        return {"kernels": [{"kernel": "", "symbol": symbols, "choice": "", "problem": str(error)[:600]}]}
    found: list[dict[str, str]] = []
    for site, choice in sites:
        problem = problem_of(site, choice, device, request["seed"])
        if problem is not None:
            symbol = "" if site.spec is None else site.spec.symbol
            found.append({"kernel": str(site), "symbol": symbol, "choice": str(choice), "problem": problem[:600]})
        if problem is not None and device.is_lost():
            break  # nothing runs any more
    return {"kernels": found}


def problem_of(site: KernelSite, choice: KernelChoice, device: Device, seed: int) -> str | None:
    """Return what is wrong with a kernel that runs alone on random inputs, or None."""
    module = site.module()
    try:
        executable = built_alone(site, module, choice)
    except (CodegenError, UnsupportedError) as error:
        return str(error)
    inputs = kernel_inputs(module, seed)
    reference = Reference.of(module, inputs)
    try:
        outputs = [on_host(o) for o in executable(*inputs)]
        device.wait()
    except Exception as error:  # CuPy's own errors cannot be named without it
        return f"{type(error).__name__}: {error}"
    return reference.difference(outputs)


def built_alone(site: KernelSite, module: HloModule, choice: KernelChoice) -> Executable:
    """Return the executable of a kernel alone, whose module is `site.module()`."""
    root = module.entry.root
    return find_backend(site.backend).build(module, None, {(module.entry.name, root.name): site.bind(choice)})


def kernel_inputs(module: HloModule, seed: int) -> list[npt.NDArray[Any]]:
    """Return random arguments of a kernel; integers are small, because many of them are indices."""
    rng = np.random.default_rng(seed)
    draw: Callable[[Any], npt.NDArray[Any]] = lambda s: rng.uniform(0.5, 4.0, s.dimensions).astype(s.dtype)  # noqa: E731
    return [draw(s) for s in parameter_leaves(module)]
