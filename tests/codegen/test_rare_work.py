"""Values that few positions select, computed for those positions alone, against the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from compiler.codegen.lowering.lower import lower
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.traversal import walk
from compiler.codegen.schedules import rare_analysis, rare_work
from compiler.codegen.schedules.bind_c import bind_c
from compiler.codegen.schedules.schedule import Schedule
from compiler.ir import HloComputation, HloInstruction, Opcode, PrimitiveType
from compiler.ir.shape import Shape, array_shape
from tests.codegen import running

T = PrimitiveType
Array = npt.NDArray[Any]

BLOCKS = Schedule(rare=1024)
EXPENSIVE = "\n".join(
    ["e0 = f32[{n}] multiply(x, x)"]
    + [f"e{k} = f32[{{n}}] {'sine' if k % 2 else 'tanh'}(e{k - 1})" for k in range(1, 13)]
)
ONE = f"""
x = f32[{{n}}] parameter(0)
m = pred[{{n}}] parameter(1)
{EXPENSIVE}
y = f32[{{n}}] negate(x)
"""


def flagged(text: str, schedule: Schedule = BLOCKS) -> int:
    """Return the number of loops over flagged positions in the C kernel of a computation."""
    kernel = bind_c(lower(running.fused(text)), schedule)
    return sum(isinstance(s, lir.ForFlagged) for s in walk(kernel.body))


def check(text: str, args: Sequence[Array], schedule: Schedule = BLOCKS) -> None:
    case = running.case_of(running.fused(text), args, "c", schedule)
    (found,) = running.run_c([case])
    assert running.problem(found, case) is None


def of_size(text: str, n: int) -> str:
    return text.replace("{n}", str(n))


STORED = ONE + "ROOT r = f32[{n}] select(m, e12, y)"
USED = ONE + "s = f32[{n}] select(m, e12, y) c = f32[{n}] cosine(x) ROOT r = f32[{n}] add(s, c)"
NEGATED = ONE + "not = pred[{n}] not(m) ROOT r = f32[{n}] select(not, y, e12)"
TWICE = (
    ONE
    + """
