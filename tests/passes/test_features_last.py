"""Activations with the features last: the same results, with fewer transposes."""

from collections.abc import Callable

import numpy as np
import pytest

from compiler.interpreter import evaluate
from compiler.ir import HloInstruction, HloModule, Opcode
from compiler.ir.verifier import check_module
from compiler.passes.dots.features_last import FeaturesLast
from compiler.text import parse
from tests.passes.programs import difference, reference

HEAD = """HloModule m
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
max { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] maximum(a, b) }
"""
CONV = "window={size=3x3 pad=1_1x1_1}, dim_labels=bf01_oi01->bf01"


def moved(text: str, library: Callable[[HloInstruction], bool] = lambda i: True, changes: bool = True) -> HloModule:
    """Run the pass, check that it keeps the results, and return the module."""
    module = parse(HEAD + text)
    rng = np.random.default_rng(0)
    args = [rng.normal(size=s.dimensions).astype(np.float32) for s in module.parameter_shapes]
    want = reference(module, args)
    assert FeaturesLast(library).run(module) == changes
    assert check_module(module) == []
    assert difference(evaluate(module, args), want) is None
    return module


def labels(module: HloModule) -> list[str]:
    return [str(i.attributes["dim_labels"]) for i in module.entry.instructions if i.opcode is Opcode.CONVOLUTION]


def transposes(module: HloModule) -> int:
    return sum(i.opcode is Opcode.TRANSPOSE for i in module.entry.instructions)


def between(ops: str, result: str, features: int = 5, size: str = "6,7") -> str:
    """Return a program with ops on the value `c` between two convolutions; the last op is named `d`."""
    return f"""ENTRY e {{
      x = f32[2,3,6,7] parameter(0)
      v = f32[5,3,3,3] parameter(1)
      w = f32[4,{features},3,3] parameter(2)
      bias = f32[5] parameter(3)
      pair = f32[2,5] parameter(4)
      zero = f32[] constant(0)
      c = f32[2,5,6,7] convolution(x, v), {CONV}
      {ops}
      ROOT r = f32[{result}] convolution(d, w), {CONV}
    }}"""


@pytest.mark.parametrize(
    ("ops", "features", "size"),
    [
        ("b = f32[2,5,6,7] broadcast(bias), dimensions={1} d = f32[2,5,6,7] add(c, b)", 5, "6,7"),
        ("b = f32[2,5,6,7] broadcast(pair), dimensions={0,1} d = f32[2,5,6,7] multiply(c, b)", 5, "6,7"),
        ("b = f32[2,5,6,7] broadcast(zero), dimensions={} d = f32[2,5,6,7] maximum(c, b)", 5, "6,7"),
        ("i = s32[2,5,6,7] iota(), iota_dimension=2 j = f32[2,5,6,7] convert(i) d = f32[2,5,6,7] add(c, j)", 5, "6,7"),
        ("i = s32[2,5,6,7] iota(), iota_dimension=1 j = f32[2,5,6,7] convert(i) d = f32[2,5,6,7] add(c, j)", 5, "6,7"),
        ("d = f32[2,5,6,7] clamp(zero, c, zero)", 5, "6,7"),
        ("n = f32[2,5,6,7] negate(c) d = f32[2,10,6,7] concatenate(c, n), dimensions={1}", 10, "6,7"),
        ("n = f32[2,5,6,7] negate(c) d = f32[2,5,12,7] concatenate(c, n), dimensions={2}", 5, "12,7"),
        ("d = f32[2,5,9,8] pad(c, zero), padding=0_0x0_0x1_2x0_1", 5, "9,8"),
        ("d = f32[2,8,6,7] pad(c, zero), padding=0_0x1_2x0_0x0_0", 8, "6,7"),
        ("d = f32[2,5,3,4] slice(c), slice={[0:2],[0:5],[0:6:2],[3:7]}", 5, "3,4"),
        ("d = f32[2,2,6,7] slice(c), slice={[0:2],[3:5],[0:6],[0:7]}", 2, "6,7"),
        ("d = f32[2,5,6,7] reverse(c), dimensions={1,3}", 5, "6,7"),
        ("d = f32[2,5,5,6] reduce-window(c, zero), window={size=1x1x2x2}, to_apply=max", 5, "5,6"),
        ("d = f32[2,4,6,7] reduce-window(c, zero), window={size=1x2x1x1}, to_apply=max", 4, "6,7"),
        ("b = f32[2,5,6,2,7] broadcast(c), dimensions={0,1,2,4} d = f32[2,5,12,7] reshape(b)", 5, "12,7"),
        ("d = f32[2,5,7,6] transpose(c), dimensions={0,1,3,2}", 5, "7,6"),
        (
            "s = f32[5] reduce(c, zero), dimensions={0,2,3}, to_apply=add "
            "b = f32[2,5,6,7] broadcast(s), dimensions={1} d = f32[2,5,6,7] subtract(c, b)", 5, "6,7",
        ),
        (
            "s = f32[2,6,7] reduce(c, zero), dimensions={1}, to_apply=add "
            "b = f32[2,5,6,7] broadcast(s), dimensions={0,2,3} d = f32[2,5,6,7] subtract(c, b)", 5, "6,7",
        ),
        (
            "s = f32[2,5,7] reduce(c, zero), dimensions={2}, to_apply=add "
            "b = f32[2,5,6,7] broadcast(s), dimensions={0,1,3} d = f32[2,5,6,7] subtract(c, b)", 5, "6,7",
        ),
    ],
)  # fmt: skip
def test_ops_between_convolutions_follow(ops: str, features: int, size: str) -> None:
    module = moved(between(ops, f"2,4,{size}", features))
    assert labels(module) == ["b01f_oi01->b01f"] * 2
    ends = 2 + ("transpose(c)" in ops)  # the input of the first convolution, the result of the last
    assert transposes(module) == ends


