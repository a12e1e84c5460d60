"""References accept what rounding explains, reject what it does not, and know when outputs show nothing."""

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from compiler.text import parse
from env.reference import Reference, drawn_reference, fresh_outputs, unchecked_outputs

Array = npt.NDArray[Any]
RNG = np.random.default_rng(1)
SUM = "sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }"


def reference(body: str, *args: Array, computations: str = "") -> Reference:
    return Reference.of(parse(f"HloModule m\n{computations}\nENTRY e {{\n{body}\n}}"), args)


def normal(*dims: int) -> Array:
    return RNG.normal(size=dims).astype(np.float32)


# ---- what rounding explains


def test_sums_in_another_order_are_right() -> None:
    a, b = normal(300, 500), normal(500, 300)
    wanted = reference(
        "a = f32[300,500] parameter(0)\nb = f32[500,300] parameter(1)\n"
        "ROOT d = f32[300,300] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        a, b,
    )  # fmt: skip
    in_order = np.zeros((300, 300), np.float32)
    for k in range(500):
        in_order += a[:, k : k + 1] * b[k : k + 1]
    smallest = np.unravel_index(np.argmin(np.abs(in_order)), in_order.shape)
    assert abs(in_order[smallest] / wanted.outputs[0][smallest] - 1) > 1e-4  # a term of this size would be missed
    assert wanted.difference([in_order]) is None
    for factor in (0.0, 1.01, -1.0):
        wrong = in_order.copy()
        wrong[17, 5] *= np.float32(factor)
        assert wanted.difference([wrong]) is not None
    dropped = in_order - a[:, :1] * b[:1]
    assert wanted.difference([dropped]) is not None


def test_a_long_sum_may_be_added_up_one_by_one() -> None:
    # One in sixty sums exceeds the allowance, which is that of usual rounding errors; these numbers are the same.
    x = np.abs(np.random.default_rng(3).normal(size=1 << 18).astype(np.float32)) + np.float32(0.1)
    wanted = reference(
        "x = f32[262144] parameter(0)\nz = f32[] constant(0)\n"
        "ROOT r = f32[] reduce(x, z), dimensions={0}, to_apply=sum",
        x, computations=SUM,
    )  # fmt: skip
    one_by_one = np.add.accumulate(x)[-1]
    assert one_by_one != wanted.outputs[0]
    assert wanted.difference([one_by_one]) is None
    assert wanted.difference([np.asarray(one_by_one * np.float32(1.001))]) is not None


def test_masked_elements_do_not_widen_the_allowance_of_others() -> None:
    x, bias = normal(64, 64), np.where(RNG.random((64, 64)) < 0.95, np.float32(-1e9), np.float32(0))
    wanted = reference(
        "x = f32[64,64] parameter(0)\nb = f32[64,64] parameter(1)\ns = f32[64,64] multiply(x, x)\n"
        "ROOT r = f32[64,64] add(s, b)",
        x, bias,
    )  # fmt: skip
    at = np.flatnonzero(bias == 0)[3]
    wrong = wanted.outputs[0].copy()
    wrong.reshape(-1)[at] += np.float32(1e-3)
    found = wanted.difference([wrong])
    assert found is not None
    assert found.startswith("output 0: 1 of 4096")


@pytest.mark.parametrize(("name", "dtype"), [("bf16", ml_dtypes.bfloat16), ("f16", np.float16)])
def test_intermediate_results_may_stay_unrounded(name: str, dtype: type) -> None:
    x: Array = normal(500).astype(dtype)
    wanted = reference(
        f"x = {name}[500] parameter(0)\nm = {name}[500] multiply(x, x)\ns = {name}[500] sine(m)\n"
        f"a = {name}[500] subtract(s, m)\nt = {name}[500] tanh(a)\nw = f32[500] convert(t)\n"
        f"ROOT r = ({name}[500], f32[500]) tuple(t, w)",
        x,
    )  # fmt: skip
    wide = x.astype(np.float32)
    wide = np.tanh(np.sin(wide * wide) - wide * wide)
    assert wanted.difference([wide.astype(dtype), wide.astype(dtype).astype(np.float32)]) is None
    assert wanted.difference([wide.astype(dtype), wide]) is None
    assert wanted.difference([wide.astype(dtype), np.where(np.abs(wide) < 0.1, np.float32(0), wide)]) is not None


