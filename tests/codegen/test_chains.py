"""The longest chain of dependent operations of a thread, in kernels whose chains are known."""

from __future__ import annotations

import pytest

from compiler.codegen.kernel_spec import make_kernel
from compiler.text import parse

ADD = "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }"
NEGATED = "HloModule m\nENTRY e { x = f32[4096] parameter(0) ROOT y = f32[4096] negate(x) }"


def sums(rows: int, row: int) -> str:
    return (
        f"HloModule m\n{ADD}\nENTRY e {{ x = f32[{rows},{row}] parameter(0) z = f32[] constant(0) "
        f"ROOT s = f32[{rows}] reduce(x, z), dimensions={{1}}, to_apply=add }}"
    )


def chain(text: str, language: str = "cuda") -> int:
    return make_kernel(parse(text).entry.root, language).chain


def test_an_operation_on_each_element_is_a_chain_of_one() -> None:
    assert chain(NEGATED) == 1


def test_kernels_of_a_cpu_have_none() -> None:
    assert chain(NEGATED, "c") == 0


@pytest.mark.parametrize("row", [1 << 14, 1 << 16])
def test_a_thread_adds_its_part_of_a_row_to_one_sum(row: int) -> None:
    spec = make_kernel(parse(sums(1, row)).entry.root, "cuda")
    assert 0 < spec.chain <= row // spec.block + 8
    assert chain(sums(1, 4 * row)) > 2 * spec.chain


def test_only_the_sum_is_a_chain_not_what_is_added() -> None:
    plain = sums(1, 1 << 16)
    added = plain.replace("reduce(x, z)", "reduce(y, z)").replace("z = f32", "y = f32[1,65536] tanh(x) z = f32")
    fused = (
        added.replace("ENTRY e", "sums")
        + "\nENTRY e { x = f32[1,65536] parameter(0) ROOT f = f32[1] fusion(x), kind=kLoop, calls=sums }"
    )
    assert chain(plain) < chain(fused) <= chain(plain) + 16
