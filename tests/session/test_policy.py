"""A policy for a whole compilation: names, folders, parts, overrides, what plans record, and errors."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler.policy
from compiler import CompilationPlan, Policy, compile, load_policy
from compiler.api import CompileOptions, decide_all
from compiler.errors import ArgumentError, PolicyError, UnknownNameError
from compiler.interpreter import evaluate
from compiler.learned.fusion_policy import network_shape, save_policy
from compiler.learned.whole_folder import WholeDescription, copy_whole, read_whole, write_whole
from compiler.loops import KeepLoops
from compiler.policy import HEURISTIC, default_policy, load_whole, policy_names, resolve_policy
from compiler.runtime.kernel_selector import DefaultKernels
from compiler.session import CompilationSession
from compiler.text import parse
from tests.env.small_programs import LOOP
from tests.full_disk import full_disk
from tests.learned.bandits import bandit, whole_folder
from tests.learned.test_site_policy import DOT

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return whole_folder(tmp_path)


def fusion_folder(folder: Path) -> Path:
    shape = network_shape(hidden=4, rounds=1)
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=dims).astype(np.float32) for name, dims in shape.weights().items()}
    save_policy(folder, shape, weights, {"programs": ["b"]})
    return folder


def plan_of(program: str, **options: Any) -> CompilationPlan:
    plan = compile(program, **options).plan
    assert plan is not None
    return plan


# ---- what decides


def test_each_phase_is_decided_by_its_part_and_the_rest_by_the_rules(whole: Path) -> None:
    plan = plan_of(DOT, policy=str(whole))
    assert plan.decided_by == {"expansions": "learned@3", "loops": "learned@3", "fusion": "default"}
    assert [(c.id, c.choice) for c in plan.expansions] == [("e/d", "keep")]
    assert plan_of(LOOP, policy=whole).loops == {"e/w": "keep"}
    assert plan_of(LOOP).loops == {"e/w": "kernel"}


def test_results_are_those_of_the_interpreter(whole: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=s.dimensions).astype(np.float32) for s in parse(DOT).entry.parameter_shapes)
    for given in (None, "heuristic", "priority", str(whole), f"{whole}:rules"):
        np.testing.assert_allclose(compile(DOT, policy=given)(x, y)[0], evaluate(parse(DOT), [x, y])[0], rtol=1e-5)


def test_without_a_policy_the_rules_decide_unless_the_one_that_ships_may(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = WholeDescription("learned", "3", backends=("cpu",), default_for=())
    monkeypatch.setattr(compiler.policy, "shipped_description", lambda: shipped)
    assert default_policy("cpu") is HEURISTIC
    monkeypatch.setattr(compiler.policy, "shipped_description", lambda: None)
    assert default_policy("cpu") is HEURISTIC
    allowed = WholeDescription("learned", "3", backends=("cpu",), default_for=("cpu",))
    monkeypatch.setattr(compiler.policy, "shipped_description", lambda: allowed)
    monkeypatch.setattr(compiler.policy, "_shipped", lambda readable: load_whole(whole))
    assert default_policy("cuda") is HEURISTIC
    assert plan_of(DOT).decided_by["expansions"] == "learned@3"
    assert plan_of(DOT, policy="heuristic").expansions == ()


def test_arguments_override_the_policy_for_their_own_decisions(whole: Path) -> None:
    plan = plan_of(LOOP, policy=whole, loop_policy=KeepLoops(), fusion_policy="priority")
    assert plan.decided_by["loops"] == "KeepLoops"
    assert plan.decided_by["fusion"] == "priority"
    assert plan.decided_by["expansions"] == "learned@3"
    other = plan_of(DOT, policy=whole, expansion_policy=lambda site: site.default, kernel_selector=DefaultKernels())
    assert other.expansions[0].choice == "loops"
    assert other.decided_by["kernels"] == "DefaultKernels"
    assert "learned@3" not in other.decided_by["expansions"]


def test_a_policy_of_functions_decides_every_phase() -> None:
    mine = Policy("mine", "1", ["dce"], lambda site: "keep", KeepLoops(), lambda state: None, lambda site: site.default)
    plan = plan_of(DOT, policy=mine)
    assert plan.decided_by == dict.fromkeys(("passes", "expansions", "loops", "fusion", "kernels"), "mine@1")
    assert plan.expansions[0].choice == "keep"
    assert plan.fusions == ()
    again = CompilationPlan.from_json(plan.to_json())
    assert again.decided_by == plan.decided_by
    assert plan_of(DOT, plan=again).decided_by["loops"] == "plan (mine@1)"


def test_a_policy_for_another_backend_leaves_everything_to_the_rules(whole: Path) -> None:
    plan = plan_of(DOT, backend="cuda", policy=whole)
    assert plan == plan_of(DOT, backend="cuda")
    assert "learned@3" not in plan.decided_by.values()


def test_kept_fusions_are_left_to_a_policy_only_if_one_is_given(whole: Path) -> None:
    options = CompileOptions(keep_fusions=True)
    assert plan_of(LOOP, options=options).loops == {}
    assert plan_of(LOOP, policy=whole, options=options).loops == {"e/w": "keep"}


def test_a_learned_fusion_policy_decides_loops_as_it_did(tmp_path: Path) -> None:
    folder = fusion_folder(tmp_path / "fusion")
    by_argument = plan_of(LOOP, fusion_policy=load_policy(folder))
    by_name = plan_of(LOOP, policy=str(folder))
    write_whole(tmp_path / "whole", "learned", "8", {"fusion": folder})
    loaded = load_policy(tmp_path / "whole")
    assert isinstance(loaded, Policy)
    as_part, as_fusion = plan_of(LOOP, policy=loaded), plan_of(LOOP, fusion_policy=loaded)
    assert by_argument == by_name == as_part == as_fusion
    assert as_fusion.decided_by["fusion"] == as_fusion.decided_by["loops"] == "learned@8"


def test_a_policy_that_cannot_be_written_leaves_the_one_that_is_there(whole: Path, tmp_path: Path) -> None:
    old, new = fusion_folder(tmp_path / "old"), whole / "expansions"
    write_whole(tmp_path / "there", "before", "1", {"fusion": old})
    for folder in ("there", "new"):
        with full_disk(2), pytest.raises(PolicyError, match=f"cannot write the policy to .*{folder}: No space left"):
            write_whole(tmp_path / folder, "after", "2", {"fusion": old, "expansions": new})
    assert plan_of(LOOP, policy=tmp_path / "there").decided_by["fusion"] == "before@1"
    write_whole(tmp_path / "new", "after", "2", {"fusion": old, "expansions": new})
    assert plan_of(LOOP, policy=tmp_path / "new").decided_by["fusion"] == "after@2"


def test_sites_that_keep_their_default_stay_undecided(tmp_path: Path) -> None:
    session = CompilationSession(parse(DOT))
    unsure = bandit("expansions", "keep", "loops", 1.5, deviation=1.0)
    decide_all(session, Policy("unsure", expansions=compiler.policy.load_whole(whole_folder(tmp_path)).expansions))
    assert len(session.plan.expansions) == 1
    session = CompilationSession(parse(DOT))
    decide_all(session, Policy("unsure", expansions=compiler.learned.site_policy.SiteExpansions(unsure)))
    assert session.plan == plan_of(DOT)


# ---- reasons


def test_a_policy_explains_its_choice_for_a_site(whole: Path) -> None:
    learned, rules = resolve_policy(str(whole), "cpu"), resolve_policy(f"{whole}:rules", "cpu")
    session = CompilationSession(parse(DOT))
    session.run_passes()
    (site,) = session.expansions()
    assert "keep: predicted keep 1.50x" in learned.explain(site)
    assert rules.explain(site).startswith("keep instead of loops if rows is 3, at most 1000 elements")
    assert rules.name == "learned:rules"
    assert HEURISTIC.explain(site) == "decided by the rules of the compiler"
    assert "gives no reasons" in Policy("mine", expansions=lambda s: s.default).explain(site)
    loops = CompilationSession(parse(LOOP))
    loops.run_passes()
    (loop,) = loops.loops()
    assert "body is" in rules.explain(loop, loops.module)
    with pytest.raises(ArgumentError, match=r"session\.module"):
        rules.explain(loop)
    _ = loops.fusion
    assert "rules of the compiler" in rules.explain(loops.kernel_sites()[0])


# ---- names and folders


def test_names_are_resolved_and_wrong_ones_suggest_others() -> None:
    assert resolve_policy("heuristic", "cpu") is HEURISTIC
    assert resolve_policy("merger{transposed_share=0.3}", "cpu").fusion is not None
    assert {"heuristic", "learned", "learned:rules", "priority"} <= set(policy_names())
    with pytest.raises(UnknownNameError, match="did you mean 'heuristic'"):
        resolve_policy("heuristics", "cpu")
    with pytest.raises(UnknownNameError, match="unknown policy"):
        resolve_policy("priority:rules", "cpu")
    with pytest.raises(ArgumentError, match="has an argument of its own"):
        resolve_policy(KeepLoops(), "cpu")  # type: ignore[arg-type]


def test_policies_are_loaded_by_name_and_in_their_readable_form(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_policy("heuristic") is HEURISTIC
    session = CompilationSession(parse(DOT))
    session.run_passes()
    (site,) = session.expansions()
    for name in ("learned:rules", f"{whole}:rules"):
        loaded, resolved = load_policy(name), resolve_policy(name, "cpu")
        assert isinstance(loaded, Policy)
        assert (loaded.label, loaded.explain(site)) == (resolved.label, resolved.explain(site))
    with pytest.raises(PolicyError, match="there is no policy folder heuristics"):
        load_policy("heuristics")
    with pytest.raises(UnknownNameError, match="unknown policy"):
        load_policy("priority:rules")
    monkeypatch.chdir(whole.parent)
    (whole.parent / "heuristic").symlink_to(whole)  # a folder goes before a name
    assert load_policy("heuristic") is not HEURISTIC


def test_wrong_folders_are_named(tmp_path: Path, whole: Path) -> None:
    with pytest.raises(PolicyError, match="there is no policy folder"):
        resolve_policy(str(tmp_path / "nowhere"), "cpu")
    with pytest.raises(PolicyError, match=r"has no policy\.json"):
        resolve_policy(tmp_path, "cpu")
    with pytest.raises(PolicyError, match="cannot be used alone"):
        resolve_policy(whole / "loops", "cpu")
    with pytest.raises(PolicyError, match="only whole policies have one"):
        resolve_policy(f"{fusion_folder(tmp_path / 'fusion')}:rules", "cpu")
    write_whole(tmp_path / "no_rules", "learned", "1", {"fusion": tmp_path / "fusion"})
    with pytest.raises(PolicyError, match="has no readable form"):
        resolve_policy(f"{tmp_path / 'no_rules'}:rules", "cpu")
    with pytest.raises(PolicyError, match="describes 'hlogym-policy' instead of 'hlogym-fusion-policy'"):
        compiler.learned.fusion_policy.load_policy(whole)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format_version": 2}, "format version 2, but this compiler reads 1; update hlogym"),
        ({"format_version": "1"}, "export it again"),
        ({"parts": ["loops"]}, "parts must map"),
        ({"parts": {"../loops": "0"}}, "there is no phase"),
        ({"parts": {"loops": "0"}}, "a file was changed"),
        ({"parts": {"fusion": "0"}}, "there is no policy folder"),
        ({"name": ""}, "name must be"),
        ({"version": "a\nb"}, "version must be"),
        ({"backends": "cpu"}, "backends must be a list"),
        ({"default_for": [3]}, "default_for must be"),
        ({"provenance": []}, "provenance must be an object"),
    ],
)
def test_a_damaged_description_is_refused(whole: Path, change: dict[str, object], problem: str) -> None:
    file = whole / "policy.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(PolicyError, match=problem):
        load_whole(whole)


def test_a_part_in_the_place_of_another_is_refused(whole: Path) -> None:
    shutil.copytree(whole / "loops", whole / "kernels")
    shutil.copytree(whole / "loops", whole / "passes")
    description = json.loads((whole / "policy.json").read_text())
    for phase in ("kernels", "passes"):
        parts = {phase: description["parts"]["loops"]}
        (whole / "policy.json").write_text(json.dumps({**description, "parts": parts}))
        with pytest.raises(PolicyError, match=f"cannot be the part for {phase}"):
            load_whole(whole)


def test_copies_hold_the_same_policy_and_replace_others(whole: Path, tmp_path: Path) -> None:
    target = fusion_folder(tmp_path / "target")
    (target / "notes.txt").write_text("mine")
    copy_whole(whole, target)
    assert read_whole(target) == read_whole(whole)
    assert plan_of(DOT, policy=target) == plan_of(DOT, policy=whole)
    assert not (target / "policy.safetensors").exists()
    assert (target / "notes.txt").read_text() == "mine"


def test_a_fresh_process_decides_without_torch_or_gymnasium(whole: Path) -> None:
    script = """
import sys
from compiler import compile
print(compile(sys.argv[1], policy=sys.argv[2]).plan.decided_by["loops"])
print([m for m in ("torch", "gymnasium", "sklearn", "mlflow", "safetensors", "jax") if m in sys.modules])
"""
    command = [sys.executable, "-c", script, LOOP, str(whole)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout.split() == ["learned@3", "[]"], done.stderr
