"""Convolutions by oneDNN: every form equals the interpreter's result, on random shapes and with random layouts."""

import random

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from compiler import compile, parse
from compiler.backends.cpu.onednn import matcher
from compiler.backends.cpu.onednn.library import why_unavailable
from compiler.interpreter import evaluate
from compiler.runtime.executable import Executable
from compiler.runtime.thunks import LibraryThunk

pytestmark = pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "MIN_FLOPS", 0)


def library_calls(exe: Executable) -> int:
    return sum(isinstance(t, LibraryThunk) for t in exe.thunks)  # type: ignore[attr-defined]


def numbers(text: str, seed: int) -> list[NDArray[np.generic]]:
    """Small integers, so that sums are exact in every order and type."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-3, 4, s.dimensions).astype(s.dtype) for s in parse(text).parameter_shapes]


def check(text: str, seed: int = 0, calls: int = 1) -> None:
    module = parse(text)
    exe = compile(module)
    assert library_calls(exe) == calls, text
    arguments = numbers(text, seed)
    for got, want in zip(exe(*arguments), evaluate(module, arguments), strict=True):
        np.testing.assert_array_equal(got.astype(np.float64), np.asarray(want).astype(np.float64), err_msg=text)


def shuffled(labels: str, rng: random.Random) -> str:
    return "".join(rng.sample(labels, len(labels)))


class Shape:
    """A random convolution as HLO text, for each form that oneDNN computes."""

    def __init__(self, seed: int, dtype: str = "f32", out: str | None = None) -> None:
        self.rng = random.Random(seed)
        self.rank = self.rng.choice([1, 2, 2, 3])
        self.dtype, self.out = dtype, out or dtype
        self.space = "012"[: self.rank]
        self.batch = self.rng.choice([1, 2, 5])
        self.groups = self.rng.choice([1, 1, 2, 5])
        self.inputs = self.groups * self.rng.choice([1, 3, 16, 17])
        self.outputs = self.groups * self.rng.choice([1, 2, 16, 19])
        self.sizes = [self.rng.randint(5, 12) for _ in self.space]
        self.kernel = [self.rng.randint(1, 3) for _ in self.space]
        self.pads = [(self.rng.randint(0, 2), self.rng.randint(0, 2)) for _ in self.space]

    def array(self, dtype: str, labels: str, sizes: dict[str, int]) -> str:
        return f"{dtype}[{','.join(str(sizes[c]) for c in labels)}]"

    def text(self, window: list[str], x: dict[str, int], k: dict[str, int], groups: str, batch: int = 0) -> str:
        lhs, rhs, out = (shuffled(first + self.space, self.rng) for first in ("bf", "io", "bf"))
        spatial = {c: int(w.split()[-1]) for c, w in zip(self.space, window, strict=True)}
        result = self.array(self.out, out, {"b": batch or x["b"], "f": k["o"], **spatial})
        dims = [w.split()[:-1] for w in window]
        names = ("size", "stride", "pad", "lhs_dilate", "rhs_dilate", "rhs_reversal")
        fields = " ".join(f"{n}={'x'.join(d[j] for d in dims)}" for j, n in enumerate(names))
        return (
            f"HloModule m\nENTRY e {{ x = {self.array(self.dtype, lhs, x)} parameter(0)\n"
            f" k = {self.array(self.dtype, rhs, k)} parameter(1)\n"
            f" ROOT c = {result} convolution(x, k), window={{{fields}}}, dim_labels={lhs}_{rhs}->{out}{groups} }}"
        )


def forward(seed: int, dtype: str = "f32", out: str | None = None) -> str:
    s = Shape(seed, dtype, out)
    window = []
    for n, k, (low, high) in zip(s.sizes, s.kernel, s.pads, strict=True):
        stride, dilate = s.rng.randint(1, 3), s.rng.randint(1, 2)
        size = (n + low + high - (k - 1) * dilate - 1) // stride + 1
        window.append(f"{k} {stride} {low}_{high} 1 {dilate} 0 {size}")
    x = {"b": s.batch, "f": s.inputs, **dict(zip(s.space, s.sizes, strict=True))}
    k_sizes = {"i": s.inputs // s.groups, "o": s.outputs, **dict(zip(s.space, s.kernel, strict=True))}
    return s.text(window, x, k_sizes, f", feature_group_count={s.groups}")


def transposed(seed: int) -> str:
    s = Shape(seed)
    window = []
    reversed_ = s.rng.randint(0, 1)
    for n, k in zip(s.sizes, s.kernel, strict=True):
        dilate, spread = s.rng.randint(1, 2), s.rng.randint(1 if reversed_ else 2, 3)
        reach = (k - 1) * dilate
        low, high = s.rng.randint(0, reach), s.rng.randint(0, reach)
        size = (n - 1) * spread + 1 + low + high - reach
        window.append(f"{k} 1 {low}_{high} {spread} {dilate} {reversed_} {size}")
    x = {"b": s.batch, "f": s.inputs, **dict(zip(s.space, s.sizes, strict=True))}
    k_sizes = {"i": s.inputs // s.groups, "o": s.outputs, **dict(zip(s.space, s.kernel, strict=True))}
    return s.text(window, x, k_sizes, f", feature_group_count={s.groups}")


def weights_gradient(seed: int) -> str:
    """The gradient of the weights of a convolution of `x` with a kernel, given that of its output."""
    s = Shape(seed)
    window, outputs = [], []
    for n, k, (low, high) in zip(s.sizes, s.kernel, s.pads, strict=True):
        stride, dilate = s.rng.randint(1, 2), s.rng.randint(1, 2)
        made = (n + low + high - (k - 1) * dilate - 1) // stride + 1
        needed = (made - 1) * stride + (k - 1) * dilate + 1 - n - low
        window.append(f"{made} {dilate} {low}_{needed} 1 {stride} 0 {k}")
        outputs.append(made)
    x = {"b": s.inputs, "f": s.batch, **dict(zip(s.space, s.sizes, strict=True))}
    gradient = {"i": s.batch, "o": s.outputs, **dict(zip(s.space, outputs, strict=True))}
    return s.text(window, x, gradient, f", batch_group_count={s.groups}", s.inputs // s.groups)


@pytest.mark.parametrize("seed", range(40))
def test_forward(seed: int) -> None:
    check(forward(seed), seed)


@pytest.mark.parametrize("seed", range(30))
def test_input_gradients_and_dilated_inputs(seed: int) -> None:
    check(transposed(seed), seed)


@pytest.mark.parametrize("seed", range(30))
def test_weights_gradients(seed: int) -> None:
    check(weights_gradient(seed), seed)
