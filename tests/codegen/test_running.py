"""Cumulative reductions as kernels, against the interpreter and against numpy."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from compiler.api import compile as compile_hlo
from compiler.codegen.kernel_spec import fused_form
from compiler.codegen.schedules.schedule import Schedule
from compiler.interpreter import evaluate
from compiler.ir import HloComputation
from compiler.ir.types import PrimitiveType
from compiler.text import parse
from tests.codegen import running

Array = npt.NDArray[Any]
TYPES = ("f32", "f64", "bf16", "f16", "s32", "u8", "s64", "pred")
FAST = ("f32", "bf16", "s32")
EACH_TYPE = [pytest.param(t, marks=() if t in FAST else pytest.mark.slow) for t in TYPES]
# Rows together, rows in tracks with and without a rest, columns in tiles with and without a rest, few rows.
DIMENSIONS = [
    ((20, 50, 1), 1), ((1, 4096, 1), 1), ((2, 3001, 3), 1), ((3, 70, 300), 1), ((2, 40, 64), 1), ((5, 9, 1), 1),
    ((60, 7, 3), 0), ((1, 9, 1), 1),
]  # fmt: skip


def running_text(element_type: str, op: str, dims: tuple[int, int, int], axis: int, reverse: bool = False) -> str:
    """Return a module of one cumulative reduction that starts from 1, or true."""
    n, shape = dims[axis], f"{element_type}[{','.join(map(str, dims))}]"
    one = "true" if element_type == "pred" else "1"
    size = "x".join(str(n if d == axis else 1) for d in range(3))
    edge = f"0_{n - 1}" if reverse else f"{n - 1}_0"
    padding = "x".join(edge if d == axis else "0_0" for d in range(3))
    return (
        f"HloModule m\nf {{ a = {element_type}[] parameter(0) b = {element_type}[] parameter(1)\n"
        f"ROOT r = {element_type}[] {op}(a, b) }}\n"
        f"ENTRY e {{ x = {shape} parameter(0) z = {element_type}[] constant({one})\n"
        f"ROOT s = {shape} reduce-window(x, z), window={{size={size} pad={padding}}}, to_apply=f }}"
    )


def argument(element_type: str, dims: tuple[int, int, int]) -> Array:
    """Return small integers of a type, whose sums are exact where the type has 24 bits or more."""
    rng = np.random.default_rng(sum(dims))
    t = PrimitiveType(element_type)
    return rng.integers(0, 2 if element_type in ("pred", "bf16", "f16") else 9, dims).astype(t.dtype)


@pytest.mark.parametrize("element_type", EACH_TYPE)
@pytest.mark.parametrize("op", ["add", "maximum"])
def test_every_type(element_type: str, op: str) -> None:
    for dims, axis in DIMENSIONS[:4]:
        dims = (dims[0], min(dims[1], 200), dims[2]) if element_type in ("bf16", "f16") else dims
        for reverse in (False, True):
            text, x = running_text(element_type, op, dims, axis, reverse), argument(element_type, dims)
            made = compile_hlo(text, backend="cpu")
            assert [k.kind for k in made.kernels] == ["scan"]
            (expected,) = evaluate(parse(text), [x])
            np.testing.assert_array_equal(made(x)[0], expected)


def test_twice_as_many_rows_of_float_maxima_advance_together() -> None:
    rows = {}
    for t, op in (("f32", "add"), ("f32", "maximum"), ("s32", "maximum")):
        (kernel,) = compile_hlo(running_text(t, op, (64, 100, 1), 1), backend="cpu").kernels
        body = kernel.source[kernel.source.index(kernel.symbol) :]
        rows[t, op] = len(re.findall(r"const \w+ \w+ = p0\[", body))
    assert rows["f32", "maximum"] == 2 * rows["f32", "add"]
    assert rows["s32", "maximum"] == rows["f32", "add"]


@pytest.mark.parametrize(("dims", "axis"), DIMENSIONS)
def test_sums_are_those_of_numpy(dims: tuple[int, int, int], axis: int) -> None:
    x = argument("s32", dims)
    for reverse in (False, True):
        text = running_text("s32", "add", dims, axis, reverse)
        expected = 1 + np.cumsum(np.flip(x, axis) if reverse else x, axis, dtype=np.int32)
        for (got,) in (compile_hlo(text, backend="cpu")(x), evaluate(parse(text), [x])):
            np.testing.assert_array_equal(np.flip(got, axis) if reverse else got, expected)


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(splits=7), Schedule(splits=256), Schedule(vector=0), Schedule(columns=7), Schedule(chains=1),
        Schedule(chains=3, splits=2),
    ],
)  # fmt: skip
def test_every_schedule_gives_the_same_sums(schedule: Schedule) -> None:
    cases = []
    for dims, axis in DIMENSIONS:
        scan = fused_form(parse(running_text("s32", "add", dims, axis)).entry.root)
        args = [argument("s32", dims), np.array(1, np.int32)]
        cases.append(running.case_of(scan, args, "c", schedule))
    for case, found in zip(cases, running.run_c(cases), strict=True):
        assert running.problem(found, case) is None


def test_a_running_maximum_keeps_nan() -> None:
    x = np.random.default_rng(0).standard_normal((1, 5000, 1)).astype(np.float32)
    x[0, 3210] = np.nan
    (got,) = compile_hlo(running_text("f32", "maximum", (1, 5000, 1), 1), backend="cpu")(x)
    np.testing.assert_array_equal(got, np.maximum(np.maximum.accumulate(x, 1), 1))


@pytest.mark.parametrize("dims", [(4, 3000), (40, 60)])
def test_a_scan_of_values_with_positions(dims: tuple[int, int]) -> None:
    """The running maxima and their last positions, as torch defines cummax."""
    shape = f"[{dims[0]},{dims[1]}]"
    text = (
        "HloModule m\nf { a = s32[] parameter(0) i = s32[] parameter(1) b = s32[] parameter(2) j = s32[] parameter(3)\n"
        "c = pred[] compare(a, b), direction=GT x = s32[] select(c, a, b) y = s32[] select(c, i, j)\n"
        "ROOT r = (s32[], s32[]) tuple(x, y) }\n"
        f"ENTRY e {{ x = s32{shape} parameter(0) k = s32{shape} iota(), iota_dimension=1\n"
        "z = s32[] constant(-1) w = s32[] constant(-1)\n"
        f"ROOT s = (s32{shape}, s32{shape}) reduce-window(x, k, z, w), window={{size=1x{dims[1]} "
        f"pad=0_0x{dims[1] - 1}_0}}, to_apply=f }}"
    )
    x = np.random.default_rng(0).integers(0, 50, dims).astype(np.int32)
    made = compile_hlo(text, backend="cpu")
    assert "scan" in [k.kind for k in made.kernels]
    values = np.maximum.accumulate(x, 1)
    places = np.maximum.accumulate(np.where(x == values, np.arange(dims[1]), 0), 1)
    for got, expected in zip(made(x), (values, places), strict=True):
        np.testing.assert_array_equal(got, expected)


LOGADDEXP = """
    m = f32[] maximum(a, b) d = f32[] subtract(a, b) s = f32[] abs(d) n = f32[] negate(s) e = f32[] exponential(n)
    l = f32[] log-plus-one(e) ROOT r = f32[] add(m, l) }
