"""Large windows dimension by dimension: equal to the interpreter's results, and none is left to it."""

import random

import numpy as np
import pytest

from compiler import compile, parse
from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.passes.infrastructure.registry import make_pass
from compiler.passes.reductions.separable_windows import suits_separation
from compiler.runtime.thunks import KernelThunk

INITIAL = {"maximum": ("-inf", "-2147483648"), "minimum": ("inf", "2147483647"), "add": ("0", "0")}


def text(seed: int) -> str:
    """Return a reduce-window over an array of small integers whose window has many elements."""
    rng = random.Random(seed)
    function, t = rng.choice(list(INITIAL)), rng.choice(["f32", "f32", "s32", "bf16", "f64"])
    initial = rng.choice([INITIAL[function][t == "s32"], "3"])
    rank, fields, sizes, results = rng.choice([1, 2, 3]), [], [], []
    for d in range(rank):
        size = rng.choice([33, 50, 81, 100]) if rank == 1 else rng.choice([4, 5, 7, 9] if d < 2 else [1, 3])
        stride, dilate, spread = rng.choice([1, 1, 2, 3]), rng.choice([1, 1, 2]), rng.choice([1, 1, 2])
        reach = (size - 1) * dilate + 1
        low, high = rng.choice([0, reach // 2, -1]), rng.choice([0, reach // 2, -1])
        n = rng.randint(reach + 2, reach + 14)
        length = (n - 1) * spread + 1 + low + high
        sizes.append(n)
        results.append((length - reach) // stride + 1)
        fields.append((size, stride, f"{low}_{high}", spread, dilate))
    columns = ["x".join(map(str, c)) for c in zip(*fields, strict=True)]
    names = ("size", "stride", "pad", "lhs_dilate", "rhs_dilate")
    window = " ".join(f"{k}={v}" for k, v in zip(names, columns, strict=True))
    x, out = (",".join(map(str, s)) for s in (sizes, results))
    return f"""HloModule m
        f {{ a = {t}[] parameter(0)
          b = {t}[] parameter(1)
          ROOT r = {t}[] {function}(a, b) }}
        ENTRY e {{ x = {t}[{x}] parameter(0)
          i = {t}[] constant({initial})
          ROOT w = {t}[{out}] reduce-window(x, i), window={{{window}}}, to_apply=f }}"""


@pytest.mark.parametrize("seed", range(60))
def test_random_windows(seed: int) -> None:
    module = parse(text(seed))
    exe = compile(module)
    assert all(isinstance(t, KernelThunk) for t in exe.thunks), text(seed)
    rng = np.random.default_rng(seed)
    (x,) = (rng.integers(-3, 4, s.dimensions).astype(s.dtype) for s in module.parameter_shapes)
    (got,), (want,) = exe(x), evaluate(module, [x])
    np.testing.assert_array_equal(got, want, err_msg=text(seed))


def test_nan_stays_under_its_windows() -> None:
    module = parse("""HloModule m
        f { a = f32[] parameter(0)
          b = f32[] parameter(1)
          ROOT r = f32[] maximum(a, b) }
        ENTRY e { x = f32[40,50] parameter(0)
          i = f32[] constant(-inf)
          ROOT w = f32[40,50] reduce-window(x, i), window={size=9x9 pad=4_4x4_4}, to_apply=f }""")
    x = np.zeros((40, 50), np.float32)
    x[20, 30] = np.nan
    (got,) = compile(module)(x)
    assert np.isnan(got[16:25, 26:35]).all()
    assert np.isnan(got).sum() == 81


SELECTION = """HloModule m
better { a = f32[] parameter(0)
  i = s32[] parameter(1)
  b = f32[] parameter(2)
  j = s32[] parameter(3)
  gt = pred[] compare(a, b), direction=GT
  eq = pred[] compare(a, b), direction=EQ
  lt = pred[] compare(i, j), direction=LT
  tie = pred[] and(eq, lt)
  p = pred[] or(gt, tie)
  v = f32[] select(p, a, b)
  k = s32[] select(p, i, j)
  ROOT r = (f32[], s32[]) tuple(v, k) }
ENTRY e { x = f32[3,40,50] parameter(0)
  places = s32[3,40,50] parameter(1)
  low = f32[] constant(-inf)
  last = s32[] constant(2147483647)
  ROOT w = (f32[3,20,50], s32[3,20,50]) reduce-window(x, places, low, last),
    window={size=1x13x11 stride=1x2x1 pad=0_0x6_5x5_5}, to_apply=better }"""


def test_maxima_with_their_places() -> None:
    module = parse(SELECTION)
    exe = compile(module)
    assert all(isinstance(t, KernelThunk) for t in exe.thunks)
    x = np.random.default_rng(0).integers(0, 30, (3, 40, 50)).astype(np.float32)
    places = np.broadcast_to(np.arange(2000, dtype=np.int32).reshape(40, 50), x.shape)
    for got, want in zip(exe(x, places), evaluate(module, [x, places]), strict=True):
        np.testing.assert_array_equal(got, want)


def test_what_does_not_select_one_group_stays() -> None:
    mixed = parse(SELECTION.replace("k = s32[] select(p, i, j)", "k = s32[] select(p, j, i)"))
    assert not make_pass("reduce-window-to-slices").run(mixed)


@pytest.mark.parametrize(
    ("window", "result", "suits"),
    [
        ("size=5x5 pad=2_2x2_2", "64,64", True),
        ("size=3x3 pad=1_1x1_1", "64,64", False),
        ("size=5x5 stride=5x5", "12,12", False),
        ("size=7x7 stride=2x2 pad=3_3x3_3", "32,32", True),
        ("size=25x1 pad=12_12x0_0", "64,64", False),
    ],
)
def test_when_it_saves_work(window: str, result: str, suits: bool) -> None:
    module = parse(f"""HloModule m
        f {{ a = f32[] parameter(0)
          b = f32[] parameter(1)
          ROOT r = f32[] add(a, b) }}
        ENTRY e {{ x = f32[64,64] parameter(0)
          i = f32[] constant(0)
          ROOT w = f32[{result}] reduce-window(x, i), window={{{window}}}, to_apply=f }}""")
    assert module.entry.root.opcode is Opcode.REDUCE_WINDOW
    assert suits_separation(module.entry.root) is suits


@pytest.mark.parametrize("direction", ["GE", "GT", "LE", "LT"])
@pytest.mark.parametrize(
    ("window", "sources", "t"),
    [
        ("size=1x7x7 pad=0_0x3_3x3_3", "2,20,22", "f32"),
        ("size=1x8x8 stride=1x4x4 pad=0_0x2_2x0_2", "2,5,5", "f32"),
        ("size=1x6x6 stride=1x3x2 pad=0_0x-1_0x0_0", "2,5,9", "f64"),
        ("size=1x20x4 stride=1x1x2", "2,1,10", "s32"),
    ],
    ids=["dense", "apart", "cropped", "long"],
)
def test_sources_are_added_to_the_chosen_places(direction: str, window: str, sources: str, t: str) -> None:
    module = parse(f"""HloModule m
        select {{ a = {t}[] parameter(0)
          b = {t}[] parameter(1)
          ROOT r = pred[] compare(a, b), direction={direction} }}
        add {{ a = {t}[] parameter(0)
          b = {t}[] parameter(1)
          ROOT r = {t}[] add(a, b) }}
        ENTRY e {{ x = {t}[2,20,22] parameter(0)
          s = {t}[{sources}] parameter(1)
          z = {t}[] constant(0)
          ROOT w = {t}[2,20,22] select-and-scatter(x, s, z), window={{{window}}}, select=select, scatter=add }}""")
    exe = compile(module)
    assert all(isinstance(k, KernelThunk) for k in exe.thunks)
    rng = np.random.default_rng(0)  # small integers, of which many are equal
    arguments = [rng.integers(-4, 5, s.dimensions).astype(s.dtype) for s in module.parameter_shapes]
    np.testing.assert_array_equal(exe(*arguments)[0], evaluate(module, arguments)[0])


def test_the_gradient_of_large_maxima_goes_to_elements_and_not_to_padding() -> None:
    module = parse("""HloModule m
        select { a = f32[] parameter(0)
          b = f32[] parameter(1)
          ROOT r = pred[] compare(a, b), direction=GE }
        add { a = f32[] parameter(0)
          b = f32[] parameter(1)
          ROOT r = f32[] add(a, b) }
        ENTRY e { x = f32[30,30] parameter(0)
          s = f32[30,30] parameter(1)
          z = f32[] constant(0)
          ROOT w = f32[30,30] select-and-scatter(x, s, z), window={size=9x9 pad=4_4x4_4},
            select=select, scatter=add }""")
    x = np.full((30, 30), -np.inf, np.float32)
    (got,) = compile(module)(x, np.ones_like(x))
    assert got.sum() == 900