def test_a_reshape_that_splits_features_stays() -> None:
    ops = "s = f32[2,10,3,7] reshape(c) n = f32[2,10,3,7] negate(s) d = f32[2,5,6,7] reshape(n)"
    moved(between(ops, "2,4,6,7"), changes=False)


def test_convolutions_that_follow_each_other_move() -> None:
    module = moved(between("d = f32[2,5,6,7] copy(c)", "2,4,6,7").replace("convolution(d", "convolution(c"))
    assert labels(module) == ["b01f_oi01->b01f"] * 2


def test_a_convolution_alone_stays() -> None:
    text = f"""ENTRY e {{
      x = f32[2,3,6,7] parameter(0)
      w = f32[5,3,3,3] parameter(1)
      y = f32[2,5,6,7] parameter(2)
      c = f32[2,5,6,7] convolution(x, w), {CONV}
      ROOT a = f32[2,5,6,7] add(c, y)
    }}"""
    moved(text, changes=False)


def test_a_mean_over_positions_needs_no_transpose() -> None:
    text = f"""ENTRY e {{
      x = f32[2,3,6,7] parameter(0)
      w = f32[5,3,3,3] parameter(1)
      zero = f32[] constant(0)
      c = f32[2,5,6,7] convolution(x, w), {CONV}
      n = f32[2,5,6,7] negate(c)
      ROOT s = f32[2,5] reduce(n, zero), dimensions={{2,3}}, to_apply=add
    }}"""
    module = moved(text)
    assert labels(module) == ["b01f_oi01->b01f"]
    assert transposes(module) == 1


def test_only_convolutions_of_the_library_count() -> None:
    text = between("d = f32[2,5,6,7] negate(c)", "2,4,6,7")
    moved(text, library=lambda i: False, changes=False)


def test_values_for_others_keep_their_layout() -> None:
    """A value between two convolutions that is also a result is transposed for that use alone."""
    text = between(f"a = f32[2,5,6,7] convolution(x, v), {CONV} d = f32[2,5,6,7] multiply(c, a)", "2,4,6,7")
    text = text.replace("ROOT r =", "r =").replace("    }", "  ROOT t = (f32[2,4,6,7], f32[2,5,6,7]) tuple(r, d) }")
    module = moved(text)
    assert transposes(module) == 3


def test_gradients_of_weights() -> None:
    """The gradient of the second convolution's weights reads both activations with the features last."""
    gradient = "window={size=6x7 pad=1_1x1_1}, dim_labels=fb01_io01->fb01"
    text = f"""ENTRY e {{
      x = f32[2,3,6,7] parameter(0)
      v = f32[5,3,3,3] parameter(1)
      g = f32[2,4,6,7] parameter(2)
      w = f32[4,5,3,3] parameter(3)
      zero = f32[] constant(0)
      zeros = f32[2,5,6,7] broadcast(zero), dimensions={{}}
      c = f32[2,5,6,7] convolution(x, v), {CONV}
      d = f32[2,5,6,7] maximum(c, zeros)
      h = f32[2,4,6,7] tanh(g)
      dw = f32[4,5,3,3] convolution(d, h), {gradient}
      r = f32[2,4,6,7] convolution(d, w), {CONV}
      k = f32[2,4,6,7] multiply(r, h)
      n = f32[2,4] reduce(k, zero), dimensions={{2,3}}, to_apply=add
      ROOT t = (f32[4,5,3,3], f32[2,4]) tuple(dw, n)
    }}"""
    module = moved(text)
    assert "f01b_i01o->fb01" in labels(module)


def test_other_orders_of_dimensions() -> None:
    one = "window={size=3 pad=1_1}, dim_labels=bf0_oi0->bf0"
    text = f"""ENTRY e {{
      x = f32[2,3,9] parameter(0)
      v = f32[5,3,3] parameter(1)
      w = f32[4,5,3] parameter(2)
      c = f32[2,5,9] convolution(x, v), {one}
      n = f32[2,5,9] negate(c)
      ROOT r = f32[9,2,4] convolution(n, w), window={{size=3 pad=1_1}}, dim_labels=bf0_oi0->0bf
    }}"""
    module = moved(text)
    assert labels(module) == ["b0f_oi0->b0f", "b0f_oi0->0bf"]


@pytest.mark.parametrize(("launch_bytes", "changes"), [(0, True), (1 << 20, False)])
def test_a_transpose_after_pooling_costs_a_launch(launch_bytes: int, changes: bool) -> None:
    module = parse(
        HEAD
        + f"""ENTRY e {{
      x = f32[2,3,8,8] parameter(0)
      w = f32[5,3,3,3] parameter(1)
      low = f32[] constant(-inf)
      c = f32[2,5,8,8] convolution(x, w), {CONV}
      ROOT p = f32[2,5,4,4] reduce-window(c, low), to_apply=max, window={{size=1x1x2x2 stride=1x1x2x2}}
    }}"""
    )
    assert FeaturesLast(lambda i: True, launch_bytes).run(module) is changes
