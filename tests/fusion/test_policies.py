import itertools
from typing import Any

import pytest

from compiler import compile
from compiler.analysis.cost_model import device_model
from compiler.codegen import buildability
from compiler.errors import ArgumentError, FusionError, HlogymError, UnknownNameError
from compiler.fusion.actions import FusionAction
from compiler.fusion.policies import POLICIES, SEARCHES, BeamSearch, InOrder, NoFusion, RandomFusion, make_policy
from compiler.fusion.policies.free_ops import ThroughFreeOps
from compiler.fusion.policies.xla import FusionMerger, InstructionFusion
from compiler.fusion.protocol import as_policy, run_policy
from compiler.fusion.rewriting import body_of
from compiler.fusion.state import FusionState
from compiler.ir.verifier import check_module
from compiler.passes.pipelines.default import default_pipeline
from compiler.session import CompilationSession
from compiler.text import parse
from env.suites import load_suite
from tests.fusion.programs import entry, optimized
from tests.passes.programs import PROGRAMS, difference, program_inputs, program_results, run

FAST = tuple(n for n in POLICIES if n != "none" and n not in SEARCHES - {"random"})


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_policy_keeps_results_and_makes_kernels(program: str) -> None:
    start = FusionState(optimized(program))
    large = start.module.instruction_count > 100
    for name in ("default", "greedy") if large else FAST:
        state = start.fork()
        run_policy(state, make_policy(name), limit=80 if name == "random" else None)
        assert check_module(state.module) == [], name
        assert [buildability.kernel_refusal(body_of(f)) for f in state.fusions()] == [None] * len(state.fusions()), name
        found = difference(run(state.module, program_inputs(program)), program_results(program))
        assert found is None, f"{name}: {found}"


@pytest.mark.parametrize("program", ["softmax", "layer_norm_forward", "rms_norm", "adam_step", "transpose_scale_add"])
def test_default_makes_one_kernel(program: str) -> None:
    module = parse(load_suite("quickstart").find(program).text())
    default_pipeline().run(module)
    state = FusionState(module)
    run_policy(state, make_policy("default"))
    assert len(state.fusions()) == 1
    assert not [a for a in state.actions() if state.estimate(a) > 1e-9]


@pytest.mark.parametrize("program", ["softmax_cross_entropy_grad", "layer_norm_backward", "mlp_train_step"])
def test_policies_that_follow_the_cost_model_never_lose_by_it(program: str) -> None:
    start = FusionState(optimized(program))
    for name in ("default", "priority", "savings", "fusion-merger", "multi-output", "horizontal"):
        state = start.fork()
        run_policy(state, make_policy(name))
        assert state.seconds() <= start.seconds() * 1.001, name


@pytest.mark.parametrize("rows", [512, 32])
def test_a_transposition_behind_a_reshape_leaves_a_product_to_the_library_where_that_is_faster(rows: int) -> None:
    session = CompilationSession(
        parse(f"""ENTRY e {{
            x = f32[{rows // 8},8,6272] parameter(0)  y = f32[6272,288] parameter(1)
            t = f32[8,{rows // 8},6272] transpose(x), dimensions={{1,0,2}}  r = f32[{rows},6272] reshape(t)
            ROOT d = f32[{rows},288] dot(r, y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}} }}"""),
        "cuda", pipeline=[],
    )  # fmt: skip
    before = session.fusion.seconds()
    run_policy(session.fusion, ThroughFreeOps())
    assert session.fusion.seconds() <= before


def test_the_seed_program_becomes_the_fusion_it_shows() -> None:
    suite = load_suite("quickstart")
    module = parse(suite.find("seed_broadcast_add_before").text())
    default_pipeline().run(module)
    run_policy(FusionState(module), make_policy("default"))
    shown = parse(suite.find("seed_broadcast_add_after").text())
    assert module.fingerprint() == shown.fingerprint()


