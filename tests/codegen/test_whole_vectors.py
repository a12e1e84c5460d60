"""Loops that threads share compute every element, whether or not their ranges end at a vector."""

import numpy as np
import pytest

from compiler import compile
from compiler.codegen.nest import index as ix
from compiler.codegen.nest.index import Var


@pytest.mark.parametrize("size", [1 << 18, (1 << 18) + 16, (1 << 18) + 4, (1 << 18) + 1])
@pytest.mark.parametrize(("t", "dtype"), [("f32", "float32"), ("s8", "int8")])
def test_ranges_of_all_sizes(size: int, t: str, dtype: str) -> None:
    text = f"""HloModule m
ENTRY e {{
  x = {t}[{size}] parameter(0)
  y = {t}[{size}] parameter(1)
  product = {t}[{size}] multiply(x, y)
  ROOT sum = {t}[{size}] add(product, y)
}}"""
    x, y = (np.arange(size) * 3 % 11 - 5).astype(dtype), (np.arange(size) * 7 % 11 - 5).astype(dtype)
    (found,) = compile(text)(x, y)
    np.testing.assert_array_equal(found, x * y + y)


def test_the_factor_divides_every_value() -> None:
    a, b = Var("a", 5), Var("b", 3)
    expression = ix.of(a) * 24 + ix.of(b) * 16 + 8
    assert expression.factor == 8
    assert all((24 * i + 16 * j + 8) % expression.factor == 0 for i in range(5) for j in range(3))
    assert ix.const(0).factor == 0
