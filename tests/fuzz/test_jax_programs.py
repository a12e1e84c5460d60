"""Native code and the interpreter agree on random JAX programs, and the comparison detects differences."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from compiler.interpreter import evaluate
from compiler.text import parse
from tests.fuzz import everywhere, sizes
from tests.fuzz.everywhere import FAULTS
from tests.fuzz.jax_composer import PIECES, Composer, Piece
from tests.fuzz.jax_functions import random_program
from tests.fuzz.known import KNOWN
from tests.fuzz.uncertainty import Judge


def faults(numbers: range, xla: bool) -> list[everywhere.Outcome]:
    found = everywhere.run("jax", numbers, 1, xla)
    return [o for o in found if o.result in FAULTS and ("jax", o.number) not in KNOWN]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("start", [200_000, 200_030])
def test_a_few_programs(start: int) -> None:
    assert faults(range(start, start + 30), xla=False) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("start", range(300_000, 301_000, 100))
def test_many_programs(start: int) -> None:
    assert faults(range(start, start + 100), xla=True) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_conformance_case_runs_or_is_rejected() -> None:
    assert [o for o in everywhere.run("cases", range(0, 6500, 5), 1, xla=False) if o.result in FAULTS] == []


def test_the_same_number_makes_the_same_program() -> None:
    for number in (200_000, 200_001):
        one, two = random_program(number), random_program(number)
        assert one.text() == two.text()
        assert [a.tobytes() for a in one.leaves()] == [a.tobytes() for a in two.leaves()]


SHAPES = ((17, 5), (5, 33), (33,), (5, 17, 3), (8, 8))


@pytest.mark.parametrize("piece", PIECES, ids=lambda p: p.__name__)
def test_every_piece_applies_to_some_program(piece: Piece) -> None:
    def fits(seed: int) -> bool:
        def function(a: Any, b: Any, c: Any) -> Any:
            return piece(Composer(np.random.default_rng(seed), [a, b, c], (5, 17, 33)))

        first = jnp.ones(SHAPES[seed % 5], jnp.float32)
        try:
            return jax.eval_shape(function, first, jnp.arange(17), jnp.arange(5) > 2) is not None
        except (TypeError, ValueError, IndexError):
            return False

    assert any(fits(seed) for seed in range(60))


# ---- sizes


def test_sizes_are_of_all_kinds_and_bounded() -> None:
    rng = np.random.default_rng(0)
    drawn = [sizes.dimensions(rng, int(rng.integers(1, 5)), 4000) for _ in range(3000)]
    assert max(int(np.prod(d)) for d in drawn) <= 4000
    flat = [n for d in drawn for n in d]
    for group in ((0,), (1,), sizes.SMALL, sizes.LONG, sizes.HUNDREDS):
        assert set(group) & set(flat)
    assert sum(max(d) > 16 and 1 in d for d in drawn) > 100


def test_with_units_keeps_the_number_of_elements() -> None:
    rng = np.random.default_rng(1)
    moved = {sizes.with_units(rng, (1, 64)) for _ in range(100)}
    assert {(64,), (1, 64), (64, 1)} <= moved
    assert {int(np.prod(d)) for d in moved} == {64}


# ---- comparison

CANCELLING = """
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY e { x = f32[64,300] parameter(0) y = f32[64,300] parameter(1) zero = f32[] constant(0)
  big = f32[] constant(1e6) c = f32[64,300] broadcast(big), dimensions={}
  shifted = f32[64,300] add(x, c) back = f32[64,300] subtract(shifted, c)
  s = f32[64] reduce(x, zero), dimensions={1}, to_apply=add
  n = s32[64,300] convert(y) ROOT t = (f32[64,300], f32[64], s32[64,300]) tuple(back, s, n) }
"""


def judged(change: Any) -> Any:
    """Return the difference that a judge finds after results were changed."""
    module = parse(CANCELLING)
    rng = np.random.default_rng(0)
    args = [rng.normal(size=(64, 300)).astype(np.float32) * s for s in (1, 50)]
    results = evaluate(module, args)
    changed = [r.copy() for r in results]
    change(changed, args)
    return Judge(module, args, results).difference(changed)


def test_rounding_differences_are_accepted() -> None:
    def other_order(results: Any, args: Any) -> None:
        results[0][...] = args[0]  # the result of the cancellation without rounding
        results[1][...] = np.add.accumulate(args[0], axis=1, dtype=np.float32)[:, -1]

    assert judged(other_order) is None


@pytest.mark.parametrize("wrong", [(0, 3.0), (1, 1e-3), (2, 1)], ids=["cancelled", "sum", "integer"])
def test_a_wrong_element_is_detected(wrong: tuple[int, float]) -> None:
    output, by = wrong

    def one_element(results: Any, args: Any) -> None:
        results[output].reshape(-1)[7] += np.asarray(by, results[output].dtype)

    finding = judged(one_element)
    assert finding is not None
    assert finding.output == output
    assert finding.count == 1


def test_a_nan_and_a_missing_result_are_detected() -> None:
    def not_a_number(results: Any, args: Any) -> None:
        results[1][3] = np.nan

    assert judged(not_a_number) is not None
    assert judged(lambda results, args: results.pop()) is not None