def test_moved_values_must_not_change() -> None:
    x = normal(20, 30).astype(ml_dtypes.bfloat16)
    wanted = reference("x = bf16[20,30] parameter(0)\nROOT t = bf16[30,20] transpose(x), dimensions={1,0}", x)
    assert not any(s.allowance.any() for s in wanted.spread(3))
    assert wanted.difference([np.ascontiguousarray(x.T)]) is None
    assert wanted.difference([x.reshape(30, 20)]) is not None


def test_only_decisions_on_the_edge_may_go_either_way() -> None:
    x = np.linspace(0.5, 1.5, 4001).astype(np.float32)
    wanted = reference(
        "x = f32[4001] parameter(0)\ns = f32[4001] sine(x)\nm = f32[4001] multiply(s, x)\n"
        "c = f32[] constant(0.84147098)\nb = f32[4001] broadcast(c), dimensions={}\n"
        "ROOT p = pred[4001] compare(m, b), direction=GT",
        x,
    )  # fmt: skip
    edge = int(np.argmax(wanted.outputs[0]))
    for at, right in ((edge, True), (edge + 40, False), (edge - 40, False)):
        flipped = wanted.outputs[0].copy()
        flipped[at] ^= True
        assert (wanted.difference([flipped]) is None) == right


def test_counts_and_integers_are_exact() -> None:
    x = RNG.integers(0, 2, 5000).astype(np.float32)
    wanted = reference(
        "x = f32[5000] parameter(0)\nz = f32[] constant(0)\nn = f32[] reduce(x, z), dimensions={0}, to_apply=sum\n"
        "ROOT i = s32[] convert(n)",
        x, computations=SUM,
    )  # fmt: skip
    assert wanted.difference([wanted.outputs[0]]) is None
    assert wanted.difference([wanted.outputs[0] + np.int32(1)]) is not None


LOOP = """
body { x = f32[8] parameter(0) half = f32[] constant(0.7) h = f32[8] broadcast(half), dimensions={} c = f32[8] cosine(x)
  ROOT y = f32[8] multiply(c, h) }
condition { x = f32[8] parameter(0) half = f32[] constant(0.7) h = f32[8] broadcast(half), dimensions={}
  c = f32[8] cosine(x) y = f32[8] multiply(c, h) n = pred[8] compare(x, y), direction=NE f = pred[] constant(false)
  ROOT r = pred[] reduce(n, f), dimensions={0}, to_apply=any }
any { a = pred[] parameter(0) b = pred[] parameter(1) ROOT r = pred[] or(a, b) }"""


def test_a_loop_that_does_not_end_with_rounding_errors_is_stopped() -> None:
    wanted = reference(
        "x = f32[8] parameter(0)\nROOT w = f32[8] while(x), condition=condition, body=body",
        normal(8),
        computations=LOOP,
    )
    wrong = wanted.outputs[0] * np.float32(1.01)
    assert wanted.difference([wrong]) is not None


def test_results_of_linear_algebra_libraries_are_compared_by_their_condition() -> None:
    a = normal(20, 20)
    positive = (a @ a.T + np.eye(20, dtype=np.float32)).astype(np.float32)
    wanted = reference("a = f32[20,20] parameter(0)\nROOT c = f32[20,20] cholesky(a), lower=true", positive)
    exact = np.linalg.cholesky(positive.astype(np.float64)).astype(np.float32)
    assert wanted.difference([exact]) is None
    assert wanted.difference([exact * np.float32(1.001)]) is not None


class Unfinished:
    """Leaves its last element as memory has it, and keeps its results until it has new ones."""

    def __init__(self) -> None:
        self.results: list[Array] = []

    def __call__(self, x: Array) -> list[Array]:
        out = np.empty(x.shape, x.dtype)
        np.negative(x[:-1], out=out[:-1])
        self.results = [out]
        return self.results


