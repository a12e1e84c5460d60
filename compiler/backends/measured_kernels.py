"""A kernel selector that measures: it times choices of each kernel on random inputs, and remembers the fastest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from compiler.backends.cpu.executable import CpuExecutable
from compiler.backends.registry import find_backend
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.errors import CodegenError, PlanError, UnsupportedError
from compiler.ir import HloModule
from compiler.runtime.executable import Executable, parameter_leaves
from compiler.runtime.kernel_selector import KernelRanking, most_promising
from compiler.runtime.kernel_sites import KernelSite
from compiler.support.files import write_file
from compiler.support.json_reading import read_object
from compiler.support.rounds import beside_rounds

__all__ = ["MeasuredKernels"]

FORMAT = 1
LEAST_SAMPLE = 1e-4
"""Seconds that a sample takes at least, so that the resolution of the clock does not matter."""


@dataclass
class MeasuredKernels:
    """Chooses the fastest of up to `budget` choices of each kernel, which are measured once.

    A kernel is compiled alone and runs on random inputs. The fastest choice is timed again, in turns with the default,
    and replaces it only where it is faster by `margin`. Results are remembered by the fingerprint of the kernel and the
    key of the machine; later compilations with the same memory make the same choices.

    Attributes:
        budget: greatest number of choices per kernel that are measured, the default included.
        rounds: number of samples per choice.
        margin: share of the time that a choice must save.
        store: a JSON file in which choices are remembered; None: in memory, for this object.
        seed: of the random inputs.
        ranking: if there is one, `considered` choices are ranked by it and the `budget` best of them are measured.
        considered: see `ranking`.
    """

    budget: int = 32
    rounds: int = 5
    margin: float = 0.03
    store: str | Path | None = None
    seed: int = 0
    ranking: KernelRanking | None = None
    considered: int = 128
    _known: dict[str, KernelChoice] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.store is not None and Path(self.store).exists():
            self._known = _read(self.store)

    def choose_kernel(self, site: KernelSite) -> KernelChoice:
        """Return the remembered choice, or measure the kernel.

        Raises:
            BackendError: nothing can be measured on this machine.
            PlanError: the store cannot be read or written.
        """
        candidates = self._candidates(site)
        if len(candidates) < 2:
            return site.default
        key = _key(site)
        known = self._known.get(key)
        if known is not None and site.check(known) is None:
            return known
        self._known[key] = best = self._fastest(site, candidates)
        if self.store is not None:
            _write(self.store, self._known)
        return best

    def _candidates(self, site: KernelSite) -> list[KernelChoice]:
        if self.ranking is None:
            return site.offered(self.budget)
        return most_promising(self.ranking, site, site.offered(max(self.budget, self.considered)), self.budget)

    def _fastest(self, site: KernelSite, candidates: Sequence[KernelChoice]) -> KernelChoice:
        module = site.module()
        inputs = _inputs(module, np.random.default_rng(self.seed))
        built: dict[KernelChoice, Executable] = {}
        for choice in candidates:
            executable = _built(site, module, choice)
            if executable is not None:
                executable(*inputs)
                built[choice] = executable
        if site.default not in built:
            return site.default
        times = self._times(built, inputs)
        best = min(times, key=times.__getitem__)
        if best == site.default:
            return best
        # The best of many timings is biased, so it is timed again.
        again = self._times({c: built[c] for c in (site.default, best)}, inputs)
        return best if again[best] < (1 - self.margin) * again[site.default] else site.default

    def _times(self, built: dict[KernelChoice, Executable], inputs: list[Any]) -> dict[KernelChoice, float]:
        """Return the time of each executable, as a multiple of the median executable of a round.

        On a CPU, they run in the same memory.
        """
        on_cpu = [e for e in built.values() if isinstance(e, CpuExecutable)]
        memory = on_cpu[0].timing_memory(*on_cpu[1:]) if len(on_cpu) == len(built) else None

        def run(e: Executable, repeats: int) -> float:
            if isinstance(e, CpuExecutable):
                return min(e.timed_call(inputs, repeats, memory)[0])
            return min(e.benchmark(inputs, repeats))

        samples: dict[KernelChoice, list[float]] = {c: [] for c in built}
        for n in range(self.rounds):
            order = list(built) if n % 2 == 0 else list(reversed(built))
            for choice in order:
                once = run(built[choice], 2)
                repeats = max(3, min(100, round(LEAST_SAMPLE / max(once, 1e-9))))
                samples[choice].append(run(built[choice], repeats))
        _, beside = beside_rounds(list(samples.values()))
        return dict(zip(samples, np.exp(np.median(beside, axis=1)).tolist(), strict=True))


def _built(site: KernelSite, module: HloModule, choice: KernelChoice) -> Executable | None:
    try:
        bound = site.bind(choice)
        return find_backend(site.backend).build(module, None, {(module.entry.name, module.entry.root.name): bound})
    except (CodegenError, PlanError, UnsupportedError):
        return None  # a choice that cannot be built is not the fastest


def _inputs(module: HloModule, rng: np.random.Generator) -> list[Any]:
    """Return random arguments; integers are small, because many of them are indices."""
    return [rng.uniform(0.5, 4.0, s.dimensions).astype(s.dtype) for s in parameter_leaves(module)]


def _key(site: KernelSite) -> str:
    """Return what a measured choice depends on: the kernel, its default and the machine."""
    machine = find_backend(site.backend).machine_key()
    text = f"{site.fingerprint}\n{site.backend}\n{site.default}\n{site.default_schedule}\n{machine}"
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: str | Path) -> dict[str, KernelChoice]:
    data = read_object(path, PlanError)
    choices = data.get("choices")
    if data.get("format") != FORMAT or not isinstance(choices, dict):
        raise PlanError(f"{path} is no store of kernel choices of format {FORMAT}; choose another file")
    try:
        return {key: KernelChoice.from_json(choice) for key, choice in choices.items()}
    except PlanError as e:
        raise PlanError(f"{path}: {e}; remove the file, and kernels are measured again") from None


def _write(path: str | Path, known: dict[str, KernelChoice]) -> None:
    data = {"format": FORMAT, "choices": {key: choice.to_json() for key, choice in sorted(known.items())}}
    try:
        write_file(Path(path), json.dumps(data, indent=1) + "\n")
    except OSError as e:
        raise PlanError(f"cannot write kernel choices to {path}: {e.strerror}; choose another file") from None