def test_random_is_the_same_for_the_same_seed() -> None:
    start = FusionState(optimized("attention"))
    runs = [run_policy(start.fork(), RandomFusion(seed, 0.1)) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_beam_search_is_no_worse_than_nothing_and_leaves_the_state_to_the_runner() -> None:
    state = FusionState(optimized("softmax"))
    alone = state.seconds()
    run_policy(state, BeamSearch(width=2, branch=2))
    assert state.seconds() < alone
    assert len(state.fusions()) >= 1


def test_an_unknown_policy_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown fusion policy 'prority'.*'priority'"):
        make_policy("prority")


def test_a_function_is_a_policy() -> None:
    def first(state: FusionState) -> FusionAction | None:
        return next(iter(state.actions()), None)

    text = "ENTRY e { x = f32[4] parameter(0) y = f32[4] negate(x) ROOT z = f32[4] tanh(y) }"
    assert len(compile(text, fusion_policy=first).kernels) == 1
    assert len(compile(text, fusion_policy=lambda state: None).kernels) == 2


@pytest.mark.parametrize(
    ("policy", "message"),
    [(NoFusion, "pass NoFusion\\(\\)"), (3, "an object with choose"), ([], "a function of the state")],
)
def test_an_object_that_is_no_policy_is_rejected(policy: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        compile("ENTRY e { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }", fusion_policy=policy)


def test_a_choice_that_is_no_action_is_rejected() -> None:
    with pytest.raises(FusionError, match=r"returns one of state.actions\(\) or None, not 'first'"):
        run_policy(entry("ENTRY e { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }"), as_policy(lambda _: "first"))  # type: ignore[arg-type,return-value]


def test_an_unknown_kind_of_fusion_is_rejected() -> None:
    state = entry("ENTRY e { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }")
    with pytest.raises(UnknownNameError, match="did you mean 'producer-consumer'"):
        state.actions(["producer-consumers"])  # type: ignore[list-item]


def test_options_and_policies_in_order_are_read_from_text() -> None:
    policy = make_policy("instruction{may_duplicate=false, code_duplication=3},merger{transposed_share=0.25}")

    assert isinstance(policy, InOrder)
    first, second = policy.policies
    assert isinstance(first, InstructionFusion)
    assert (first.may_duplicate, first.code_duplication, first.region_limit) == (False, 3, 256)
    assert isinstance(second, FusionMerger)
    assert second.transposed_share == 0.25


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("merger{share=1}", "fusion policy 'merger' has no option 'share'; options: transposed_share=0.5"),
        ("merger{transposed_share=inf}", "takes a number, got 'inf'"),
        ("default{width=2}", "has no option 'width'; options: none"),
        ("horizontal{elements=2.5}", r"takes a number \(int\), got '2.5'"),
        ("instruction,prority", "unknown fusion policy 'prority'"),
        ("instruction,,priority", "has an empty part"),
        ("merger{", "unknown fusion policy 'merger{'"),
    ],
)
def test_malformed_options_are_rejected(text: str, message: str) -> None:
    with pytest.raises(HlogymError, match=message):
        make_policy(text)


def test_instruction_fusion_may_compute_expensive_values_repeatedly() -> None:
    text = """ENTRY %main (x: f32[8]) -> (f32[8], f32[8]) {
  %x = f32[8] parameter(0)
  %e = f32[8] exponential(%x)
  %a = f32[8] negate(%e)
  %b = f32[8] abs(%e)
  ROOT %t = (f32[8], f32[8]) tuple(%a, %b)
}"""
    counts = []
    for policy in ("instruction", "instruction{keep_expensive=false}"):
        state = entry(text)
        run_policy(state, make_policy(policy))
        counts.append(len(state.fusions()))
    assert counts == [0, 2]


