"""Top-k rewritten as a sort, or as comparisons of all pairs."""

import pytest

from compiler.api import compile as compile_hlo
from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.ir.verifier import check_module
from compiler.passes.infrastructure.registry import make_pass
from compiler.runtime.thunks import HostThunk
from compiler.text import parse
from tests.sweeps.case import Case, difference
from tests.sweeps.corner_cases import cases as corner_cases
from tests.sweeps.movement_cases import cases

CASES = [c for c in (*cases(), *corner_cases()) if c.opcode == "topk"]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.element_type} {c.name}")
def test_every_topk(case: Case) -> None:
    module = parse(case.text)
    want = evaluate(module, list(case.args))
    assert make_pass("topk-decomposer").run(module)
    assert check_module(module) == []
    assert all(i.opcode is not Opcode.TOPK for i in module.entry.instructions)
    assert difference(evaluate(module, list(case.args)), want, None) is None


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.element_type} {c.name}")
def test_short_rows_by_rank(case: Case) -> None:
    module = parse(case.text)
    want = evaluate(module, list(case.args))
    bits = module.entry.root.operand(0).shape.element_type.bits if module.entry.root.operands else 0
    changed = make_pass("topk-by-rank").run(module)
    assert changed or bits < 16 or 0 in case.args[0].shape
    assert check_module(module) == []
    assert difference(evaluate(module, list(case.args)), want, None) is None


def test_a_gpu_computes_a_topk_of_short_rows() -> None:
    case = next(c for c in CASES if c.name == "many-ties" and c.element_type == "f32")
    assert not [t for t in compile_hlo(case.text, backend="cuda").thunks if isinstance(t, HostThunk)]


def test_a_compiled_topk_is_a_kernel() -> None:
    case = next(c for c in CASES if c.name == "many-ties" and c.element_type == "f32")
    made = compile_hlo(case.text, backend="cpu", pipeline=[])
    assert [k.kind for k in made.kernels] == ["top-k"]
    assert difference(made(*case.args), evaluate(parse(case.text), list(case.args)), None) is None
