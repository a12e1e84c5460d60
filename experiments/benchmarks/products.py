"""Benchmark of products and attention: our kernels, the library route, XLA and PyTorch.

python -m experiments.benchmarks.products [--rounds 20] [--out results/kernels/products.md] [--only attention]

Our kernels compute a dot with its prologue and epilogue, and attention without storing its scores. The library route
is what the compiler makes without these fusions: oneDNN or BLAS, with kernels for the other ops; "BLAS" is the same
without oneDNN. The variants are called in turns, with a pause before each, in which threads that still spin go to
sleep. Times are those of the Python calls.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from compiler import compile
from compiler.backends.cpu.onednn.library import VARIABLE
from experiments.benchmarks.paused_turns import timed_in_turns
from experiments.module_command import plain_errors
from experiments.provenance import provenance
from experiments.results import write_text

VARIANTS = ("ours", "library", "BLAS", "XLA", "PyTorch")


@dataclass(frozen=True)
class Case:
    """One program in JAX and, if there is an idiomatic form, in PyTorch."""

    name: str
    jax: Callable[..., Any]
    shapes: Sequence[Sequence[int]]
    torch: Callable[..., Any] | None = None


def products() -> list[Case]:
    """Return products without other ops."""
    import torch

    def multiply(a: Any, b: Any) -> Any:
        return a @ b

    def by_transpose(a: Any, b: Any) -> Any:
        return a @ b.T

    plain = [
        ((1000, 16, 16), (1000, 16, 16)), ((200, 32, 32), (200, 32, 32)), ((100, 64, 64), (100, 64, 64)),
        ((16, 128, 128), (16, 128, 128)), ((8, 256, 256), (8, 256, 256)), ((64, 64), (64, 64)),
        ((128, 128), (128, 128)), ((256, 256), (256, 256)), ((8, 256), (256, 256)), ((32, 256), (256, 1024)),
        ((2048, 64), (64, 64)), ((4096, 128), (128, 8)),
    ]  # fmt: skip
    cases = [Case(_name(a, b), multiply, (a, b), torch.matmul) for a, b in plain]
    for a, b in (((32, 256), (1024, 256)), ((512, 64), (512, 64)), ((2048, 64), (64, 64))):
        cases.append(Case(f"{_name(a, b)}, transposed", by_transpose, (a, b), by_transpose))
    return cases


def with_epilogues() -> list[Case]:
    """Return products with elementwise ops, alone and in a scan."""
    import jax
    import jax.numpy as jnp
    import torch

    def distances(x: Any, y: Any) -> Any:
        return (x * x).sum(1)[:, None] + (y * y).sum(1)[None] - 2 * x @ y.T

    def lstm(x: Any, h: Any, w: Any, u: Any, b: Any) -> Any:
        def step(state: Any, now: Any) -> Any:
            h, c = state
            i, f, o, z = jnp.split(now @ w / 16 + h @ u / 16 + b, 4, 1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(z)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        return jax.lax.scan(step, (h, h), x)[1]

    def bias_gelu(x: Any, w: Any, b: Any) -> Any:
        return jax.nn.gelu(x @ w + b)

    def torch_bias_gelu(x: Any, w: Any, b: Any) -> Any:
        return torch.nn.functional.gelu(torch.addmm(b, x, w), approximate="tanh")

    def bias_relu(x: Any, w: Any, b: Any) -> Any:
        return jax.nn.relu(x @ w + b)

    def torch_bias_relu(x: Any, w: Any, b: Any) -> Any:
        return torch.relu(torch.addmm(b, x, w))

    return [
        Case("relu(x w + b), 64x256x128", bias_relu, ((64, 256), (256, 128), (128,)), torch_bias_relu),
        Case("gelu(x w + b), 256x128x512", bias_gelu, ((256, 128), (128, 512), (512,)), torch_bias_gelu),
        Case("squared distances, 512x512x64", distances, ((512, 64), (512, 64)), distances),
        Case("squared distances, 1024x1024x8", distances, ((1024, 8), (1024, 8)), distances),
        Case("LSTM, 32 steps of 32x256", lstm, ((32, 32, 256), (32, 256), (256, 1024), (256, 1024), (1024,))),
        Case("LSTM, 64 steps of 8x64", lstm, ((64, 8, 64), (8, 64), (64, 256), (64, 256), (256,))),
    ]


def attentions() -> list[Case]:
    """Return attention of batch x heads x length x size, also causal and with a bias."""
    import jax
    import jax.numpy as jnp
    from torch.nn.functional import scaled_dot_product_attention

    def plain(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
        return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), v)

    def causal(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
        return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), v)

    def biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5 + bias
        return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), v)

    def torch_causal(q: Any, k: Any, v: Any) -> Any:
        return scaled_dot_product_attention(q, k, v, is_causal=True)

    def torch_biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
        return scaled_dot_product_attention(q, k, v, attn_mask=bias)

    cases = []
    for size in ((4, 4, 64, 32), (2, 8, 512, 64), (1, 12, 1024, 64)):
        name = "x".join(map(str, size))
        cases.append(Case(f"attention {name}", plain, [size] * 3, scaled_dot_product_attention))
        cases.append(Case(f"causal attention {name}", causal, [size] * 3, torch_causal))
    sizes = [*[(2, 8, 512, 64)] * 3, (512, 512)]
    return [*cases, Case("attention 2x8x512x64 with a bias", biased, sizes, torch_biased)]


def _name(a: Sequence[int], b: Sequence[int]) -> str:
    return f"{'x'.join(map(str, a))} by {'x'.join(map(str, b))}"


def measure(case: Case, rounds: int) -> list[float | None]:
    """Return the least milliseconds per call of each variant; None for one that there is not.

    Raises:
        ValueError: the results of the variants differ.
    """
    import jax
    import torch

    from compiler.frontends import jax as frontend

    rng = np.random.default_rng(0)
    arguments = [rng.normal(size=s).astype(np.float32) for s in case.shapes]
    module = frontend.lower(case.jax, *arguments)
    ours = compile(module.clone())
    with mock.patch("compiler.session.group_products", lambda module, library: False):
        library = compile(module.clone())
        with mock.patch.dict(os.environ, {VARIABLE: "0"}):
            blas = compile(module.clone())
    wait: Callable[[Any], Any] = jax.block_until_ready
    jitted, placed = jax.jit(case.jax), [jax.device_put(a) for a in arguments]
    tensors = [torch.from_numpy(a) for a in arguments]
    peer = case.torch

    def call_torch() -> Any:
        with torch.no_grad():
            return peer(*tensors) if peer is not None else None

    variants: list[Callable[[], Any]] = [
        lambda: ours(*arguments), lambda: library(*arguments), lambda: blas(*arguments),
        lambda: wait(jitted(*placed)), *([call_torch] if peer is not None else []),
    ]  # fmt: skip
    wanted = np.asarray(variants[3]())
    for name, variant in zip(VARIANTS, variants, strict=False):
        got = variant()
        got = np.asarray(got[0] if isinstance(got, list | tuple) else got)
        if not np.allclose(got, wanted, rtol=1e-3, atol=1e-3):
            raise ValueError(f"{case.name}: results of {name} differ by {np.abs(got - wanted).max()}")
    times = [min(found) for found in timed_in_turns(variants, rounds)]
    return [*times, *([None] * (len(VARIANTS) - len(times)))]


def main() -> None:
    """Measure all programs and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default="", help="part of the names of the programs to measure")
    parser.add_argument("--out", type=Path, default=Path("results/kernels/products.md"))
    options = parser.parse_args()
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    load = os.getloadavg()[0]
    rows, ratios = [], []
    for case in (c for c in (*products(), *with_epilogues(), *attentions()) if options.only in c.name):
        times = measure(case, options.rounds)
        ours, library, blas, *peers = times
        best = min(t for t in peers if t is not None)
        found = [t / ours if t is not None and ours is not None else None for t in (library, blas, best)]
        ratios.append([r for r in found if r is not None])
        cells = [
            *(f"{t:.3f}" if t is not None else "" for t in times),
            *(f"{r:.2f}" if r is not None else "" for r in found),
        ]
        rows.append(f"| {case.name} | {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    means = [statistics.geometric_mean(column) for column in zip(*ratios, strict=True)]
    facts = provenance()
    lines = [
        "# Products and attention: our kernels beside libraries, XLA and PyTorch",
        "",
        "- command: `python -m experiments.benchmarks.products`",
        f"- commit: {facts['commit']}",
        f"- machine: {facts['machine']}",
        f"- date: {facts['date']}",
        f"- load: {load:.1f} running processes on average before the start",
        "",
        "Milliseconds per call, the minimum of interleaved calls, and the ratios of these minima: the library route,",
        "BLAS and the better peer divided by ours. Rows in which ours and the library route are the same program",
        "differ by noise alone.",
        "",
        "| program | " + " | ".join(VARIANTS) + " | library / ours | BLAS / ours | peer / ours |",
        "|---|" + "---|" * (len(VARIANTS) + 3),
        *rows,
        "| geometric mean |" + " |" * len(VARIANTS) + " " + " | ".join(f"{m:.2f}" for m in means) + " |",
    ]
    write_text(options.out, "\n".join(lines) + "\n")


if __name__ == "__main__":
    with plain_errors():
        main()
