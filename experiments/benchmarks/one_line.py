"""Scripts of users of JAX and PyTorch with one line changed, beside the scripts as they are.

python -m experiments.benchmarks.one_line [--rounds 15] [--only lstm] [--out results/reach/one_line.md]

Needs JAX, PyTorch and Stable-Baselines3. In the scripts of experiments/benchmarks/jax_scripts the line that imports
`jit` is changed, in those of torch_scripts the line that calls `torch.compile`, whose default is Inductor. Each is run
both ways for three steps, and all results are compared before anything is timed: sums in another order are permitted,
larger differences are an error. Then single steps are timed in turns. A ratio above 1 means that the changed script is
faster; its interval is a bootstrap over pairs of neighbouring samples. The first call includes tracing and compiling,
without programs on disk. With --real-time, single steps have priority over other processes of the machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from env.real_time import real_time
from env.statistics import geometric_mean, ratio_interval
from experiments.benchmarks.script_frameworks import FRAMEWORKS, Framework, Namespace, framework_of
from experiments.console import duration, factor
from experiments.module_command import plain_errors
from experiments.provenance import provenance
from experiments.results import markdown_table, write_text

COMPARED_STEPS = 3
LEAST_SECONDS = 0.01
"""Seconds that a sample takes at least; quick steps are repeated."""
TOLERANCE = 2e-2
"""Largest difference, relative to the largest value of an array.

Adam divides small gradients by themselves, and an activation close to zero may fall on either side of it: gradients of
ResNet-18 by Inductor differ from those in float64 by 1e-2 at most, those of hlogym by 8e-6.
"""


def names() -> list[str]:
    """Return the names of the scripts."""
    return [name for framework in FRAMEWORKS for name in framework.names()]


def difference(name: str) -> float:
    """Return the largest difference between results of both scripts, relative to the largest value of each array.

    Both continue from the state that the unchanged script has computed, so that differences do not grow from step to
    step.
    """
    framework = framework_of(name)
    framework.prepare()
    ours, theirs = (framework.run_script(name, changed) for changed in (True, False))
    state = theirs["start"]()
    own = framework.continued(ours["start"](), state)
    largest = 0.0
    for _ in range(COMPARED_STEPS):
        expected, got = theirs["step"](state), ours["step"](own)
        found, wanted = framework.arrays(got), framework.arrays(expected)
        if len(found) != len(wanted):
            raise ValueError(f"{name}: the results have another structure")
        largest = max(largest, *(_apart(a, b) for a, b in zip(found, wanted, strict=True)))
        state = expected[0]
        own = framework.continued(got[0], state)
    return largest


def _apart(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    if a.dtype != b.dtype or a.shape != b.shape:
        return float("inf")
    if not np.issubdtype(b.dtype, np.floating):
        return float(np.mean(a != b))
    scale = float(np.abs(b).max(initial=0)) or 1.0
    worst = float(np.abs(a - b).max(initial=0)) / scale
    return worst if np.isfinite(worst) else float("inf")


def first_call(framework: Framework, space: Namespace) -> float:
    """Return the seconds of the first call."""
    state = space["start"]()
    start = time.perf_counter()
    framework.wait(space["step"](state))
    return time.perf_counter() - start


def samples(steps: list[Callable[[], object]], rounds: int) -> list[list[float]]:
    """Return seconds per call of each function, measured in turns in alternating order."""
    counts = []
    for step in steps:
        start = time.perf_counter()
        step()
        counts.append(max(1, int(LEAST_SECONDS / (time.perf_counter() - start))))
    out: list[list[float]] = [[] for _ in steps]
    for r in range(rounds):
        for n in range(len(steps)) if r % 2 == 0 else reversed(range(len(steps))):
            start = time.perf_counter()
            for _ in range(counts[n]):
                steps[n]()
            out[n].append((time.perf_counter() - start) / counts[n])
    return out


def _step(framework: Framework, space: Namespace) -> Callable[[], object]:
    state = space["start"]()
    step = space["step"]
    return lambda: framework.wait(step(state))


def row(name: str, rounds: int, undisturbed: bool = False) -> tuple[list[str], float]:
    """Compare and time a script; return a row of the table and the ratio.

    Args:
        name: of the script.
        rounds: samples of each step.
        undisturbed: time at real-time priority.

    Raises:
        ValueError: the results differ.
    """
    framework = framework_of(name)
    first = []  # before a program is in the cache
    for changed in (True, False):
        framework.prepare()
        first.append(first_call(framework, framework.run_script(name, changed)))
    apart = difference(name)
    if apart > TOLERANCE:
        raise ValueError(f"{name}: results differ by {apart:.1e} of the largest value")
    framework.prepare()
    scripts = [framework.run_script(name, changed) for changed in (True, False)]
    steps = [_step(framework, space) for space in scripts]
    for step in steps:
        step()  # compiles, at ordinary priority
    with real_time() if undisturbed else nullcontext():
        ours, theirs = samples(steps, rounds)
    ratio = ratio_interval(theirs, ours)
    fastest = f"{min(theirs) / min(ours):.2f}x"
    times = duration(median(ours)), duration(median(theirs))
    cells = [*times, factor(ratio), fastest, f"{apart:.0e}", *map(duration, first)]
    return [name, framework.compiler, *cells], ratio.value


@contextmanager
def _empty_caches() -> Iterator[None]:
    """Let the compilers find nothing on disk within the block."""
    settings = ("HLOGYM_CACHE", "TORCHINDUCTOR_CACHE_DIR")
    before = {s: os.environ.get(s) for s in settings}
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update({s: str(Path(folder) / s.lower()) for s in settings})
        try:
            yield
        finally:
            for setting, value in before.items():
                os.environ.pop(setting)
                if value is not None:
                    os.environ[setting] = value


def _import_compilers() -> None:
    """Compile something small by each compiler, so that no first call imports them."""
    import jax
    import torch

    import hlogym

    for jit in (hlogym.jit, jax.jit):
        jit(lambda x: x + 1)(np.ones(3, np.float32))
    for framework in FRAMEWORKS:
        framework.prepare()
    for backend in ("hlogym", "inductor"):
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(3))


def main(arguments: list[str]) -> int:
    """Print the table, and write it if a file is given; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks.one_line", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="samples of each step")
    parser.add_argument("--only", action="append", choices=names(), help="a script, instead of all")
    parser.add_argument("--real-time", action="store_true", help="time at real-time priority, if the user may")
    parser.add_argument("--out", type=Path, help="file for the table")
    given = parser.parse_args(arguments)
    head = ["script", "compared with", "hlogym", "the other", "other / hlogym", "by fastest", "difference"]
    rows = [[*head, "first call", "of the other"]]
    ratios = []
    with _empty_caches():
        _import_compilers()
        for name in given.only or names():
            cells, ratio = row(name, given.rounds, given.real_time)
            print("  ".join(cells), flush=True)
            rows.append(cells)
            ratios.append(ratio)
    about = provenance()
    text = (
        f"# One line changed\n\n{markdown_table(rows)}\n\nGeometric mean of the ratios: "
        f"{factor(geometric_mean(ratios))}, {len(ratios)} scripts. Commit {about['commit']}, {about['machine']}, "
        f"{about['date']}.\n\n"
        f"`python -m experiments.benchmarks.one_line {' '.join(arguments)}`\n"
    )
    print(text)
    if given.out is not None:
        write_text(given.out, text)
    return 0


if __name__ == "__main__":
    with plain_errors():
        sys.exit(main(sys.argv[1:]))
