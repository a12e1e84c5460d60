"""Compares the interpreter with XLA:CPU op by op, on representative cases; the whole sweep is in the slow tier."""

from __future__ import annotations

import pytest

from compiler.interpreter import evaluate
from compiler.ir.opcodes import Opcode, Trait
from compiler.text import parse
from tests.oracle import XlaError, run_xla
from tests.sweeps.case import Case, difference
from tests.sweeps.known import KNOWN
from tests.sweeps.registry import NO_CASES, all_cases, whole_sweep
from tests.sweeps.worker import FAIL, NO_OURS, sweep

CASES = list(all_cases())


@pytest.mark.parametrize("case", [c for c in CASES if c.fast], ids=lambda c: c.id)
def test_the_interpreter_agrees_with_xla(case: Case) -> None:
    found = evaluate(parse(case.text), case.args)
    try:
        wanted = run_xla(case.text, case.args)
    except XlaError as e:
        pytest.skip(f"XLA:CPU does not run it: {str(e)[:100]}")
    problem = difference(found, wanted, case.tolerance)
    assert problem is None, problem


def test_every_opcode_has_cases_or_a_reason() -> None:
    of_xla = {o.text for o in Opcode if not o.has(Trait.EXTENSION)}
    assert of_xla == {c.opcode for c in CASES} | NO_CASES.keys()


def test_names_of_cases_are_unique() -> None:
    assert len({c.id for c in CASES}) == len(CASES)


def test_what_is_known_to_differ_exists() -> None:
    assert all(any(known.covers(c) for c in CASES) for known in KNOWN)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_of_them() -> None:
    outcomes = sweep(whole_sweep())
    assert not [o for o in outcomes if o.result in (FAIL, NO_OURS)]
