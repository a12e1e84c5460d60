"""A process that runs programs whose kernels were built with sanitizers, started by `test_sanitizers`.

`python -m tests.runtime.sanitized WHAT FUSION LOOPS SEED`, where WHAT is the name of a suite, "fusions", "products",
"schedules", "loops", "scatters", "sorts", "scans" or "canary". The environment must name a sanitizing compiler as CC
and preload its runtime.
Temporaries are separated by poisoned gaps, every program runs twice on an arena with different initial contents, and
the floating-point environment is checked after each program. Problems are written to the standard error output, by
program.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.api import decide
from compiler.backends.cpu import toolchain as cpu
from compiler.backends.cpu.executable import CpuExecutable
from compiler.codegen import buildability
from compiler.errors import UnsupportedError
from compiler.fusion.policies import RandomFusion, make_policy
from compiler.fusion.protocol import FusionPolicy
from compiler.ir import HloModule
from compiler.loops import KeepLoops, KernelLoops, LoopPolicy, UnrollLoops
from compiler.runtime import allocation
from compiler.runtime.buffers import ALIGNMENT, Buffer, Interval
from compiler.runtime.executable import parameter_leaves
from compiler.session import CompilationSession
from compiler.text import parse
from env.reference import Reference
from env.suites import load_suite, random_inputs
from tests.codegen import running
from tests.codegen.attentions import random_attention
from tests.codegen.products import random_product
from tests.codegen.random_fusions import random_fusion
from tests.codegen.random_kernels import random_kernel
from tests.codegen.test_running import DIMENSIONS, running_text
from tests.codegen.test_scatter import CASES, REDUCERS, module_text
from tests.codegen.test_sort_by_key import sort_text, top_k_text
from tests.fuzz.schedules import random_schedule
from tests.runtime.random_loops import random_loops

Array = npt.NDArray[Any]
LOOPS: Mapping[str, LoopPolicy] = {
    "keep": KeepLoops(), "kernel": KernelLoops(), "unroll": UnrollLoops(4), "full": UnrollLoops(0),
}  # fmt: skip


class Arena:
    """An arena in which temporaries do not overlap and a poisoned gap follows each."""

    def __init__(self) -> None:
        self.gaps: list[tuple[int, int]] = []
        words = ("poison", "unpoison")
        self._poison, self._unpoison = (ctypes.CDLL(None)[f"__asan_{word}_memory_region"] for word in words)
        for f in (self._poison, self._unpoison):
            f.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

    def assign(self, intervals: dict[Buffer, Interval]) -> int:
        """Assign offsets, as a replacement of `buffers.assign_offsets`."""
        self.gaps.clear()
        at = 0
        for b in intervals:
            b.index, end = at, at + b.size
            at = -(-end // ALIGNMENT) * ALIGNMENT + ALIGNMENT
            self.gaps.append((end, at))
        return at

    def poison(self, base: int, poisoned: bool) -> None:
        for start, end in self.gaps:
            (self._poison if poisoned else self._unpoison)(base + start, end - start)


ARENA = Arena()


def report(what: str) -> None:
    """Write a line for the parent process."""
    print(what, file=sys.stderr, flush=True)


def float_environment() -> tuple[int, bool]:
    """Return the rounding mode and whether subnormal numbers are kept."""
    return ctypes.CDLL("libm.so.6").fegetround(), bool(np.array([1e-40], np.float32)[0] * np.float32(1) > 0)


def run_program(name: str, module: HloModule, args: Sequence[Array], fusion: str, loops: str, seed: int) -> None:
    """Compile a program and run it twice on an arena with different initial contents."""
    wanted = Reference.of(module, args)
    policy: FusionPolicy = RandomFusion(seed=seed, max_actions=300) if fusion == "random" else make_policy(fusion)
    session = CompilationSession(module, "cpu", [] if fusion == "none" else None)
    decide(session, policy, LOOPS[loops])
    built = session.finish()
    assert isinstance(built, CpuExecutable)
    frame = built._frames.take()
    built._frames.give(frame)
    arena: Array = frame.arena
    for fill in (0, 0xA5):
        arena[:] = fill
        ARENA.poison(arena.ctypes.data, True)
        results = built(*args)
        ARENA.poison(arena.ctypes.data, False)
        why = wanted.difference(results)
        if why is not None:
            report(f"PROBLEM {name}: on an arena filled with {fill:#x}: {why}")


def programs(what: str, fusion: str, loops: str, seed: int) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the name of each program with a function that runs it."""
    rng = np.random.default_rng(seed)
    if what == "fusions":
        yield from ((f"fusions {n}", lambda: run_fusions(rng, 60)) for n in range(4))
    elif what == "products":
        yield "products", lambda: run_products(seed, 25)
    elif what == "schedules":
        yield from ((f"schedules {n}", lambda: run_schedules(rng, 30)) for n in range(8))
    elif what == "canary":
        yield "canary", run_canary
    elif what == "loops":
        for n in range(25):
            module = random_loops(rng)
            args = running.random_args(module.entry.parameter_shapes, rng)
            yield f"loops {n}", lambda m=module, a=args: run_program("loops", m, a, fusion, loops, seed)  # type: ignore[misc]
    elif what == "scatters":
        for case in CASES:
            for reducer in REDUCERS:
                module = parse(module_text(case, reducer, "f32"))
                shapes = module.entry.parameter_shapes
                args = [rng.integers(-9, 12, s.dimensions).astype(s.dtype) for s in shapes]
                name = f"scatter {case} {reducer}"
                yield name, lambda m=module, a=args: run_program("scatter", m, a, fusion, loops, seed)  # type: ignore[misc]
    elif what == "sorts":
        sizes = (2, 33, 193, 700)
        sources = [sort_text(t, (3, n, 2), "LT") for t in ("f32", "bf16", "s64") for n in sizes]
        sources += [top_k_text(t, 2, n, k) for t in ("f32", "u8") for n in sizes for k in (1, n // 2, n)]
        for n, text in enumerate(sources):
            module = parse(text)
            args = [rng.integers(-9, 12, s.dimensions).astype(s.dtype) for s in module.entry.parameter_shapes]
            yield f"sort {n}", lambda m=module, a=args: run_program("sort", m, a, fusion, loops, seed)  # type: ignore[misc]
    elif what == "scans":
        for dims, axis in DIMENSIONS:
            for op in ("add", "maximum"):
                module = parse(running_text("f32", op, dims, axis, reverse=op == "add"))
                args = running.random_args(module.entry.parameter_shapes, rng)
                name = f"scan {dims} {op}"
                yield name, lambda m=module, a=args: run_program("scan", m, a, fusion, loops, seed)  # type: ignore[misc]
    else:
        for program in load_suite(what).programs:
            module = parse(program.text())
            wanted = [(s.dtype, s.dimensions) for s in parameter_leaves(module)]
            args = random_inputs(program, wanted, seed)
            yield program.name, lambda m=module, a=args, n=program.name: run_program(n, m, a, fusion, loops, seed)  # type: ignore[misc]


def run_fusions(rng: np.random.Generator, count: int) -> None:
    """Run random kernels that are built together."""
    cases: list[running.Case] = []
    while len(cases) < count:
        f = random_fusion(rng)
        if buildability.kernel_refusal(f) is None:
            cases.append(running.case_of(f, running.random_args(f.parameter_shapes, rng), "c"))
    run_cases(cases)


def run_schedules(rng: np.random.Generator, count: int) -> None:
    """Run random kernels with random schedules."""
    cases: list[running.Case] = []
    while len(cases) < count:
        f, schedule = random_kernel(rng), random_schedule(rng)
        with contextlib.suppress(UnsupportedError):
            cases.append(running.case_of(f, running.random_args(f.parameter_shapes, rng), "c", schedule))
    run_cases(cases)


def run_products(seed: int, count: int) -> None:
    """Run random matrix products and attention."""
    rng = np.random.default_rng(seed)
    made = [random_product(random.Random(n)) for n in range(seed * count, (seed + 1) * count)]
    forms = [random_attention(random.Random(n)) for n in range(seed * count, (seed + 1) * count)]
    made += [replace(form, type="f32").computation() for form in forms]
    run_cases([running.case_of(f, running.random_args(f.parameter_shapes, rng), "c") for f in made])


def run_cases(cases: Sequence[running.Case]) -> None:
    """Build kernels together, run them and compare their results."""
    for case, found in zip(cases, running.run_c(cases), strict=True):
        why = running.problem(found, case)
        if why is not None:
            report(f"PROBLEM {why}\n{case.spec.source}")


def run_canary() -> None:
    """Write past the end of an array in C code."""
    library = ctypes.CDLL(str(cpu.toolchain().shared_object("void bad(float *p) { p[300] = 1; }", "bad")))
    out = np.zeros(300, np.float32)
    library.bad(ctypes.c_void_p(out.ctypes.data))


def main(what: str, fusion: str, loops: str, seed: str) -> None:
    """Run all programs of one kind."""
    setattr(allocation, "assign_offsets", ARENA.assign)  # noqa: B010 - the name is imported there
    before = float_environment()
    for name, run in programs(what, fusion, loops, int(seed)):
        report(f"RUN {name}")
        run()
        if float_environment() != before:
            report(f"PROBLEM {name}: the floating-point environment changed from {before} to {float_environment()}")
    report("DONE")


if __name__ == "__main__":
    main(*sys.argv[1:])
