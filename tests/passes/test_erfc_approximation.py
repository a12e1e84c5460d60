"""erfc in f32: its expansion is recognized, and its approximation is as accurate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import special

from compiler.interpreter import evaluate
from compiler.ir import HloModule, Opcode
from compiler.passes.infrastructure.registry import make_pass
from compiler.text import parse

GOLDEN = Path(__file__).parent.parent / "golden" / "function-recognition" / "erfc.hlo"


def expansion(n: int, *changes: tuple[str, str]) -> HloModule:
    """Return the expansion of erfc for `n` numbers, with changes to its text."""
    text = GOLDEN.read_text(encoding="utf-8").partition("// ---- after")[0].replace("[12]", f"[{n}]")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse(text)


def test_errors_are_those_of_f32() -> None:
    x = np.concatenate([np.linspace(-10, 10, 40001), [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-40, 1e30]])
    x = x.astype(np.float32)
    module = expansion(x.size)
    assert make_pass("function-recognition").run(module)
    (got,) = evaluate(module, [x])
    want = special.erfc(x.astype(np.float64))
    # An exponential of -x^2 has the relative rounding error of x^2 times x^2.
    allowed = (1e-6 + 1.2e-7 * np.minimum(x.astype(np.float64) ** 2, 1e4)) * want + 1e-38
    assert np.all((np.abs(got - want) <= allowed) | (np.isnan(got) & np.isnan(want)))
    assert got[np.isinf(x)].tolist() == [0.0, 2.0]


def test_another_function_stays() -> None:
    # One of the coefficients of the middle polynomial differs.
    module = expansion(12, ("constant(-0.5824733)", "constant(-0.5834733)"))
    assert not make_pass("function-recognition").run(module)


@pytest.mark.parametrize("size", ["abs(%x.1)", "abs(%other)"])
def test_an_expression_of_another_value_stays(size: str) -> None:
    module = expansion(
        12, ("%erfc.65 = f32[12]{0} abs(%x.1)", f"%other = f32[12]{{0}} sine(%x.1)\n  %erfc.65 = f32[12]{{0}} {size}")
    )
    changed = make_pass("function-recognition").run(module)
    assert changed == (size == "abs(%x.1)")
    assert changed == all(i.opcode is not Opcode.SINE or not i.users for i in module.entry.instructions)
