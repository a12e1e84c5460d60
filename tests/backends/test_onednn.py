"""Convolutions by oneDNN: every form equals the interpreter's result, on random shapes and with random layouts."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler import CompileOptions, compile, load, lowering, parse
from compiler.backends.cpu.native_runtime import RUNTIME
from compiler.backends.cpu.onednn import convolution as onednn_convolution
from compiler.backends.cpu.onednn import matcher, products
from compiler.backends.cpu.onednn import pooling as onednn_pooling
from compiler.backends.cpu.onednn.library import VARIABLE, why_unavailable
from compiler.errors import BackendError, UnsupportedError
from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.runtime.executable import CallOptions, Configurable, Executable
from compiler.runtime.thunks import LibraryThunk

pytestmark = pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "MIN_FLOPS", 0)
    monkeypatch.setattr(matcher, "suits_patches", lambda _: False)
    monkeypatch.setattr(matcher, "MIN_POOLING_FLOPS", 0)
    monkeypatch.setattr(matcher, "_SLOW", ("none",))
    monkeypatch.setattr(lowering, "group_products", lambda module, library: False)  # leaves small products to oneDNN
    monkeypatch.setattr(matcher, "scales_rows", lambda i: False)
    monkeypatch.setattr(matcher, "suits_separation", lambda i: False)
    monkeypatch.setattr(onednn_pooling, "SUMS_NEED_FEATURES_LAST", False)
    monkeypatch.setattr(onednn_pooling, "MAX_ROW_MAXIMA", 0)
    monkeypatch.setattr(onednn_pooling, "MAX_UNPADDED", 0)
    for name in ("MIN_PRODUCT_FLOPS", "MIN_ROWS", "MIN_COLUMNS", "MIN_MULTIPLICATIONS"):
        monkeypatch.setattr(products, name, 0)


def library_calls(exe: Executable) -> int:
    return sum(isinstance(t, LibraryThunk) for t in exe.thunks)


def numbers(text: str, seed: int) -> list[NDArray[np.generic]]:
    """Small integers, so that sums are exact in every order and type."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-3, 4, s.dimensions).astype(s.dtype) for s in parse(text).parameter_shapes]