s = f32[{n}] select(m, e12, y)
t = f32[{n}] add(s, e11)
u = f32[{n}] select(m, t, x)
ROOT r = (f32[{n}], f32[{n}]) tuple(s, u)
"""
)


@pytest.mark.parametrize("text", [STORED, USED, NEGATED, TWICE], ids=["stored", "used", "negated", "twice"])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("n", [64, 300, 1024, 2500])
def test_each_form_of_select_matches_the_interpreter(text: str, share: float, n: int) -> None:
    rng = np.random.default_rng(n)
    x = rng.uniform(-2, 2, n).astype(np.float32)
    x[::7] = np.nan
    x[3::11] = np.inf
    mask = rng.random(n) < share
    assert flagged(of_size(text, n))
    check(of_size(text, n), [x, mask])


def test_positions_that_no_block_fills_keep_the_plain_loop() -> None:
    assert flagged(of_size(STORED, 2048)) == 1
    assert flagged(of_size(STORED, 2048 + 63)) == 1
    assert flagged(of_size(STORED, 2048 + 64)) == 2
    assert flagged(of_size(STORED, 63)) == 0


def test_the_schedule_decides() -> None:
    assert flagged(of_size(STORED, 2048), Schedule()) == 0
    assert flagged(of_size(STORED, 2048), Schedule(rare=64)) == 1
    assert flagged(of_size(STORED, 2048), Schedule(rare=1024, vector=0)) == 0


@pytest.mark.parametrize(
    "root",
    [
        "ROOT r = f32[{n}] select(m, x, y)",  # cheap operands
        "s = f32[{n}] select(m, e12, y) ROOT r = f32[{n}] add(s, e12)",  # needed everywhere
        "b = pred[{n}] compare(e12, x), direction=LT ROOT r = f32[{n}] select(b, e12, y)",  # decides the predicate
    ],
)
def test_values_that_are_cheap_or_needed_elsewhere_stay(root: str) -> None:
    assert flagged(of_size(ONE + root, 256)) == 0


def test_an_output_that_shares_the_buffer_of_an_input() -> None:
    fused = running.fused(of_size(STORED, 2048))
    case = running.case_of(fused, [np.linspace(-2, 2, 2048, dtype=np.float32), np.arange(2048) % 9 == 0], "c", BLOCKS)
    assert (0, 2) in case.spec.in_place
    shared = replace(case, spec=replace(case.spec, must_alias=((0, 2),)))
    (found,) = running.run_c([shared])
    assert running.problem(found, case) is None


# ---- random computations


class _Writer:
    """A writer of elementwise computations with many selects, of which several share a predicate."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.body = HloComputation("fused")
        self.dims: tuple[int, ...] = (int(rng.choice([64, 65, 130, 257, 600, 1500])),)
        if rng.random() < 0.3:
            self.dims = (int(rng.integers(1, 5)), *self.dims)
        self.values: dict[T, list[HloInstruction]] = {t: [] for t in (T.F32, T.F64, T.BF16, T.S32, T.U32, T.S8, T.PRED)}
        for t in self.values:
            for _ in range(2):
                self._keep(self.body.add_parameter(len(self.body.parameters), array_shape(t, *self.dims)))
        dim = len(self.dims) - 1
        self._keep(self.body.add(Opcode.IOTA, [], array_shape(T.U32, *self.dims), iota_dimension=dim))

    def _keep(self, i: HloInstruction) -> None:
        self.values[i.shape.element_type].append(i)

    def pick(self, t: T) -> HloInstruction:
        found = self.values[t]
        recent = self.rng.random() < 0.6
        return found[-1 - int(self.rng.integers(min(3, len(found))))] if recent else self.any(found)

    def any(self, found: Sequence[Any]) -> Any:
        return found[int(self.rng.integers(len(found)))]

    def step(self) -> None:
        t = self.any([T.F32, T.F32, T.F64, T.BF16, T.S32, T.U32, T.S8])
        a, b = self.pick(t), self.pick(t)
        kind = self.rng.random()
        if kind < 0.35:
            self._keep(self.body.add(Opcode.SELECT, [self.pick(T.PRED), a, b]))
        elif kind < 0.42:
            direction = self.any(["LT", "EQ", "GE", "NE"])
            self._keep(self.body.add(Opcode.COMPARE, [a, b], direction=direction))
        elif kind < 0.47:
            self._keep(self.body.add(Opcode.NOT, [self.pick(T.PRED)]))
        elif kind < 0.52:
            self._keep(self.body.add(Opcode.CONVERT, [self.pick(T.S32)], array_shape(T.F32, *self.dims)))
        else:
            # A product of floats may be contracted with a sum, and cancellation then shows the difference.
            ops = [Opcode.ADD, Opcode.DIVIDE, Opcode.MAXIMUM, Opcode.SUBTRACT]
            more = [Opcode.MULTIPLY, Opcode.REMAINDER, Opcode.XOR, Opcode.SHIFT_LEFT]
            self._keep(self.body.add(self.any(ops if t.is_float else ops + more), [a, b]))

    def finish(self, steps: int) -> HloComputation:
        for _ in range(steps):
            self.step()
        sinks = [i for found in self.values.values() for i in found if not i.users and i.opcode is not Opcode.PARAMETER]
        roots = sinks[: int(self.rng.integers(1, 6))] or [self.values[T.F32][-1]]
        self.body.root = self.body.add(Opcode.TUPLE, roots)
        self.body.remove_dead([i for found in self.values.values() for i in found])
        return self.body


def random_values(shape: Shape, rng: np.random.Generator) -> Array:
    """Return a random array, with NaN, infinities and the largest integers, or for a pred with one value only."""
    out = running.random_array(shape, rng)
    if shape.element_type is T.PRED:
        return np.asarray(rng.random(out.shape) < rng.choice([0.0, 0.02, 0.5, 1.0]))
    if shape.element_type.is_integer:
        limits = np.iinfo(out.dtype)
        special: list[float] = [limits.min, limits.max, 0]
    else:
        special = [np.nan, np.inf, -np.inf, 0.0]
    drawn = rng.choice(np.array(special, out.dtype), out.shape)
    return np.asarray(np.where(rng.random(out.shape) < 0.05, drawn, out))


@pytest.mark.parametrize("seed", range(8))
def test_random_selects_match_the_interpreter(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rare_analysis, "MIN_COST", 1)
    monkeypatch.setattr(rare_work, "MOVE_COST", 0)
    monkeypatch.setattr(rare_analysis, "RECOMPUTE_COST", int(np.random.default_rng(seed).integers(0, 8)))
    rng = np.random.default_rng(seed)
    cases, loops = [], 0
    for _ in range(6):
        computation = _Writer(rng).finish(int(rng.integers(5, 60)))
        args = [random_values(s, rng) for s in computation.parameter_shapes]
        schedule = Schedule(rare=int(rng.choice([64, 128, 1024])), vector=int(rng.choice([256, 512])))
        cases.append(running.case_of(computation, args, "c", schedule))
        loops += cases[-1].spec.source.count("hlogym_flagged(")
    assert loops
    for case, found in zip(cases, running.run_c(cases), strict=True):
        assert running.problem(found, case) is None, case.spec.source