@pytest.mark.parametrize("size", [8, 20_000])
def test_leftover_memory_does_not_pass_for_an_output(size: int) -> None:
    x = normal(size)
    wanted = reference(f"x = f32[{size}] parameter(0)\nROOT n = f32[{size}] negate(x)", x)
    right = [-x for _ in range(20)]
    del right  # the next arrays of this size are most likely these again
    assert wanted.difference(fresh_outputs(Unfinished(), wanted)) is not None


# ---- references that say nothing

POSITIVE = "x = f32[8] parameter(0)\nn = f32[8] negate(x)\na = f32[8] abs(n)\nm = f32[8] negate(a)\n"


def drawn(body: str, draw: Callable[[int], Sequence[Array]]) -> Reference:
    return drawn_reference(parse(f"HloModule m\nENTRY e {{\n{body}\n}}"), draw)


def draws(number: int) -> list[Array]:
    return [np.random.default_rng(number).normal(size=8).astype(np.float32)]


def test_an_output_that_is_nan_everywhere_is_unchecked() -> None:
    reason = drawn(POSITIVE + "l = f32[8] log(m)\nROOT t = (f32[8], f32[8]) tuple(x, l)", draws).unchecked
    assert reason is not None
    assert reason.startswith("output 1 is NaN everywhere, so that nothing can be checked; give input specs")


def test_an_output_with_some_numbers_is_checked() -> None:
    assert drawn("x = f32[8] parameter(0)\nROOT l = f32[8] log(x)", draws).unchecked is None


def test_constant_infinities_are_checked() -> None:
    body = "x = f32[8] parameter(0)\nc = f32[] constant(-inf)\nb = f32[3] broadcast(c), dimensions={}\n"
    assert drawn(body + "ROOT t = (f32[8], f32[3]) tuple(x, b)", draws).unchecked is None


def test_outputs_that_are_always_zero_are_unchecked() -> None:
    zero = POSITIVE + "z = f32[] constant(0)\nb = f32[8] broadcast(z), dimensions={}\nr = f32[8] maximum(m, b)\n"
    reason = drawn(zero + "ROOT t = (f32[8]) tuple(r)", draws).unchecked
    assert reason is not None
    assert reason.startswith("the outputs are zero whatever is drawn, so that nothing can be checked; give input specs")
    assert drawn(zero + "ROOT t = (f32[8], f32[8]) tuple(r, x)", draws).unchecked is None


def test_outputs_that_happen_to_be_zero_are_checked() -> None:
    body = "x = f32[8] parameter(0)\nz = f32[] constant(0)\nb = f32[8] broadcast(z), dimensions={}\n"
    inputs = [np.zeros(8, np.float32), np.zeros(8, np.float32), np.ones(8, np.float32)]
    assert drawn(body + "ROOT r = f32[8] maximum(x, b)", lambda number: [inputs[number]]).unchecked is None


def test_programs_without_arguments_and_empty_outputs_are_checked() -> None:
    assert drawn("ROOT i = f32[1] constant({2})", lambda number: []).unchecked is None
    assert (
        drawn("x = f32[0] parameter(0)\nROOT a = f32[0] abs(x)", lambda n: [np.zeros(0, np.float32)]).unchecked is None
    )


def test_every_output_without_a_finite_number_is_reported() -> None:
    module = parse(
        f"HloModule m\nENTRY e {{\n{POSITIVE}l = f32[8] log(m)\ni = f32[8] divide(x, a)\nz = f32[8] subtract(x, x)\n"
        "d = f32[8] divide(a, z)\nROOT t = (f32[8], f32[8], f32[8]) tuple(l, i, d)\n}"
    )
    unchecked = unchecked_outputs(module, Reference.of(module, draws(0)).outputs)
    assert unchecked == ["output 0 is NaN everywhere", "output 2 is infinite everywhere"]
