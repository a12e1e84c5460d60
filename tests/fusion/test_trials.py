"""Tests of trial fusions and of candidates, against fusing for real."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from compiler.analysis.kernel_summary import KernelSummary, summarize_body
from compiler.analysis.structure import StructuralIds
from compiler.codegen.buildability import kernel_refusal
from compiler.fusion import trials
from compiler.fusion.rewriting import body_of
from compiler.fusion.state import FusionState
from compiler.fusion.trial_bodies import trial_fusion
from compiler.ir import HloComputation, HloInstruction
from tests.fusion.programs import optimized, random_graph


@pytest.mark.parametrize("seed", range(10))
def test_answers_by_structure_are_those_of_each_pair(seed: int) -> None:
    state = FusionState(random_graph(seed, 14))
    sequence, rng = state.sequences["main"], np.random.default_rng(seed)
    while actions := state.actions():
        for a in actions:
            if a.kind not in ("producer-consumer", "multi-output"):
                continue
            pair = state.find("main", a.producer), state.find("main", a.consumers[0])
            body = trial_fusion(a.kind, *pair)
            assert sequence.legality.trials.refusal(a.kind, *pair) == kernel_refusal(body)
            assert _facts(sequence.legality.trials.summary(a.kind, *pair)) == _facts(summarize_body(body))
        state.apply(actions[int(rng.integers(len(actions)))])


def test_bodies_of_trials_are_freed_without_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[HloComputation]] = []

    def noted(kind: str, first: HloInstruction, second: HloInstruction, ids: StructuralIds) -> HloComputation:
        body = trial_fusion(kind, first, second, ids)
        made.append(weakref.ref(body))
        return body

    monkeypatch.setattr(trials, "trial_fusion", noted)
    monkeypatch.setattr(trials, "MAX_BODIES", 1)
    state = FusionState(random_graph(3, 20))
    gc.disable()
    try:
        for a in state.candidates():
            state.why_not(a)
        alive = sum(body() is not None for body in made)
    finally:
        gc.enable()
    assert len(made) > 1 and alive <= 1


@pytest.mark.parametrize("program", ["layer_norm_backward", 3, 4])
def test_kernels_known_by_what_they_compute_are_those_of_the_bodies(program: str | int) -> None:
    module = random_graph(program, 20) if isinstance(program, int) else optimized(program)
    state, rng = FusionState(module), np.random.default_rng(0)
    sequence = state.sequences[module.entry.name]
    tried, known = sequence.legality.trials, 0
    for _ in range(8):
        candidates = [a for a in state.candidates() if len(a.consumers) == 1]
        for a in candidates:
            kind = "sibling" if a.kind == "horizontal" else a.kind
            pair = [state.find(a.computation, n) for n in (a.producer, a.consumer)]
            first, second = sequence.nodes.sorted(pair) if kind == "sibling" else pair
            body = trial_fusion(kind, first, second)
            assert tried.is_refused(kind, first, second) == (kernel_refusal(body) is not None)
            assert _facts(tried.summary(kind, first, second))[0] == _facts(summarize_body(body))[0]
            known += tried.content(kind, first, second) is not None
        legal = state.actions()
        if state.can_undo and rng.random() < 0.2:
            state.undo()
        elif legal:
            state.apply(legal[int(rng.integers(len(legal)))])
    assert known > 0


@pytest.mark.parametrize("program", ["layer_norm_backward", "mlp_train_step", "cartpole_split", 3, 4, 5])
def test_a_trial_computes_what_the_fusion_does(program: str | int) -> None:
    module = random_graph(program, 24) if isinstance(program, int) else optimized(program)
    state, rng, compared = FusionState(module), np.random.default_rng(0), 0
    for _ in range(12):
        actions = [a for a in state.actions() if len(a.consumers) == 1]
        if not actions:
            break
        for n in rng.permutation(len(actions))[:6]:
            action = actions[n]
            kind = "sibling" if action.kind == "horizontal" else action.kind
            pair = [state.find(action.computation, name) for name in (action.producer, action.consumer)]
            nodes = state.sequences[action.computation].nodes
            first, second = nodes.sorted(pair) if kind == "sibling" else pair
            trial = trial_fusion(kind, first, second)
            fused = body_of(state.apply(action))
            if fused.result_shape == trial.result_shape:  # else outputs were dropped that nothing reads
                ids = StructuralIds()
                assert ids.of(trial) == ids.of(fused)
                compared += 1
            state.undo()
        state.apply(actions[int(rng.integers(len(actions)))])
    assert compared > 10


def _facts(summary: KernelSummary) -> tuple[KernelSummary, list[str]]:
    """Return a summary without its inputs, and these in an order of their own."""
    inputs = [repr((i.elements, i.element_bytes, sorted(map(repr, i.contexts.values())))) for i in summary.inputs]
    return replace(summary, inputs=()), sorted(inputs)


@pytest.mark.parametrize("seed", range(12))
def test_legal_candidates_are_the_actions(seed: int) -> None:
    state = FusionState(random_graph(seed, 14))
    rng = np.random.default_rng(seed)
    while actions := state.actions():
        assert [a for a in state.candidates() if state.why_not(a) is None] == actions
        state.apply(actions[int(rng.integers(len(actions)))])


@pytest.mark.parametrize("seed", range(12))
def test_candidates_are_weighed_by_their_estimates(seed: int) -> None:
    state = FusionState(random_graph(seed, 14))
    rng = np.random.default_rng(seed)
    while actions := state.actions():
        weighed = state.weighed_candidates()
        assert weighed == [(a, state.estimate(a)) for a in state.candidates()]
        state.apply(actions[int(rng.integers(len(actions)))])
        if rng.random() < 0.3:
            state.undo()
