"""Exported policies: usable with NumPy alone, refused when they do not fit."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from agents.export import export_policy
from agents.network import TorchPointerNetwork
from agents.policy import graph_batch
from compiler.errors import PolicyError
from compiler.fusion.protocol import run_policy
from compiler.fusion.state import FusionState
from compiler.ir import Opcode
from compiler.learned.features.candidates import SAVING_COLUMN
from compiler.learned.features.decisions import FEATURE_VERSION, decision_graph
from compiler.learned.features.fusion import FusionFeatures
from compiler.learned.fusion_policy import load_policy, network_shape
from compiler.learned.pointer_network import DecisionGraph
from compiler.learned.weights import parse_weights, weights_to_bytes
from compiler.text import parse
from env.observations import observe
from tests.env.small_programs import CHAIN, LOOP

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def network() -> TorchPointerNetwork:
    torch.manual_seed(3)
    made = TorchPointerNetwork(network_shape(hidden=16, rounds=1))
    with torch.no_grad():
        made.prior.weight[0, SAVING_COLUMN] = 4
    return made


@pytest.fixture
def folder(network: TorchPointerNetwork, tmp_path: Path) -> Path:
    export_policy(network, tmp_path / "policy", {"timesteps": 7})
    return tmp_path / "policy"


def fuse(policy: object) -> str:
    state = FusionState(parse(CHAIN))
    assert hasattr(policy, "choose")
    while (action := policy.choose(state)) is not None:
        state.apply(action)
    return str(state.module)


def test_a_loaded_policy_takes_the_action_with_the_highest_score_of_its_network(
    network: TorchPointerNetwork, folder: Path
) -> None:
    loaded = load_policy(folder)
    assert loaded.provenance == {"timesteps": 7}
    state, fused = FusionState(parse(CHAIN)), 0
    while True:
        actions, candidates = FusionFeatures(state).choices()
        if not actions:
            break
        observation = observe(decision_graph(candidates, FusionFeatures(state), "fusion"))
        with torch.no_grad():
            scores = network(graph_batch({k: torch.tensor(v[None]).float() for k, v in observation.items()}))[0][0]
        best = int(scores[: len(candidates)].argmax())
        expected = actions[best] if best < len(actions) else None
        assert loaded.choose(state) == expected
        if expected is None:
            break
        state.apply(expected)
        fused += 1
    assert fused > 0


def test_draws_depend_on_the_seed_alone(folder: Path) -> None:
    def draws() -> list[str]:
        return [fuse(replace(load_policy(folder), seed=seed)) for seed in range(6)]

    assert draws() == draws()
    assert len(set(draws())) > 1


def test_a_fresh_process_compiles_with_it_without_torch_or_gymnasium(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "p.hlo").write_text(LOOP)
    script = """
import sys, numpy as np
from compiler import compile, load_policy
exe = compile(open(sys.argv[2]).read(), backend="cpu", fusion_policy=load_policy(sys.argv[1]))
exe(np.ones(256, np.float32))
print([m for m in ("torch", "gymnasium", "stable_baselines3", "mlflow", "safetensors", "jax") if m in sys.modules])
"""
    command = [sys.executable, "-c", script, str(folder), str(tmp_path / "p.hlo")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_default_fusions_complete_large_programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.learned.fusion_policy.MOST_DECISIONS", 2)
    loaded = load_policy(folder)
    asked: list[DecisionGraph] = []
    scores = loaded.network.scores

    def continuing(graph: DecisionGraph) -> np.ndarray:
        asked.append(graph)
        return np.append(scores(graph)[:-1], np.float32(-1e9))

    monkeypatch.setattr(loaded.network, "scores", continuing)
    steps = "".join(f"  v{n} = f32[64] tanh(v{n - 1})\n" for n in range(1, 30))
    text = f"HloModule m\nENTRY e {{\n  v0 = f32[64] parameter(0)\n{steps}  ROOT r = f32[64] negate(v29)\n}}\n"
    state = FusionState(parse(text))
    run_policy(state, loaded)
    assert len(asked) == 2
    assert [i.opcode for i in state.module.entry.instructions] == [Opcode.PARAMETER, Opcode.FUSION]
    other = FusionState(parse(text))  # it decides again for another program
    run_policy(other, loaded)
    assert len(asked) == 4


def _edit(folder: Path, **changes: object) -> None:
    file = folder / "policy.json"
    data = json.loads(file.read_text())
    file.write_text(json.dumps({**data, **changes}))


def test_another_feature_version_is_refused_with_both_versions(folder: Path) -> None:
    _edit(folder, feature_version=FEATURE_VERSION + 1)
    with pytest.raises(PolicyError, match=rf"version {FEATURE_VERSION + 1}.*version {FEATURE_VERSION}"):
        load_policy(folder)


def test_a_missing_folder_and_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="no policy folder"):
        load_policy(tmp_path / "nowhere")
    (folder / "policy.safetensors").unlink()
    with pytest.raises(PolicyError, match=r"policy\.safetensors"):
        load_policy(folder)
    (folder / "policy.json").unlink()
    with pytest.raises(PolicyError, match=r"policy\.json"):
        load_policy(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": "other"}'])
def test_a_damaged_description_is_refused(folder: Path, text: str) -> None:
    (folder / "policy.json").write_text(text)
    with pytest.raises(PolicyError):
        load_policy(folder)


@pytest.mark.parametrize("network_shape", [None, {}, {"hidden": 16}, "x"])
def test_a_damaged_network_shape_is_refused(folder: Path, network_shape: object) -> None:
    _edit(folder, network=network_shape)
    with pytest.raises(PolicyError, match="network's shape"):
        load_policy(folder)


def test_weights_of_another_network_are_refused(folder: Path) -> None:
    data = json.loads((folder / "policy.json").read_text())
    _edit(folder, network={**data["network"], "hidden": 32})
    with pytest.raises(PolicyError, match="has shape"):
        load_policy(folder)


def test_nan_weights_are_refused(folder: Path) -> None:
    file = folder / "policy.safetensors"
    weights = parse_weights(file.read_bytes(), "")
    weights["score.weight"][0, 0] = np.nan
    file.write_bytes(weights_to_bytes(weights))
    with pytest.raises(PolicyError, match="NaN"):
        load_policy(folder)


def test_exporting_replaces_a_policy_and_nothing_else(
    network: TorchPointerNetwork, folder: Path, tmp_path: Path
) -> None:
    export_policy(network, folder, {"timesteps": 8})
    assert load_policy(folder).provenance == {"timesteps": 8}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(PolicyError, match="no policy folder"):
        export_policy(network, tmp_path / "mine", {})
    assert (tmp_path / "mine" / "thesis.tex").exists()


def test_a_loaded_policy_explains_what_it_takes(folder: Path) -> None:
    loaded, state = load_policy(folder), FusionState(parse(CHAIN))
    while (action := loaded.choose(state)) is not None:
        text = loaded.explain(state)
        assert text.startswith(f"{action} ")
        assert re.search(r"\d+% \(score -?\d+\.\d\d\)", text)
        state.apply(action)
    assert loaded.explain(state).startswith(("stop ", "stops: "))
