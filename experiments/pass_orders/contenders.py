"""The contenders (fixed orders, learned policies and searches), compared by op count and by measured time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from agents.pass_search import PASS_SEARCHES, FoundOrder, search_order
from compiler.ir import HloModule
from compiler.learned.pass_episode import PassEpisode
from compiler.learned.pass_order import LearnedPassOrder
from compiler.learned.pass_states import PassGraph, PassState, default_pass_actions
from compiler.passes import HloPass, PassPipeline
from compiler.passes.infrastructure.base import op_count
from compiler.passes.infrastructure.registry import make_pass
from compiler.passes.pipelines.completion import complete, run_on_copy
from compiler.passes.pipelines.default import XLA_ORDER, default_pipeline
from compiler.plan import CompilationPlan
from compiler.session import CompilationSession
from compiler.text import parse
from env.measurement import Measurer
from env.suites import Program
from experiments.pass_orders.evaluation import BASELINE, DEFAULT, Contender, OrderEvaluation, OrderRow

__all__ = ["LEAN", "compare_orders", "evaluate_orders"]

LEAN = "XLA's order, once, without unrolling and splitting"
DEFAULT_ALONE = "the default where it leaves fewer ops, alone"
_EXPANDING = ("while-loop-unroller", "state-splitting")


def evaluate_orders(
    programs: Sequence[Program],
    policies: Mapping[str, LearnedPassOrder],
    budget: int,
    search_budget: int,
    provenance: Mapping[str, Any],
    searches: Sequence[str] = tuple(PASS_SEARCHES),
    measurer: Measurer | None = None,
    rounds: int = 15,
    seed: int = 0,
    step: Callable[[str], None] = lambda _: None,
) -> OrderEvaluation:
    """Evaluate all contenders on all programs.

    Args:
        programs: the programs to evaluate on.
        policies: learned pass orders by name.
        budget: see `compare_orders`.
        search_budget: see `compare_orders`.
        provenance: stored with the results.
        searches: names in PASS_SEARCHES.
        measurer: times the fixed orders, the policies and the random search with `budget` applications; None: only op
            counts are compared.
        rounds: number of interleaved timings.
        seed: seed of the searches and of sampling.
        step: called with the name of each program before its evaluation.
    """
    rows = []
    for program in programs:
        step(program.name)
        row = compare_orders(program, policies, budget, search_budget, searches, seed)
        if measurer is not None:
            names = [BASELINE, LEAN, DEFAULT, *policies, *(f"{s} ({budget})" for s in searches if s == "random")]
            row = _measured(program, row, names, measurer, rounds)
        rows.append(row)
    return OrderEvaluation(budget, search_budget, tuple(rows), provenance)


# ---- op counts


def compare_orders(
    program: Program,
    policies: Mapping[str, LearnedPassOrder],
    budget: int,
    search_budget: int,
    searches: Sequence[str] = tuple(PASS_SEARCHES),
    seed: int = 0,
) -> OrderRow:
    """Return the op counts of every contender on one program.

    Args:
        program: the program; the result records whether a policy was trained on it.
        policies: learned pass orders by name.
        budget: pass applications of each policy and each search.
        search_budget: pass applications of a second run of each search, and of sampling from each policy.
        searches: names in PASS_SEARCHES.
        seed: seed of the searches and of sampling.
    """
    module = parse(program.text(), filename=str(program.path))
    found = {
        BASELINE: _fixed(module, _once(XLA_ORDER)),
        LEAN: _fixed(module, _once([t for t in XLA_ORDER if not t.startswith(_EXPANDING)])),
        DEFAULT: _fixed(module, default_pipeline()),
        DEFAULT_ALONE: _completed((), FoundOrder((), PassGraph(module, ()).root, 0)),
    }
    for name, policy in policies.items():
        first = policy.follow(PassGraph(module, policy.actions), limit=budget)
        stopped = replace(policy, finish=0).follow(PassGraph(module, policy.actions), limit=budget)
        drawn = _sample(policy, module, search_budget, seed)
        found[name] = _completed(policy.actions, _found(first, len(first.taken)))
        found[f"{name}, alone"] = _contender(policy.actions, _found(first, len(first.taken)))
        found[f"{name}, alone until its stop"] = _contender(policy.actions, _found(stopped, len(stopped.taken)))
        found[f"{name}, sampled ({search_budget})"] = _completed(policy.actions, drawn)
    actions = next(iter(policies.values())).actions if policies else default_pass_actions()
    for name in searches:
        for limit in dict.fromkeys((budget, search_budget)):
            best = search_order(name, module, actions, _ops, limit, seed)
            found[f"{name} ({limit})"] = _completed(actions, best)
    learned_on = {name for p in policies.values() for name in p.provenance.get("programs", ())}
    return OrderRow(program.name, program.suite, program.split, program.name in learned_on, op_count(module), found)


def _once(passes: Sequence[str]) -> PassPipeline:
    return PassPipeline("once", tuple(make_pass(f"{t}@1") for t in passes))


def _fixed(module: HloModule, pipeline: HloPass) -> Contender:
    """Run a fixed pipeline; each single pass that it runs counts as one application."""
    made = run_on_copy(module, pipeline)
    return Contender(made.ops, made.applications, passes=tuple(made.passes))


def _contender(actions: tuple[str, ...], found: FoundOrder) -> Contender:
    return Contender(found.state.ops, found.applications, passes=tuple(actions[a] for a in found.actions))


def _completed(actions: tuple[str, ...], found: FoundOrder) -> Contender:
    """Return the contender after the default pipeline has run on its module, if that leaves fewer ops."""
    done, alone = complete(found.state.module, found.state.ops), _contender(actions, found)
    return Contender(done.ops, alone.applications, done.applications, (*alone.passes, *done.passes))


def _ops(state: PassState) -> float:
    return float(state.ops)


def _sample(policy: LearnedPassOrder, module: HloModule, total: int, seed: int) -> FoundOrder:
    """Follow a policy greedily once, then sample orders from it until `total` passes ran; return the best order."""
    graph, rng = PassGraph(module, policy.actions), np.random.default_rng(seed)
    best = policy.follow(graph, limit=total)
    # A sampled order whose states are all known runs no pass, so the number of samples has its own limit.
    for _ in range(total // 10):
        if graph.runs >= total:
            break
        episode = policy.follow(graph, rng, limit=total - graph.runs)
        if episode.state.ops < best.state.ops:
            best = episode
    return _found(best, graph.runs)


def _found(episode: PassEpisode, applications: int) -> FoundOrder:
    return FoundOrder(tuple(episode.path), episode.state, applications)


# ---- measured time


def _measured(program: Program, row: OrderRow, names: Sequence[str], measurer: Measurer, rounds: int) -> OrderRow:
    """Return the row with speedups of the contenders' programs, fused by default, from interleaved timings."""
    module = parse(program.text(), filename=str(program.path))
    plans = {name: _plan(module, row.contenders[name].passes) for name in names}
    try:
        compared = measurer.compare(program, {**plans, "again": plans[BASELINE]}, rounds)
    except Exception as error:  # the evaluation continues with the other programs
        return replace(row, failure=f"{type(error).__name__}: {error}")
    if BASELINE not in compared.samples:
        return replace(row, failure=str(next(iter(compared.failures.values()), "not measured")).splitlines()[0])
    speedups = {n: compared.speedup(n, BASELINE) for n in names if n in compared.samples}
    noise = compared.speedup("again", BASELINE) if "again" in compared.samples else None
    return replace(row, speedups=speedups, noise=noise)


def _plan(module: HloModule, passes: Sequence[str]) -> CompilationPlan:
    session = CompilationSession(module)
    session.run_passes(PassPipeline("order", tuple(make_pass(t) for t in passes)))
    session.run_fusion_policy()
    return session.plan
