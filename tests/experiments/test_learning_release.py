"""Readable forms of changes of fusions, and policies that are validated again."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compiler.errors import PolicyError
from compiler.fusion.actions import FusionAction
from compiler.learned.change_choosers import UNCHANGED, ChangeForest
from compiler.learned.features.fusion_changes import CHANGE_FEATURES, CHANGED_COLUMNS, Change
from compiler.learned.forest import Forest
from compiler.learned.fusion_changes import read_changes, save_changes
from compiler.learned.kernel_model import shipped_kernel_cost
from compiler.learned.policy_folder import describe_policy
from compiler.learned.tree_nodes import TreeNodes
from compiler.learned.whole_folder import SHIPPED, read_whole, write_whole
from compiler.policy import resolve_policy
from experiments.learning import release
from experiments.learning.fusion_rules import Offered, agreement, distilled_rules
from experiments.learning.release import without
from experiments.learning.settings import RuleSettings

SIZE = CHANGED_COLUMNS["value"]
SETTINGS = RuleSettings(leaf=3, folds=3)


def _forest() -> ChangeForest:
    """Return what expects a gain of 0.3 from values above 100 elements and a loss of 0.2 from others."""
    none, bounds = np.zeros(3), np.full(len(CHANGE_FEATURES), 1e30)
    nodes = TreeNodes(
        np.array([0]), np.array([SIZE, -1, -1]), np.array([100.0, 0, 0]), np.array([1, 1, 2]), np.array([2, 1, 2])
    )
    forest = Forest(nodes, np.array([0, -0.2, 0.3]), none, -bounds, bounds)
    return ChangeForest(forest, 0.07, 0.0, 2, "costs")


def _actions(count: int = 60) -> list[Offered]:
    rng = np.random.default_rng(0)
    found = []
    for n in range(count):
        row = np.zeros(len(CHANGE_FEATURES))
        row[SIZE] = rng.uniform(1, 200)
        row[CHANGED_COLUMNS["largest array"]] = rng.uniform(1, 200)
        action = FusionAction("fission" if n % 3 else "move", "main", "a", ("b",))
        found.append(Offered(f"p{n}", f"f{n % 5}", Change(action, ("a",), ("b",), 1e-5, tuple(row.tolist()))))
    return found


def _policy(folder: Path) -> Path:
    """Return the folder of the policy that ships, with a part for fusion."""
    whole, costs = read_whole(SHIPPED), shipped_kernel_cost()
    assert costs is not None
    save_changes(folder / "fusion", replace(_forest(), costs=costs.digest))
    parts = {phase: SHIPPED / phase for phase in whole.parts} | {"fusion": folder / "fusion"}
    write_whole(folder / "policy", whole.name, whole.version, parts, whole.backends, (), whole.provenance, "")
    shutil.rmtree(folder / "fusion")
    return folder / "policy"


def test_rules_repeat_what_a_forest_expects() -> None:
    rules = distilled_rules(_forest(), _actions(), SETTINGS)
    assert {r.choice for r in rules.rules} == {"fission", "move"}
    for rule in rules.rules:
        (condition,) = rule.conditions
        assert (rule.default, condition.feature, condition.at_most) == (UNCHANGED, SIZE, False)
        assert condition.bound == pytest.approx(100, abs=15)
        assert rule.speedup == pytest.approx(math.exp(0.3), abs=1e-3)
    assert distilled_rules(replace(_forest(), margin=0.5), _actions(), SETTINGS).rules == ()
    assert distilled_rules(_forest(), [], SETTINGS).rules == ()


def test_agreement_is_that_on_other_families() -> None:
    found = agreement(_forest(), _actions(300), SETTINGS)
    assert found.taken == sum(o.change.row[SIZE] > 100 for o in _actions(300))
    assert found.found > 0.8
    assert found.right > 0.8
    none = agreement(replace(_forest(), margin=0.5), _actions(), SETTINGS)
    assert (none.taken, none.found, none.right) == (0, 0, 0)


def test_a_released_policy_says_what_is_known_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "learnable_programs", lambda suite, per_family, seed: [])
    monkeypatch.setattr(release, "offered", lambda programs, backend, model, instructions: _actions())
    rules = distilled_rules(_forest(), _actions(), SETTINGS)
    monkeypatch.setattr(release, "distilled_rules", lambda chooser, actions, settings: rules)
    right = agreement(_forest(), _actions(), SETTINGS)
    monkeypatch.setattr(release, "agreement", lambda chooser, actions, settings: right)
    folder = _policy(tmp_path)
    release.main(["--folder", str(folder), "--rules", "--no-validate", "--version", "9", "--default"])
    card = (folder / "README.md").read_text()
    assert "Policy `learned`, version 9" in card
    assert "fission instead of the default fusions if value above" in card
    assert "Rules for fusion: 2, distilled" in card
    whole = read_whole(folder)
    assert whole.default_for == (("cpu",) if whole.provenance["validation"]["passed"] else ())
    readable = resolve_policy(f"{folder}:rules", "cpu")
    assert set(readable.parts) == {"expansions", "fusion"}
    assert [p.name for p in tmp_path.iterdir()] == ["policy"]


def test_rules_that_agree_too_little_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(agreement(_forest(), _actions(), SETTINGS), right=0.1)
    monkeypatch.setattr(release, "learnable_programs", lambda suite, per_family, seed: [])
    monkeypatch.setattr(release, "offered", lambda programs, backend, model, instructions: _actions())
    monkeypatch.setattr(release, "agreement", lambda chooser, actions, settings: wrong)
    folder = _policy(tmp_path)
    release.main(["--folder", str(folder), "--rules", "--no-validate"])
    assert "Rules for fusion: none." in (folder / "README.md").read_text()
    assert read_changes(folder / "fusion")[0].rules.rules == ()


def test_a_part_can_be_left_out_and_added(tmp_path: Path) -> None:
    folder = _policy(tmp_path)
    release.main(["--folder", str(folder), "--without", "expansions", "--without", "kernels", "--no-validate"])
    assert set(resolve_policy(str(folder), "cpu").parts) == {"fusion"}
    card = (folder / "README.md").read_text()
    assert "### expansions" not in card
    assert "| expansions, forest |" not in card
    with pytest.raises(PolicyError, match="has the parts fusion"):
        release.main(["--folder", str(folder), "--without", "loops", "--no-validate"])
    with pytest.raises(PolicyError, match="must leave one"):
        release.main(["--folder", str(folder), "--without", "fusion", "--no-validate"])
    release.main(["--folder", str(folder), "--kernels", str(SHIPPED / "kernels"), "--no-validate"])
    assert set(resolve_policy(str(folder), "cpu").parts) == {"fusion", "kernels"}
    candidates = len(describe_policy(SHIPPED / "kernels")["candidates"])
    assert f"machine code of {candidates} candidates" in (folder / "README.md").read_text()


def test_without_the_part_for_fusion_its_training_is_not_described() -> None:
    facts = {
        "command": "retrain", "commit": "new", "former": {"commit": "old"}, "fusion_rules": "none",
        "samples": {"expansions": 3, "fusion": 5}, "cross_validation": {"expansions": {}, "fusion": {}},
    }  # fmt: skip
    assert without(facts, ["fusion"]) == {
        "command": "retrain", "commit": "old", "samples": {"expansions": 3}, "cross_validation": {"expansions": {}}
    }  # fmt: skip
    assert without(facts, ["expansions"])["samples"] == {"fusion": 5}
    assert without(facts, []) == facts
