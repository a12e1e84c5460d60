"""Dots of narrow types."""

import numpy as np
import pytest

from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.ir.types import PrimitiveType
from compiler.ir.verifier import check_module
from compiler.passes.infrastructure.registry import make_pass
from compiler.text import parse
from tests.passes.programs import difference, reference
from tests.sweeps.case import Case
from tests.sweeps.convolution_cases import cases as convolutions
from tests.sweeps.reduction_cases import cases as reductions

CASES = [c for c in (*reductions(), *convolutions()) if c.opcode in ("dot", "convolution")]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.opcode} {c.element_type} {c.name}")
def test_every_type(case: Case) -> None:
    module = parse(case.text)
    want = reference(module, case.args)
    text = str(module)
    changed = make_pass("operand-upcaster").run(module)
    assert changed == (str(module) != text)
    assert check_module(module) == []
    got = evaluate(module, list(case.args))
    assert difference(got, want) is None


@pytest.mark.parametrize(("operands", "result"), [("s8", "s32"), ("u8", "s8"), ("s16", "s32"), ("s16", "s16")])
@pytest.mark.parametrize("terms", [3, 400, 1024, 5000])
def test_integers_wrap_around_in_the_type_of_the_result(operands: str, result: str, terms: int) -> None:
    module = parse(
        f"HloModule m\nENTRY e {{ a = {operands}[2,{terms}] parameter(0) b = {operands}[{terms},3] parameter(1)\n"
        f"ROOT d = {result}[2,3] dot(a, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}} }}"
    )
    info = np.iinfo(PrimitiveType(operands).dtype)
    rng = np.random.default_rng(terms)
    a, b = (rng.integers(info.min, info.max, s, dtype=info.dtype, endpoint=True) for s in ((2, terms), (terms, 3)))
    assert make_pass("operand-upcaster").run(module)
    types = {o.shape.element_type.text for i in module.entry.instructions if i.opcode is Opcode.DOT for o in i.operands}
    assert types == {"f32" if terms * int(max(-info.min, info.max)) ** 2 <= 2**24 else "f64"}
    a[0], b[:, 0] = info.min, info.min  # the largest sum
    # Exact sums of Python integers, truncated to the result's bits.
    exact = a.astype(object) @ b.astype(object)
    bits = np.iinfo(PrimitiveType(result).dtype).bits
    cut = [[(int(v) + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1) for v in row] for row in exact]
    np.testing.assert_array_equal(evaluate(module, [a, b])[0], np.array(cut))
