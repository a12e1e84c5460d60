"""Sorts of short rows by networks, against the interpreter."""

import itertools

import numpy as np
import pytest

from compiler.api import compile as compile_hlo
from compiler.codegen.templates.sort_network import suits_network
from compiler.interpreter import evaluate
from compiler.runtime.executable import Executable
from compiler.text import parse
from tests.codegen.test_sort_by_key import EACH_TYPE, assert_same_bits, keys, sort_text, top_k_text
from tests.codegen.test_sort_comparators import arguments, in_turn
from tests.codegen.test_sort_comparators import sort_text as comparator_text


def compiled(text: str) -> Executable:
    """Compile a program and check that a network sorts: no function orders one row after another."""
    made = compile_hlo(text, backend="cpu", policy="heuristic")
    assert not any("_order" in kernel.source for kernel in made.kernels)
    return made


@pytest.mark.parametrize("element_type", EACH_TYPE)
@pytest.mark.parametrize("dims", [(77, 5, 1), (3, 4, 40), (19, 6, 3)])
def test_networks_sort_every_type(element_type: str, dims: tuple[int, int, int]) -> None:
    for direction, few in itertools.product(("LT", "GT"), (False, True)):
        text = sort_text(element_type, dims, direction, swapped=few)
        x = keys(element_type, dims, few)
        assert_same_bits(compiled(text)(x), evaluate(parse(text), [x]))


@pytest.mark.parametrize("n", [2, 3, 8, 13, 16])
@pytest.mark.parametrize("rows", [16, 150])
def test_equal_keys_stay_in_order(n: int, rows: int) -> None:
    text = sort_text("s32", (rows, n, 1), "LT")
    x = np.random.default_rng(n).integers(0, 3, (rows, n, 1)).astype(np.int32)
    values, places = compiled(text)(x)
    expected = np.argsort(x, axis=1, kind="stable")
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, 1))


def test_a_network_sorts_all_zeros_and_ones() -> None:
    x = np.array(list(itertools.product((0, 1), repeat=10)), np.int32)[:, :, None]
    np.testing.assert_array_equal(compiled(sort_text("s32", x.shape, "LT"))(x)[0], np.sort(x, axis=1))


@pytest.mark.parametrize(
    ("types", "directions"), [(("s32", "f32"), "<>"), (("pred", "s16", "u32"), "><<"), (("s64", "f64"), "<<")]
)
@pytest.mark.parametrize("select", [False, True])
def test_the_next_key_decides_where_one_is_equal(types: tuple[str, ...], directions: str, select: bool) -> None:
    text = comparator_text(types, (100, 6), 1, in_turn(types, directions, select))
    args = arguments(types, (100, 6))
    assert_same_bits(compiled(text)(*args), evaluate(parse(text), args))


@pytest.mark.parametrize(("n", "k"), [(2, 1), (5, 5), (9, 2), (31, 3)])
@pytest.mark.parametrize("element_type", ["f32", "bf16", "u8", "s64"])
@pytest.mark.parametrize("largest", [True, False])
def test_networks_select(n: int, k: int, element_type: str, largest: bool) -> None:
    text = top_k_text(element_type, 130, n, k, largest)
    for few in (True, False):
        x = keys(element_type, (130, n), few)
        assert_same_bits(compiled(text)(x), evaluate(parse(text), [x]))


def test_a_fusion_with_a_sort_is_a_network() -> None:
    text = """HloModule m
less { a = f32[] parameter(0) b = f32[] parameter(1) ROOT l = pred[] compare(a, b), direction=LT, type=TOTALORDER }
fused { x = f32[90,7] parameter(0) y = f32[90,7] parameter(1) d = f32[90,7] subtract(x, y)
a = f32[90,7] abs(d) s = f32[90,7] sort(a), dimensions={1}, is_stable=true, to_apply=less
ROOT r = f32[90,7] multiply(s, s) }
ENTRY e { x = f32[90,7] parameter(0) y = f32[90,7] parameter(1)
ROOT f = f32[90,7] fusion(x, y), kind=kLoop, calls=fused }"""
    args = [np.random.default_rng(k).standard_normal((90, 7)).astype(np.float32) for k in (1, 2)]
    made = compile_hlo(text, backend="cpu", policy="none", pipeline=[])
    assert len(made.kernels) == 1
    assert_same_bits(made(*args), evaluate(parse(text), args))


@pytest.mark.parametrize("columns", [2, 3, 5, 8])
@pytest.mark.parametrize("rows", [16, 64, 90])
def test_rows_that_depend_on_their_number_are_sorted(rows: int, columns: int) -> None:
    shape = f"f32[{rows},{columns}]"
    text = f"""HloModule m
less {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT l = pred[] compare(a, b), direction=LT, type=TOTALORDER }}
fused {{ x = {shape} parameter(0) h = f32[1,{columns}] slice(x), slice={{[{rows - 1}:{rows}], [0:{columns}]}}
t = f32[{rows - 1},{columns}] slice(x), slice={{[0:{rows - 1}], [0:{columns}]}}
c = {shape} concatenate(h, t), dimensions={{0}} d = {shape} multiply(c, x)
ROOT s = {shape} sort(d), dimensions={{1}}, is_stable=true, to_apply=less }}
ENTRY e {{ x = {shape} parameter(0)
ROOT f = {shape} fusion(x), kind=kLoop, calls=fused }}"""
    x = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
    made = compile_hlo(text, backend="cpu", policy="none", pipeline=[])
    assert_same_bits(made(x), evaluate(parse(text), [x]))


def test_rows_that_are_long_few_or_far_apart_have_no_network() -> None:
    assert suits_network(10, 1, 100, 10, 2, 1)
    assert not suits_network(40, 1, 100, 40, 2, 1)
    assert not suits_network(10, 1, 4, 10, 2, 1)
    assert not suits_network(20, 3, 99, 20, 2, 1)
    assert suits_network(20, 30, 90, 20, 2, 1)
