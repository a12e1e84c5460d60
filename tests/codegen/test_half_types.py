"""f16 and bf16 are computed in float: which intermediate results are rounded, and how often."""

import numpy as np
import pytest

from compiler import compile
from compiler.interpreter import evaluate
from compiler.text import parse
from tests.codegen import running

HALVES = ("bf16", "f16")


@pytest.mark.parametrize("t", HALVES)
def test_explicit_conversions_are_rounded(t: str) -> None:
    f = running.fused(
        f"a = f32[1000] parameter(0)\n b = f32[1000] parameter(1)\n m = f32[1000] multiply(a, b)\n"
        f"h = {t}[1000] convert(m)\n w = f32[1000] convert(h)\n ROOT r = f32[1000] subtract(w, b)"
    )
    args = running.random_args(f.parameter_shapes, np.random.default_rng(0))
    case = running.case_of(f, args, "c")
    ((found,),) = running.run_c([case])
    np.testing.assert_array_equal(found, case.reference.outputs[0])


@pytest.mark.parametrize("t", HALVES)
@pytest.mark.parametrize(("dims", "axis"), [((5, 12), 1), ((5, 3000), 1), ((3000, 5), 0)])
def test_sums_are_accumulated_in_float_and_rounded_once(t: str, dims: tuple[int, int], axis: int) -> None:
    kept = dims[1 - axis]
    f = running.fused(
        f"a = {t}[{dims[0]},{dims[1]}] parameter(0)\n z = {t}[] constant(1)\n"
        f"ROOT s = {t}[{kept}] reduce(a, z), dimensions={{{axis}}}, to_apply=add",
        f"add {{ x = {t}[] parameter(0) y = {t}[] parameter(1) ROOT r = {t}[] add(x, y) }}\n",
    )
    (shape,) = f.parameter_shapes
    # Sums of these are exact in float, so only the final rounding matters.
    a = (np.random.default_rng(1).integers(0, 9, dims) / 8).astype(shape.dtype)
    ((found,),) = running.run_c([running.case_of(f, [a], "c")])
    wanted = (a.astype(np.float64).sum(axis) + 1).astype(shape.dtype)
    np.testing.assert_array_equal(found.view(np.uint16), wanted.view(np.uint16))


@pytest.mark.parametrize("t", HALVES)
def test_cumulative_and_windowed_sums_are_rounded_once(t: str) -> None:
    for window in ("size=700 pad=699_0", "size=5 pad=2_2", "size=7 stride=7"):
        module = parse(
            f"HloModule m\nadd {{ x = {t}[] parameter(0) y = {t}[] parameter(1) ROOT r = {t}[] add(x, y) }}\n"
            f"ENTRY e {{ a = {t}[700] parameter(0) z = {t}[] constant(0)\n"
            f"ROOT w = reduce-window(a, z), window={{{window}}}, to_apply=add }}"
        )
        a = (np.random.default_rng(2).integers(0, 9, 700) / 8).astype(module.parameter_shapes[0].dtype)
        (found,), (wanted,) = compile(module)(a), evaluate(module, [a])
        np.testing.assert_array_equal(found.view(np.uint16), wanted.view(np.uint16))


@pytest.mark.parametrize("t", HALVES)
@pytest.mark.parametrize("dims", [(7, 7, 7), (40, 65), (1, 900)])
def test_a_maximum_equals_one_of_its_elements(t: str, dims: tuple[int, ...]) -> None:
    shape, kept = ",".join(map(str, dims)), ",".join(map(str, dims[:-1]))
    over = len(dims) - 1
    module = parse(
        f"HloModule m\nmost {{ x = {t}[] parameter(0) y = {t}[] parameter(1) ROOT r = {t}[] maximum(x, y) }}\n"
        f"ENTRY e {{ a = {t}[{shape}] parameter(0)\n b = {t}[{shape}] parameter(1)\n"
        f"s = {t}[{shape}] multiply(a, b)\n low = {t}[] constant(-inf)\n"
        f"m = {t}[{kept}] reduce(s, low), dimensions={{{over}}}, to_apply=most\n"
        f"w = {t}[{shape}] broadcast(m), dimensions={{{','.join(map(str, range(over)))}}}\n"
        f"ROOT e = pred[{shape}] compare(s, w), direction=EQ }}"
    )
    args = running.random_args(module.parameter_shapes, np.random.default_rng(3))
    (found,), (wanted,) = compile(module)(*args), evaluate(module, args)
    np.testing.assert_array_equal(found, wanted)
