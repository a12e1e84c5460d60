"""Benchmark of oneDNN: convolutions, pooling and products by it, by our kernels and BLAS, and by PyTorch.

python -m experiments.benchmarks.libraries [--rounds 20] [--out results/kernels/libraries.md]

Each program is one op. The three variants are called in turns, with a pause before each, in which threads that still
spin go to sleep. Times are those of the Python calls.
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

from compiler import compile, parse
from compiler.backends.cpu.onednn.library import VARIABLE
from experiments.benchmarks.paused_turns import timed_in_turns
from experiments.module_command import plain_errors
from experiments.provenance import provenance
from experiments.results import write_text


@dataclass(frozen=True)
class Case:
    """One program: HLO text, the same in PyTorch, and how far the results may differ."""

    name: str
    text: str
    torch: Callable[..., Any]
    tolerance: float = 1e-3


def convolution(
    name: str, sizes: tuple[int, int, int, int], kernel: int, outputs: int, stride: int = 1, groups: int = 1,
    channels_last: bool = True, dtype: str = "f32",
) -> Case:  # fmt: skip
    """Return a 2-D convolution with half the kernel as padding; `sizes` are batch, height, width and features."""
    from torch.nn.functional import conv2d

    batch, height, width, features = sizes
    pad = kernel // 2
    rows, columns = ((n + 2 * pad - kernel) // stride + 1 for n in (height, width))
    if channels_last:
        x, k = (batch, height, width, features), (kernel, kernel, features // groups, outputs)
        out = (batch, rows, columns, outputs)
        labels = "b01f_01io->b01f"
    else:
        x, k = (batch, features, height, width), (outputs, features // groups, kernel, kernel)
        out = (batch, outputs, rows, columns)
        labels = "bf01_oi01->bf01"
    window = f"size={kernel}x{kernel} stride={stride}x{stride} pad={pad}_{pad}x{pad}_{pad}"
    text = (
        f"HloModule m\nENTRY e {{ x = {_array(dtype, x)} parameter(0)\n k = {_array(dtype, k)} parameter(1)\n"
        f" ROOT c = {_array(dtype, out)} convolution(x, k), window={{{window}}}, dim_labels={labels}, "
        f"feature_group_count={groups} }}"
    )

    def peer(a: Any, w: Any) -> Any:
        if channels_last:
            a, w = a.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1)
        made = conv2d(a, w, stride=stride, padding=pad, groups=groups)
        return made.permute(0, 2, 3, 1) if channels_last else made

    return Case(name, text, peer, 1e-3 if dtype == "f32" else 0.1)


def product(
    name: str, batch: int, m: int, k: int, n: int, rhs_transposed: bool = False, dtype: str = "f32", out: str = ""
) -> Case:
    """Return a batch of matrix products."""
    rhs = (batch, n, k) if rhs_transposed else (batch, k, n)
    text = (
        f"HloModule m\nENTRY e {{ x = {_array(dtype, (batch, m, k))} parameter(0)\n"
        f" y = {_array(dtype, rhs)} parameter(1)\n"
        f" ROOT r = {_array(out or dtype, (batch, m, n))} dot(x, y), lhs_batch_dims={{0}}, rhs_batch_dims={{0}}, "
        f"lhs_contracting_dims={{2}}, rhs_contracting_dims={{{2 if rhs_transposed else 1}}} }}"
    )

    def peer(a: Any, b: Any) -> Any:
        return a @ (b.transpose(1, 2) if rhs_transposed else b)

    return Case(name, text, peer, 1e-3 if dtype == "f32" else 0.1)


def scores(name: str, batch: int, length: int, heads: int, size: int) -> Case:
    """Return the scores of attention over arrays [batch, length, heads, size]."""
    import torch

    sizes = _array("f32", (batch, length, heads, size))
    text = (
        f"HloModule m\nENTRY e {{ q = {sizes} parameter(0)\n k = {sizes} parameter(1)\n"
        f" ROOT s = {_array('f32', (batch, heads, length, length))} dot(q, k), lhs_batch_dims={{0,2}}, "
        "rhs_batch_dims={0,2}, lhs_contracting_dims={3}, rhs_contracting_dims={3} }"
    )
    return Case(name, text, lambda q, k: torch.einsum("bthd,bshd->bhts", q, k))


def pooling(name: str, sizes: tuple[int, int, int, int], function: str, channels_last: bool = True) -> Case:
    """Return 3x3 windows of stride 2, of the maximum or the sum; `sizes` are batch, height, width and features."""
    from torch.nn.functional import avg_pool2d, max_pool2d

    batch, height, width, features = sizes
    space = [(n - 1) // 2 + 1 for n in (height, width)]
    if channels_last:
        x, out = sizes, (batch, *space, features)
        window = "size=1x3x3x1 stride=1x2x2x1 pad=0_0x1_1x1_1x0_0"
    else:
        x, out = (batch, features, height, width), (batch, features, *space)
        window = "size=1x1x3x3 stride=1x1x2x2 pad=0_0x0_0x1_1x1_1"
    text = (
        "HloModule m\nf { a = f32[] parameter(0)\n b = f32[] parameter(1)\n"
        f" ROOT r = f32[] {function}(a, b) }}\nENTRY e {{ x = {_array('f32', x)} parameter(0)\n"
        f" i = f32[] constant({'0' if function == 'add' else '-inf'})\n"
        f" ROOT p = {_array('f32', out)} reduce-window(x, i), window={{{window}}}, to_apply=f }}"
    )

    def peer(a: Any) -> Any:
        a = a.permute(0, 3, 1, 2) if channels_last else a
        made = max_pool2d(a, 3, 2, 1) if function == "maximum" else 9 * avg_pool2d(a, 3, 2, 1)
        return made.permute(0, 2, 3, 1) if channels_last else made

    return Case(name, text, peer)


def cases() -> list[Case]:
    """Return the programs of the table."""
    return [
        convolution("3x3, 8x56x56x64 to 64", (8, 56, 56, 64), 3, 64),
        convolution("3x3, 8x56x56x64 to 64, NCHW", (8, 56, 56, 64), 3, 64, channels_last=False),
        convolution("3x3, 8x14x14x256 to 256", (8, 14, 14, 256), 3, 256),
        convolution("7x7 stride 2, 1x224x224x3 to 64", (1, 224, 224, 3), 7, 64, stride=2),
        convolution("7x7 stride 2, 1x224x224x3 to 64, NCHW", (1, 224, 224, 3), 7, 64, stride=2, channels_last=False),
        convolution("5x5, 8x28x28x1 to 16", (8, 28, 28, 1), 5, 16),
        convolution("8x8 stride 4, 4x84x84x4 to 32", (4, 84, 84, 4), 8, 32, stride=4),
        convolution("3x3, 1x16x16x16 to 16", (1, 16, 16, 16), 3, 16),
        convolution("3x3 depthwise, 8x32x32x64", (8, 32, 32, 64), 3, 64, groups=64),
        convolution("3x3 in 4 groups, 4x32x32x64", (4, 32, 32, 64), 3, 64, groups=4),
        convolution("5x5, 1x256x256x1 to 1", (1, 256, 256, 1), 5, 1),
        convolution("3x3 of bf16, 8x28x28x128 to 128", (8, 28, 28, 128), 3, 128, dtype="bf16"),
        pooling("maximum of 3x3 stride 2, 8x56x56x64", (8, 56, 56, 64), "maximum"),
        pooling("maximum of 3x3 stride 2, 8x56x56x64, NCHW", (8, 56, 56, 64), "maximum", channels_last=False),
        pooling("sum of 3x3 stride 2, 8x56x56x64", (8, 56, 56, 64), "add"),
        product("256x256x256", 1, 256, 256, 256),
        product("512x768x3072", 1, 512, 768, 3072),
        product("16x512x512", 1, 16, 512, 512),
        product("2048x64x64", 1, 2048, 64, 64),
        product("64x2048x64", 1, 64, 2048, 64),
        product("12 of 256x64x256, transposed", 12, 256, 64, 256, rhs_transposed=True),
        scores("attention scores, 8x64x8x64", 8, 64, 8, 64),
        product("512x768x3072 of bf16", 1, 512, 768, 3072, dtype="bf16"),
        product("12 of 512x64x512 of bf16", 12, 512, 64, 512, dtype="bf16"),
    ]


def measure(case: Case, rounds: int) -> list[list[float]]:
    """Return the milliseconds per call with oneDNN, without it, and of PyTorch, one of each per round.

    Raises:
        ValueError: the results of the variants differ.
    """
    import torch

    rng = np.random.default_rng(0)
    arguments = [(rng.normal(size=s.dimensions) / 8).astype(s.dtype) for s in parse(case.text).parameter_shapes]
    with_library = compile(case.text)
    os.environ[VARIABLE] = "0"
    without = compile(case.text)
    del os.environ[VARIABLE]
    tensors = [_tensor(a) for a in arguments]

    def peer() -> Any:
        with torch.no_grad():
            return case.torch(*tensors)

    variants: list[Callable[[], Any]] = [lambda: with_library(*arguments), lambda: without(*arguments), peer]
    wanted = np.asarray(without(*arguments)[0], np.float64)
    for got in (np.asarray(with_library(*arguments)[0], np.float64), peer().double().numpy()):
        if not np.allclose(got, wanted, rtol=case.tolerance, atol=case.tolerance):
            raise ValueError(f"{case.name}: results differ by {np.abs(got - wanted).max()}")
    return timed_in_turns(variants, rounds)


def _array(dtype: str, sizes: tuple[int, ...]) -> str:
    return f"{dtype}[{','.join(map(str, sizes))}]"


def _tensor(a: Any) -> Any:
    import torch

    if a.dtype == np.float32:
        return torch.from_numpy(a)
    return torch.from_numpy(a.astype(np.float32)).to(torch.bfloat16)


def main() -> None:
    """Run from the command line."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="interleaved rounds (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("results/kernels/libraries.md"), help="results file (default: %(default)s)"
    )
    options = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    origin = provenance()
    lines = [
        "# Libraries: oneDNN beside our own kernels, BLAS and PyTorch",
        "",
        "- command: `python -m experiments.benchmarks.libraries`",
        f"- commit: {origin['commit']}",
        f"- machine: {origin['machine']}, PyTorch {torch.__version__}",
        f"- date: {origin['date']}",
        f"- load: {os.getloadavg()[0]:.1f} running processes on average before the start",
        "",
        "Milliseconds per call, the minimum of interleaved calls, and the ratios of these minima.",
        "",
        "| program | oneDNN | own kernels, BLAS | PyTorch | own / oneDNN | PyTorch / oneDNN |",
        "|---|---|---|---|---|---|",
    ]
    ratios: list[list[float]] = [[], []]
    for case in cases():
        ours, without, peer = measure(case, options.rounds)
        row = [min(other) / min(ours) for other in (without, peer)]
        for found, value in zip(ratios, row, strict=True):
            found.append(value)
        least = " | ".join(f"{min(t):.3f}" for t in (ours, without, peer))
        lines.append(f"| {case.name} | {least} | {row[0]:.2f} | {row[1]:.2f} |")
        print(lines[-1], flush=True)
    means = " | ".join(f"{statistics.geometric_mean(r):.2f}" for r in ratios)
    lines += [f"| geometric mean | | | | {means} |"]
    write_text(options.out, "\n".join(lines) + "\n")


if __name__ == "__main__":
    with plain_errors():
        main()
