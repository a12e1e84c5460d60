"""Bytes that a short vector loop reads are widened before it."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import compile

ROWS, COLUMNS = 20, 48


def masked_minima(mask: str, test: str) -> str:
    """Return the text of a program that reduces rows of what a mask selects, and uses the rows once more."""
    return f"""HloModule masked
    smaller {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] minimum(a, b) }}
    ENTRY e {{
      m = {mask}[{ROWS},{COLUMNS}] parameter(0)  x = f32[{ROWS},{COLUMNS}] parameter(1)  y = f32[{COLUMNS}] parameter(2)
      yb = f32[{ROWS},{COLUMNS}] broadcast(y), dimensions={{1}}
      {test}
      s = f32[{ROWS},{COLUMNS}] select(p, x, yb)  i = f32[] constant(inf)
      r = f32[{ROWS}] reduce(s, i), dimensions={{1}}, to_apply=smaller
      rb = f32[{ROWS},{COLUMNS}] broadcast(r), dimensions={{0}}
      ROOT d = f32[{ROWS},{COLUMNS}] subtract(s, rb) }}"""


@pytest.mark.parametrize(
    ("mask", "test"),
    [
        ("pred", f"p = pred[{ROWS},{COLUMNS}] copy(m)"),
        ("s8", f"z = s8[] constant(-3)  zb = s8[{ROWS},{COLUMNS}] broadcast(z)  "
         f"p = pred[{ROWS},{COLUMNS}] compare(m, zb), direction=GT"),
        ("u8", f"z = u8[] constant(200)  zb = u8[{ROWS},{COLUMNS}] broadcast(z)  "
         f"p = pred[{ROWS},{COLUMNS}] compare(m, zb), direction=GT"),
    ],
)  # fmt: skip
def test_masks_of_short_rows_are_widened(mask: str, test: str) -> None:
    rng = np.random.default_rng(0)
    values = {"pred": [False, True], "s8": range(-128, 128), "u8": range(256)}[mask]
    types = {"pred": np.bool_, "s8": np.int8, "u8": np.uint8}
    arrays = [
        rng.choice(np.array(values, types[mask]), (ROWS, COLUMNS)),
        rng.standard_normal((ROWS, COLUMNS), np.float32), rng.standard_normal(COLUMNS, np.float32),
    ]  # fmt: skip
    exe = compile(masked_minima(mask, test), backend="cpu")
    assert [k for k in exe.kernels if "_wide[16]" in k.source]
    np.testing.assert_array_equal(
        exe(*arrays)[0], compile(masked_minima(mask, test), backend="interpreter")(*arrays)[0]
    )
