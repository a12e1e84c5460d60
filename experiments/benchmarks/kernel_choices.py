"""How good the default choice of each kernel is: the best of many measured choices against it, on the cpu backend.

python -m experiments.benchmarks.kernel_choices [--suite kernels] [--choices 200] [--only 'softmax*']
    [--seconds 600] [--out results/kernels/choices.md]

For each program, the generated kernels that take at least a tenth of its time are measured alone, on random inputs: up
to `--choices` choices in turns, then the fastest ten again in turns with the default. Outputs are compared with those
of the default. A table row is one kernel; `gain` is the default's time divided by that of the best choice.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.api import decide
from compiler.backends.cpu import toolchain
from compiler.backends.cpu.frames import address_of
from compiler.backends.cpu.libraries import Library, load_library
from compiler.backends.cpu.native_runtime import RUNTIME, Call
from compiler.codegen.kernel_spec import KernelSpec
from compiler.codegen.schedules.kernel_choice import GENERATED, KernelChoice
from compiler.codegen.templates.loop_kernel import LoopKernel
from compiler.errors import HlogymError
from compiler.fusion.policies import DEFAULT_POLICY, make_policy
from compiler.runtime.instruction_kernels import emit_kernel
from compiler.runtime.kernel_sites import KernelSite
from compiler.session import CompilationSession
from compiler.text import parse
from env.real_time import real_time
from env.statistics import geometric_mean
from env.suites import Program, load_suite
from experiments.module_command import plain_errors
from experiments.provenance import provenance

LEAST_SHARE = 0.1
"""Share of a program's time from which on a kernel is measured."""
FINALISTS, ROUNDS, FINAL_ROUNDS = 10, 3, 15
SAMPLE_SECONDS = 2e-3
LARGEST_BYTES = 1 << 29

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Row:
    """The measurements of one kernel.

    Attributes:
        program, kernel, kind: what was measured.
        choices: number of choices that were measured; those with equal code count once.
        default: seconds of the default choice.
        best: seconds of the best choice in the final comparison.
        choice: the best choice as text.
    """

    program: str
    kernel: str
    kind: str
    choices: int
    default: float
    best: float
    choice: str

    @property
    def gain(self) -> float:
        """Return the default's time divided by the best choice's, at least 1: the default is a choice itself."""
        return max(1.0, self.default / self.best)


def heavy_sites(program: Program) -> Iterator[KernelSite]:
    """Yield the generated kernels of a program that take at least LEAST_SHARE of its time."""
    session = CompilationSession(parse(program.text()))
    decide(session, make_policy(DEFAULT_POLICY))
    sites = [s for s in session.kernel_sites() if s.default.implementation == GENERATED and s.spec is not None]
    seconds = {s.id: _time(_Kernel(s, s.default), 5) * s.runs for s in sites}
    total = sum(seconds.values())
    yield from (s for s in sites if seconds[s.id] >= LEAST_SHARE * total)


class _Kernel:
    """A built kernel with its arguments."""

    def __init__(self, site: KernelSite, choice: KernelChoice, spec: KernelSpec | None = None) -> None:
        self.site, self.choice = site, choice
        self.spec = spec or _spec(site, choice)
        self.address = 0
        self.library: Library | None = None
        self.arrays: list[Array] = []
        self.pointers: Any = None

    def prepare(self, inputs: Sequence[Array], library: Library) -> None:
        """Look up the kernel in the library that holds it, which stays loaded, and allocate its outputs."""
        self.library, self.address = library, library.function(self.spec.symbol)
        ins = list(inputs)
        outputs = [np.zeros(s.dimensions, s.dtype) for s in self.spec.outputs]
        for source, target in self.spec.must_alias:
            outputs[target - len(ins)][...] = ins[source]
            ins[source] = outputs[target - len(ins)]
        self.arrays = [*ins, *outputs]
        self.pointers = (ctypes.c_void_p * max(1, len(self.arrays)))(*map(address_of, self.arrays))

    @property
    def outputs(self) -> list[Array]:
        return self.arrays[len(self.spec.inputs) :]

    def run(self, repeats: int, inner: int = 1) -> float:
        """Return the least seconds per execution."""
        seconds = (ctypes.c_double * repeats)()
        call = Call()
        runtime = RUNTIME.load(toolchain.toolchain().runtime())
        runtime.hlogym_time_kernel(self.address, self.pointers, repeats, inner, seconds, ctypes.addressof(call))
        call.raise_exception()
        return float(min(seconds))


def _spec(site: KernelSite, choice: KernelChoice) -> KernelSpec:
    kernel = emit_kernel(site.instruction, site.target.language, site.bind(choice).schedule)
    return kernel.spec if isinstance(kernel, LoopKernel) else kernel


def _inputs(spec: KernelSpec) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.uniform(0.5, 4.0, s.dimensions).astype(s.dtype) for s in spec.inputs]


def _build(kernels: Sequence[_Kernel]) -> None:
    inputs = _inputs(kernels[0].spec)
    RUNTIME.load(toolchain.toolchain().runtime())  # kernels refer to its functions
    objects = toolchain.kernel_objects([k.spec for k in kernels], toolchain.toolchain())
    libraries = {path: load_library(path) for path in set(objects.values())}
    for k in kernels:
        k.prepare(inputs, libraries[objects[k.spec.symbol]])
        k.run(1)


