import pytest

from compiler import compile
from compiler.errors import FusionError, PlanError
from compiler.fusion.policies import NoFusion, make_policy
from compiler.fusion.policies.ruled import RuledFusion
from compiler.fusion.protocol import run_policy
from compiler.fusion.rules import FusionRule
from compiler.fusion.state import FusionState
from compiler.ir import HloModule
from compiler.plan import CompilationPlan
from compiler.runtime.executable import Executable
from compiler.text import parse
from tests.fusion.programs import optimized
from tests.passes.programs import difference, program_inputs, program_results, run

CHAIN = """ENTRY e {
  x = f32[4096] parameter(0)
  a = f32[4096] negate(x)
  b = f32[4096] exponential(a), metadata={op_name="jit(f)/softmax/exp"}
  ROOT c = f32[4096] sine(b)
}"""
PAIR = """ENTRY e {
  x = f32[64] parameter(0)
  y = f32[64] parameter(1)
  a = f32[64] negate(x)
  b = f32[64] abs(y)
  s = f32[8,8] reshape(b)
  d = f32[8,8] cholesky(s), lower=true
  ROOT t = (f32[64], f32[8,8]) tuple(a, d)
}"""


def kernels(module: HloModule) -> list[set[str]]:
    """The names of the original instructions of each kernel, without parameters and tuples."""
    found = []
    for i in FusionState(module).instructions():
        node = i[1]
        inside = node.attributes["calls"].instructions if node.opcode.text == "fusion" else [node]
        names = {j.name for j in inside if j.opcode.text not in ("parameter", "tuple", "get-tuple-element")}
        found += [names] if names else []
    return found


def plan_of(executable: Executable) -> CompilationPlan:
    plan = executable.plan
    assert plan is not None
    return plan


def fuse(text: str, rules: list[str], policy: str = "default") -> list[set[str]]:
    state = FusionState(parse(text))
    run_policy(state, RuledFusion(rules, make_policy(policy)))
    return kernels(state.module)


def test_without_rules_the_policy_decides() -> None:
    assert fuse(CHAIN, []) == [{"a", "b", "c"}]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("forbid a with b", [{"a"}, {"b", "c"}]),
        ("forbid %b with op:sine", [{"a", "b"}, {"c"}]),
        ("forbid op:exp*", [{"a"}, {"b"}, {"c"}]),
        ("forbid scope:*/softmax/* with op:negate", [{"a"}, {"b", "c"}]),
        ("forbid a with c", [{"a", "b"}, {"c"}]),
        ("forbid zzz", [{"a", "b", "c"}]),
    ],
)
def test_a_forbidden_kernel_is_never_made(rule: str, expected: list[set[str]]) -> None:
    for policy in ("default", "priority", "greedy", "xla-instruction", "random"):
        found = fuse(CHAIN, [rule], policy)
        if policy == "random" or rule == "forbid a with c":  # either side may have b
            forbidden = [{"a", "c"}, {"a", "b"}, {"b", "c"}]
            assert len(found) == len(expected), policy
            assert rule != "forbid a with c" or not any(forbidden[0] <= k for k in found), policy
        else:
            assert found == expected, policy


def test_the_reason_of_a_refusal_is_the_rule() -> None:
    state = FusionState(parse(CHAIN))
    run_policy(state, RuledFusion(["forbid a with b"], NoFusion()))
    (refused,) = [a for a in FusionState(parse(CHAIN)).actions() if (a.producer, a.consumer) == ("a", "b")]

    assert state.why_not(refused) == "the rule 'forbid a with b' forbids it"
    assert refused not in state.actions()
    assert refused not in state.fork().actions()


def test_what_is_forced_is_fused_before_the_policy_chooses() -> None:
    assert fuse(CHAIN, ["force a with b"], "none") == [{"a", "b"}, {"c"}]
    assert fuse(CHAIN, ["require op:*", "forbid zzz"], "none") == [{"a", "b", "c"}]


def test_independent_instructions_are_joined_by_name() -> None:
    assert {"a", "b"} in fuse(PAIR, ["require a with b"], "none")


def test_a_required_fusion_that_is_illegal_is_an_error_with_the_reason() -> None:
    with pytest.raises(FusionError, match=r"the rule 'require s with d' is not met: %d: .*cholesky cannot be fused"):
        fuse(PAIR, ["require s with d"])


def test_a_required_fusion_that_a_rule_forbids_names_that_rule() -> None:
    with pytest.raises(FusionError, match="'require a with b' is not met: the rule 'forbid b' forbids it"):
        fuse(CHAIN, ["require a with b", "forbid b"])


def test_what_cannot_be_forced_is_reported() -> None:
    policy = RuledFusion(["force s with d", "forbid nothing*"], make_policy("default"))
    run_policy(FusionState(parse(PAIR)), policy)

    assert policy.unmet[0] == "the rule 'forbid nothing*': no instruction matches nothing*"
    assert "the rule 'force s with d': %d:" in policy.unmet[1]


@pytest.mark.parametrize("text", ["", "fuse a with b", "forbid", "forbid a b", "force a with", "require a with b c"])
def test_text_that_is_no_rule_is_rejected(text: str) -> None:
    with pytest.raises(FusionError, match=r"cannot read .* as a fusion rule; write: forbid, force or require"):
        FusionRule.parse(text)


@pytest.mark.parametrize("program", ["softmax", "layer_norm_forward", "mlp_train_step"])
def test_results_are_kept_under_rules(program: str) -> None:
    state = FusionState(optimized(program))
    run_policy(
        state, RuledFusion(["forbid op:exponential with op:reduce", "force op:multiply"], make_policy("default"))
    )

    assert difference(run(state.module, program_inputs(program)), program_results(program)) is None


def test_compile_takes_rules() -> None:
    policy = RuledFusion(["forbid a with b"], make_policy("default"))
    assert len(compile(CHAIN, fusion_policy=policy).kernels) == 2


def test_a_plan_and_its_explanation_keep_the_rules() -> None:
    executable = compile(CHAIN, fusion_policy=RuledFusion(["forbid a with b"], make_policy("priority"), "priority"))
    plan = CompilationPlan.from_json(plan_of(executable).to_json())

    assert plan.rules == ("forbid a with b",)
    assert plan.decided_by["fusion"] == "priority"
    again = compile(CHAIN, plan=plan)
    for e in (executable, again):
        (boundary,) = e.explain().boundaries
        assert boundary.refusal == "the rule 'forbid a with b' forbids it"
        assert "rules       the user: forbid a with b" in str(e.explain())


def test_a_plan_with_a_malformed_rule_is_rejected() -> None:
    data = plan_of(compile(CHAIN)).to_dict() | {"rules": ["forbid a", "fuse b"]}

    with pytest.raises(PlanError, match=r"plan: rules\[1\]: cannot read 'fuse b' as a fusion rule"):
        CompilationPlan.from_json(data)
