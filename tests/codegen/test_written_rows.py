"""Elementwise loops over short rows of concatenations: the elements of a row are written out, without branches."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.api import compile as compile_hlo
from compiler.interpreter import evaluate
from compiler.text import parse


def program(rows: int, columns: int, body: str) -> str:
    picked = [
        f"e{k} = f32[R,1] slice(x), slice={{[0:R], [{(3 * k + 1) % columns}:{(3 * k + 1) % columns + 1}]}}"
        for k in range(columns)
    ]
    names = ", ".join(f"e{k}" for k in range(columns))
    text = f"""HloModule m
ENTRY e {{
  x = f32[R,C] parameter(0)
  y = f32[R,C] parameter(1)
  {chr(10).join(picked)}
  c = f32[R,C] concatenate({names}), dimensions={{1}}
  {body}
}}"""
    return text.replace("[R", f"[{rows}").replace(":R]", f":{rows}]").replace(",C]", f",{columns}]")


BODIES = {
    "difference": "ROOT d = f32[R,C] subtract(c, y)",
    "with its own rows": "ROOT d = f32[R,C] subtract(c, x)",
    "two results": "d = f32[R,C] subtract(c, y) s = f32[R,C] add(c, x) ROOT t = (f32[R,C], f32[R,C]) tuple(d, s)",
}


@pytest.mark.parametrize("rows", [64, 1000])
@pytest.mark.parametrize("columns", [3, 5, 8, 16])
@pytest.mark.parametrize("name", BODIES)
def test_rows_have_the_results_of_the_interpreter(name: str, columns: int, rows: int) -> None:
    text = program(rows, columns, BODIES[name])
    rng = np.random.default_rng(columns)
    args = [rng.standard_normal((rows, columns)).astype(np.float32) for _ in range(2)]
    made = compile_hlo(text, backend="cpu")
    assert not any("if (v" in k.source for k in made.kernels)
    got = made(*args)
    for a, b in zip(got if isinstance(got, tuple | list) else [got], evaluate(parse(text), args), strict=True):
        np.testing.assert_array_equal(np.asarray(a), b)