SLICES_BEHIND_RESHAPES = """
ENTRY %main (a: f32[4,4,4], b: f32[4,4,4]) -> f32[4,4,4] {
  %a = f32[4,4,4] parameter(0)
  %b = f32[4,4,4] parameter(1)
  %s = f32[1,4,4] slice(%a), slice={[0:1], [0:4], [0:4]}
  %v = f32[4,4] reshape(%s)
  %t = f32[1,4,4] slice(%b), slice={[0:1], [0:4], [0:4]}
  %w = f32[4,4] reshape(%t)
  %x = f32[4,4,4] broadcast(%v), dimensions={1,0}
  %y = f32[4,4,4] broadcast(%w), dimensions={2,0}
  ROOT %m = f32[4,4,4] multiply(%x, %y)
}
"""


def test_reshapes_no_longer_keep_kernels_apart_once_they_are_fused() -> None:
    kernels = {}
    for name in ("priority", "reshapes,default"):
        state = entry(SLICES_BEHIND_RESHAPES)
        run_policy(state, make_policy(name))
        kernels[name] = sum(s.time_of(i) > 0 for s, i in state.instructions())
    assert kernels == {"priority": 3, "reshapes,default": 1}


TWO_READERS = """
%add (p: f32[], q: f32[]) -> f32[] {
  %p = f32[] parameter(0)
  %q = f32[] parameter(1)
  ROOT %sum = f32[] add(%p, %q)
}

ENTRY %main (x: f32[1024,512], y: f32[1024]) -> (f32[1024,512], f32[1024], f32[1024]) {
  %x = f32[1024,512] parameter(0)
  %y = f32[1024] parameter(1)
  %zero = f32[] constant(0)
  %sums = f32[1024] reduce(%x, %zero), dimensions={1}, to_apply=%add
  %beside = f32[1024] add(%y, %y)
  %above = f32[1024] multiply(%sums, %y)
  %rows = f32[1024,512] broadcast(%y), dimensions={0}
  %result = f32[1024,512] add(%x, %rows)
  ROOT %t = (f32[1024,512], f32[1024], f32[1024]) tuple(%result, %above, %beside)
}
"""


def test_readers_of_a_large_array_become_one_kernel() -> None:
    state = FusionState(parse("HloModule m\n" + TWO_READERS), device_model("gpu"))
    for name in ("%sums", "%result"):
        assert any(i.name == name[1:] for _, i in state.instructions())
    run_policy(state, make_policy("readers"))
    (read,) = [f for f in state.fusions() if any(o.name == "x" for o in f.operands)]
    assert {"reduce", "add"} <= {i.opcode.text for i in body_of(read).instructions}
    entry_users = [i for _, i in state.instructions() if any(o.name == "x" for o in i.operands)]
    assert entry_users == [read]


def cross_product() -> str:
    """Return a program of the cross products of the first three columns of two matrices."""
    lines = [f"%{m} = f32[1000,4] parameter({n})" for n, m in enumerate("ab")]
    for m, k in itertools.product("ab", range(3)):
        lines.append(f"%s{m}{k} = f32[1000,1] slice(%{m}), slice={{[0:1000], [{k}:{k + 1}]}}")
        lines.append(f"%{m}{k} = f32[1000] reshape(%s{m}{k})")
    for k in range(3):
        i, j = (k + 1) % 3, (k + 2) % 3
        lines.append(f"%p{k} = f32[1000] multiply(%a{i}, %b{j})")
        lines.append(f"%q{k} = f32[1000] multiply(%a{j}, %b{i})")
        lines.append(f"%r{k} = f32[1000] subtract(%p{k}, %q{k})")
    shapes = ", ".join(["f32[1000]"] * 3)
    lines.append(f"ROOT %r = ({shapes}) tuple(%r0, %r1, %r2)")
    return f"ENTRY %main (a: f32[1000,4], b: f32[1000,4]) -> ({shapes}) {{\n" + "\n".join(lines) + "\n}"


def test_columns_that_several_kernels_read_through_reshapes_are_read_where_they_are_used() -> None:
    state = entry(cross_product())
    run_policy(state, make_policy("default"))
    assert sum(s.time_of(i) > 0 for s, i in state.instructions()) == 1
