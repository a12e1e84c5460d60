"""Index expressions against integer arithmetic in Python, for every value of the variables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.codegen.nest import index as ix
from compiler.codegen.nest.index import IndexExpr, Multiple, Quotient, Remainder, Runtime, Var

VARS: tuple[Var | Runtime, ...] = (Var("i", 5), Var("j", 3), Var("k", 1), Runtime("n", 0, 6))
Env = Mapping[str, int]


@dataclass(frozen=True)
class Both:
    """An expression and the function of the variables that it should compute."""

    expression: IndexExpr
    meaning: Callable[[Env], int]


def environments(*symbols: Var | Runtime) -> list[dict[str, int]]:
    ranges = [range(a.range[0], a.range[1] + 1) for a in symbols]
    return [dict(zip((a.name for a in symbols), values, strict=True)) for values in itertools.product(*ranges)]


def evaluate(e: IndexExpr, env: Env) -> int:
    """Evaluate an expression as C does; no dividend may be negative, because C would round it towards zero."""
    total = e.const
    for symbol, c in e.terms:
        if isinstance(symbol, Quotient | Remainder):
            inner = evaluate(symbol.value, env)
            assert inner >= 0, f"{symbol} divides {inner}"
            total += c * (inner // symbol.divisor if isinstance(symbol, Quotient) else inner % symbol.divisor)
        elif isinstance(symbol, Multiple):
            total += c * evaluate(symbol.value, env) * env[symbol.factor.name]
        else:
            total += c * env[symbol.name]
    return total


@st.composite
def expressions(draw: st.DrawFn, depth: int = 4) -> Both:
    if depth == 0 or draw(st.booleans()):
        v = draw(st.sampled_from(VARS))
        c = draw(st.integers(-7, 7))
        return _linear(v, c)
    a = draw(expressions(depth=depth - 1))
    b = draw(expressions(depth=depth - 1))
    n = draw(st.integers(1, 9))
    m = draw(st.integers(-5, 5))
    kind = draw(st.sampled_from(["add", "sub", "times", "shift", "div", "mod"]))
    return {
        "add": Both(a.expression + b.expression, lambda e: a.meaning(e) + b.meaning(e)),
        "sub": Both(a.expression - b.expression, lambda e: a.meaning(e) - b.meaning(e)),
        "times": Both(a.expression * m, lambda e: a.meaning(e) * m),
        "shift": Both(a.expression + m, lambda e: a.meaning(e) + m),
        "div": Both(a.expression.floordiv(n), lambda e: a.meaning(e) // n),
        "mod": Both(a.expression.mod(n), lambda e: a.meaning(e) % n),
    }[kind]


def _linear(v: Var | Runtime, c: int) -> Both:
    return Both(ix.of(v) * 2 + c, lambda e: e[v.name] * 2 + c)


@settings(max_examples=300, deadline=None)
@given(expressions())
def test_expressions_evaluate_as_in_python(both: Both) -> None:
    low, high = both.expression.range
    for env in environments(*VARS):
        wanted = both.meaning(env)
        assert evaluate(both.expression, env) == wanted
        assert low <= wanted <= high


@settings(max_examples=100, deadline=None)
@given(expressions())
def test_printed_expressions_evaluate_as_in_python(both: Both) -> None:
    text = both.expression.to_c().replace("/", "//")
    for env in environments(*VARS)[::7]:
        assert eval(text, {}, dict(env)) == both.meaning(env)  # noqa: S307  # generated text


@settings(max_examples=100, deadline=None)
@given(expressions(), expressions())
def test_a_variable_may_be_replaced_by_an_expression(both: Both, other: Both) -> None:
    """A variable may be replaced by any expression, here one with the range of the variable."""
    replaced = both.expression.substitute({VARS[0]: other.expression.mod(5)})
    for env in environments(*VARS)[::3]:
        inner = {**env, "i": other.meaning(env) % 5}
        assert evaluate(replaced, env) == both.meaning(inner)


dims_of = st.lists(st.integers(1, 4), min_size=0, max_size=4)


@settings(max_examples=100, deadline=None)
@given(dims_of, st.randoms(use_true_random=False))
def test_delinearize_inverts_linearize(dims: list[int], random: object) -> None:
    vars_ = [Var(f"d{k}", n) for k, n in enumerate(dims)]
    index = [ix.of(v) for v in vars_]
    back = ix.delinearize(ix.linearize(index, dims), dims)
    assert list(back) == index


@settings(max_examples=100, deadline=None)
@given(dims_of, st.booleans())
def test_reshapes_match_numpy(dims: list[int], backwards: bool) -> None:
    total = math.prod(dims)
    for parts in _factorings(total):
        vars_ = [Var(f"d{k}", n) for k, n in enumerate(dims)]
        index = [ix.of(v) * -1 + (v.extent - 1) if backwards else ix.of(v) for v in vars_]
        to = ix.delinearize(ix.linearize(index, dims), parts)
        for env in environments(*vars_):
            at = [n - 1 - env[f"d{k}"] if backwards else env[f"d{k}"] for k, n in enumerate(dims)]
            offset = int(np.ravel_multi_index(at, dims)) if dims else 0
            wanted = np.unravel_index(offset, parts) if parts else ()
            assert tuple(evaluate(e, env) for e in to) == tuple(int(w) for w in wanted)


def _factorings(total: int) -> list[tuple[int, ...]]:
    found = [(total,), (1, total), (total, 1)]
    found += [(n, total // n) for n in range(2, total) if total % n == 0][:3]
    return found


def test_reshape_of_contiguous_dimensions_needs_no_division() -> None:
    i, j = Var("i", 6), Var("j", 8)
    split = ix.delinearize(ix.linearize([ix.of(i), ix.of(j)], (6, 8)), (6, 4, 2))
    assert "%" in split[2].to_c()
    merged = ix.linearize(split, (6, 4, 2))
    assert merged.range == (0, 47)
    assert ix.delinearize(ix.linearize([ix.of(i), ix.of(j)], (6, 8)), (1, 6, 8))[1:] == (ix.of(i), ix.of(j))


@pytest.mark.parametrize("divisor", [1, 2, 7])
def test_constants_are_folded(divisor: int) -> None:
    for value in range(-10, 30):
        assert ix.const(value).floordiv(divisor) == ix.const(value // divisor)
        assert ix.const(value).mod(divisor) == ix.const(value % divisor)
