"""Vector loops over bf16 that run over pairs of elements: the results, and which loops they are."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from compiler.codegen.lowering.lower import lower
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.traversal import walk
from compiler.codegen.schedules.bind_c import bind_c
from compiler.codegen.schedules.schedule import Schedule
from tests.codegen import running


def chain(shape: str) -> str:
    return f"""
    x = bf16[{shape}] parameter(0)
    y = bf16[{shape}] parameter(1)
    z = bf16[] constant(0.5)
    zb = bf16[{shape}] broadcast(z), dimensions={{}}
    m = bf16[{shape}] multiply(x, y)
    c = bf16[{shape}] maximum(m, zb)
    d = bf16[{shape}] minimum(zb, x)
    ROOT r = bf16[{shape}] multiply(c, d)
    """


HALVES = """
    x = bf16[{m},{n}] parameter(0)
    a = bf16[{m},{h}] slice(x), slice={{[0:{m}], [0:{h}]}}
    b = bf16[{m},{h}] slice(x), slice={{[0:{m}], [{h}:{n}]}}
    c = bf16[{m},{h}] subtract(a, b)
    d = bf16[{m},{h}] add(a, b)
    ROOT r = bf16[{m},{n}] concatenate(c, d), dimensions={{1}}
"""
"""Rows whose halves are computed from each other, as in rotary embeddings; h is half of n."""


def tanh(shape: str) -> str:
    return f"x = bf16[{shape}] parameter(0)\n t = bf16[{shape}] tanh(x)\n ROOT r = bf16[{shape}] add(x, t)"


PAIRED = {
    "halves of rows": HALVES.format(m=5, n=32, h=16),
    "odd halves of rows": HALVES.format(m=5, n=62, h=31),
    "short rows": """
        x = bf16[6,10] parameter(0)
        y = bf16[6] parameter(1)
        b = bf16[6,10] broadcast(y), dimensions={0}
        ROOT r = bf16[6,10] multiply(x, b)
        """,
    "functions of whole vectors of pairs": tanh("64"),
    "functions of many elements": tanh("4000"),
    "even": chain("6,128"),
    "odd": chain("5,77"),
    "one row": chain("100001"),
    "shared by threads": chain("300000"),
    "two results": """
        x = bf16[200] parameter(0)
        n = bf16[200] negate(x)
        s = bf16[200] add(x, x)
        ROOT r = (bf16[200], bf16[200]) tuple(n, s)
        """,
    "column": """
        x = bf16[9,70] parameter(0)
        y = bf16[9] parameter(1)
        b = bf16[9,70] broadcast(y), dimensions={0}
        ROOT r = bf16[9,70] add(x, b)
        """,
    "even and odd elements": """
        x = bf16[6,40] parameter(0)
        y = bf16[20] parameter(1)
        b = bf16[6,20] broadcast(y), dimensions={1}
        e = bf16[6,20] slice(x), slice={[0:6], [0:40:2]}
        o = bf16[6,20] slice(x), slice={[0:6], [1:40:2]}
        p = bf16[6,20] multiply(e, b)
        q = bf16[6,20] multiply(o, b)
        r = bf16[6,20] subtract(p, o)
        s = bf16[6,20] add(q, e)
        ROOT t = (bf16[6,20], bf16[6,20]) tuple(r, s)
        """,
    "pairs that begin with an odd element, and an odd number of them": """
        x = bf16[6,40] parameter(0)
        e = bf16[6,19] slice(x), slice={[0:6], [1:39:2]}
        o = bf16[6,19] slice(x), slice={[0:6], [2:40:2]}
        ROOT r = bf16[6,19] multiply(e, o)
        """,
    "neighbours": """
        x = bf16[7,101] parameter(0)
        a = bf16[7,100] slice(x), slice={[0:7], [0:100]}
        b = bf16[7,100] slice(x), slice={[0:7], [1:101]}
        ROOT r = bf16[7,100] add(a, b)
        """,
}
WHOLE = {
    # Moved as integers of 16 bits.
    "fill": """
        y = bf16[9] parameter(0)
        ROOT r = bf16[9,70] broadcast(y), dimensions={0}
        """,
    # Three vectors of elements would be two vectors and two halves of a vector.
    "functions of a few vectors": tanh("48"),
    "floats": """
        x = bf16[6,128] parameter(0)
        y = f32[6,128] convert(x)
        ROOT r = f32[6,128] add(y, y)
        """,
    "every second": """
        x = bf16[6,128] parameter(0)
        s = bf16[6,64] slice(x), slice={[0:6], [0:128:2]}
        ROOT r = bf16[6,64] add(s, s)
        """,
    "backwards": """
        x = bf16[6,128] parameter(0)
        s = bf16[6,128] reverse(x), dimensions={1}
        ROOT r = bf16[6,128] add(s, s)
        """,
    "position": """
        x = bf16[6,128] parameter(0)
        i = bf16[6,128] iota(), iota_dimension=1
        ROOT r = bf16[6,128] add(x, i)
        """,
}


def has_pairs(text: str) -> bool:
    body = bind_c(lower(running.fused(text)), Schedule()).body
    return any(isinstance(s, lir.StorePair) for s in walk(body))


def test_loops_over_adjacent_elements_run_over_pairs() -> None:
    assert [name for name, text in PAIRED.items() if not has_pairs(text)] == []


def test_other_loops_stay_whole() -> None:
    assert [name for name, text in WHOLE.items() if has_pairs(text)] == []


@pytest.mark.parametrize("threads", [0, 1])
def test_results_are_those_of_the_interpreter(threads: int) -> None:
    rng = np.random.default_rng(0)
    cases = {}
    for name, text in {**PAIRED, **WHOLE}.items():
        f = running.fused(text)
        schedule = Schedule(threads=threads, grain=1000)
        cases[name] = running.case_of(f, running.random_args(f.parameter_shapes, rng), "c", schedule)
    found = running.run_c(list(cases.values()))
    problems = {n: running.problem(r, c) for (n, c), r in zip(cases.items(), found, strict=True)}
    assert {n: p for n, p in problems.items() if p is not None} == {}


def test_every_number_is_rounded_as_ml_dtypes_does() -> None:
    f = running.fused("x = bf16[65536] parameter(0)\n h = bf16[] constant(1.0078125)\n "
                      "b = bf16[65536] broadcast(h), dimensions={}\n ROOT r = bf16[65536] multiply(x, b)")  # fmt: skip
    x = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    ((found,),) = running.run_c([running.case_of(f, [x], "c")])
    with np.errstate(all="ignore"):
        expected = (x.astype(np.float32) * np.float32(1.0078125)).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))


def test_negated_numbers_keep_their_bits() -> None:
    f = running.fused("x = bf16[65536] parameter(0)\n ROOT r = bf16[65536] negate(x)")
    bits = np.arange(1 << 16, dtype=np.uint16)
    ((found,),) = running.run_c([running.case_of(f, [bits.view(ml_dtypes.bfloat16)], "c")])
    np.testing.assert_array_equal(found.view(np.uint16), bits ^ 0x8000)
