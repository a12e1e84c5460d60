"""Convolutions by Winograd's algorithm compute the same, but for rounding."""

import numpy as np
import pytest

from compiler import compile
from compiler.backends.registry import find_backend
from compiler.expansions import expansion_sites
from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.ir.verifier import check_module
from compiler.passes.infrastructure.registry import make_pass
from compiler.text import parse

FORMS = {
    "nhwc": ("2,6,7,3", "3,3,3,4", "2,4,5,4", "window={size=3x3}, dim_labels=b01f_01io->b01f"),
    "nchw, padded": ("2,3,5,8", "4,3,3,3", "2,4,5,8", "window={size=3x3 pad=1_1x1_1}, dim_labels=bf01_oi01->bf01"),
    "uneven padding": ("1,3,3,1", "3,3,1,1", "1,4,2,1", "window={size=3x3 pad=2_1x0_1}, dim_labels=b01f_01io->b01f"),
    "cropped": ("1,7,6,2", "3,3,2,3", "1,4,4,3", "window={size=3x3 pad=-1_0x0_0}, dim_labels=b01f_01io->b01f"),
    "reversed": ("2,5,5,2", "3,3,2,3", "2,3,3,3", "window={size=3x3 rhs_reversal=1x1}, dim_labels=b01f_01io->b01f"),
    "one result": ("1,3,3,2", "3,3,2,3", "1,1,1,3", "window={size=3x3}, dim_labels=b01f_01io->b01f"),
    "weight gradient": ("2,3,5,5", "2,4,3,3", "3,4,3,3", "window={size=3x3}, dim_labels=fb01_io01->bf01"),
}
OTHERS = {
    "stride": ("1,7,7,2", "3,3,2,2", "1,3,3,2", "window={size=3x3 stride=2x2}, dim_labels=b01f_01io->b01f"),
    "size": ("1,7,7,2", "5,5,2,2", "1,3,3,2", "window={size=5x5}, dim_labels=b01f_01io->b01f"),
    "dilation": ("1,7,7,2", "3,3,2,2", "1,3,3,2", "window={size=3x3 rhs_dilate=2x2}, dim_labels=b01f_01io->b01f"),
    "groups": (
        "1,5,5,4", "3,3,1,4", "1,3,3,4",
        "window={size=3x3}, dim_labels=b01f_01io->b01f, feature_group_count=4",
    ),
    "one dimension": ("1,5,4", "3,4,4", "1,3,4", "window={size=3}, dim_labels=b0f_0io->b0f"),
}  # fmt: skip


def text_of(form: tuple[str, str, str, str], element_type: str = "f64") -> str:
    image, kernel, result, attributes = form
    t = element_type
    return (
        f"HloModule m\nENTRY e {{\n x = {t}[{image}] parameter(0)\n k = {t}[{kernel}] parameter(1)\n"
        f" ROOT c = {t}[{result}] convolution(x, k), {attributes}\n}}\n"
    )


@pytest.mark.parametrize("name", FORMS)
def test_results_are_those_of_the_convolution(name: str) -> None:
    module = parse(text_of(FORMS[name]))
    rng = np.random.default_rng(0)
    args = [rng.normal(size=s.dimensions) for s in module.parameter_shapes]
    (want,) = evaluate(module, args)
    assert make_pass("convolution-winograd").run(module)
    assert check_module(module) == []
    opcodes = [i.opcode for i in module.entry.instructions]
    assert Opcode.CONVOLUTION not in opcodes
    assert opcodes.count(Opcode.DOT) == 1
    np.testing.assert_allclose(evaluate(module, args)[0], want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", OTHERS)
def test_other_convolutions_stay(name: str) -> None:
    module = parse(text_of(OTHERS[name]))
    assert not make_pass("convolution-winograd").run(module)


def test_halves_stay_because_they_are_rounded_once() -> None:
    assert not make_pass("convolution-winograd").run(parse(text_of(FORMS["nhwc"], "bf16")))


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_it_is_a_choice_and_never_the_default(backend: str) -> None:
    (site,) = expansion_sites(parse(text_of(FORMS["nhwc"], "f32")), find_backend(backend))
    assert "winograd" in site.choices
    assert site.default != "winograd"


def test_a_chosen_plan_runs_and_is_recorded() -> None:
    text = text_of(FORMS["nchw, padded"], "f32")
    exe = compile(text, backend="cpu", expansion_policy=lambda s: "winograd" if "winograd" in s.choices else s.default)
    rng = np.random.default_rng(1)
    args = [rng.normal(size=s.dimensions).astype(np.float32) for s in parse(text).parameter_shapes]
    (want,) = evaluate(parse(text), args)
    np.testing.assert_allclose(exe(*args)[0], want, rtol=1e-5, atol=1e-5)
    assert exe.plan is not None
    assert '"winograd"' in exe.plan.to_json()
    np.testing.assert_array_equal(compile(text, backend="cpu", plan=exe.plan)(*args)[0], exe(*args)[0])
