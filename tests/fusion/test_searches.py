from collections.abc import Callable

import pytest

from compiler.fusion.policies import Annealing, Evolution, Exhaustive, make_policy
from compiler.fusion.policies.scripts import ScriptRunner
from compiler.fusion.protocol import FusionPolicy, run_policy
from compiler.fusion.state import FusionState
from compiler.ir.verifier import check_module
from tests.fusion.programs import entry, random_graph

CHAIN = """ENTRY e {
  x = f32[4096] parameter(0)
  a = f32[4096] negate(x)
  b = f32[4096] abs(a)
  ROOT c = f32[4096] floor(b)
}"""


def every_state(start: FusionState) -> dict[str, float]:
    """All states that actions reach, by the text of their fingerprints, found by forks, with their times."""
    found = {start.fingerprint: start.seconds()}
    work = [start.fork()]
    while work:
        state = work.pop()
        for action in state.actions():
            child = state.fork()
            child.apply(action)
            if child.fingerprint not in found:
                found[child.fingerprint] = child.seconds()
                work.append(child)
    return found


def test_a_chain_of_three_has_four_states() -> None:
    # apart; a with b; b with c; all three, whichever came first: four, and there is no other way to fuse them
    search = Exhaustive()
    run_policy(entry(CHAIN), search)

    (proof,) = search.proofs.values()
    assert (proof.states, proof.complete) == (4, True)
    assert proof.best < proof.start == proof.worst


@pytest.mark.parametrize("seed", range(4))
def test_exhaustive_search_finds_the_least_time_of_all_states(seed: int) -> None:
    start = FusionState(random_graph(seed, size=5))
    expected = every_state(start)
    text = str(start.module)
    search = Exhaustive()
    state = start.fork()

    actions = run_policy(state, search)

    (proof,) = search.proofs.values()
    assert proof.complete
    assert proof.states == len(expected)
    assert proof.best == pytest.approx(min(expected.values()), rel=1e-12)
    assert proof.worst == pytest.approx(max(expected.values()), rel=1e-12)
    assert state.seconds() == pytest.approx(proof.best, rel=1e-12)
    assert len(actions) == len(state.history)
    assert check_module(state.module) == []
    assert str(start.module) == text


def test_beyond_its_limit_exhaustive_search_proves_nothing() -> None:
    search = Exhaustive(limit=3)
    run_policy(entry(CHAIN), search)

    (proof,) = search.proofs.values()
    assert (proof.states, proof.complete) == (3, False)


def test_another_objective_is_made_small() -> None:
    state = entry(CHAIN)
    run_policy(state, Exhaustive(objective=lambda s: -float(len(s.fusions())) + 0.1 * len(s.history)))

    assert len(state.fusions()) == 1
    assert len(state.history) == 1  # two kernels, the fewest steps to have a fusion


@pytest.mark.parametrize("make", [Annealing, Evolution])
@pytest.mark.parametrize("seed", range(2))
def test_searches_find_nearly_the_best_state_of_small_graphs(make: Callable[..., FusionPolicy], seed: int) -> None:
    start = FusionState(random_graph(seed, size=5))
    best = min(every_state(start).values())
    state = start.fork()

    run_policy(state, make(seed=seed))

    assert state.seconds() <= 1.05 * best
    assert check_module(state.module) == []


@pytest.mark.parametrize(
    ("make", "few"), [(Annealing, {"changes": 60}), (Evolution, {"population": 8, "generations": 3})]
)
def test_equal_seeds_give_equal_fusions(make: Callable[..., FusionPolicy], few: dict[str, int]) -> None:
    start = FusionState(random_graph(3))
    runs = [run_policy(start.fork(), make(seed=s, **few)) for s in (5, 5)]

    assert runs[0] == runs[1]


def test_options_of_searches_are_read_from_text() -> None:
    policy = make_policy("annealing{changes=7,hot=0.5,seed=3}")

    assert isinstance(policy, Annealing)
    assert (policy.changes, policy.hot, policy.seed) == (7, 0.5, 3)


def test_a_script_leaves_out_what_is_not_legal_and_is_undone() -> None:
    state = entry(CHAIN)
    text = str(state.module)
    runner = ScriptRunner(state)
    steps = list(runner.actions())

    done = runner.run([steps[0], ("sibling", "e", 999, (1000,)), steps[-1]])

    assert 1 <= len(done) <= 2
    assert done[0] == steps[0]
    assert len(runner.history()) == len(done)
    runner.restore()
    assert str(state.module) == text
