"""Sorts rewritten as comparisons of all pairs."""

import numpy as np
import pytest

from compiler.api import compile as compile_hlo
from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.ir.verifier import check_module
from compiler.passes.infrastructure.registry import make_pass
from compiler.runtime.thunks import HostThunk
from compiler.text import parse
from tests.sweeps.case import Case, difference
from tests.sweeps.corner_cases import cases as corner_cases
from tests.sweeps.movement_cases import cases

SHORT = 2000
CASES = [c for c in (*cases(), *corner_cases()) if c.opcode == "sort"]
PAIRS = """HloModule pairs
%before (a: f32[], b: f32[], n: s32[], m: s32[]) -> pred[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  %n = s32[] parameter(2)
  %m = s32[] parameter(3)
  ROOT %c = pred[] compare(%a, %b), direction=GT, type=TOTALORDER
}
ENTRY %main (x: f32[3,5,4], n: s32[3,5,4]) -> (f32[3,5,4], s32[3,5,4]) {
  %x = f32[3,5,4] parameter(0)
  %n = s32[3,5,4] parameter(1)
  ROOT %s = (f32[3,5,4], s32[3,5,4]) sort(%x, %n), dimensions={1}, is_stable=true, to_apply=%before
}"""


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.element_type} {c.name}")
def test_every_sort(case: Case) -> None:
    module = parse(case.text)
    want = evaluate(module, list(case.args))
    made = make_pass(f"sort-by-rank{{max_length={SHORT}}}").run(module)
    assert check_module(module) == []
    assert difference(evaluate(module, list(case.args)), want, None) is None
    assert made == all(i.opcode is not Opcode.SORT for i in module.entry.instructions)


def test_rows_in_the_middle_are_sorted_with_their_companions() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 3, (3, 5, 4)).astype(np.float32)
    n = np.arange(60, dtype=np.int32).reshape(3, 5, 4)
    module = parse(PAIRS)
    assert make_pass("sort-by-rank").run(module)
    values, numbers = evaluate(module, [x, n])
    order = np.argsort(-x, axis=1, kind="stable")
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, 1))
    np.testing.assert_array_equal(numbers, np.take_along_axis(n, order, 1))


def test_a_gpu_computes_a_sort_and_a_cpu_keeps_it() -> None:
    assert not [t for t in compile_hlo(PAIRS, backend="cuda").thunks if isinstance(t, HostThunk)]
    assert [k.kind for k in compile_hlo(PAIRS, backend="cpu", pipeline=[]).kernels] == ["sort"]


def test_numbers_compared_by_size_keep_their_sort() -> None:
    # NaN is neither before nor after any number, so that ranks would not be a permutation.
    module = parse(PAIRS.replace(", type=TOTALORDER", ""))
    assert not make_pass("sort-by-rank").run(module)
