"""Dots rewritten as multiplications and sums."""

import numpy as np
import pytest

from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.ir.verifier import check_module
from compiler.passes.infrastructure.registry import make_pass
from compiler.text import parse


@pytest.mark.parametrize("sides", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize(("m", "n"), [(1, 5), (5, 1), (4, 3), (1, 1)])
@pytest.mark.parametrize("batch", [1, 2])
def test_products_as_loops_are_the_same_products(m: int, n: int, batch: int, sides: tuple[int, int]) -> None:
    left, right = ((6, m) if sides[0] else (m, 6)), ((n, 6) if sides[1] else (6, n))
    module = parse(
        f"HloModule m\nENTRY e {{ a = f32[{batch},{left[0]},{left[1]}] parameter(0)\n"
        f"b = f32[{batch},{right[0]},{right[1]}] parameter(1)\n"
        f"ROOT d = f32[{batch},{m},{n}] dot(a, b), lhs_batch_dims={{0}}, rhs_batch_dims={{0}}, "
        f"lhs_contracting_dims={{{1 if sides[0] else 2}}}, rhs_contracting_dims={{{2 if sides[1] else 1}}} }}"
    )
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((batch, *s)).astype(np.float32) for s in (left, right))
    assert make_pass("dot-strength-reduction{max_contracted=6,max_multiplications=120}").run(module)
    assert check_module(module) == []
    assert all(i.opcode is not Opcode.DOT for i in module.entry.instructions)
    want = np.matmul(a.transpose(0, 2, 1) if sides[0] else a, b.transpose(0, 2, 1) if sides[1] else b)
    np.testing.assert_allclose(evaluate(module, [a, b])[0], want, rtol=1e-5, atol=1e-5)


def test_only_products_within_the_limits_become_loops() -> None:
    text = (
        "HloModule m\nENTRY e { a = f32[7,2,3] parameter(0) b = f32[7,3,4] parameter(1)\n"
        "ROOT d = f32[7,2,4] dot(a, b), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, "
        "rhs_contracting_dims={1} }"
    )
    # One dot of the batch does 2 * 3 * 4 multiplications.
    assert make_pass("dot-strength-reduction{max_contracted=3,max_multiplications=24}").run(parse(text))
    assert not make_pass("dot-strength-reduction{max_contracted=3,max_multiplications=23}").run(parse(text))
    assert not make_pass("dot-strength-reduction{max_contracted=2}").run(parse(text))
