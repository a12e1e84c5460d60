"""Scripts of JAX users with one line changed, `from hlogym import jit`, beside the scripts as they are.

python -m experiments.benchmarks.one_line [--rounds 15] [--only lstm] [--out results/reach/one_line.md]

Needs JAX. The scripts are in experiments/benchmarks/jax_scripts. Each is run both ways for three steps, and all results
are compared before anything is timed: sums in another order are permitted, larger differences are an error. Then single
steps from the same state are timed in turns. A ratio above 1 means that the changed script is faster; its interval is a
bootstrap over pairs of neighbouring samples. The first call includes tracing and compiling, without programs on disk.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from env.statistics import geometric_mean, ratio_interval
from experiments.console import duration, factor
from experiments.provenance import provenance
from experiments.results import markdown_table, write_text

SCRIPTS = Path(__file__).parent / "jax_scripts"
BEFORE, AFTER = "from jax import jit\n", "from hlogym import jit\n"
COMPARED_STEPS = 3
LEAST_SECONDS = 0.01
"""Seconds that a sample takes at least; quick steps are repeated."""
TOLERANCE = 5e-3
"""Largest difference, relative to the largest value of an array; Adam divides small gradients by themselves."""

Namespace = dict[str, Any]


def names() -> list[str]:
    """Return the names of the scripts."""
    return sorted(p.stem for p in SCRIPTS.glob("*.py"))


def run_script(name: str, changed: bool) -> Namespace:
    """Run a script as a module, with or without the changed line, and return its names.

    Raises:
        ValueError: the script does not have the line.
    """
    path = SCRIPTS / f"{name}.py"
    source = path.read_text(encoding="utf-8")
    if source.count(BEFORE) != 1:
        raise ValueError(f"{path} does not have the line {BEFORE.strip()!r}")
    space: Namespace = {"__name__": f"{name}_{'hlogym' if changed else 'jax'}"}
    exec(compile(source.replace(BEFORE, AFTER) if changed else source, str(path), "exec"), space)  # noqa: S102
    return space


def difference(name: str) -> float:
    """Return the largest difference between results of both scripts, relative to the largest value of each array.

    Both continue from the state that JAX has computed, so that differences do not grow from step to step.
    """
    import jax

    ours, theirs = run_script(name, changed=True), run_script(name, changed=False)
    state = theirs["start"]()
    largest = 0.0
    for _ in range(COMPARED_STEPS):
        expected, got = theirs["step"](state), ours["step"](state)
        if str(jax.tree.structure(expected)) != str(jax.tree.structure(got)):
            raise ValueError(f"{name}: the results have another structure")
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            if jax.numpy.issubdtype(b.dtype, jax.dtypes.prng_key):
                a, b = jax.random.key_data(a), jax.random.key_data(b)
            largest = max(largest, _apart(np.asarray(a), np.asarray(b)))
        state = expected[0]
    return largest


def _apart(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    if a.dtype != b.dtype or a.shape != b.shape:
        return float("inf")
    if not np.issubdtype(b.dtype, np.floating):
        return float(np.mean(a != b))
    scale = float(np.abs(b).max(initial=0)) or 1.0
    worst = float(np.abs(a - b).max(initial=0)) / scale
    return worst if np.isfinite(worst) else float("inf")


def first_call(space: Namespace) -> float:
    """Return the seconds of the first call."""
    import jax

    state = space["start"]()
    start = time.perf_counter()
    jax.block_until_ready(space["step"](state))  # type: ignore[no-untyped-call]
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


def _step(space: Namespace) -> Callable[[], object]:
    import jax

    state = space["start"]()
    step = space["step"]
    return lambda: jax.block_until_ready(step(state))  # type: ignore[no-untyped-call]


def row(name: str, rounds: int) -> tuple[list[str], float]:
    """Compare and time a script; return a row of the table and the ratio.

    Raises:
        ValueError: the results differ.
    """
    first = [first_call(run_script(name, changed)) for changed in (True, False)]  # before a program is in the cache
    apart = difference(name)
    if apart > TOLERANCE:
        raise ValueError(f"{name}: results differ by {apart:.1e} of the largest value")
    ours, theirs = samples([_step(run_script(name, changed)) for changed in (True, False)], rounds)
    ratio = ratio_interval(theirs, ours)
    fastest = f"{min(theirs) / min(ours):.2f}x"
    times = duration(median(ours)), duration(median(theirs))
    return [name, *times, factor(ratio), fastest, f"{apart:.0e}", *map(duration, first)], ratio.value


def main(arguments: list[str]) -> int:
    """Print the table, and write it if a file is given; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks.one_line", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="samples of each step")
    parser.add_argument("--only", action="append", choices=names(), help="a script, instead of all")
    parser.add_argument("--out", type=Path, help="file for the table")
    given = parser.parse_args(arguments)
    rows = [["script", "hlogym.jit", "jax.jit", "jax / hlogym", "by fastest", "difference", "first call", "of jax"]]
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HLOGYM_CACHE"] = folder  # first calls find nothing on disk
        for name in given.only or names():
            cells, ratio = row(name, given.rounds)
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
    sys.exit(main(sys.argv[1:]))
