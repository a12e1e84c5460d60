"""Changes of the default fusions: what is described, what a forest makes of it, and the folder."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compiler import compile
from compiler.errors import PolicyError
from compiler.fusion.actions import KINDS
from compiler.interpreter import evaluate
from compiler.learned.change_choosers import UNCHANGED, ChangeForest
from compiler.learned.features.fusion_changes import CHANGE_FEATURES, CHANGED_COLUMNS, FusionChanges
from compiler.learned.forest import Forest
from compiler.learned.fusion_changes import LearnedChanges, load_changes, module_opcodes, read_changes, save_changes
from compiler.learned.kernel_model import LearnedKernelCost, shipped_kernel_cost
from compiler.learned.rule_list import Condition, Rule, RuleList
from compiler.learned.tree_nodes import TreeNodes
from compiler.policy import Policy
from compiler.session import CompilationSession
from compiler.text import parse

TEXT = """add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY e {
  x = f32[64,1000] parameter(0)
  y = f32[1000] parameter(1)
  e = f32[64,1000] exponential(x)
  b = f32[64,1000] broadcast(y), dimensions={1}
  p = f32[64,1000] multiply(e, b)
  z = f32[] constant(0)
  r = f32[64] reduce(p, z), dimensions={1}, to_apply=add
  w = f32[64,1000] broadcast(r), dimensions={0}
  d = f32[64,1000] divide(p, w)
  ROOT t = (f32[64,1000], f32[64]) tuple(d, r)
}"""


def _model() -> LearnedKernelCost:
    model = shipped_kernel_cost()
    assert model is not None
    return model


def _chooser(log: float, margin: float = 0.02, steps: int = 2) -> ChangeForest:
    """Return what predicts the same gain for every action."""
    width = len(CHANGE_FEATURES)
    leaf = np.zeros(1, np.int64)
    bounds = np.full(width, 1e30)
    nodes = TreeNodes(leaf, leaf - 1, np.zeros(1), leaf, leaf)
    forest = Forest(nodes, np.array([log]), np.zeros(1), -bounds, bounds)
    return ChangeForest(forest, margin, 0.0, steps, _model().digest)


def _session() -> CompilationSession:
    session = CompilationSession(parse(TEXT))
    session.run_passes()
    session.run_fusion_policy(LearnedChanges(_chooser(0.0), _model()))
    return session


def test_describing_leaves_the_state_as_it_was() -> None:
    state = _session().fusion.fork()
    before = str(state.module), state.fingerprint, len(state.history)
    changes = FusionChanges(state, _model())
    found = [changes.describe(a) for a in state.actions(KINDS)]
    assert any(found)
    assert (str(state.module), state.fingerprint, len(state.history)) == before
    for change in found:
        assert change is None or (len(change.row) == len(CHANGE_FEATURES) and all(map(math.isfinite, change.row)))


def test_kernels_before_and_after_are_those_of_the_module() -> None:
    state = _session().fusion.fork()
    changes = FusionChanges(state, _model())
    for action in state.actions(KINDS):
        change = changes.describe(action)
        if change is None:
            continue
        assert all(state.find(action.computation, name) is not None for name in change.before)
        state.apply(action)
        assert all(state.find(action.computation, name) is not None for name in change.after)
        state.undo()


def test_without_an_expected_gain_the_fusions_are_the_default_ones() -> None:
    default = CompilationSession(parse(TEXT))
    default.run_passes()
    learned = _session()
    assert str(compile(TEXT).module) == str(learned.module)
    assert learned.decided_by["fusion"] == "learned"


@pytest.mark.parametrize("steps", [1, 3])
def test_an_expected_gain_changes_fusions_and_no_result(steps: int) -> None:
    policy = LearnedChanges(_chooser(0.3, steps=steps), _model())
    module = parse(TEXT)
    default = len(compile(TEXT).plan.fusions)  # type: ignore[union-attr]
    executable = compile(TEXT, policy=Policy("changed", fusion=policy))
    assert executable.plan is not None
    assert default < len(executable.plan.fusions) <= default + steps
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=p.shape.dimensions).astype(np.float32) for p in module.entry.parameters]
    for found, expected in zip(executable(*arrays), evaluate(module, arrays), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_reasons_are_those_of_the_actions_after_the_default_ones() -> None:
    session = CompilationSession(parse(TEXT))
    session.run_passes()
    policy, state = LearnedChanges(_chooser(0.3, steps=1), _model()), session.fusion.fork()
    default = len(compile(TEXT, policy="heuristic").plan.fusions)  # type: ignore[union-attr]
    reasons = []
    while (reason := policy.explain(state)) is not None and (action := policy.choose(state)) is not None:
        reasons.append(reason)
        state.apply(action)
    assert reasons[:default] == [""] * default
    assert len(reasons) == default + 1
    assert reasons[-1].startswith(str(state.history[-1]))
    assert policy.explain(state).startswith("not taken: ")


def test_programs_with_an_opcode_that_was_not_learned_on_keep_the_default_fusions() -> None:
    known = module_opcodes(parse(TEXT))
    assert {"exponential", "reduce", "divide"} <= known
    default = compile(TEXT, policy="heuristic").plan
    assert default is not None
    for opcodes, same in ((known, False), (known | {"sort"}, False), (known - {"exponential"}, True)):
        policy = LearnedChanges(replace(_chooser(0.3), opcodes=opcodes), _model())
        found = compile(TEXT, policy=Policy("changed", fusion=policy)).plan
        assert found is not None
        assert (found.fusions == default.fusions) == same
    state = _session().fusion
    assert "exponential" in LearnedChanges(replace(_chooser(0.3), opcodes=known - {"exponential"}), _model()).explain(
        state
    )


def test_it_says_what_it_expects() -> None:
    state = _session().fusion
    reason = LearnedChanges(_chooser(math.log(1.5)), _model()).explain(state)
    assert "predicted 1.50x" in reason
    assert "needed 1.02x" in reason


def test_a_folder_is_read_as_it_was_written(tmp_path: Path) -> None:
    chooser = replace(_chooser(0.25, margin=0.07, steps=3), opcodes=frozenset({"add", "dot"}))
    save_changes(tmp_path / "p", chooser)
    found, _ = read_changes(tmp_path / "p")
    assert found.opcodes == found.readable().opcodes == {"add", "dot"}
    assert (found.margin, found.errors, found.steps) == (0.07, 0.0, 3)
    np.testing.assert_allclose(found.forest.mean, chooser.forest.mean)


def test_rules_decide_in_the_readable_form(tmp_path: Path) -> None:
    condition = Condition(CHANGED_COLUMNS["kernels before"], at_most=False, bound=0.5)
    rules = RuleList((Rule("fission", UNCHANGED, (condition,), 1.5, 20),), CHANGE_FEATURES)
    save_changes(tmp_path / "p", replace(_chooser(-0.3, steps=1), rules=rules))
    policy = load_changes(tmp_path / "p", readable=True)
    assert policy is not None
    reason = policy.explain(_session().fusion)
    assert "fission instead of the default fusions if kernels before is 1, above 0.5 kernels" in reason
    assert "expected 1.50x, 20 samples" in reason
    plan = compile(TEXT, policy=Policy("readable", fusion=policy)).plan
    assert plan is not None
    assert plan.fusions[-1].kind == "fission"  # the forest expects it to be slower
    save_changes(tmp_path / "p", _chooser(0.3))
    assert load_changes(tmp_path / "p", readable=True) is None


def test_another_cost_model_of_kernels_is_refused(tmp_path: Path) -> None:
    save_changes(tmp_path / "p", replace(_chooser(0.1), costs="0" * 24))
    with pytest.raises(PolicyError, match="another cost model of kernels"):
        load_changes(tmp_path / "p")
