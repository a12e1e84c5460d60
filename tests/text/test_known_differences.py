"""Known bugs of jaxlib's parser; these tests fail once jaxlib fixes them."""

import numpy as np
import pytest
from jax._src.lib import hlo  # type: ignore[attr-defined]  # no public name parses HLO text

from compiler.text import parse


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_jaxlib_copies_a_nan_real_part_into_the_imaginary_part(dtype: type[np.generic]) -> None:
    """XLA's `hlo_parser.cc` uses the real part to handle NaN in both parts of a complex literal."""
    kind = "c64" if dtype is np.complex64 else "c128"
    text = f"HloModule m\nENTRY e {{\n ROOT c = {kind}[2] constant({{(nan, 0), (0, nan)}})\n}}"
    value = parse(text).entry.root.value.value
    assert np.isnan(value[0].real) and value[0].imag == 0 and value[1].real == 0 and np.isnan(value[1].imag)
    assert "{(nan, nan), (0, nan)}" in hlo.hlo_module_from_text(text).to_string().replace("{ ", "{").replace(" }", "}")
    assert "(nan, 0)" in str(parse(text))


def test_jaxlib_reads_minus_zero_without_its_sign() -> None:
    """Its scanner parses `-0` as an integer, although its printer prints negative zeros like that."""
    text = "HloModule m\nENTRY e {\n ROOT c = f32[2] constant({-0, -0.0})\n}"
    assert np.signbit(parse(text).entry.root.value.value).tolist() == [True, True]
    assert "constant({0, -0})" in hlo.hlo_module_from_text(text).to_string()
    assert "constant({-0.0, -0.0})" in str(parse(text))


def test_jaxlib_prints_the_least_scale_as_a_number_nearer_to_the_next() -> None:
    text = "HloModule m\nENTRY e {\n ROOT c = f8e8m0fnu[] constant(5.87747e-39)\n}"
    printed = hlo.hlo_module_from_text(text).to_string()
    assert "constant(5.9e-39)" in printed
    assert parse(text).entry.root.value.value.view(np.uint8) == 0
    assert parse(printed).entry.root.value.value.view(np.uint8) == 1


def test_jaxlib_prints_a_short_async_start_that_loses_what_its_computation_says() -> None:
    text = (
        "HloModule m\nw {\n p = f32[8] parameter(0)\n ROOT t = f32[8] add(p, p)\n}\nENTRY e {\n"
        " x = f32[8] parameter(0)\n s = ((f32[8]), f32[8], u32[]) async-start(x), calls=w\n"
        " ROOT d = f32[8] async-done(s)\n}"
    )
    printed = hlo.hlo_module_from_text(text).to_string()
    assert "add-start(%x)" in printed
    assert [len(c.root.operands) for c in parse(text).computations] == [2, 1]
    assert [len(c.root.operands) for c in parse(printed).computations] == [1, 1]
