"""Expanded convolutions compute the same."""

from collections.abc import Iterator

import numpy as np
import pytest

from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.ir.verifier import check_module
from compiler.passes.infrastructure.registry import make_pass
from compiler.text import parse
from tests.passes.programs import difference, reference
from tests.sweeps.case import Case
from tests.sweeps.convolution_cases import cases
from tests.sweeps.corner_cases import cases as corner_cases


def convolutions() -> Iterator[Case]:
    for case in (*cases(), *corner_cases()):
        if case.opcode == "convolution" and case.element_type == "f32":
            yield case


@pytest.mark.parametrize("parts", [1, 128])
@pytest.mark.parametrize("case", list(convolutions()), ids=lambda c: c.name)
def test_every_form(case: Case, parts: int) -> None:
    module = parse(case.text)
    want = reference(module, case.args)
    text = str(module)
    changed = make_pass(f"convolution-to-patches{{max_parts={parts}}}").run(module)
    assert changed == (str(module) != text)
    assert check_module(module) == []
    assert difference(evaluate(module, list(case.args)), want) is None
    left = [i for i in module.entry.instructions if i.opcode is Opcode.CONVOLUTION]
    written_out = all(np.size(a) and a.dtype == np.float32 for a in (*case.args, *want.outputs))
    assert bool(left) == (not written_out) or parts == 1
