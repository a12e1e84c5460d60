"""Stamps of computations, what is noted about them until they change, and keys of modules found from it."""

import random

import pytest

from compiler.analysis.cost_model import CostModel, module_cost, module_seconds
from compiler.ir import HloComputation, HloModule
from compiler.ir.printing import PrintOptions, print_computation
from compiler.learned.pass_states import default_pass_actions
from compiler.passes import PASSES, make_pass
from compiler.passes.infrastructure.pipeline import PipelineRun
from compiler.text import parse
from tests.passes.programs import PROGRAMS, program_text

TEXT = """HloModule m
double { x = f32[4] parameter(0) ROOT y = f32[4] add(x, x) }
ENTRY e { p = f32[4] parameter(0) c = f32[4] call(p), to_apply=double ROOT n = f32[4] negate(c) }"""
_WHOLE = PrintOptions()


def _texts(module: HloModule) -> dict[HloComputation, tuple[int, str]]:
    return {c: (c.stamp, print_computation(c, _WHOLE)) for c in module.computations}


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_passes_change_the_stamp_of_what_they_change(name: str, program: str) -> None:
    module = parse(program_text(program))
    before = _texts(module)
    make_pass(name).run(module)
    for computation, (stamp, text) in _texts(module).items():
        if computation in before and before[computation][0] == stamp:
            assert before[computation][1] == text


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_noted_changes_no_result(program: str) -> None:
    drawn, model = random.Random(program), CostModel()
    module = parse(program_text(program))
    keys: dict[str, str] = {}
    for text in drawn.choices(default_pass_actions(), k=25):
        hlo_pass, fresh = make_pass(text), parse(str(module))
        module = module.clone() if drawn.random() < 0.3 else module
        assert hlo_pass.run(module) == hlo_pass.run(fresh)
        assert module.fingerprint() == fresh.fingerprint()
        assert module.canonical_key() == fresh.canonical_key()
        assert keys.setdefault(module.canonical_key(), module.fingerprint()) == module.fingerprint()
        assert module_seconds(module, model) == module_cost(fresh, model).seconds
    assert len(set(keys.values())) == len(keys)


def test_copies_share_a_stamp_until_one_changes() -> None:
    module = parse(TEXT)
    copy = module.clone()
    assert [c.stamp for c in copy.computations] == [c.stamp for c in module.computations]
    module.entry.facts["seen"] = True
    assert copy.entry.facts["seen"]

    copy.entry.root.set_attribute("metadata", "other")

    assert copy.entry.stamp > module.entry.stamp
    assert "seen" not in copy.entry.facts
    assert module.entry.facts["seen"]


def test_a_change_of_a_callee_shows_in_its_callers() -> None:
    module = parse(TEXT)
    callee = module.find("double")
    assert callee is not None
    own, before = module.entry.stamp, module.entry.stamp_with_callees({})
    callee.root = callee.parameters[0]
    assert module.entry.stamp == own
    assert module.entry.stamp_with_callees({}) > before


def test_keys_tell_a_shared_callee_from_two_equal_ones() -> None:
    shared = TEXT.replace("negate(c)", "call(c), to_apply=double")
    twice = TEXT.replace("ENTRY", "other { x = f32[4] parameter(0) ROOT y = f32[4] add(x, x) } ENTRY").replace(
        "negate(c)", "call(c), to_apply=other"
    )
    assert parse(shared).canonical_key() != parse(twice).canonical_key()
    assert parse(shared).fingerprint() != parse(twice).fingerprint()


class _Swapped:
    """A pass of someone else that writes attributes without telling anyone."""

    name = "swapped"

    def run(self, module: HloModule) -> bool:
        module.entry.root.attributes["dimensions"] = (1, 0)
        return True


def test_direct_writes_of_passes_from_elsewhere_are_noticed() -> None:
    module = parse("ENTRY e { p = f32[3,3] parameter(0) ROOT t = f32[3,3] transpose(p), dimensions={0,1} }")
    before, key = {c: c.stamp for c in module.computations}, module.canonical_key()
    PipelineRun().run(_Swapped(), module)
    assert all(c.stamp != stamp for c, stamp in before.items())
    assert module.canonical_key() != key
