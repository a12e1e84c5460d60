"""Benchmark of LSTM layers: our loop kernels beside the LSTM primitive of oneDNN, which PyTorch calls.

python -m experiments.benchmarks.recurrent_cells [--rounds 20] [--out results/kernels/recurrent_cells.md]

Ours is `lax.scan` in JAX, lowered and compiled; the peer is `torch.nn.LSTM` without gradients, one call of oneDNN. The
two are called in turns, with a pause before each, in which threads that still spin go to sleep. Times are those of the
Python calls.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compiler import compile
from experiments.benchmarks.paused_turns import timed_in_turns
from experiments.module_command import plain_errors
from experiments.provenance import provenance
from experiments.results import write_text

PRIMITIVE = "aten::mkldnn_rnn_layer"
"""The op of PyTorch that is one call of oneDNN's primitive."""


@dataclass(frozen=True)
class Layer:
    """The sizes of one layer."""

    steps: int
    batch: int
    features: int
    hidden: int

    def __str__(self) -> str:
        return f"{self.steps} steps, batch {self.batch}, {self.features} to {self.hidden}"


LAYERS = (
    Layer(20, 8, 32, 32),
    Layer(50, 1, 128, 128),
    Layer(50, 16, 64, 64),
    Layer(64, 32, 128, 128),
    Layer(35, 20, 200, 200),
    Layer(128, 64, 128, 256),
    Layer(32, 64, 512, 512),
)


def measure(layer: Layer, rounds: int) -> list[list[float]]:
    """Return the milliseconds per call, ours and those of oneDNN, one of each per round.

    Raises:
        ValueError: the results differ, or PyTorch does not call the primitive.
    """
    import jax
    import jax.numpy as jnp
    import torch

    from compiler.frontends.jax import lower

    torch.manual_seed(0)
    module = torch.nn.LSTM(layer.features, layer.hidden)
    x = torch.randn(layer.steps, layer.batch, layer.features)
    weights = [p.detach().numpy() for p in module.parameters()]

    def scan(x: Any, w: Any, u: Any, b: Any, c: Any) -> Any:
        def step(state: Any, now: Any) -> Any:
            h, cell = state
            i, f, g, o = jnp.split(now @ w.T + h @ u.T + b + c, 4, axis=-1)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(cell)
            return (h, cell), h

        start = jnp.zeros((x.shape[1], layer.hidden), x.dtype)
        return jax.lax.scan(step, (start, start), x)[1]

    arguments = [x.numpy(), *weights]
    ours = compile(lower(scan, *arguments))

    def peer() -> Any:
        with torch.no_grad():
            return module(x)[0]

    if PRIMITIVE not in _ops_of(peer):
        raise ValueError(f"PyTorch {torch.__version__} does not call {PRIMITIVE}")
    got, wanted = np.asarray(ours(*arguments)[0]), peer().numpy()
    if not np.allclose(got, wanted, rtol=1e-4, atol=1e-5):
        raise ValueError(f"{layer}: results differ by {np.abs(got - wanted).max()}")
    variants: list[Callable[[], Any]] = [lambda: ours(*arguments), peer]
    return timed_in_turns(variants, rounds)


def _ops_of(call: Callable[[], Any]) -> set[str]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as found:
        call()
    return {e.key for e in found.key_averages()}


def main() -> None:
    """Measure every layer and write the table."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="interleaved rounds (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("results/kernels/recurrent_cells.md"), help="file (default: %(default)s)"
    )
    options = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    origin = provenance()
    lines = [
        "# LSTM layers beside oneDNN",
        "",
        "- command: `python -m experiments.benchmarks.recurrent_cells`",
        f"- commit: {origin['commit']}",
        f"- machine: {origin['machine']}, PyTorch {torch.__version__}",
        f"- date: {origin['date']}",
        "",
        "`lax.scan` compiled by hlogym beside `torch.nn.LSTM`, one call of the primitive of oneDNN. Milliseconds per "
        "call, the minimum of interleaved calls, and the ratio of these minima; above 1, hlogym is faster.",
        "",
        "| layer | hlogym | oneDNN | oneDNN / hlogym |",
        "|---|---|---|---|",
    ]
    ratios = []
    for layer in LAYERS:
        ours, peer = map(min, measure(layer, options.rounds))
        ratios.append(peer / ours)
        lines.append(f"| {layer} | {ours:.3f} | {peer:.3f} | {ratios[-1]:.2f} |")
        print(lines[-1], flush=True)
    lines.append(f"| geometric mean | | | {statistics.geometric_mean(ratios):.2f} |")
    write_text(options.out, "\n".join(lines) + "\n")


if __name__ == "__main__":
    with plain_errors():
        main()
