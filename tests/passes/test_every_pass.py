"""Properties of every registered pass: same results, valid modules, a correct `changed`, and idempotence."""

import pytest

from compiler.ir.verifier import check_module
from compiler.passes import PASSES, make_pass, run_pass
from compiler.passes.infrastructure.rewriting import RewritePass
from compiler.text import parse
from tests.passes.programs import PROGRAMS, difference, program_inputs, program_results, program_text, run

MAY_CHANGE_AGAIN: dict[str, str] = {}
"""Passes that are not idempotent, and why."""


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_pass_on_program(name: str, program: str) -> None:
    text = program_text(program)
    module = parse(text)
    hlo_pass = make_pass(name)

    changed = hlo_pass.run(module)

    assert check_module(module) == []
    if not changed:
        assert str(module) == text
        return
    assert str(module) != text
    assert difference(run(module, program_inputs(program)), program_results(program)) is None
    after = str(module)
    if name not in MAY_CHANGE_AGAIN:
        assert not hlo_pass.run(module), "a second run changes again"
        assert str(module) == after


@pytest.mark.parametrize("name", [n for n, p in PASSES.items() if issubclass(p, RewritePass)])
@pytest.mark.parametrize("program", PROGRAMS)
def test_single_sweeps_come_to_the_same_end(name: str, program: str) -> None:
    module = parse(program_text(program))
    sweep = make_pass(f"{name}@1")
    text, changed = str(module), True
    for _ in range(30):
        changed = run_pass(sweep, module)
        assert changed == (str(module) != text)
        text = str(module)
        if not changed:
            break
    assert not changed
    assert not make_pass(name).run(module), "no rule is left that only a fixed point applies"
    assert difference(run(module, program_inputs(program)), program_results(program)) is None


@pytest.mark.parametrize("name", PASSES)
def test_pass_has_a_docstring_and_defaults(name: str) -> None:
    cls = PASSES[name]
    assert cls.__doc__
    assert cls() == make_pass(name)
    assert make_pass(name).name == name


def test_operands_bound_on_the_way_stay_in_the_chain() -> None:
    module = parse(
        """HloModule m
        apart { a = f32[2] parameter(0) b = f32[2] parameter(1) ROOT c = f32[2] add(a, b) }
        ENTRY e {
          x = f32[2] parameter(0)
          y = f32[2] parameter(1)
          s = ((f32[2]), (), s32[]) call-start(x), to_apply=apart
          u = ((f32[2], f32[2]), f32[2], ()) call-update(s, y)
          ROOT d = f32[2] call-done(u)
        }"""
    )
    make_pass("async-expander").run(module)
    assert check_module(module) == []
