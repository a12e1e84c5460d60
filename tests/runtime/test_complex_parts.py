"""c128 on a GPU: kernels compute on its parts; in the emulator against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import compile
from compiler.backends.cuda.emulation import available, stand_in
from compiler.interpreter import evaluate
from compiler.runtime.thunks import HostThunk
from compiler.text import parse

REDUCER = """
sum { a = c128[] parameter(0)
  b = c128[] parameter(1)
  ROOT s = c128[] add(a, b) }
"""
PROGRAMS = {
    "arithmetic": "p = c128[5,7] multiply(x, y) q = c128[5,7] divide(p, x) ROOT r = c128[5,7] subtract(q, x)",
    "absolute value": "ROOT r = f64[5,7] abs(x)",
    "exponential": "ROOT r = c128[5,7] exponential(x)",
    "sum of rows": "z = c128[] constant((0, 0)) ROOT r = c128[5] reduce(x, z), dimensions={1}, to_apply=sum",
    "moves": """t = c128[7,5] transpose(x), dimensions={1,0}
        s = c128[3,5] slice(t), slice={[1:7:2],[0:5]} ROOT r = c128[6,5] concatenate(s, s), dimensions={0}""",
    "one part": "ROOT r = f64[5,7] imag(y)",
    "both parts": "a = f64[5,7] real(x) b = f64[5,7] imag(y) ROOT r = c128[5,7] complex(b, a)",
    "scalars": """i = s32[] constant(2) e = c128[1,1] dynamic-slice(x, i, i), dynamic_slice_sizes={1,1}
        s = c128[] reshape(e) ROOT r = c128[] multiply(s, s)""",
    "comparison": "c = pred[5,7] compare(x, y), direction=NE ROOT r = c128[5,7] select(c, x, y)",
}


@pytest.mark.skipif(not available(), reason="the emulator needs g++")
@pytest.mark.parametrize("body", PROGRAMS.values(), ids=list(PROGRAMS))
def test_kernels_compute_on_the_parts(body: str) -> None:
    module = parse(
        f"HloModule m\n{REDUCER}\nENTRY e {{ x = c128[5,7] parameter(0) y = c128[5,7] parameter(1)\n{body} }}"
    )
    rng = np.random.default_rng(0)
    args = [rng.normal(size=(5, 7)) + 1j * rng.normal(size=(5, 7)) for _ in range(2)]
    (wanted,) = evaluate(module, args)
    executable = compile(module, backend="cuda")
    assert not any(isinstance(t, HostThunk) for t in executable.thunks)
    with stand_in.installed():
        found = executable(*args)[0].get()
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
