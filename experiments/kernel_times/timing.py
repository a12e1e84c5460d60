"""Timing of many choices of many kernels: they are compiled together, and the choices of a kernel run in turns."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from compiler.backends.cpu.executable import CpuExecutable
from compiler.backends.registry import find_backend
from compiler.codegen.kernel_spec import KernelSpec
from compiler.codegen.schedules.kernel_choice import GENERATED, KernelChoice
from compiler.codegen.schedules.schedule import Schedule
from compiler.codegen.schedules.schedule_space import fields_read, typical_values
from compiler.codegen.templates.loop_kernel import LoopKernel
from compiler.errors import CodegenError, PlanError, UnsupportedError
from compiler.ir.shape import Shape
from compiler.runtime.executable import parameter_leaves
from compiler.runtime.implementations import implementations_of
from compiler.runtime.instruction_kernels import GenerateKernel, kernel_generator
from compiler.runtime.kernel_sites import KernelSite
from compiler.support.rounds import beside_rounds
from env.racing import runners
from env.real_time import real_time
from experiments.kernel_times.dataset import ChoiceTime

__all__ = ["TimingOptions", "choice_times", "draw_choices", "kernel_inputs", "time_choices"]

MAX_SOURCE = 30_000
"""Longest source of a kernel in characters; the C compiler takes seconds for a longer one."""
PARALLEL = "hlogym_parallel"
"""The function of the runtime that kernels on several threads call."""


@dataclass(frozen=True)
class TimingOptions:
    """How kernels are timed.

    Attributes:
        rounds: samples per choice; choices take turns.
        sample: seconds that a sample takes at least; it is the fastest of as many executions.
        kernel_seconds: time limit of all samples of a kernel, after which there are fewer.
        slowest: seconds of one execution from which a kernel is not measured.
        most_bytes: size of arguments and results from which a kernel is not measured.
        real_time: whether kernels run at real-time priority, for machines that do other work as well.
    """

    rounds: int = 7
    sample: float = 1e-4
    kernel_seconds: float = 0.35
    slowest: float = 0.1
    most_bytes: int = 400 << 20
    real_time: bool = False


def draw_choices(site: KernelSite, count: int, rng: random.Random) -> dict[KernelChoice, KernelSpec | None]:
    """Return different choices that a site accepts, the default first, each with its kernel if that is generated.

    They are the other implementations, choices that differ from the default in one field of the schedule, and others
    that differ in two to four. The code of each differs from that of the others. Finding the whole space of a kernel
    would take several times as long.
    """
    found: dict[KernelChoice, KernelSpec | None] = {site.default: None}
    for implementation in implementations_of(site.instruction, site.backend):
        found.setdefault(KernelChoice(implementation.name), None)
    generate = None if site.spec is None else kernel_generator(site.instruction, site.target.language)
    if generate is None:
        return found
    kernels = _Kernels(generate, site.default_schedule)
    found[KernelChoice()] = kernels.new({})
    _, names = fields_read(kernels.code, site.default_schedule)
    for attempt in range(4 * count if names else 0):
        if len(found) >= count:
            break
        varied = min(len(names), 1 if attempt % 2 == 0 else rng.randint(2, 4))
        values = {n: rng.choice(typical_values(n, site.default_schedule.value(n))) for n in rng.sample(names, varied)}
        spec = kernels.new(values)
        if spec is not None:
            found[KernelChoice(GENERATED, {n: v for n, v in values.items() if v != kernels.preset.value(n)})] = spec
    return found


class _Kernels:
    """The kernels that a generator makes with different schedules."""

    def __init__(self, generate: GenerateKernel, preset: Schedule) -> None:
        self._generate, self.preset = generate, preset
        self._symbols: set[str] = set()

    def code(self, schedule: Schedule) -> str | None:
        """Return what identifies the code with a schedule, or None if it is refused."""
        spec = self._made(schedule)
        return None if spec is None else spec.symbol

    def new(self, values: Mapping[str, int]) -> KernelSpec | None:
        """Return the kernel with some fields changed; None if it is refused, too long, or another's."""
        spec = self._made(self.preset.with_values(values))
        if spec is None or spec.symbol in self._symbols or len(spec.source) > MAX_SOURCE:
            return None
        self._symbols.add(spec.symbol)
        return spec

    def _made(self, schedule: Schedule) -> KernelSpec | None:
        try:
            made = self._generate(schedule)
        except UnsupportedError:
            return None
        return made.spec if isinstance(made, LoopKernel) else made


