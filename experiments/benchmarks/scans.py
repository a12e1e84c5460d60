"""Benchmark of the scan passes: plain loops, scans widened to several steps at once, and parallel prefixes.

python -m experiments.benchmarks.scans [--rounds 200] [--out results/passes/scans.md]

Each program is a `lax.scan`. Each variant runs the named passes and then the default pipeline. Times are minima of
interleaved calls on one thread.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from compiler import compile
from compiler.frontends.jax import lower
from compiler.passes import make_passes
from env.reference import Reference
from experiments.module_command import plain_errors
from experiments.provenance import provenance
from experiments.results import write_text

AS_SCAN = "call-inliner,tuple-simplifier,while-loop-simplifier,dce,loop-to-scan,tuple-simplifier,shape-movement,cse,dce"
VARIANTS = {
    "loop": "",
    "scan-widening, 4": f"{AS_SCAN},scan-widening,scan-expander",
    "scan-widening, 8": f"{AS_SCAN},scan-widening{{factor=8}},scan-expander",
    "associative-scan-rewriter": f"{AS_SCAN},associative-scan-rewriter,scan-expander",
}


def _programs() -> dict[str, tuple[Callable[..., Any], list[Any]]]:
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(0)

    def numbers(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    def running(x: Any) -> Any:
        return jax.lax.scan(lambda c, v: (c + v, c + v), jnp.zeros(x.shape[1:]), x)[1]

    def recurrence(x: Any) -> Any:
        return jax.lax.scan(lambda c, v: (jnp.tanh(c * 0.5 + v), c), jnp.zeros(x.shape[1:]), x)

    def advantages(r: Any, d: Any) -> Any:
        def step(c: Any, v: Any) -> Any:
            following = v[0] + 0.99 * v[1] * c
            return following, following

        return jax.lax.scan(step, jnp.zeros(r.shape[1]), (r, d), reverse=True)[1]

    def network(w: Any, x: Any) -> Any:
        return jax.lax.scan(lambda c, v: (jnp.tanh(c @ w + v), c), jnp.zeros(x.shape[1:]), x)

    return {
        "running sum of 4096 numbers": (running, [numbers(4096)]),
        "running sum of 512 rows of 1024": (running, [numbers(512, 1024)]),
        "tanh recurrence, 1024 steps of 8": (recurrence, [numbers(1024, 8)]),
        "advantages, 256 steps of 512": (advantages, [numbers(256, 512), numbers(256, 512)]),
        "recurrent network, 256 steps of 4 by 64": (network, [numbers(64, 64) * 0.1, numbers(256, 4, 64)]),
    }


def measure(function: Callable[..., Any], arguments: list[Any], rounds: int) -> list[float]:
    """Return the least milliseconds per call of each variant.

    Raises:
        ValueError: a variant computes wrong results.
    """
    executables = []
    for passes in VARIANTS.values():
        module = lower(function, *arguments)
        for p in make_passes(passes):
            p.run(module)
        executables.append(compile(module))
    wanted = Reference.of(lower(function, *arguments), arguments)
    for e in executables:
        if (finding := wanted.difference(e(*arguments))) is not None:
            raise ValueError(f"a variant computes wrong results: {finding}")
    best = [float("inf")] * len(executables)
    for _ in range(rounds):
        for n, e in enumerate(executables):
            start = time.perf_counter()
            e(*arguments)
            best[n] = min(best[n], time.perf_counter() - start)
    return [1e3 * t for t in best]


def main() -> None:
    """Run from the command line."""
    os.environ["OMP_NUM_THREADS"] = "1"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200, help="interleaved calls (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("results/passes/scans.md"), help="results file (default: %(default)s)"
    )
    options = parser.parse_args()
    origin = provenance()
    lines = [
        "# Scans: several steps at once, and parallel prefixes",
        "",
        "- command: `python -m experiments.benchmarks.scans`",
        f"- commit: {origin['commit']}",
        f"- machine: {origin['machine']}, one thread",
        f"- date: {origin['date']}",
        "",
        "Milliseconds per call, the minimum of interleaved calls.",
        "",
        f"| program | {' | '.join(VARIANTS)} |",
        "|---" * (1 + len(VARIANTS)) + "|",
    ]
    for name, (function, arguments) in _programs().items():
        times = measure(function, arguments, options.rounds)
        lines.append(f"| {name} | {' | '.join(f'{t:.3f}' for t in times)} |")
    lines += [
        "",
        "Widening helps if a step consists of a few scalar operations; loops over longer rows run inside one kernel,",
        "where an iteration has almost no overhead. Parallel prefixes by doubling repeat the work for each bit of the",
        "length; on a CPU they help only for scans over scalars. Neither is in the default pipeline.",
    ]
    text = "\n".join(lines) + "\n"
    write_text(options.out, text)
    print(text)


if __name__ == "__main__":
    with plain_errors():
        main()
