"""Kernels of matrix products: random sizes, layouts, types, prologues and epilogues against the interpreter."""

import random

import numpy as np
import pytest

from compiler import compile, parse
from compiler.backends.cpu import toolchain
from compiler.backends.cpu.disassembly import machine_code, why_unreadable
from compiler.codegen.lowering.lower import lower
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.traversal import walk
from compiler.codegen.schedules.bind_c import bind_c
from compiler.codegen.schedules.schedule import Schedule
from compiler.codegen.schedules.template_schedules import ProductSchedule
from compiler.interpreter import evaluate
from compiler.ir.computation import HloComputation
from tests.codegen.products import random_product
from tests.codegen.running import case_of, fused, problem, processor_has, random_args, run_c

SMALL_BLOCKS = ProductSchedule(4, row_block=8, column_block=16, shared_rows=16, tasks=64, task_products=4096)
LARGE_BLOCKS = ProductSchedule(28, row_block=104, column_block=208, shared_rows=4096, tasks=1)


@pytest.mark.parametrize(
    "schedule",
    [
        None, Schedule(vector=256), Schedule(threads=0), Schedule(product=SMALL_BLOCKS),
        Schedule(product=LARGE_BLOCKS, vector=256, flags=1),
    ],
)  # fmt: skip
def test_random_products(schedule: Schedule | None) -> None:
    rng = np.random.default_rng(7)
    computations = [random_product(random.Random(seed)) for seed in range(40)]
    cases = [case_of(c, random_args(c.parameter_shapes, rng), "c", schedule) for c in computations]

    results = run_c(cases)

    for computation, case, result in zip(computations, cases, results, strict=True):
        assert problem(result, case) is None, str(computation.root)


@pytest.mark.parametrize("t", ["s32", "u32", "s64", "u64"])
def test_products_of_integers_run_in_kernels_and_wrap_around(t: str) -> None:
    module = parse(f"""HloModule m
        ENTRY e {{ x = {t}[3,40,70] parameter(0)
          y = {t}[3,30,70] parameter(1)
          d = {t}[3,40,30] dot(x, y), lhs_batch_dims={{0}}, rhs_batch_dims={{0}},
            lhs_contracting_dims={{2}}, rhs_contracting_dims={{2}}
          ROOT n = {t}[3,40,30] multiply(d, d) }}""")
    exe = compile(module)
    assert [k.kind for k in exe.kernels] == ["product"]
    rng = np.random.default_rng(2)
    limits = [np.iinfo(s.dtype) for s in module.parameter_shapes]
    arguments = [
        rng.integers(i.min, i.max, s.dimensions, s.dtype) for i, s in zip(limits, module.parameter_shapes, strict=True)
    ]
    np.testing.assert_array_equal(exe(*arguments)[0], evaluate(module, arguments)[0])


def test_nan_and_infinity_stay_in_their_rows() -> None:
    """Masked columns and unfinished tiles must not spread what they read past the end of a row."""
    computation = fused("""
        p0 = f32[19,21] parameter(0)
        p1 = f32[21,37] parameter(1)
        ROOT d = f32[19,37] dot(p0, p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    """)
    rng = np.random.default_rng(3)
    a, b = random_args(computation.parameter_shapes, rng)
    a[4, 2], b[20, 36] = np.nan, np.inf
    case = case_of(computation, [a, b], "c")

    (result,) = run_c([case])

    assert problem(result, case) is None
    assert np.isnan(result[0][4]).all()
    assert np.isfinite(np.delete(result[0], 4, axis=0)[:, :36]).all()


def test_a_product_of_bfloat16_is_rounded_once() -> None:
    computation = fused("""
        p0 = bf16[8,300] parameter(0)
        p1 = bf16[300,8] parameter(1)
        ROOT d = bf16[8,8] dot(p0, p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    """)
    args = random_args(computation.parameter_shapes, np.random.default_rng(5))
    wanted = (args[0].astype(np.float64) @ args[1].astype(np.float64)).astype(args[0].dtype)

    ((result,),) = run_c([case_of(computation, args, "c")])

    assert np.mean(result == wanted) > 0.95


