"""Every pass on awkward programs: control edges, side effects, odd functions, empty arrays, extreme numbers.

Each file of `awkward/` is a module; every pass, the default pipeline and sequences of passes must leave it valid, with
the same results, infinities and NaN included, for usual arguments and for extreme ones.
"""

import random
import warnings
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from compiler.interpreter import Context, evaluate, register_custom_call
from compiler.ir import HloInstruction, HloModule, Shape
from compiler.ir.verifier import check_module
from compiler.passes import PASSES, HloPass, make_pass
from compiler.passes.pipelines.default import default_pipeline, xla_order
from compiler.text import parse
from env.reference import Reference

FOLDER = Path(__file__).parent / "awkward"
CASES = sorted(p.stem for p in FOLDER.glob("*.hlo"))
FLOATS = (0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan, 1e30, -1e-30, 3e38, 1e-40, 0.3)
SUMS = frozenset(
    {
        "f16_mean",
        "f16_chain",
        "f16_common",
        "complex",
        "dot_batch_bcast",
        "dot_prec",
        "eye",
        "ctrl_dots",
        "reduce_variadic_mixed",
    }
)
"""Programs in which a pass may change the order in which infinities are added: usual arguments only."""

PADDING = frozenset({"convolution-to-patches", "convolution-winograd"})
"""Passes that multiply padding by possibly infinite values, as XLA:CPU's convolutions do, or subtract such values of
one tile from each other: usual arguments only."""

LOGGED: list[npt.NDArray[Any]] = []
"""The operands of `log_it`, in order."""


def _log(instruction: HloInstruction, values: Sequence[Any]) -> npt.NDArray[Any]:
    del instruction
    LOGGED.extend(np.array(v) for v in values if isinstance(v, np.ndarray))
    return np.zeros((0,), np.float32)


@pytest.fixture(autouse=True)
def custom_calls() -> None:
    register_custom_call("log_it", _log)
    register_custom_call("negate_it", lambda i, values: -np.asarray(values[0]))


@cache
def program(name: str) -> HloModule:
    return parse((FOLDER / f"{name}.hlo").read_text(encoding="utf-8"))


def arguments(name: str, extreme: bool) -> list[Any]:
    rng = np.random.default_rng(7 + extreme)
    return [_value(s, rng, extreme) for s in program(name).parameter_shapes]


def _value(s: Shape, rng: np.random.Generator, extreme: bool) -> Any:
    if s.is_tuple:
        return tuple(_value(e, rng, extreme) for e in s.tuple_shapes)
    size, kind = s.dimensions, s.element_type
    if kind.text == "pred":
        return np.asarray(rng.integers(0, 2, size=size)).astype(np.bool_)
    if kind.is_integer:
        low, high = (
            (-(1 << (kind.bits - 1)), (1 << (kind.bits - 1)) - 1) if kind.is_signed else (0, (1 << kind.bits) - 1)
        )
        pool = [0, 1, 2, 3] if not extreme else [low, high, 0, 1, high - 1, low + 1]
        return (
            np.asarray([pool[k] for k in rng.integers(0, len(pool), size=size).reshape(-1)])
            .reshape(size)
            .astype(s.dtype)
        )
    usual = rng.normal(size=size)
    picked = np.asarray(FLOATS)[rng.integers(0, len(FLOATS), size=size)] if extreme else usual
    with np.errstate(all="ignore"):
        return np.asarray(picked + 0j if kind.is_complex and extreme else picked).astype(s.dtype)


def results(module: HloModule, args: Sequence[Any], context: Context | None = None) -> list[npt.NDArray[Any]]:
    """Return the results, followed by what was logged."""
    LOGGED.clear()
    with np.errstate(all="ignore"):
        return [*evaluate(module, args, context), *LOGGED]


def check(name: str, passes: list[HloPass]) -> None:
    module = program(name).clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # those of numpy about constants that wrap would be the user's
        applied = [p.name for p in passes if p.run(module)]
    if not applied:
        return
    assert check_module(module) == [], applied
    for extreme in (False,) if name in SUMS or PADDING.intersection(applied) else (False, True):
        args = arguments(name, extreme)
        wanted = Reference(partial(results, program(name)), args)
        assert wanted.difference(results(module, args)) is None, (applied, extreme)


@pytest.mark.parametrize("name", CASES)
def test_every_pass(name: str) -> None:
    assert check_module(program(name)) == []
    for p in PASSES:
        check(name, [make_pass(p)])


@pytest.mark.parametrize("name", CASES)
def test_pipelines(name: str) -> None:
    check(name, [default_pipeline()])
    check(name, [xla_order()])


@pytest.mark.parametrize("name", CASES)
def test_any_order(name: str) -> None:
    rng = random.Random(name)
    for _ in range(4):
        check(name, [make_pass(p) for p in rng.choices(list(PASSES), k=10)])
