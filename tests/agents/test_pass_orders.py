"""Agents, searches and exported policies that order passes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.pass_agents import PASS_AGENTS, learned_order, make_pass_agent
from agents.pass_search import PASS_SEARCHES, search_order
from agents.settings import LearningSettings
from compiler.api import compile as compile_hlo
from compiler.errors import PolicyError, UnknownNameError
from compiler.interpreter import evaluate
from compiler.learned.features.passes import mask_of, observation_size
from compiler.learned.pass_episode import PassEpisode
from compiler.learned.pass_order import Completion, Layer, LearnedPassOrder, load_pass_order
from compiler.learned.pass_states import PassGraph
from compiler.passes import PipelineRun
from compiler.passes.infrastructure.base import op_count
from compiler.passes.infrastructure.registry import make_pass
from compiler.passes.pipelines.completion import complete
from compiler.passes.pipelines.default import default_pipeline, simplification
from compiler.session import CompilationSession
from compiler.text import parse
from env.pass_order import PassOrderEnv

TEXT = """HloModule m
ENTRY e {
  x = f32[4,3] parameter(0)
  zero = f32[] constant(0)
  zeros = f32[4,3] broadcast(zero), dimensions={}
  a = f32[4,3] add(x, zeros)
  b = f32[4,3] negate(a)
  c = f32[4,3] negate(b)
  d = f32[4,3] negate(a)
  e = f32[4,3] multiply(d, b)
  dead = f32[4,3] tanh(x)
  f = f32[4,3] add(c, e)
  ROOT t = f32[3,4] transpose(f), dimensions={1,0}
}
"""
PASSES = ("arithmetic-identities@1", "cse@1", "dce@1", "slice-movement@1")
SMALL = LearningSettings(n_steps=64, batch_size=32, n_epochs=2, hidden=16, seed=3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m.hlo").write_text(TEXT)
    return tmp_path


def environments(folder: Path) -> list[PassOrderEnv]:
    first = PassOrderEnv(folder, passes=PASSES, reward="op-count", max_steps=12)
    return [first, PassOrderEnv(folder, passes=PASSES, reward="op-count", max_steps=12, shared=first)]


def scripted(*order: int, budget: int = 20) -> LearnedPassOrder:
    """Runs those of PASSES in turn that are not idle, the first best; stop comes last."""
    size = observation_size(len(PASSES))
    bias = np.full(len(PASSES) + 1, -5.0, np.float32)
    for rank, action in enumerate(order):
        bias[action] = -float(rank)
    return LearnedPassOrder(PASSES, (Layer(np.zeros((len(bias), size), np.float32), bias, "none"),), budget, 0)


@pytest.mark.parametrize("kind", PASS_AGENTS)
def test_agents_learn_and_never_try_what_is_idle(kind: str, folder: Path) -> None:
    made = environments(folder)
    agent = make_pass_agent(kind, made, SMALL)
    taken: list[bool] = []
    for env in made:
        before = env.step

        def step(action: int, env: PassOrderEnv = env, before: object = before) -> object:
            taken.append(bool(env.action_masks()[int(action)]))
            return before(action)  # type: ignore[operator]

        env.step = step  # type: ignore[method-assign, assignment]
    agent.learn(300)
    assert len(taken) >= 300
    assert all(taken)


@pytest.mark.parametrize("kind", PASS_AGENTS)
def test_the_exported_network_ranks_as_the_agent_does(kind: str, folder: Path) -> None:
    env = environments(folder)[0]
    agent = make_pass_agent(kind, [env], SMALL)
    learned = learned_order(agent, env, {})
    observation, _ = env.reset(seed=0)
    done = False
    while not done:
        mask = mask_of(observation, len(PASSES) + 1)
        arguments: dict[str, Any] = {"action_masks": mask} if kind == "maskable-ppo" else {}
        action, _ = agent.predict(observation, deterministic=True, **arguments)
        scores = np.where(mask, learned.scores(observation), -np.inf)
        assert int(action) == int(np.argmax(scores))
        observation, _, done, _, _ = env.step(int(action))


def test_the_same_seed_makes_the_same_agent(folder: Path) -> None:
    def weights() -> list[torch.Tensor]:
        agent = make_pass_agent("a2c", environments(folder), SMALL)
        agent.learn(128)
        return [p.detach().clone() for p in agent.policy.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(weights(), weights(), strict=True))


def test_a_policy_comes_back_from_its_folder(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    size = observation_size(len(PASSES))
    layers = (
        Layer(rng.normal(size=(8, size)).astype(np.float32), rng.normal(size=8).astype(np.float32), "relu"),
        Layer(rng.normal(size=(5, 8)).astype(np.float32), rng.normal(size=5).astype(np.float32), "none"),
    )
    LearnedPassOrder(PASSES, layers, 7, 5, "fewer-ops", {"seed": 1}).save(tmp_path / "p")
    again = load_pass_order(str(tmp_path / "p"))
    x = rng.normal(size=size).astype(np.float32)
    # By hand: a hidden layer cut off at zero, and a linear one.
    hidden = np.maximum(layers[0].weight @ x + layers[0].bias, 0)
    np.testing.assert_allclose(again.scores(x), layers[1].weight @ hidden + layers[1].bias, rtol=1e-6)
    assert (again.actions, again.budget, again.finish, again.provenance) == (PASSES, 7, 5, {"seed": 1})
    assert again.completion == "fewer-ops"


def test_policies_that_cannot_be_used_say_why(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="no policy folder"):
        load_pass_order(tmp_path / "none")
    scripted(0).save(tmp_path / "p")
    description = (tmp_path / "p" / "policy.json").read_text()
    for change, reason in (
        (("hlogym-pass-order", "hlogym-fusion-policy"), "instead of 'hlogym-pass-order'"),
        (('"feature_version": 1', '"feature_version": 99'), "version 99"),
        (('"cse@1",', ""), "inputs instead of"),
        (('"cse@1"', '"csee@1"'), "csee"),
        (('"none",\n  "provenance', '"never",\n  "provenance'), "the unknown 'never'"),
    ):
        (tmp_path / "p" / "policy.json").write_text(description.replace(*change))
        with pytest.raises(PolicyError, match=reason):
            load_pass_order(tmp_path / "p")
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "notes.txt").write_text("mine")
    with pytest.raises(PolicyError, match="no policy folder"):
        scripted(0).save(tmp_path / "q")


def test_a_learned_order_runs_as_a_pass_and_its_passes_are_recorded() -> None:
    order = scripted(2, 0, 1)
    module, run = parse(TEXT), PipelineRun(verify=True)
    assert run.run(order, module)
    # dce comes first, then, as it is idle, the identities, which leave it nothing; what changes nothing is not run.
    assert [r.name for r in run.records[:2]] == ["dce", "arithmetic-identities"]
    # By hand: x + 0 is x, -(-x) is x, (-x)(-x) is xx; a product, a sum and the transpose are left.
    assert op_count(module) == 3
    session = CompilationSession(parse(TEXT), pipeline=order)
    session.run_passes()
    assert str(session.module) == str(module)
    assert set(session.plan.passes) <= set(PASSES)


def test_a_program_compiled_by_a_learned_order_is_right() -> None:
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    (wanted,) = evaluate(parse(TEXT), [x])
    got = compile_hlo(TEXT, backend="cpu", pipeline=scripted(0, 1, 2))(x)
    np.testing.assert_allclose(np.asarray(got).reshape(3, 4), wanted, rtol=1e-6)


def test_the_environment_and_the_pass_decide_alike(folder: Path) -> None:
    rng = np.random.default_rng(4)
    size = observation_size(len(PASSES))
    layer = Layer(rng.normal(size=(len(PASSES) + 1, size)).astype(np.float32), np.zeros(5, np.float32), "none")
    order = LearnedPassOrder(PASSES, (layer,), 12)
    env = PassOrderEnv(folder, passes=PASSES, reward="op-count", max_steps=12)
    observation, _ = env.reset()
    done = False
    while not done:
        scores = np.where(env.action_masks(), order.scores(observation), -np.inf)
        observation, _, done, _, info = env.step(int(np.argmax(scores)))
    run, module = PipelineRun(), parse(TEXT)
    run.run(replace(order, finish=0), module)
    assert [r.name for r in run.records] == [text.removesuffix("@1") for text in info["passes"]]


def test_what_is_left_after_the_stop_is_tried_and_kept_only_without_more_ops() -> None:
    module = parse(TEXT)
    graph = PassGraph(module, ("dce@1", "batch-norm-expander@1"))
    episode = PassEpisode(graph, 9)
    assert episode.attempt(0)
    assert episode.attempt(1)  # changes nothing
    assert (episode.taken, episode.path) == ([0, 1], [0])
    loop = (Path(__file__).parents[2] / "env/suites/jax/gru_over_reversed_sequence.hlo").read_text()
    unroll = "while-loop-unroller{max_trips=8,max_ops=2000}@1"
    episode = PassEpisode(PassGraph(parse(loop), (unroll, "dce@1")), 9)
    before = episode.state
    assert not episode.attempt(0)
    assert episode.state is before
    assert not episode.mask()[0]
    assert episode.effective() == []


@pytest.mark.parametrize("name", PASS_SEARCHES)
def test_searches_keep_to_their_budget_and_tell_how_to_get_there(name: str) -> None:
    for budget in (1, 5, 60):
        found = search_order(name, parse(TEXT), PASSES, lambda s: s.ops, budget, seed=1)
        assert found.applications <= budget
        graph = PassGraph(parse(TEXT), PASSES)
        state = graph.root
        for action in found.actions:
            state = graph.apply(state, action)
        assert state.key == found.state.key
    assert found.state.ops == 3


def test_unknown_agents_and_searches_are_named(folder: Path) -> None:
    with pytest.raises(UnknownNameError, match="dqn"):
        make_pass_agent("dqm", environments(folder), SMALL)
    with pytest.raises(UnknownNameError, match="greedy"):
        search_order("gredy", parse(TEXT), PASSES, lambda s: s.ops, 5)


def test_only_an_order_paid_in_op_counts_finishes_by_them(folder: Path) -> None:
    for reward, ending in (("op-count", (12, "fewer-ops")), ("cost", (0, "default"))):
        env = PassOrderEnv(folder, passes=PASSES, reward=reward, max_steps=12)
        order = learned_order(make_pass_agent("a2c", [env], SMALL), env, {})
        assert (order.finish, order.completion) == ending


@pytest.mark.parametrize("completion", ["fewer-ops", "default"])
def test_the_default_pipeline_goes_on_where_an_order_stops(completion: Completion) -> None:
    order = replace(scripted(2, budget=1), completion=completion)
    module, run = parse(TEXT), PipelineRun(verify=True)
    assert run.run(order, module)
    # dce alone would leave six; by hand: x + 0 is x, -(-x) is x, (-x)(-x) is xx.
    assert op_count(module) == 3


def test_a_completion_that_leaves_more_ops_is_not_taken() -> None:
    loop = parse((Path(__file__).parents[2] / "env/suites/jax/gru_over_reversed_sequence.hlo").read_text())
    simplified = loop.clone()
    simplification().run(simplified)
    whole = loop.clone()
    default_pipeline().run(whole)
    assert op_count(simplified) < op_count(whole)  # its loop is written out
    done = complete(loop, op_count(loop))
    assert done.ops == op_count(done.module) == op_count(simplified)
    again, run = loop.clone(), PipelineRun()
    for text in done.passes:
        assert run.apply(make_pass(text), again)
    assert str(again) == str(done.module)
    assert complete(done.module, done.ops).module is done.module


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"passes": "dce"}, "list of strings"), ({"passes": [3]}, "list of strings"),
        ({"passes": None}, "list of strings"), ({"passes": ["no-such-pass"]}, "no-such-pass"),
        ({"passes": []}, "inputs"), ({"activations": "tanh"}, "list of strings"),
        ({"activations": ["sigmoid"]}, "sigmoid"), ({"activations": []}, "outputs"),
        ({"activations": ["tanh"] * 1000}, "missing"), ({"budget": True}, "budget"), ({"budget": "150"}, "budget"),
        ({"budget": 10**30}, "budget"), ({"finish": -1}, "finish"), ({"finish": 1.5}, "finish"),
        ({"completion": "all"}, "completion"), ({"completion": []}, "completion"), ({"provenance": 3}, "provenance"),
    ],
)  # fmt: skip
def test_a_description_that_was_changed_is_one_error(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    scripted(0).save(tmp_path / "p")
    file = tmp_path / "p" / "policy.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(PolicyError, match=message):
        load_pass_order(tmp_path / "p")
