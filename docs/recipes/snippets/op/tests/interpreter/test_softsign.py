"""softsign(x) = x / (1 + |x|), by the interpreter and by the CPU backend."""

import numpy as np
import pytest

from compiler import compile

PROGRAM = "ENTRY main { x = {type}[5] parameter(0) ROOT y = {type}[5] softsign(x) }"

FUSED = """
ENTRY main {
  x = f32[5] parameter(0)
  n = f32[5] negate(x)
  s = f32[5] softsign(n)
  ROOT y = f32[5] add(x, s)
}"""


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
@pytest.mark.parametrize(("text", "dtype"), [("f32", np.float32), ("f64", np.float64)])
def test_softsign(backend: str, text: str, dtype: type[np.floating]) -> None:
    exe = compile(PROGRAM.replace("{type}", text), backend=backend)
    x = np.array([-3, -1, 0, 1, np.nan], dtype)

    (y,) = exe(x)

    assert y.dtype == dtype
    np.testing.assert_allclose(y, [-0.75, -0.5, 0, 0.5, np.nan], rtol=1e-6)


def test_softsign_fuses_with_its_neighbours() -> None:
    exe = compile(FUSED, backend="cpu")
    x = np.array([-3, -1, 0, 1, 3], np.float32)

    (y,) = exe(x)

    assert len(exe.kernels) == 1
    np.testing.assert_allclose(y, [-2.25, -0.5, 0, 0.5, 2.25], rtol=1e-6)