def _time(kernel: _Kernel, rounds: int) -> float:
    if not kernel.address:
        _build([kernel])
    inner = max(1, min(1000, round(SAMPLE_SECONDS / max(kernel.run(1), 1e-9) / 4)))
    return kernel.run(rounds, inner)


def measure(site: KernelSite, program: str, budget: int, undisturbed: bool = False) -> Row | None:
    """Return the row of one kernel, timed at real-time priority if it shall be undisturbed.

    None if it has a single choice or is too large.
    """
    spec = site.spec
    if spec is None or spec.bytes > LARGEST_BYTES // 8:
        return None
    distinct: dict[str, _Kernel] = {}
    for choice in site.offered(budget):
        kernel = _Kernel(site, choice)
        distinct.setdefault(kernel.spec.symbol, kernel)
    kernels = list(distinct.values())
    if len(kernels) < 2:
        return None
    default = kernels[0]
    _build(kernels)
    right = [k for k in kernels if all(np.allclose(a, b, 1e-3, 1e-3, True) for a, b in _pairs(k, default))]
    if len(right) < len(kernels):
        print(f"{program}: {len(kernels) - len(right)} choices of %{site.name} compute something else")
    with real_time() if undisturbed else nullcontext():
        seconds = _least_times(right, ROUNDS)
        fastest = sorted(right, key=lambda k: seconds[k.spec.symbol])[:FINALISTS]
        final = [default, *(k for k in fastest if k is not default)]
        again = _least_times(final, FINAL_ROUNDS)
        best = min(final, key=lambda k: again[k.spec.symbol])
        # Of many equal choices the luckiest looks fastest, so what is said of it comes from other samples.
        last = _least_times([default, best], FINAL_ROUNDS)
    if last[best.spec.symbol] > last[default.spec.symbol]:
        best = default
    return Row(
        program, site.name, spec.kind, len(right), last[default.spec.symbol], last[best.spec.symbol], str(best.choice)
    )


def _least_times(kernels: Sequence[_Kernel], rounds: int) -> dict[str, float]:
    """Time kernels in turns; return the least seconds of each by its symbol."""
    seconds = dict.fromkeys((k.spec.symbol for k in kernels), float("inf"))
    for n in range(rounds):
        for k in kernels if n % 2 else reversed(kernels):
            seconds[k.spec.symbol] = min(seconds[k.spec.symbol], _time(k, 1))
    return seconds


def _pairs(one: _Kernel, other: _Kernel) -> Iterator[tuple[Array, Array]]:
    for a, b in zip(one.outputs, other.outputs, strict=True):
        if a.dtype.kind not in "biuf":
            a, b = a.astype(np.float32), b.astype(np.float32)
        yield a, b


def report(rows: Sequence[Row], arguments: Sequence[str], suite: str) -> str:
    """Return the table in Markdown, the greatest gain first."""
    origin = provenance()
    gains = [r.gain for r in rows]
    lines = [
        "# The best of many measured choices against the default choice of each kernel",
        "",
        f"- command: `python -m experiments.benchmarks.kernel_choices {' '.join(arguments)}`",
        *(f"- {key}: {origin[key]}" for key in ("commit", "machine", "date", "c_compiler")),
        "",
        f"Suite {suite}: {len(rows)} kernels that take a tenth of their program's time or more. Geometric mean of what "
        f"the best choice gains: {geometric_mean(gains).value:.3f}x; {sum(g > 1.1 for g in gains)} kernels gain more "
        f"than 1.1x. Least times of interleaved samples; the best choice was found among the {FINALISTS} fastest by "
        f"{FINAL_ROUNDS} further rounds, and then timed in turns with the default for as many.",
        "",
        "| program | kernel | kind | choices | default | best | gain | best choice |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.program} | {r.kernel} | {r.kind} | {r.choices} | {r.default * 1e6:.1f} us | {r.best * 1e6:.1f} us | "
        f"{r.gain:.2f}x | `{r.choice}` |"
        for r in sorted(rows, key=lambda r: -r.gain)
    ]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--suite", default="kernels")
    parser.add_argument("--choices", type=int, default=200, help="greatest number of choices per kernel")
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of program names")
    parser.add_argument("--seconds", type=float, help="begin no further program after this time (default: no limit)")
    parser.add_argument("--out", type=Path, help="Markdown file; a JSON file is written next to it")
    parser.add_argument("--real-time", action="store_true", help="time at real-time priority, if the user may")
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    start = time.monotonic()
    for program in load_suite(options.suite).programs:
        late = options.seconds is not None and time.monotonic() - start > options.seconds
        if late or not any(fnmatch(program.name, pattern) for pattern in options.only):
            continue
        try:
            rows_of = (measure(s, program.name, options.choices, options.real_time) for s in heavy_sites(program))
            found = [r for r in rows_of if r is not None]
        except (HlogymError, MemoryError) as error:
            print(f"{program.name}: {error}")
            continue
        for r in found:
            print(f"{r.program} %{r.kernel}: {r.gain:.2f}x of {r.choices} choices: {r.choice}", flush=True)
        rows += found
        if options.out is not None and rows:
            options.out.write_text(report(rows, arguments, options.suite), encoding="utf-8")
            data = {"provenance": provenance(), "rows": [vars(r) for r in rows]}
            options.out.with_suffix(".json").write_text(json.dumps(data, indent=1), encoding="utf-8")
    return 0 if rows else 1


if __name__ == "__main__":
    with plain_errors():
        sys.exit(main(sys.argv[1:]))
