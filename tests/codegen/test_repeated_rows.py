"""Loops over repeated rows and elements: the results, and that no division is left."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.codegen.lowering.lower import lower
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, Quotient, Remainder, Var
from compiler.codegen.nest.traversal import indices_in, walk
from compiler.codegen.schedules.bind_c import bind_c
from compiler.codegen.schedules.schedule import Schedule
from tests.codegen import running


def repeated(rows: int, times: int, columns: int, after: str = "multiply(t, b)", each: bool = False) -> str:
    """Return rows whose columns are repeated, as a whole or each by itself, times one number per row."""
    shape, kept = (f"{rows},{columns},{times}", "0,1") if each else (f"{rows},{times},{columns}", "0,2")
    wide = f"f32[{rows},{times * columns}]"
    return (
        f"x = f32[{rows},{columns}] parameter(0)\n y = f32[{rows}] parameter(1)\n"
        f"r = f32[{shape}] broadcast(x), dimensions={{{kept}}}\n t = {wide} reshape(r)\n"
        f"b = {wide} broadcast(y), dimensions={{0}}\n ROOT o = {wide} {after}"
    )


PROGRAMS = {
    "rows of half a vector": repeated(40, 3, 8),
    "long rows": repeated(12, 4, 100),
    "rows and a rest": repeated(20, 5, 11),
    "pairs": repeated(9, 64, 2),
    "elements, each twice": repeated(7, 2, 50, each=True),
    "elements, each four times": repeated(7, 4, 33, each=True),
    "elements, each ten times": repeated(7, 10, 6, each=True),
    "flat": "x = f32[24] parameter(0)\n b = f32[5,24] broadcast(x), dimensions={1}\n t = f32[120] reshape(b)\n"
    "y = f32[120] parameter(1)\n ROOT o = f32[120] add(t, y)",
    "rows of repeated elements": "x = f32[6] parameter(0)\n b = f32[4,6,8] broadcast(x), dimensions={1}\n"
    "t = f32[192] reshape(b)\n y = f32[192] parameter(1)\n ROOT o = f32[192] add(t, y)",
    "not whole rows": "x = f32[25] parameter(0)\n b = f32[4,25] broadcast(x), dimensions={1}\n"
    "t = f32[100] reshape(b)\n s = f32[90] slice(t), slice={[3:93]}\n"
    "y = f32[90] parameter(1)\n ROOT o = f32[90] add(s, y)",
}  # fmt: skip


def test_results_are_those_of_the_interpreter() -> None:
    rng = np.random.default_rng(0)
    cases = {}
    for name, text in PROGRAMS.items():
        f = running.fused(text)
        cases[name] = running.case_of(f, running.random_args(f.parameter_shapes, rng), "c")
    found = running.run_c(list(cases.values()))
    problems = {n: running.problem(r, c) for (n, c), r in zip(cases.items(), found, strict=True)}
    assert {n: p for n, p in problems.items() if p is not None} == {}


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in ("not whole rows", "elements, each ten times")])
def test_no_vector_loop_divides(name: str) -> None:
    kernel = bind_c(lower(running.fused(PROGRAMS[name])), Schedule())
    loops = [s for s in walk(kernel.body) if isinstance(s, lir.For) and s.kind.is_vector]
    assert loops
    assert not any(_divides(i, s.var) for s in loops for i in indices_in(s.body))


def _divides(i: IndexExpr, v: Var) -> bool:
    return any(isinstance(s, Quotient | Remainder) and v in set(s.value.variables()) for s, _ in i.terms)