def check(text: str, seed: int = 0, calls: int | None = 1) -> None:
    """Compare with the interpreter, and the number of library calls with `calls` unless that is None.

    Nothing is fused, since the kernels of small fusions around a convolution are faster than the library.
    """
    module = parse(text)
    exe = compile(module, fusion_policy="none")
    assert calls is None or library_calls(exe) == calls, text
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


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("x", "kernel", "result", "window"),
    [
        ("1,16,16", "16,16,3", "1,16,16", "window={size=3 pad=1_1}, dim_labels=bf0_oi0->bf0"),
        ("3,17,1029", "19,17,3", "3,19,1029", "window={size=3 pad=1_1}, dim_labels=bf0_oi0->bf0"),
        ("2,33,7,5", "18,33,3,3", "2,18,7,5", "window={size=3x3 pad=1_1x1_1}, dim_labels=bf01_oi01->bf01"),
        ("2,33,1,17", "40,33,1,3", "2,40,1,17", "window={size=1x3 pad=0_0x1_1}, dim_labels=bf01_oi01->bf01"),
        ("2,16,3,3", "16,16,2,2", "2,16,2,2", "window={size=2x2}, dim_labels=bf01_oi01->bf01"),
        ("2,16,6,6,5", "24,16,2,2,2", "2,24,5,5,4", "window={size=2x2x2}, dim_labels=bf012_oi012->bf012"),
    ],
)
def test_features_first(
    x: str, kernel: str, result: str, window: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrays with more than 16 features are transposed by our code, also if 16 does not divide their sizes."""
    monkeypatch.setattr(matcher, "MIN_FLOPS_OF_THREADS", 0 if threads == 2 else 1 << 60)
    text = f"""HloModule m
    ENTRY e {{
      x = f32[{x}] parameter(0)
      w = f32[{kernel}] parameter(1)
      ROOT c = f32[{result}] convolution(x, w), {window}
    }}"""
    before = RUNTIME.num_threads
    try:
        RUNTIME.set_num_threads(threads)
        check(text)
    finally:
        RUNTIME.set_num_threads(before)


@pytest.mark.parametrize(
    ("x", "w", "forward_labels", "gradient_labels"),
    [("2,24,50", "24,1,3", "bf0_oi0->bf0", "fb0_io0->fb0"), ("2,50,24", "3,1,24", "b0f_0io->b0f", "f0b_i0o->0bf")],
    ids=["features-first", "features-last"],
)
def test_depthwise_convolutions_of_one_dimension(x: str, w: str, forward_labels: str, gradient_labels: str) -> None:
    """They are described with two spatial dimensions, for which oneDNN has depthwise implementations."""
    check(f"""HloModule m
    ENTRY e {{
      x = f32[{x}] parameter(0)
      w = f32[{w}] parameter(1)
      g = f32[{x}] parameter(2)
      c = f32[{x}] convolution(x, w), window={{size=3 pad=1_1}}, dim_labels={forward_labels}, feature_group_count=24
      d = f32[{w}] convolution(x, g), window={{size=50 pad=1_1}}, dim_labels={gradient_labels}, batch_group_count=24
      ROOT t = (f32[{x}], f32[{w}]) tuple(c, d)
    }}""", calls=2)  # fmt: skip


@pytest.mark.parametrize(
    ("shapes", "labels"),
    [
        (("2,3,32,24", "20,3,8,8", "2,20,4,3"), "bf01_oi01->bf01"),
        (("2,32,24,3", "8,8,3,20", "2,4,3,20"), "b01f_01io->b01f"),
    ],
)
def test_large_tiles_of_few_features_are_products(shapes: tuple[str, str, str], labels: str) -> None:
    x, w, out = shapes
    text = f"""HloModule m
    ENTRY e {{
      x = f32[{x}] parameter(0)
      w = f32[{w}] parameter(1)
      ROOT c = f32[{out}] convolution(x, w), window={{size=8x8 stride=8x8}}, dim_labels={labels}
    }}"""
    check(text, calls=None)
    assert "product" in str(matcher.preference_refusal(parse(text).entry.root))


@pytest.mark.parametrize("make", [forward, transposed, weights_gradient], ids=lambda f: f.__name__)
@pytest.mark.parametrize("seed", range(12))
def test_several_threads(seed: int, make: Callable[[int], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "MIN_FLOPS_OF_THREADS", 0)
    before = RUNTIME.num_threads
    try:
        RUNTIME.set_num_threads(2)
        check(make(seed), seed)
    finally:
        RUNTIME.set_num_threads(before)


@pytest.mark.parametrize("seed", range(30))
def test_weights_gradients(seed: int) -> None:
    check(weights_gradient(seed), seed)


NARROW = [("bf16", "bf16"), ("bf16", "f32"), ("f16", "f16"), ("f16", "f32"), ("s8", "s32")]


@pytest.mark.parametrize("types", NARROW, ids="-".join)
@pytest.mark.parametrize("seed", range(4))
def test_narrow_types(types: tuple[str, str], seed: int) -> None:
    check(forward(seed, *types), seed, calls=None)  # without a fast implementation it takes another route


@pytest.mark.parametrize(
    ("name", "exact"),
    [("jit_uni_int8:avx2", False), ("brgconv:avx512_core_vnni", True), ("brgconv:avx512_core_amx", True)],
)
def test_bytes_are_left_to_implementations_that_lose_no_bits(
    name: str, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matcher, "_created", lambda _, description: (0, name))
    description = onednn_convolution.describe_convolution(parse(forward(0, "s8", "s32")).entry.root)
    if exact:
        assert matcher.implemented(description) == (description, 0)
    else:
        with pytest.raises(UnsupportedError, match=f"no fast implementation of this convolution, only {name}"):
            matcher.implemented(description)


def test_padding_is_skipped_beside_infinities_and_nan() -> None:
    text = """HloModule m
        ENTRY e { x = f32[1,6,6,16] parameter(0)
          k = f32[3,3,16,16] parameter(1)
          ROOT c = f32[1,6,6,16] convolution(x, k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f }"""
    x, k = numbers(text, 0)
    x[0, 0, 0, 0], x[0, 5, 5, 3] = np.inf, np.nan
    k[:] = np.abs(k) + 1
    (got,) = compile(text)(x, k)
    (want,) = evaluate(parse(text), [x, k])
    np.testing.assert_array_equal(got, want)


CONSTANT = """HloModule m
ENTRY e {{ x = f32[2,8,8,16] parameter(0)
  k = f32[3,3,16,20] {kernel}
  c = f32[2,8,8,20] convolution(x, k), window={{size=3x3 pad=1_1x1_1}}, dim_labels=b01f_01io->b01f
  ROOT r = f32[2,8,8,20] add(c, c) }}"""


def with_constant(seed: int = 0) -> str:
    kernel = np.random.default_rng(seed).integers(-3, 4, (3, 3, 16, 20))
    return CONSTANT.format(kernel=f"constant({str(kernel.tolist()).replace('[', '{').replace(']', '}')})")


@pytest.mark.parametrize(
    ("x", "w", "size", "pad", "labels", "out"),
    [
        ("2,3,90", "8,3,63", "63", "31_31", "bf0_oi0->bf0", "2,8,90"),
        ("2,90,3", "63,3,8", "63", "40_29", "b0f_0io->b0f", "2,97,8"),
        ("2,3,9,70", "8,3,3,59", "3x59", "1_1x29_29", "bf01_oi01->bf01", "2,8,9,70"),
    ],
)
def test_long_filters_read_a_padded_input(x: str, w: str, size: str, pad: str, labels: str, out: str) -> None:
    text = f"""HloModule m
    ENTRY e {{
      x = f32[{x}] parameter(0)
      w = f32[{w}] parameter(1)
      ROOT c = f32[{out}] convolution(x, w), window={{size={size} pad={pad}}}, dim_labels={labels}
    }}"""
    check(text)
    exe = compile(parse(text), fusion_policy="none")
    (convolution,) = [i for i in exe.module.entry.post_order() if i.opcode is Opcode.CONVOLUTION]
    assert all(d.pad_low == d.pad_high == 0 for d in convolution.attributes["window"].dims)


def test_constant_weights() -> None:
    check(with_constant())


def test_save_and_load(tmp_path: Path) -> None:
    exe = compile(with_constant())
    (x,) = numbers(with_constant(), 0)
    (want,) = exe(x)
    exe.save(tmp_path / "program")
    loaded = load(tmp_path / "program")
    assert library_calls(loaded) == 1
    np.testing.assert_array_equal(loaded(x)[0], want)


def test_a_program_saved_with_one_thread_runs_on_two(tmp_path: Path) -> None:
    text = weights_gradient(3)
    before = RUNTIME.num_threads
    try:
        RUNTIME.set_num_threads(1)
        exe = compile(text)
        exe.save(tmp_path / "program")
        RUNTIME.set_num_threads(2)
        arguments = numbers(text, 0)
        got = load(tmp_path / "program")(*arguments)
    finally:
        RUNTIME.set_num_threads(before)
    np.testing.assert_array_equal(got[0], np.asarray(evaluate(parse(text), arguments)[0]))


PRODUCT = """HloModule m
ENTRY e { x = f32[300,200] parameter(0)
  y = f32[200,100] parameter(1)
  ROOT r = f32[300,100] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0} }"""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("text", [with_constant(), weights_gradient(4), weights_gradient(3), PRODUCT])
def test_a_limit_of_threads_keeps_the_results(text: str, threads: int) -> None:
    arguments = numbers(text, 0)
    want = np.asarray(evaluate(parse(text), arguments)[0])
    before = RUNTIME.num_threads
    try:
        RUNTIME.set_num_threads(3)
        exe = compile(text, options=CompileOptions(num_threads=threads))
        other = compile(text)
        assert library_calls(exe) == 1
        for each in (exe, other, exe):
            np.testing.assert_array_equal(each(*arguments)[0], want)
        assert isinstance(other, Configurable)
        other.call_options = CallOptions(num_threads=threads)
        np.testing.assert_array_equal(other(*arguments)[0], want)
    finally:
        RUNTIME.set_num_threads(before)


WAKES = """
import os, sys, time
import numpy as np
from hlogym import CompileOptions, compile
from compiler.runtime.thunks import LibraryThunk

def waits():
    time.sleep(0.1)  # until the workers sleep
    found = 0
    for task in os.listdir("/proc/self/task"):
        if int(task) != os.getpid():
            lines = open(f"/proc/self/task/{task}/status").read().splitlines()
            found += sum(int(l.split()[1]) for l in lines if l.startswith("voluntary_ctxt_switches"))
    return found

def woken(exe, arguments):
    exe(*arguments)
    before = waits()
    for _ in range(5):
        exe(*arguments)
        time.sleep(0.01)
    return waits() > before

text = sys.argv[1]
x, k = np.ones((4, 32, 32, 32), np.float32), np.ones((3, 3, 32, 32), np.float32)
one, two = compile(text, options=CompileOptions(num_threads=1)), compile(text)
assert sum(isinstance(t, LibraryThunk) for t in one.thunks) == 1
print(woken(one, (x, k)), woken(two, (x, k)), woken(one, (x, k)))
"""


def test_with_a_limit_of_one_thread_no_other_is_woken() -> None:
    text = """HloModule m
ENTRY e { x = f32[4,32,32,32] parameter(0)
  k = f32[3,3,32,32] parameter(1)
  ROOT c = f32[4,32,32,32] convolution(x, k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f }"""
    environment = {**os.environ, "HLOGYM_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", WAKES, text], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True", "False"]


def test_several_threads_call_one_executable() -> None:
    exe = compile(with_constant())
    rng = np.random.default_rng(1)
    inputs = [rng.integers(-3, 4, (2, 8, 8, 16)).astype(np.float32) for _ in range(8)]
    want = [exe(x)[0] for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            for got, expected in zip(pool.map(lambda x: exe(x)[0], inputs), want, strict=True):
                np.testing.assert_array_equal(got, expected)


def test_a_forked_child_can_call_it() -> None:
    exe = compile(with_constant())
    (x,) = numbers(with_constant(), 0)
    (want,) = exe(x)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(exe(x)[0], want) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(exe(x)[0], want)


def test_without_the_library_our_kernels_compute_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0")
    assert "disabled" in (why_unavailable() or "")
    check(with_constant(), calls=0)


def test_a_saved_program_says_that_it_needs_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile(with_constant()).save(tmp_path / "program")
    monkeypatch.setenv(VARIABLE, "0")
    with pytest.raises(BackendError, match=r"needs oneDNN.*disabled"):
        load(tmp_path / "program")


ROWS = {  # input, kernel, result, window, labels, groups, calls
    "rows": ("2,8,20,30", "8,1,3,3", "2,8,20,30", "size=3x3 pad=1_1x1_1", "bf01_oi01->bf01", 8, 0),
    "dilated": ("2,8,20,30", "8,1,3,3", "2,8,40,60", "size=3x3 pad=1_2x1_2 lhs_dilate=2x2", "bf01_oi01->bf01", 8, 0),
    "other order": ("8,20,2,30", "3,8,1,3", "2,9,8,14", "size=3x3 stride=2x2", "f0b1_0oi1->b0f1", 8, 0),
    "few features": ("2,8,20,30", "8,1,13,13", "2,8,20,30", "size=13x13 pad=6_6x6_6", "bf01_oi01->bf01", 8, 0),
    "few features last": ("2,20,30,8", "3,3,1,8", "2,20,30,8", "size=3x3 pad=1_1x1_1", "b01f_01io->b01f", 8, 0),
    "few outputs": ("2,20,20,30", "3,20,3,3", "2,3,20,30", "size=3x3 pad=1_1x1_1", "bf01_oi01->bf01", 1, 0),
    "few outputs last": ("2,20,30,20", "3,3,20,3", "2,18,28,3", "size=3x3", "b01f_01io->b01f", 1, 0),
    "large": ("2,24,20,30", "24,1,13,13", "2,24,20,30", "size=13x13 pad=6_6x6_6", "bf01_oi01->bf01", 24, 1),
    "features last": ("2,20,30,24", "3,3,1,24", "2,20,30,24", "size=3x3 pad=1_1x1_1", "b01f_01io->b01f", 24, 1),
    "many outputs": ("2,20,20,30", "9,20,3,3", "2,9,20,30", "size=3x3 pad=1_1x1_1", "bf01_oi01->bf01", 1, 1),
    "apart": ("2,20,20,30", "3,20,3,3", "2,3,20,14", "size=3x3 stride=1x2 pad=1_1x0_0", "bf01_oi01->bf01", 1, 1),
}


@pytest.mark.parametrize("case", ROWS)
def test_sums_of_scaled_rows_stay_with_our_kernels(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "scales_rows", onednn_convolution.scales_rows)
    x, kernel, out, window, labels, groups, calls = ROWS[case]
    check(
        f"HloModule m\nENTRY e {{ x = f32[{x}] parameter(0)\n k = f32[{kernel}] parameter(1)\n"
        f" ROOT c = f32[{out}] convolution(x, k), window={{{window}}}, dim_labels={labels}, "
        f"feature_group_count={groups} }}",
        calls=calls,
    )


@pytest.mark.parametrize("order", ["bf01_oi01->bf01", "b01f_01io->b01f"])
@pytest.mark.parametrize("size", [3, 5])
def test_convolutions_of_one_feature_stay_with_our_kernels(
    order: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matcher, "scales_rows", onednn_convolution.scales_rows)
    first = order.startswith("bf")
    image, kernel = ("3,1,20,30", f"1,1,{size},{size}") if first else ("3,20,30,1", f"{size},{size},1,1")
    half = size // 2
    window = f"size={size}x{size} pad={half}_{half}x{half}_{half}"
    check(
        f"HloModule m\nENTRY e {{ x = f32[{image}] parameter(0)\n k = f32[{kernel}] parameter(1)\n"
        f" ROOT c = f32[{image}] convolution(x, k), window={{{window}}}, dim_labels={order} }}",
        calls=0,
    )


def test_small_convolutions_stay_with_our_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "MIN_FLOPS", 10**9)
    check(with_constant(), calls=0)


def product(seed: int, dtype: str, out: str) -> str:
    """A dot whose operands have their dimensions in any order that needs no transpose."""
    rng = random.Random(seed)
    sizes = {"m": rng.choice([1, 3, 16, 33]), "n": rng.choice([1, 5, 16, 47]), "k": rng.choice([1, 4, 32, 50])}
    sizes |= {"b": rng.choice([1, 3]), "c": rng.choice([1, 2])}
    batch = rng.choice(["", "b", "bc"])
    lhs, rhs = (rng.choice([f"{batch}{x}", f"{batch}{x[::-1]}"]) for x in ("mk", "kn"))
    if batch == "bc" and rng.random() < 0.5:  # a batch dimension between rows and columns, as in attention
        lhs, rhs = "bmck", "bkcn" if rng.random() < 0.5 else "bnck"

    def array(t: str, labels: str) -> str:
        return f"{t}[{','.join(str(sizes[c]) for c in labels)}]"

    def dims(labels: str, wanted: str) -> str:
        return "{" + ",".join(str(labels.index(c)) for c in wanted) + "}"

    return (
        f"HloModule m\nENTRY e {{ x = {array(dtype, lhs)} parameter(0)\n k = {array(dtype, rhs)} parameter(1)\n"
        f" ROOT c = {array(out, batch + 'mn')} dot(x, k), lhs_batch_dims={dims(lhs, batch)}, "
        f"rhs_batch_dims={dims(rhs, batch)}, lhs_contracting_dims={dims(lhs, 'k')}, "
        f"rhs_contracting_dims={dims(rhs, 'k')} }}"
    )


@pytest.mark.parametrize("types", NARROW, ids="-".join)
@pytest.mark.parametrize("seed", range(12))
def test_products_of_narrow_types(types: tuple[str, str], seed: int) -> None:
    check(product(seed, *types), seed, calls=None)


@pytest.mark.parametrize("seed", range(20))
def test_products_of_f32(seed: int) -> None:
    check(product(seed, "f32", "f32"), seed)


def test_batches_of_small_products_stay_with_our_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "MIN_MULTIPLICATIONS", 1000)
    check(
        """HloModule m
        ENTRY e { x = f32[30,20,8] parameter(0)
          y = f32[20,30,8] parameter(1)
          ROOT r = f32[30,20] dot(x, y), lhs_batch_dims={0,1}, rhs_batch_dims={1,0},
            lhs_contracting_dims={2}, rhs_contracting_dims={2} }""",
        calls=0,
    )


def test_products_with_a_reordered_operand() -> None:
    check("""HloModule m
        ENTRY e { x = f32[40,300] parameter(0)
          y = f32[70,40] parameter(1)
          ROOT r = f32[300,70] dot(x, y), lhs_contracting_dims={0}, rhs_contracting_dims={1} }""")


def test_attention_needs_no_transposes() -> None:
    check(
        """HloModule m
        ENTRY e { q = f32[2,12,3,8] parameter(0)
          k = f32[2,12,3,8] parameter(1)
          ROOT s = f32[2,3,12,12] dot(q, k), lhs_batch_dims={0,2}, rhs_batch_dims={0,2},
            lhs_contracting_dims={3}, rhs_contracting_dims={3} }"""
    )


@pytest.mark.parametrize("types", [("bf16", "bf16"), ("s8", "s32")], ids="-".join)
def test_narrow_products_are_native_where_the_processor_is(types: tuple[str, str]) -> None:
    flag = {"bf16": "amx_bf16", "s8": "amx_int8"}[types[0]]
    if flag not in Path("/proc/cpuinfo").read_text():
        pytest.skip(f"the processor lacks {flag}")
    text = f"""HloModule m
        ENTRY e {{ x = {types[0]}[64,96] parameter(0)
          y = {types[0]}[96,80] parameter(1)
          ROOT r = {types[1]}[64,80] dot(x, y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}} }}"""
    check(text)


def pooling(seed: int, function: str) -> str:
    rng = random.Random(seed)
    space = rng.choice([1, 2, 2, 3])
    before, after = rng.choice([(2, 0), (1, 1), (0, 1), (1, 2)])
    sizes = [rng.choice([1, 3, 17]) for _ in range(before)]
    made = list(sizes)
    window = [(1, 1, 0, 0)] * before
    for _ in range(space):
        size = rng.randint(2, 3)
        stride, low, high = rng.randint(1, 3), rng.randint(0, size - 1), rng.randint(0, size - 1)
        n = rng.randint(5, 11)
        window.append((size, stride, low, high))
        sizes.append(n)
        made.append((n + low + high - size) // stride + 1)
    trailing = [rng.choice([1, 3, 16, 19]) for _ in range(after)]
    window += [(1, 1, 0, 0)] * after
    lists = {
        "size": [str(size) for size, _, _, _ in window],
        "stride": [str(stride) for _, stride, _, _ in window],
        "pad": [f"{low}_{high}" for _, _, low, high in window],
    }
    fields = " ".join(f"{name}={'x'.join(values)}" for name, values in lists.items())
    x, out = (f"f32[{','.join(map(str, [*s, *trailing]))}]" for s in (sizes, made))
    return f"""HloModule m
        f {{ a = f32[] parameter(0)
          b = f32[] parameter(1)
          ROOT r = f32[] {function}(a, b) }}
        ENTRY e {{ x = {x} parameter(0)
          i = f32[] constant({"0" if function == "add" else "-inf"})
          y = {x} negate(x)
          w = {out} reduce-window(y, i), window={{{fields}}}, to_apply=f
          ROOT z = {out} add(w, w) }}"""


@pytest.mark.parametrize("function", ["add", "maximum"])
@pytest.mark.parametrize("seed", range(20))
def test_pooling(seed: int, function: str) -> None:
    text = pooling(seed, function)
    (x,) = numbers(text, seed)
    module = parse(text)
    exe = compile(module, pipeline=[])
    assert library_calls(exe) == 1
    rng = np.random.default_rng(seed)
    for special in (0.0, np.nan, np.inf, -np.inf):
        x[rng.random(x.shape) < 0.1] = special
        (got,), (want,) = exe(x), evaluate(module, [x])
        np.testing.assert_allclose(got, np.asarray(want), rtol=1e-5)


@pytest.mark.parametrize("pad", ["31_0x0_0", "0_31x0_0"])
@pytest.mark.parametrize("fused", [False, True])
def test_running_maxima_of_few_rows_stay_with_our_scans(pad: str, fused: bool) -> None:
    text = f"""HloModule m
        f {{ a = f32[] parameter(0)
          b = f32[] parameter(1)
          ROOT r = f32[] maximum(a, b) }}
        ENTRY e {{ x = f32[32,80] parameter(0)
          i = f32[] constant(-inf)
          ROOT w = f32[32,80] reduce-window(x, i), window={{size=32x1 pad={pad}}}, to_apply=f }}"""
    module = parse(text)
    exe = compile(module) if fused else compile(module, fusion_policy="none")
    assert library_calls(exe) == 0
    (x,) = numbers(text, 3)
    (got,), (want,) = exe(x), evaluate(module, [x])
    np.testing.assert_array_equal(got, np.asarray(want))


@pytest.mark.parametrize(
    ("batch", "features", "size", "outputs", "kernel", "is_computed"),
    [
        (1, 8, 8, 16, 3, False), (1, 16, 14, 16, 3, False), (1, 32, 14, 64, 3, True), (4, 8, 8, 16, 3, False),
        (2, 3, 12, 6, 5, True), (1, 3, 12, 6, 5, False), (8, 16, 12, 16, 3, True),
    ],
)  # fmt: skip
def test_small_convolutions_are_products_over_patches(
    batch: int, features: int, size: int, outputs: int, kernel: int, is_computed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    pad = kernel // 2
    text = f"""
    HloModule m
    ENTRY e {{
      x = f32[{batch},{features},{size},{size}] parameter(0)
      k = f32[{outputs},{features},{kernel},{kernel}] parameter(1)
      ROOT c = f32[{batch},{outputs},{size},{size}] convolution(x, k),
        window={{size={kernel}x{kernel} pad={pad}_{pad}x{pad}_{pad}}}, dim_labels=bf01_oi01->bf01
    }}"""
    executable = compile(text)
    assert any(isinstance(t, LibraryThunk) for t in executable.thunks) == is_computed
    rng = np.random.default_rng(0)
    x, k = (rng.normal(size=s.dimensions).astype(np.float32) for s in parse(text).entry.parameter_shapes)
    np.testing.assert_allclose(executable(x, k)[0], evaluate(parse(text), [x, k])[0], rtol=1e-4, atol=1e-4)
