"""Kernels of matrix products: random sizes, layouts, types, prologues and epilogues against the interpreter."""

import random

import numpy as np
import pytest

from compiler.codegen.lowering.lower import lower
from compiler.codegen.schedules.bind_c import bind_c
from compiler.codegen.schedules.schedule import Schedule
from compiler.codegen.schedules.template_schedules import ProductSchedule
from tests.codegen.products import random_product
from tests.codegen.running import case_of, fused, problem, random_args, run_c

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


@pytest.mark.parametrize("t", ["f32", "f64"])
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
        args[1][-1, -1] = np.inf
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
