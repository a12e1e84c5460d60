"""Sorts by a key and topk as kernels, against the interpreter, with each of their algorithms."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from compiler.api import compile as compile_hlo
from compiler.backends.cuda.emulation import TrafficCounter
from compiler.codegen.kernel_spec import make_kernel
from compiler.codegen.languages import CUDA
from compiler.codegen.nest.order_method import OrderMethod
from compiler.codegen.printing.print_sorts import sorting_network
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.codegen.schedules.schedule import Schedule
from compiler.errors import UnsupportedError
from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.ir.types import PrimitiveType
from compiler.runtime.thunks import HostThunk
from compiler.text import parse
from env.reference import Reference
from tests.codegen import running

Array = npt.NDArray[Any]
TYPES = ("f32", "f64", "bf16", "f16", "s32", "u32", "s8", "u8", "s16", "u16", "s64", "u64", "pred")
FAST = ("f32", "bf16", "s32", "u8", "f64")
EACH_TYPE = [pytest.param(t, marks=() if t in FAST else pytest.mark.slow) for t in TYPES]
SPECIAL = (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40)


def keys(element_type: str, shape: tuple[int, ...], few: bool = False) -> Array:
    """Return random keys: special values of floats, the extremes of integers, or `few` values with many ties."""
    rng = np.random.default_rng(sum(shape) + few)
    t = PrimitiveType(element_type)
    if few or element_type == "pred":
        return rng.integers(0, 2 if element_type == "pred" else 4, shape).astype(t.dtype)
    if t.is_float:
        x = rng.standard_normal(shape).astype(t.dtype)
        for value in SPECIAL:
            x.reshape(-1)[rng.integers(0, x.size, 1 + x.size // 20)] = value
        return x
    limits = np.iinfo(t.dtype)
    return rng.integers(limits.min, limits.max, shape, dtype=t.dtype, endpoint=True)


def assert_same_bits(got: Any, expected: Sequence[Array]) -> None:
    """Assert equal results, including the signs of zeros and NaN."""
    for a, b in zip(got if isinstance(got, tuple | list) else [got], expected, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if a.dtype.kind not in "biu":
            a, b = a.astype(np.float64), b.astype(np.float64)
            np.testing.assert_array_equal(np.signbit(a), np.signbit(b))
        np.testing.assert_array_equal(a, b)


def top_k_text(element_type: str, rows: int, n: int, k: int, largest: bool = True) -> str:
    """Return a module of one topk."""
    shapes = f"{element_type}[{rows},{k}], s32[{rows},{k}]"
    return (
        f"HloModule m\nENTRY e {{ x = {element_type}[{rows},{n}] parameter(0)\n"
        f"ROOT t = ({shapes}) topk(x), k={k}, largest={str(largest).lower()} }}"
    )


def check_top_k(
    element_type: str,
    rows: int,
    n: int,
    k: int,
    largest: bool = True,
    few: bool = False,
    schedule: Mapping[str, int] | None = None,
) -> None:
    text = top_k_text(element_type, rows, n, k, largest)
    x = keys(element_type, (rows, n), few)
    made = compile_hlo(
        text, backend="cpu", policy="heuristic", kernel_selector=lambda _: KernelChoice(schedule=schedule or {})
    )
    assert [kernel.kind for kernel in made.kernels] == ["top-k"]
    assert_same_bits(made(x), evaluate(parse(text), [x]))


def sort_text(element_type: str, dims: tuple[int, int, int], direction: str, swapped: bool = False) -> str:
    """Return a module of one sort along the middle dimension, with the element numbers as payload."""
    shape = f"[{','.join(map(str, dims))}]"
    is_float = element_type.startswith(("f", "b"))
    operands = "b, a" if swapped else "a, b"
    return (
        f"HloModule m\nless {{ a = {element_type}[] parameter(0) b = {element_type}[] parameter(1) "
        f"c = s32[] parameter(2) d = s32[] parameter(3)\n"
        f"ROOT l = pred[] compare({operands}), direction={direction}{', type=TOTALORDER' if is_float else ''} }}\n"
        f"ENTRY e {{ x = {element_type}{shape} parameter(0) i = s32{shape} iota(), iota_dimension=1\n"
        f"ROOT s = ({element_type}{shape}, s32{shape}) sort(x, i), dimensions={{1}}, is_stable=true, to_apply=less }}"
    )


def check_sort(
    element_type: str,
    dims: tuple[int, int, int],
    direction: str,
    swapped: bool = False,
    schedule: Mapping[str, int] | None = None,
) -> None:
    text = sort_text(element_type, dims, direction, swapped)
    x = keys(element_type, dims, few=swapped)
    made = compile_hlo(
        text, backend="cpu", policy="heuristic", kernel_selector=lambda _: KernelChoice(schedule=schedule or {})
    )
    assert any("_order" in kernel.source for kernel in made.kernels)
    assert_same_bits(made(x), evaluate(parse(text), [x]))


@pytest.mark.parametrize("element_type", EACH_TYPE)
def test_topk_of_every_type(element_type: str) -> None:
    for k in (1, 5, 100):
        check_top_k(element_type, 3, 700, k, largest=k != 5, few=k == 100)


@pytest.mark.parametrize("k", [1, 2, 31, 64, 65, 200, 999, 1000])
@pytest.mark.parametrize("few", [False, True])
def test_topk_of_any_size(k: int, few: bool) -> None:
    check_top_k("f32", 2, 1000, k, few=few)


@pytest.mark.parametrize("n", [1, 2, 5, 15, 16, 17, 127, 128, 129, 4097])
def test_topk_of_any_row(n: int) -> None:
    for k in {1, min(n, 3), -(-n // 2), n}:
        check_top_k("s32", 1, n, k, largest=n % 2 == 0)


def test_topk_when_each_element_exceeds_those_before() -> None:
    text = "HloModule m\nENTRY e { x = s32[1,3000] parameter(0)\nROOT t = (s32[1,90], s32[1,90]) topk(x), k=90 }"
    values, places = compile_hlo(text, backend="cpu", policy="heuristic")(np.arange(3000, dtype=np.int32)[None])
    np.testing.assert_array_equal(values[0], np.arange(2999, 2909, -1))
    np.testing.assert_array_equal(places, values)


@pytest.mark.parametrize("element_type", EACH_TYPE)
def test_sorts_of_every_type(element_type: str) -> None:
    check_sort(element_type, (2, 300, 1), "LT")
    check_sort(element_type, (2, 40, 3), "GT", swapped=True)


@pytest.mark.parametrize("n", [2, 5, 15, 16, 17, 31, 32, 33, 65, 192, 193, 5000])
def test_sorts_of_any_row(n: int) -> None:
    check_sort("f32", (2, n, 1), "GT")
    check_sort("s32", (1, n, 2), "LT", swapped=True)


@pytest.mark.parametrize(
    "schedule",
    [
        {"order.digit": 11}, {"order.digit": 4}, {"order.merge": 0}, {"order.merge": 2048}, {"order.run": 16},
        {"order.insertion": 0, "order.block": 32}, {"order.insertion": 256}, {"order.room": 1}, {"order.room": 64},
    ],
)  # fmt: skip
def test_every_method_gives_the_same_order(schedule: Mapping[str, int]) -> None:
    check_sort("f32", (2, 1000, 1), "LT", schedule=schedule)
    check_sort("f64", (1, 100, 1), "LT", schedule=schedule)
    check_top_k("f32", 2, 1000, 7, schedule=schedule)
    check_top_k("s32", 2, 1000, 70, schedule=schedule)


@pytest.mark.parametrize("name", ["zeros of either sign", "no total order"])
def test_comparators_of_floats(name: str) -> None:
    """A comparison without NaN canonicalized has no key; equal zeros keep their order in both."""
    canonical = "" if name == "no total order" else ", type=TOTALORDER"
    text = (
        "HloModule m\nless { a = f32[] parameter(0) b = f32[] parameter(1) z = f32[] constant(0)\n"
        "az = pred[] compare(a, z), direction=EQ bz = pred[] compare(b, z), direction=EQ\n"
        "ac = f32[] select(az, z, a) bc = f32[] select(bz, z, b)\n"
        f"ROOT l = pred[] compare(ac, bc), direction=LT{canonical} }}\n"
        "ENTRY e { x = f32[3,500] parameter(0) ROOT s = f32[3,500] sort(x), dimensions={1}, to_apply=less }"
    )
    x = np.random.default_rng(0).integers(-2, 3, (3, 500)).astype(np.float32)
    x = np.where(np.random.default_rng(1).integers(0, 2, x.shape), x, -x)
    made = compile_hlo(text, backend="cpu", pipeline=[])
    assert ("_order" in made.kernels[0].source) == bool(canonical)
    assert_same_bits(made(x), evaluate(parse(text), [x]))


SORTED_SUMS = """HloModule sums
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
less {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=LT, type=TOTALORDER
}
sums {
  x = f32[60,4,33] parameter(0)
  z = f32[] constant(0)
  s = f32[60,4] reduce(x, z), dimensions={2}, to_apply=add
  ROOT r = f32[60,4] sort(s), dimensions={0}, is_stable=true, to_apply=less
}
ENTRY e {
  x = f32[60,4,33] parameter(0)
  ROOT r = f32[60,4] fusion(x), kind=kLoop, calls=sums
}"""


def test_sorted_sums_are_one_kernel() -> None:
    module = parse(SORTED_SUMS)
    # Sums of integers are exact in any order.
    x = np.random.default_rng(0).integers(-50, 50, (60, 4, 33)).astype(np.float32)
    assert_same_bits(compile_hlo(module, pipeline=[])(x), evaluate(module, [x]))


# ---- on a GPU


def on_gpu(text: str, x: Array, schedule: Schedule | None = None) -> tuple[running.Case, list[Array]]:
    """Return the case of a module's root and the interpreter's results; operands besides x are element numbers."""
    root = parse(text).entry.root
    arrays = [
        x if o.opcode is Opcode.PARAMETER else np.indices(o.shape.dimensions, np.int32)[1].copy() for o in root.operands
    ]
    expected = evaluate(parse(text), [x])
    # The sign of a NaN of 16 bits is lost where it is stored, but not where it is ordered.
    expected = [np.where(np.isnan(e), np.abs(e), e) if e.dtype.itemsize == 2 and e.dtype.kind != "i" else e
                for e in map(np.asarray, expected)]  # fmt: skip
    spec = make_kernel(root, "cuda", schedule)
    return running.Case(spec, tuple(arrays), Reference(lambda *_: expected, arrays)), expected


def check_on_gpu(cases: Mapping[str, tuple[running.Case, list[Array]]], folder: Path) -> None:
    runs = running.run_emulated([case for case, _ in cases.values()], folder)
    for (name, (_, expected)), run in zip(cases.items(), runs, strict=True):
        assert not run.error, name
        assert_same_bits(run.outputs, expected)


@pytest.mark.skipif(not running.has_emulator(), reason="the emulator needs g++")
@pytest.mark.parametrize("chains", [8, 2])
def test_sorts_on_a_gpu_match_the_interpreter(chains: int, tmp_path: Path) -> None:
    schedule = replace(CUDA.default_schedule, chains=chains)
    cases = {}
    for n, t in enumerate(("f32", "bf16", "s32", "u8", "f64", "pred", "f16", "s64")):
        for dims in ((2, 100, 1), (1, 513, 2), (1, 5, 1)):
            few = n % 3 == 1
            text = sort_text(t, dims, ("LT", "GT")[n % 2])
            cases[f"{t} {dims}"] = on_gpu(text, keys(t, dims, few), schedule)
    check_on_gpu(cases, tmp_path)


@pytest.mark.skipif(not running.has_emulator(), reason="the emulator needs g++")
def test_selections_on_a_gpu_match_the_interpreter(tmp_path: Path) -> None:
    cases = {}
    for t in ("f32", "bf16", "f64"):
        for rows, n, k in ((2, 40, 3), (1, 600, 600), (1, 9000, 50)):
            largest = k != 3
            cases[f"{t} {n} {k}"] = on_gpu(top_k_text(t, rows, n, k, largest), keys(t, (rows, n)))
    text, n = top_k_text("f32", 1, 9000, 50), 9000
    cases["each is larger"] = on_gpu(text, np.arange(n, dtype=np.float32)[None])
    cases["all are equal"] = on_gpu(text, np.zeros((1, n), np.float32))
    cases["numbers beyond 16 bits"] = on_gpu(top_k_text("bf16", 1, 70_000, 3), keys("bf16", (1, 70_000)))
    check_on_gpu(cases, tmp_path)


@pytest.mark.skipif(not running.has_emulator(), reason="the emulator needs g++")
def test_threads_sort_many_short_rows(tmp_path: Path) -> None:
    cases = {}
    for n, t in enumerate(("f32", "bf16", "s32", "u8", "f64", "pred", "f16", "s64")):
        for dims in ((3000, 2 + n, 3), (8448, 16, 1), (8450, 9, 1)):
            text = sort_text(t, dims, ("LT", "GT")[n % 2])
            cases[f"{t} {dims}"] = on_gpu(text, keys(t, dims, few=n % 3 == 1))
    for t in ("f32", "bf16", "f64"):
        for n, k in ((8, 2), (13, 13), (16, 1)):
            cases[f"{t} {n} {k}"] = on_gpu(top_k_text(t, 9000, n, k, k != 2), keys(t, (9000, n)))
    for case, _ in cases.values():
        assert case.spec.grid * case.spec.block < 32 * 8448  # not a warp for each row
    check_on_gpu(cases, tmp_path)


def test_a_sorting_network_sorts_all_zeros_and_ones() -> None:
    for n in range(1, 12):
        rows = np.array(list(itertools.product((0, 1), repeat=n)))
        expected = np.sort(rows, axis=1)
        for low, high in sorting_network(n):
            assert low < high
            rows[:, [low, high]] = np.sort(rows[:, [low, high]], axis=1)
        np.testing.assert_array_equal(rows, expected)


@pytest.mark.skipif(not running.has_emulator(), reason="the emulator needs g++")
def test_columns_that_threads_sort_are_read_in_whole_sectors() -> None:
    text = "HloModule m\nless { a = f32[] parameter(0) b = f32[] parameter(1)\n"
    text += "ROOT l = pred[] compare(a, b), direction=LT, type=TOTALORDER }\n"
    text += "ENTRY e { x = f32[7,16384] parameter(0) ROOT s = f32[7,16384] sort(x), dimensions={0}, to_apply=less }"
    (kernel,) = compile_hlo(text, backend="cuda").kernels
    counts = TrafficCounter(keep=False).counts([kernel])[kernel.symbol]
    loaded, stored = counts.arrays
    assert loaded.l2_load_bytes == loaded.size  # the level 1 cache has what is moved, since it was read for the keys
    assert stored.coalescing == 1
    assert counts.barriers == 0


@pytest.mark.skipif(not running.has_emulator(), reason="the emulator needs g++")
def test_sorted_sums_on_a_gpu_match_the_interpreter(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(-50, 50, (60, 4, 33)).astype(np.float32)
    check_on_gpu({"sums": on_gpu(SORTED_SUMS, x)}, tmp_path)


def test_a_row_that_no_block_holds_has_no_gpu_kernel() -> None:
    long = parse(sort_text("s32", (1, 10_000, 1), "LT")).entry.root
    with pytest.raises(UnsupportedError, match="a block sorts at most 8192 elements"):
        make_kernel(long, "cuda")


@pytest.mark.parametrize("text", [sort_text("f32", (4, 300, 1), "LT"), top_k_text("f32", 4, 9000, 20)])
def test_sorts_of_programs_for_a_gpu_are_kernels(text: str) -> None:
    made = compile_hlo(text, backend="cuda")
    assert {"sort", "top-k"} & {k.kind for k in made.kernels}
    assert not [t for t in made.thunks if isinstance(t, HostThunk)]


def test_runs_are_no_longer_than_rows_need() -> None:
    assert OrderMethod().for_rows(12, 2, narrow=False).run == 16
    assert OrderMethod().for_rows(17, 2, narrow=False).run == OrderMethod().run
    assert OrderMethod(run=48).for_rows(12, 2, narrow=False).run == 48  # a choice stays