"""
SECOND = "ROOT r = f32[] copy(b) }\n"


@pytest.mark.parametrize(("function", "kinds"), [(LOGADDEXP, ["scan"]), (SECOND, [])])
def test_a_function_of_several_ops_in_reverse(function: str, kinds: list[str]) -> None:
    text = running_text("f32", "add", (3, 40, 1), 1, reverse=True).replace("ROOT r = f32[] add(a, b) }", function)
    x = np.random.default_rng(0).standard_normal((3, 40, 1)).astype(np.float32)
    made = compile_hlo(text, backend="cpu")
    assert [k.kind for k in made.kernels] == kinds
    np.testing.assert_allclose(made(x)[0], evaluate(parse(text), [x])[0], rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 3, 4, 9, 16, 33, 40, 70])
@pytest.mark.parametrize("length", [50, 64, 512])
def test_rows_with_long_functions_advance_in_vectors(rows: int, length: int) -> None:
    dims = (rows, length, 1)
    text = running_text("f32", "add", dims, 1).replace("ROOT r = f32[] add(a, b) }", LOGADDEXP)
    x = np.random.default_rng(rows).standard_normal(dims).astype(np.float32)
    made = compile_hlo(text, backend="cpu")
    (kernel,) = made.kernels
    assert ("omp simd" in kernel.source) == (rows >= 4)
    expected = np.logaddexp.accumulate(x.astype(np.float64), 1)
    np.testing.assert_allclose(made(x)[0], np.logaddexp(expected, 1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("terms", "in_vectors"), [(1, False), (12, True)])
@pytest.mark.parametrize("rows", [4, 9, 40])
def test_rows_with_many_statements_advance_in_vectors(terms: int, in_vectors: bool, rows: int) -> None:
    body = "\n".join(
        f"a{k} = s32[{rows},200] xor(x{k}, c) x{k + 1} = s32[{rows},200] multiply(a{k}, x0)" for k in range(terms)
    )
    text = f"""
    HloModule m
    add {{ a = s32[] parameter(0) b = s32[] parameter(1) ROOT c = s32[] add(a, b) }}
    ENTRY m {{
      x0 = s32[{rows},200] parameter(0)
      seven = s32[] constant(7)
      c = s32[{rows},200] broadcast(seven), dimensions={{}}
      {body}
      zero = s32[] constant(0)
      ROOT s = s32[{rows},200] reduce-window(x{terms}, zero), window={{size=1x200 pad=0_0x199_0}}, to_apply=add
    }}
    """
    x = np.random.default_rng(rows).integers(-99, 99, (rows, 200)).astype(np.int32)
    made = compile_hlo(text, backend="cpu")
    (kernel,) = made.kernels
    assert ("omp simd" in kernel.source) == in_vectors
    value = x
    for _ in range(terms):
        value = (value ^ 7) * x
    np.testing.assert_array_equal(made(x)[0], np.cumsum(value, axis=1, dtype=np.int32))


@pytest.mark.parametrize(("op", "lanes"), [("negate", 32), ("exponential", 64)])
def test_columns_with_long_functions_advance_in_wide_tiles(op: str, lanes: int) -> None:
    text = f"""
    HloModule m
    add {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }}
    f {{
      x = f32[30,1000] parameter(0)
      e = f32[30,1000] {op}(x)
      zero = f32[] constant(0)
      ROOT s = f32[30,1000] reduce-window(e, zero), window={{size=30x1 pad=29_0x0_0}}, to_apply=add
    }}
    ENTRY m {{ x = f32[30,1000] parameter(0) ROOT s = f32[30,1000] fusion(x), kind=kLoop, calls=f }}
    """
    (kernel,) = compile_hlo(text, policy="none", backend="cpu").kernels
    assert f"_lanes[{lanes}]" in kernel.source


def test_a_short_scan_is_part_of_the_kernels_around_it() -> None:
    text, x = running_text("s32", "add", (2, 6, 1), 1), argument("s32", (2, 6, 1))
    made = compile_hlo(text, backend="cpu")
    assert "scan" not in [k.kind for k in made.kernels]
    np.testing.assert_array_equal(made(x)[0], 1 + np.cumsum(x, 1))


# Rows by warps, by blocks, in pieces and by many blocks; columns in tiles and parts of every kind; both in between.
ON_GPUS = [*DIMENSIONS, ((300, 33, 1), 1), ((3, 2, 9), 0), ((2, 5000, 12), 1), ((1, 9000, 1), 1), ((2, 700, 40), 1)]
GPU_TYPES = ("bf16", "u8", "pred", "f64", "s64", "f16")


@pytest.mark.skipif(not running.has_emulator(), reason="the emulator needs g++")
@pytest.mark.parametrize("schedule", [None, Schedule(tile=0, block=64, chains=2)], ids=str)
def test_scans_on_a_gpu_match_the_interpreter(schedule: Schedule | None, tmp_path: Path) -> None:
    wanted = [(t, op, dims, axis) for t in ("s32", "f32") for op in ("add", "maximum") for dims, axis in ON_GPUS]
    wanted += [(t, "or" if t == "pred" else "maximum", dims, axis) for t in GPU_TYPES for dims, axis in DIMENSIONS[:3]]
    cases = {}
    for n, (t, op, dims, axis) in enumerate(wanted):
        scan = fused_form(parse(running_text(t, op, dims, axis, reverse=n % 2 == 1)).entry.root)
        x = argument(t, dims)
        x = np.random.default_rng(n).uniform(-1, 1, dims).astype(np.float32) if t == "f32" else x
        cases[t, op, dims] = running.case_of(scan, [x, np.array(1, x.dtype)], "cuda", schedule)
    runs = running.run_emulated(list(cases.values()), tmp_path, max_grid=4)
    problems = {
        name: what
        for (name, case), run in zip(cases.items(), runs, strict=True)
        if (what := run.error or running.problem(run.outputs, case))
    }
    assert problems == {}


def test_a_scan_by_several_ops_runs_in_order_on_a_gpu(tmp_path: Path) -> None:
    text = running_text("f32", "add", (40, 30, 1), 1).replace("ROOT r = f32[] add(a, b) }", LOGADDEXP)
    x = np.random.default_rng(0).standard_normal((40, 30, 1)).astype(np.float32)
    case = running.case_of(fused_form(parse(text).entry.root), [x, np.array(1, np.float32)], "cuda")
    assert case.spec.source.count("log1p") == 1
    if running.has_emulator():
        (run,) = running.run_emulated([case], tmp_path)
        assert not run.error
        assert running.problem(run.outputs, case, 1e-5) is None


def test_a_program_with_a_scan_is_one_kernel_on_a_gpu() -> None:
    plain = running_text("f32", "add", (2, 100, 1), 1)
    for text in (plain, plain.replace("ROOT r = f32[] add(a, b) }", LOGADDEXP)):
        assert [k.kind for k in compile_hlo(text, backend="cuda").kernels] == ["scan"]


# ---- with what is computed before and after


def with_neighbours(op: str, dims: tuple[int, int, int], axis: int, reverse: bool) -> HloComputation:
    """Return a cumulative reduction of a computed array, with two outputs, one of which is transposed."""
    n, shape = dims[axis], f"f32[{','.join(map(str, dims))}]"
    turned = f"f32[{','.join(map(str, dims[::-1]))}]"
    size = "x".join(str(n if d == axis else 1) for d in range(3))
    edge = f"0_{n - 1}" if reverse else f"{n - 1}_0"
    padding = "x".join(edge if d == axis else "0_0" for d in range(3))
    return running.fused(
        f"""
        p0 = {shape} parameter(0)
        p1 = f32[{dims[1]}] parameter(1)
        p2 = {shape} parameter(2)
        zero = f32[] constant(0)
        b = {shape} broadcast(p1), dimensions={{1}}
        x = {shape} multiply(p0, b)
        s = {shape} reduce-window(x, zero), window={{size={size} pad={padding}}}, to_apply=f
        r = {shape} add(s, p2)
        d = {shape} subtract(r, x)
        t = {turned} transpose(d), dimensions={{2,1,0}}
        ROOT both = ({shape}, {turned}) tuple(r, t)
        """,
        f"f {{ a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT r = f32[] {op}(a, b) }}",
    )


def neighbour_cases(language: str) -> list[running.Case]:
    rng, cases = np.random.default_rng(6), []
    for number, (dims, axis) in enumerate(DIMENSIONS):
        # The last function has no tracks: it is not known to be associative.
        op = ("add", "maximum", "subtract")[number % 3]
        computation = with_neighbours(op, dims, axis, reverse=op != "subtract" and number % 2 == 1)
        arguments = [rng.integers(-4, 5, s.dimensions).astype(np.float32) for s in computation.parameter_shapes]
        cases.append(running.case_of(computation, arguments, language))
    return cases


def test_what_is_computed_before_and_after_is_in_the_kernel() -> None:
    cases = neighbour_cases("c")
    for case, got in zip(cases, running.run_c(cases), strict=True):
        assert case.spec.kind == "scan"
        assert running.problem(got, case) is None, case.spec.signature


@pytest.mark.skipif(not running.has_emulator(), reason="the emulator needs g++")
def test_it_is_in_the_kernel_of_a_gpu_too(tmp_path: Path) -> None:
    cases = neighbour_cases("cuda")
    for case, run in zip(cases, running.run_emulated(cases, tmp_path), strict=True):
        assert run.error == ""
        assert running.problem(run.outputs, case) is None, case.spec.signature


def test_rows_that_advance_together_are_gathered_by_indices_of_their_own() -> None:
    text = """
    HloModule m
    add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
    f {
      table = f32[9,256] parameter(0)
      at = s32[20,1] parameter(1)
      zero = f32[] constant(0)
      rows = f32[20,256] gather(table, at), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0},
        index_vector_dim=1, slice_sizes={1,256}
      ROOT s = f32[20,256] reduce-window(rows, zero), window={size=1x256 pad=0_0x255_0}, to_apply=add
    }
    ENTRY main {
      table = f32[9,256] parameter(0)
      at = s32[20,1] parameter(1)
      ROOT y = f32[20,256] fusion(table, at), kind=kLoop, calls=f
    }
    """
    rng = np.random.default_rng(3)
    table, at = rng.integers(0, 9, (9, 256)).astype(np.float32), rng.integers(0, 9, (20, 1)).astype(np.int32)
    (found,) = compile_hlo(text, backend="cpu", policy="none")(table, at)
    np.testing.assert_array_equal(found, np.cumsum(table[at[:, 0]], axis=1))
