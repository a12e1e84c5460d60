"""Sort kernels against the interpreter."""

import numpy as np
import pytest

from compiler.api import compile as compile_hlo
from compiler.interpreter import evaluate
from compiler.text import parse
from tests.sweeps.case import Case, difference
from tests.sweeps.corner_cases import cases as corner_cases
from tests.sweeps.movement_cases import cases

CASES = [c for c in (*cases(), *corner_cases()) if c.opcode == "sort"]


def kinds(text: str) -> list[str]:
    return [t.kind for t in compile_hlo(text, backend="cpu", pipeline=[]).kernels]


FAST = ("f32", "bf16", "s32", "pred", "u8")
EACH = [pytest.param(c, marks=() if c.element_type in FAST else pytest.mark.slow) for c in CASES]


@pytest.mark.parametrize("case", EACH, ids=lambda c: f"{c.element_type} {c.name}")
def test_every_sort_matches_the_interpreter(case: Case) -> None:
    made = compile_hlo(case.text, backend="cpu", pipeline=[])
    assert difference(made(*case.args), evaluate(parse(case.text), list(case.args)), None) is None


def test_most_types_have_a_sort_kernel() -> None:
    with_kernel = {c.element_type for c in CASES if "sort" in kinds(c.text)}
    assert {"f32", "f64", "s32", "u8", "bf16", "f16", "pred", "s64"} <= with_kernel


@pytest.mark.parametrize(("rows", "n", "inner"), [(1, 1000, 1), (7, 33, 1), (3, 64, 5), (1, 2, 9), (400, 100, 1)])
def test_payloads_follow_their_keys_and_equal_keys_stay_in_order(rows: int, n: int, inner: int) -> None:
    dims = f"[{rows},{n},{inner}]"
    text = (
        "HloModule m\nless { a = s32[] parameter(0) b = s32[] parameter(1) c = s32[] parameter(2) "
        "d = s32[] parameter(3) ROOT l = pred[] compare(a, b), direction=GT }\n"
        f"ENTRY e {{ k = s32{dims} parameter(0) i = s32{dims} iota(), iota_dimension=1\n"
        f"ROOT s = (s32{dims}, s32{dims}) sort(k, i), dimensions={{1}}, is_stable=true, to_apply=less }}"
    )
    keys = np.random.default_rng(n).integers(0, 9, (rows, n, inner)).astype(np.int32)
    got_keys, got_places = compile_hlo(text, backend="cpu")(keys)
    places = np.argsort(-keys, axis=1, kind="stable")
    np.testing.assert_array_equal(got_places, places)
    np.testing.assert_array_equal(got_keys, np.take_along_axis(keys, places, 1))
    assert "sort" in kinds(text)
