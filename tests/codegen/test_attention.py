"""Attention kernels: random sizes, layouts and masks, masked rows, infinities and NaN, against the interpreter."""

import random

import numpy as np
import pytest

from compiler.codegen.lowering.lower import lower
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.traversal import walk
from compiler.codegen.schedules.schedule import Schedule
from compiler.codegen.schedules.template_schedules import AttentionSchedule
from tests.codegen.attentions import AttentionForm, random_attention
from tests.codegen.running import case_of, problem, random_args, run_c


@pytest.mark.parametrize(
    "schedule",
    [
        None, Schedule(vector=256), Schedule(attention=AttentionSchedule(4, queries=16, keys=8)),
        Schedule(attention=AttentionSchedule(28, queries=256, keys=104), vector=256),
    ],
)  # fmt: skip
def test_random_attention(schedule: Schedule | None) -> None:
    rng = np.random.default_rng(11)
    forms = [random_attention(random.Random(seed)) for seed in range(100, 125)]
    computations = [f.computation() for f in forms]
    cases = [case_of(c, random_args(c.parameter_shapes, rng), "c", schedule) for c in computations]

    results = run_c(cases)

    for form, case, result in zip(forms, cases, results, strict=True):
        assert case.spec.kind == "attention"
        assert problem(result, case) is None, form


@pytest.mark.parametrize("mask", ["lower", "causal added", "given", "window"])
@pytest.mark.parametrize(("zero_if_masked", "tests_all"), [(False, False), (True, False), (True, True)])
def test_masked_rows(mask: str, zero_if_masked: bool, tests_all: bool) -> None:
    """A row without any visible key is NaN, or 0 where the program asks for it."""
    form = AttentionForm([2], 70, 130, 16, 8, mask, zero_if_masked=zero_if_masked, tests_all=tests_all)
    computation = form.computation()
    args = random_args(computation.parameter_shapes, np.random.default_rng(1))
    if mask == "given":
        args[3][:] = False
        args[3][5:60, 100:] = True
    case = case_of(computation, args, "c")

    (result,) = run_c([case])

    assert problem(result, case) is None
    if mask == "given":
        rows = result[0][:, 0]
        assert (rows == 0).all() if zero_if_masked else np.isnan(rows).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("operand", [0, 1, 2])
def test_special_values(value: float, operand: int) -> None:
    form = AttentionForm([2], 40, 150, 16, 8, "none")
    computation = form.computation()
    args = random_args(computation.parameter_shapes, np.random.default_rng(operand))
    args[operand].reshape(-1)[100] = value
    case = case_of(computation, args, "c")

    (result,) = run_c([case])

    assert problem(result, case) is None
    assert not np.isfinite(result[0]).all()


@pytest.mark.parametrize("queries", [200, 72])
def test_blocks_of_queries_that_end_at_a_vector_but_not_at_a_block(queries: int) -> None:
    """The last block has fewer queries, a multiple of eight: several loops in one scope count them."""
    computation = AttentionForm([2], queries, 200, 64, 64, "causal -1e9").computation()
    args = random_args(computation.parameter_shapes, np.random.default_rng(3))
    case = case_of(computation, args, "c", Schedule(attention=AttentionSchedule(14, queries=64, keys=50)))

    (result,) = run_c([case])

    assert problem(result, case) is None


def test_scores_that_grow_along_the_keys() -> None:
    """Each block of keys raises the maximum, so that all earlier sums decay."""
    form = AttentionForm([], 20, 400, 4, 4, "none")
    computation = form.computation()
    args = random_args(computation.parameter_shapes, np.random.default_rng(2))
    args[1] *= np.linspace(0, 60, 400, dtype=np.float32)[:, None] if args[1].shape[0] == 400 else 1
    case = case_of(computation, args, "c")

    (result,) = run_c([case])

    assert problem(result, case, rtol=1e-4) is None


def test_blocks_above_the_diagonal_are_skipped() -> None:
    with_mask = lower(AttentionForm([2], 256, 256, 16, 16, "causal -inf").computation())
    without = lower(AttentionForm([2], 256, 256, 16, 16, "given").computation())

    assert any(isinstance(s, lir.If) for s in walk(with_mask.body))
    assert not any(isinstance(s, lir.If) for s in walk(without.body))
