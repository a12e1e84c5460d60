"""Passes by name, pipelines, fixed points, statistics, hooks and verification."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from compiler.errors import HloVerificationError, OptionError, UnknownNameError
from compiler.ir import HloModule, Opcode, PrimitiveType, Shape
from compiler.passes import FixedPoint, HloPass, PassPipeline, PipelineRun, Swept, make_pass, make_passes, run_pass
from compiler.passes.infrastructure.pipeline import leaves
from compiler.passes.infrastructure.registry import pass_text
from compiler.passes.pipelines.default import default_pipeline, xla_order
from compiler.passes.pipelines.simplifier import MEMBERS
from compiler.text import parse

TEXT = """
ENTRY main {
  x = f32[4] parameter(0)
  y = f32[4] negate(x)
  z = f32[4] negate(y)
  w = f32[4] exponential(z)
  v = f32[4] exponential(x)
  ROOT r = f32[4] add(w, v)
}
"""


@pytest.mark.parametrize("text", ["dce{", "cse,dce{a", "while-loop-unroller{factor=4,dce", "dce}"])
def test_braces_that_do_not_match_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="cannot parse"):
        make_passes(text)


@pytest.mark.parametrize("text", [",", "dce,,cse", "dce,", ",dce"])
def test_empty_names_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="empty part"):
        make_passes(text)


def test_an_empty_text_has_no_passes() -> None:
    assert make_passes("") == make_passes(" ") == ()


def test_options_are_read_and_written() -> None:
    unroller = make_pass("while-loop-unroller{factor=4,full=false}")
    assert pass_text(unroller) == "while-loop-unroller{factor=4,full=false}"
    assert make_pass(pass_text(unroller)) == unroller
    assert [p.name for p in make_passes("dce, while-loop-unroller{factor=4,full=true},cse")] == [
        "dce", "while-loop-unroller", "cse",
    ]  # fmt: skip


def test_wrong_names_and_options_say_what_there_is() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'dce'"):
        make_pass("dcee")
    with pytest.raises(OptionError, match="factor=1"):
        make_pass("while-loop-unroller{by=4}")
    with pytest.raises(OptionError, match="takes a number"):
        make_pass("while-loop-unroller{factor=four}")
    with pytest.raises(OptionError, match="out of range: '1000"):
        make_pass(f"while-loop-unroller{{factor={10**21}}}")
    with pytest.raises(OptionError, match="true or false"):
        make_pass("while-loop-unroller{full=4}")


def test_one_sweep_leaves_what_it_made_for_the_next() -> None:
    module = parse(
        "ENTRY main { x = f32[4] parameter(0)  e = f32[4] exponential(x)  o = f32[4] add(e, x)\n"
        "a = f32[2,2] reshape(o)  b = f32[1,4] reshape(a)  c = f32[4,1] reshape(b)  ROOT r = f32[4] reshape(c) }"
    )
    once = make_pass("shape-movement@1")
    assert isinstance(once, Swept)
    assert once.name == "shape-movement"
    assert pass_text(once) == "shape-movement@1"
    whole = module.clone()
    assert make_pass("shape-movement").run(whole)
    rounds = 0
    while run_pass(once, module):
        rounds += 1
    assert rounds >= 1
    assert str(module) == str(whole)


def test_sweeps_in_lists_and_with_options() -> None:
    found = make_passes("dce@1, distribution{float_terms=false}@2,cse")
    assert [pass_text(p) for p in found] == ["dce@1", "distribution{float_terms=false}@2", "cse"]
    with pytest.raises(OptionError, match="@sweeps"):
        make_pass("cse@0")


def test_statistics_hooks_and_stop() -> None:
    module = parse(TEXT)
    seen: list[tuple[str, bool]] = []
    passes = PassPipeline("p", make_passes("arithmetic-identities,cse,dce,shape-movement"))
    run = PipelineRun(verify=True, stop_after="cse", hooks=(lambda p, m, c: seen.append((p.name, c)),))

    assert run.run(passes, module)

    assert seen == [("arithmetic-identities", True), ("cse", True)]
    assert [(r.name, r.before, r.after) for r in run.records] == [("arithmetic-identities", 5, 3), ("cse", 3, 2)]
    assert {s.name: s.removed for s in run.statistics()} == {"arithmetic-identities": 2, "cse": 1}
    assert all(s.before - s.after == s.removed for s in run.statistics() if s.runs == 1)


def test_fixed_point_ends_when_nothing_changes() -> None:
    module = parse(TEXT)
    run = PipelineRun()
    assert run.run(FixedPoint("f", make_passes("cse,arithmetic-identities,dce")), module)
    assert not run.records[-1].changed
    assert len(run.records) < 10
    assert run.unsettled == []
    assert not FixedPoint("f", make_passes("cse,arithmetic-identities,dce")).run(module)


def test_fixed_point_says_when_it_was_cut_off() -> None:
    run = PipelineRun()
    run.run(FixedPoint("short", make_passes("cse,arithmetic-identities,dce"), limit=1), parse(TEXT))
    assert run.unsettled == ["short"]


@dataclass(frozen=True)
class Breaker:
    name: ClassVar[str] = "breaker"

    def run(self, module: HloModule) -> bool:
        root = module.entry.root
        root.shape = Shape(PrimitiveType.S8, (7,))
        return True


def test_verification_names_the_pass() -> None:
    with pytest.raises(HloVerificationError, match="after pass breaker"):
        PipelineRun(verify=True).run(PassPipeline("p", (Breaker(),)), parse(TEXT))


@pytest.mark.parametrize("pipeline", [default_pipeline(), xla_order()], ids=lambda p: p.name)
def test_pipelines_are_passes_themselves(pipeline: PassPipeline) -> None:
    assert isinstance(pipeline, HloPass)
    module = parse(TEXT)
    assert pipeline.run(module)
    assert [i.opcode for i in module.entry.instructions if i.operands] in (
        [Opcode.EXPONENTIAL, Opcode.ADD],
        [Opcode.EXPONENTIAL, Opcode.MULTIPLY],
    )


def test_both_pipelines_hold_the_same_passes() -> None:
    ours = {p.name for p in leaves(default_pipeline())} - {"computation-deduplication", "algebraic-simplifier"}
    ours |= {make_pass(member).name for member in MEMBERS}
    once = {p.name for p in leaves(xla_order())}
    assert ours == once