class _Pool:
    """Random values from which arguments of any size are taken."""

    def __init__(self, seed: int) -> None:
        self.values = np.random.default_rng(seed).uniform(0.5, 4.0, 1 << 16)


def kernel_inputs(shapes: Sequence[Shape], seed: int = 0) -> list[Any]:
    """Return arguments with random values of 0.5 to 4; integers are small, because many of them are indices."""
    values = _Pool(seed).values
    return [np.resize(np.roll(values, 977 * n).astype(s.dtype), s.dimensions) for n, s in enumerate(shapes)]


def time_choices(
    site: KernelSite, choices: Sequence[KernelChoice], threads: Sequence[int], options: TimingOptions
) -> list[ChoiceTime]:
    """Return the times of the choices that can be built, each with every number of threads.

    Choices that run on one thread anyway are measured with one only.

    Raises:
        CodegenError, UnsupportedError: the default cannot be built.
    """
    module = site.module()
    shapes = parameter_leaves(module)
    root = module.entry.root
    size = sum(s.byte_size for s in (*shapes, *(s for s in root.shape.leaves() if s.is_array)))
    if size > options.most_bytes:
        return []
    inputs = kernel_inputs(shapes)
    backend = find_backend(site.backend)
    built: dict[tuple[KernelChoice, int], CpuExecutable] = {}
    for choice in choices:
        try:
            bound = site.bind(choice)
            executable = backend.build(module, None, {(module.entry.name, root.name): bound})
        except (CodegenError, PlanError, UnsupportedError):
            if choice == site.default:
                raise
            continue
        if not isinstance(executable, CpuExecutable):
            return []
        for n in threads if _is_parallel(executable, choice) else (1,):
            built[choice, n] = executable
    with real_time() if options.real_time else nullcontext():
        samples = _samples(built, inputs, options)
    return choice_times(samples)


def _is_parallel(executable: CpuExecutable, choice: KernelChoice) -> bool:
    return choice.implementation != GENERATED or any(PARALLEL in k.source for k in executable.kernels)


def _samples(
    built: Mapping[tuple[KernelChoice, int], CpuExecutable], inputs: list[Any], options: TimingOptions
) -> dict[tuple[KernelChoice, int], list[float]]:
    # In memory of their own, equal kernels would differ by up to a third.
    timed = dict(zip(built, runners(*built.values()), strict=True))

    def run(key: tuple[KernelChoice, int], repeats: int) -> float:
        executable = built[key]
        executable.call_options = replace(executable.call_options, num_threads=key[1])
        return min(timed[key](inputs, repeats)[0])

    once: dict[tuple[KernelChoice, int], float] = {}
    for key in built:
        seconds = run(key, 1)
        if seconds > options.slowest:
            if key == next(iter(built)):
                return {}
            continue
        once[key] = min(seconds, run(key, 2))
    repeats = {key: max(2, min(200, round(options.sample / max(t, 1e-9)))) for key, t in once.items()}
    cost = sum(once[key] * repeats[key] for key in once)
    rounds = max(3, min(options.rounds, int(options.kernel_seconds / max(cost, 1e-9))))
    samples: dict[tuple[KernelChoice, int], list[float]] = {key: [] for key in once}
    for n in range(rounds):
        for key in list(once) if n % 2 == 0 else list(reversed(once)):
            samples[key].append(run(key, repeats[key]))
    return samples


def choice_times(samples: Mapping[tuple[KernelChoice, int], Sequence[float]]) -> list[ChoiceTime]:
    """Return the time of each choice, given one sample of it for each round.

    A choice takes as much longer than the quietest round as it does in its median round, see `beside_rounds`.
    """
    if not samples:
        return []
    rounds, beside = beside_rounds(list(samples.values()))
    found = []
    for (choice, threads), row, own in zip(samples, beside, samples.values(), strict=True):
        whole, *halves = (float(np.exp(rounds.min() + np.median(part))) for part in (row, row[::2], row[1::2]))
        fastest, second = sorted(own)[:2]
        noise = second / max(fastest, 1e-12) - 1
        found.append(ChoiceTime(choice, threads, whole, noise, (halves[0], halves[1])))
    return found
