"""Expanded reduce-windows compute the same."""

import pytest

from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.ir.verifier import check_module
from compiler.passes.infrastructure.registry import make_pass
from compiler.text import parse
from tests.passes.programs import difference, reference
from tests.sweeps.case import Case
from tests.sweeps.corner_cases import cases as corner_cases
from tests.sweeps.reduction_cases import cases

CASES = [c for c in (*cases(), *corner_cases()) if c.opcode == "reduce-window"]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.element_type} {c.name}")
def test_every_window(case: Case) -> None:
    module = parse(case.text)
    want = reference(module, case.args)
    text = str(module)
    changed = make_pass("reduce-window-to-slices").run(module)
    assert changed == (str(module) != text)
    assert check_module(module) == []
    assert difference(evaluate(module, list(case.args)), want) is None


def test_most_windows_are_written_out() -> None:
    left = []
    for case in CASES:
        module = parse(case.text)
        make_pass("reduce-window-to-slices").run(module)
        left.append(any(i.opcode is Opcode.REDUCE_WINDOW for i in module.entry.instructions))
    assert sum(left) < 0.6 * len(left)