@pytest.mark.parametrize("t", ["f32", "f64", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("vector", [256, 512])
def test_columns_that_do_not_fill_a_vector(t: str, vector: int) -> None:
    """Every rest of a vector is loaded without what follows it, up to the last element of the array."""
    rng = np.random.default_rng(11)
    cases = []
    for columns in range(1, 18):
        computation = fused(f"""
            p0 = {t}[9,5] parameter(0)
            p1 = {t}[5,{columns}] parameter(1)
            ROOT d = {t}[9,{columns}] dot(p0, p1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
        """)
        args = random_args(computation.parameter_shapes, rng)
        is_float = np.issubdtype(args[1].dtype, np.floating)
        args[1][-1, -1] = np.inf if is_float else np.iinfo(args[1].dtype).max  # products of integers wrap around
        cases.append(case_of(computation, args, "c", Schedule(vector=vector)))

    for case, result in zip(cases, run_c(cases), strict=True):
        assert problem(result, case) is None


def test_a_product_without_other_loops_has_the_vectors_of_its_schedule() -> None:
    computation = fused("""
        p0 = f32[8,16] parameter(0)
        p1 = f32[16,32] parameter(1)
        ROOT d = f32[8,32] dot(p0, p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    """)
    kernel = lower(computation)

    widths = [bind_c(kernel, Schedule(vector=bits)).vector_bits for bits in (0, 256, 512)]

    assert widths == [0, 256, 512]


@pytest.mark.parametrize(
    ("t", "lhs", "rhs", "out", "dims"),
    [
        ("f32", "70,33", "33", "70", "lhs_contracting_dims={1}, rhs_contracting_dims={0}"),
        ("f32", "33", "33,70", "70", "lhs_contracting_dims={0}, rhs_contracting_dims={0}"),
        ("f64", "33", "70,33", "70", "lhs_contracting_dims={0}, rhs_contracting_dims={1}"),
        ("f32", "1,33", "33,70", "1,70", "lhs_contracting_dims={1}, rhs_contracting_dims={0}"),
        ("f32", "5,70,33", "5,33", "5,70",
         "lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}"),
        ("f32", "4,70,3", "3,4", "70", "lhs_contracting_dims={0,2}, rhs_contracting_dims={1,0}"),
    ],
)  # fmt: skip
def test_products_with_vectors_are_sums(t: str, lhs: str, rhs: str, out: str, dims: str) -> None:
    computation = fused(f"""
        a = {t}[{lhs}] parameter(0)
        b = {t}[{rhs}] parameter(1)
        c = {t}[{out}] parameter(2)
        n = {t}[{rhs}] negate(b)
        d = {t}[{out}] dot(a, n), {dims}
        ROOT e = {t}[{out}] add(d, c)
    """)
    case = case_of(computation, random_args(computation.parameter_shapes, np.random.default_rng(1)), "c")

    (result,) = run_c([case])

    assert problem(result, case) is None
    assert "panel" not in case.spec.source  # nothing is packed


@pytest.mark.skipif(
    why_unreadable() is not None or not processor_has("fma"), reason="needs objdump and instructions of AVX2"
)
def test_tiles_of_few_rows_load_each_vector_of_the_rhs_once() -> None:
    exe = compile(
        parse("""HloModule m
        ENTRY e { x = f32[4,64] parameter(0)
          y = f32[64,32] parameter(1)
          d = f32[4,32] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
          ROOT n = f32[4,32] negate(d) }"""),
        "cpu",
    )
    (kernel,) = exe.kernels
    code = machine_code(toolchain.each_object([kernel], toolchain.toolchain()))[kernel.symbol]

    multiply = [i for function in code for i in function if i.mnemonic.startswith("vfmadd") and "mm" in i.operands]

    assert multiply
    rhs = [i for i in multiply if "(" in i.operands and "{1to" not in i.operands]
    assert not rhs


def test_long_chains_after_a_product_run_in_stages() -> None:
    computation = fused("""
        a = f32[40,8] parameter(0)
        b = f32[8,128] parameter(1)
        d = f32[40,128] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        x = f32[40,128] tanh(d)
        y = f32[40,128] exponential(x)
        ROOT z = f32[40,128] tanh(y)
    """)
    case = case_of(computation, random_args(computation.parameter_shapes, np.random.default_rng(2)), "c")

    (result,) = run_c([case])

    assert problem(result, case) is None
    assert "_block[" in case.spec.source


@pytest.mark.parametrize("columns", [1, 3, 8, 20])
def test_what_follows_a_narrow_product(columns: int) -> None:
    computation = fused(f"""
        a = f32[2,64,30] parameter(0)
        b = f32[2,30,{columns}] parameter(1)
        d = f32[2,64,{columns}] dot(a, b), lhs_batch_dims={{0}}, lhs_contracting_dims={{2}},
            rhs_batch_dims={{0}}, rhs_contracting_dims={{1}}
        ROOT x = f32[2,64,{columns}] tanh(d)
    """)
    case = case_of(computation, random_args(computation.parameter_shapes, np.random.default_rng(4)), "c")

    (result,) = run_c([case])

    assert problem(result, case) is None


@pytest.mark.parametrize(
    ("t", "rows", "columns"), [("f32", 32, 90), ("f32", 32, 203), ("f64", 20, 90), ("f64", 16, 64)]
)
def test_sums_are_turned_before_an_epilogue_that_runs_across_them(t: str, rows: int, columns: int) -> None:
    """A layer whose weights are the rows of the product computes the transpose of what it yields."""
    computation = fused(f"""
        p0 = {t}[{rows},128] parameter(0)
        p1 = {t}[{columns},128] parameter(1)
        p2 = {t}[{columns}] parameter(2)
        d = {t}[{rows},{columns}] dot(p0, p1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
        bias = {t}[{rows},{columns}] broadcast(p2), dimensions={{1}}
        s = {t}[{rows},{columns}] add(d, bias)
        ROOT r = {t}[{rows},{columns}] tanh(s)
    """)
    case = case_of(computation, random_args(computation.parameter_shapes, np.random.default_rng(5)), "c")

    (result,) = run_c([case])

    assert "turned" in case.spec.source
    assert problem(result, case) is None


@pytest.mark.parametrize(
    ("t", "rows", "columns", "depth"),
    [("f32", 64, 1024, 256), ("f32", 37, 300, 259), ("f64", 21, 90, 100), ("bf16", 40, 70, 130), ("f32", 20, 500, 16)],
)
def test_operands_computed_along_the_depth_are_transposed_into_panels(
    t: str, rows: int, columns: int, depth: int
) -> None:
    """Products of both operands with a factor, whose elements are adjacent along the depth, as in a dense layer."""
    computation = fused(f"""
        p0 = {t}[{rows},{depth}] parameter(0)
        p1 = {t}[{rows},{depth}] parameter(1)
        p2 = {t}[{columns},{depth}] parameter(2)
        p3 = {t}[{columns}] parameter(3)
        x = {t}[{rows},{depth}] multiply(p0, p1)
        scale = {t}[{columns},{depth}] broadcast(p3), dimensions={{0}}
        w = {t}[{columns},{depth}] multiply(p2, scale)
        ROOT d = {t}[{rows},{columns}] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
    """)
    case = case_of(computation, random_args(computation.parameter_shapes, np.random.default_rng(6)), "c")

    (result,) = run_c([case])

    assert "rows" in {s.buffer[:4] for s in walk(_lowered(computation)) if isinstance(s, lir.TransposeTile)}
    assert problem(result, case) is None


@pytest.mark.parametrize(
    ("bias", "is_one"), [("p2 = f32[24] parameter(2)\nb = f32[4,7,7,24] broadcast(p2), dimensions={3}", True),
                         ("p2 = f32[7] parameter(2)\nb = f32[4,7,7,24] broadcast(p2), dimensions={2}", False)],
)  # fmt: skip
def test_short_free_dimensions_are_one_unless_that_takes_quotients(bias: str, is_one: bool) -> None:
    computation = fused(f"""
        p0 = f32[4,7,7,40] parameter(0)
        p1 = f32[24,40] parameter(1)
        d = f32[4,7,7,24] dot(p0, p1), lhs_contracting_dims={{3}}, rhs_contracting_dims={{1}}
        {bias}
        ROOT r = f32[4,7,7,24] add(d, b)
    """)
    case = case_of(computation, random_args(computation.parameter_shapes, np.random.default_rng(8)), "c")

    (result,) = run_c([case])

    (product,) = (s for s in walk(_lowered(computation)) if isinstance(s, lir.MatrixProduct))
    assert (product.rows.extent > 7) == is_one
    assert problem(result, case) is None


def test_sides_are_not_exchanged_if_each_task_would_pack_the_same_columns() -> None:
    """Whole vectors along the 128 rows save less than to pack them again for each of the parts of 100 columns costs."""
    computation = fused("""
        p0 = f32[128,1024] parameter(0)
        p1 = f32[1024,100] parameter(1)
        ROOT d = f32[128,100] dot(p0, p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    """)
    case = case_of(computation, random_args(computation.parameter_shapes, np.random.default_rng(9)), "c")

    (result,) = run_c([case])

    assert "panel" not in case.spec.source
    assert problem(result, case) is None


def _lowered(computation: HloComputation) -> lir.Body:
    return lower(computation).body
