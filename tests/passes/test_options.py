"""Options of passes: their valid values, from strings and in Python."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import pytest

from compiler.errors import HlogymError, OptionError
from compiler.passes import PASSES, run_pass
from compiler.passes.infrastructure.base import HloPass
from compiler.passes.infrastructure.registry import make_pass, pass_text
from compiler.passes.loops.while_loop_unroller import WhileLoopUnroller
from compiler.text import parse
from tests.fuzz.plan_programs import LOOPS


def _fields(cls: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cls)


NUMBERS = [(name, f.name, f.metadata["bounds"]) for name, cls in PASSES.items() for f in _fields(cls) if f.metadata]


def test_each_number_has_bounds_and_a_default_within() -> None:
    for name, cls in PASSES.items():
        for f in _fields(cls):
            assert isinstance(f.default, bool | str) or f.metadata, (name, f.name)
    assert len(NUMBERS) >= 20
    for name, option, (least, most) in NUMBERS:
        default = getattr(make_pass(name), option)
        assert least <= default <= most


@pytest.mark.parametrize(("name", "option", "bounds"), NUMBERS, ids=lambda v: v if isinstance(v, str) else "")
def test_a_number_is_held_to_its_bounds(name: str, option: str, bounds: tuple[int, int]) -> None:
    least, most = bounds
    for number in (least, most):
        made = make_pass(f"{name}{{{option}={number}}}")
        assert make_pass(pass_text(made)) == made
    for word in (least - 1, most + 1, 10**17, "1" * 500, "-", "", "1.0", "1e3", "true", "0x10", "1_0", "NaN"):
        with pytest.raises(OptionError, match=option):
            make_pass(f"{name}{{{option}={word}}}")
    cls: Any = PASSES[name]
    assert getattr(cls(**{option: np.int64(least)}), option) == least
    for value in (True, 1.0, None, "1", least - 1, 10**30):
        with pytest.raises(OptionError, match=option):
            cls(**{option: value})


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "{}", "dce{", "dce}", "dce{}}", "dce{a=1}", "dce,cse", "dce@0", "dce@", "dce@-1", "dce@1001",
        "dce@1@1", "dce@99999999999999999999", "dce\x00", "dce" + " " * 100_000 + "x", "a" * 100_000,
        "no-such-pass", "dce{=}", "dce{a}",
        "while-loop-unroller{factor=2,factor=3}", "while-loop-unroller{factor}", "distribution{float_terms=1}",
        "distribution{float_terms=True}", "float-normalization{narrow=f32,wide=bf16}",
        "float-normalization{narrow=f32,wide=f32}", "float-normalization{narrow=bf16,wide=f16}",
        "float-normalization{narrow=s32}", "float-normalization{narrow=}", "dce{" * 1000,
    ],
    ids=lambda t: t[:40],
)  # fmt: skip
def test_a_text_that_is_no_pass_is_refused_at_once(text: str) -> None:
    start = time.process_time()
    with pytest.raises(HlogymError) as caught:
        make_pass(text)
    assert len(str(caught.value)) < 500
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize("option", ["full", "float_terms", "narrow"])
def test_options_that_are_no_numbers_have_types_as_well(option: str) -> None:
    name = {"full": "while-loop-unroller", "float_terms": "distribution", "narrow": "float-normalization"}[option]
    cls: Any = PASSES[name]
    for value in (1, None, b"x"):
        with pytest.raises(OptionError, match=option):
            cls(**{option: value})


@pytest.mark.parametrize("trips", [3, 9_999, 10**9])
def test_no_option_makes_unrolling_explode(trips: int) -> None:
    module = parse(LOOPS.replace("constant(11)", f"constant({trips})"))
    most = {option: bounds[1] for name, option, bounds in NUMBERS if name == "while-loop-unroller"}
    unroll: HloPass = WhileLoopUnroller(**most)
    for _ in range(3):
        run_pass(unroll, module, verify=False)
    assert module.instruction_count < 3 * most["max_ops"]
