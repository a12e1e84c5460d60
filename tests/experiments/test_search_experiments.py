"""The experiments about searches: settings, rows, tables, the ladder, regret and pass orders."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.deviations import Deviation, PlanBuilder
from agents.plan_search import analytic_seconds, learned_seconds
from compiler.errors import UnknownNameError
from compiler.fusion.policies import NoFusion
from compiler.fusion.state import FusionState
from compiler.plan import CompilationPlan
from compiler.policy import Policy
from compiler.text import parse
from env.environments import CompileEnv
from env.measurement import Measurement, Measurer
from env.suites import ManifestError, Program, load_suite
from experiments import ladder, pass_times, searches
from experiments.benchmarks import fusion_optima
from experiments.config import ConfigError
from experiments.ladder import LadderSettings
from experiments.pass_times import PassTimeSettings
from experiments.results import ResultError
from experiments.searches import SearchSettings
from experiments.settings_file import read_experiment, read_settings
from tests.env.scripted import taking
from tests.env.small_programs import LOOP, write_suite


class _Counting(Measurer):
    """Times plans by their number of fusions: the fewer, the faster; the default plan takes a second."""

    def measure(self, program: Any, plan: CompilationPlan | None, remeasure: bool = False) -> Measurement:
        del program, remeasure
        return taking(1.0 if plan is None else 0.5 + 0.1 * len(plan.steps))


# ---- settings


@pytest.mark.parametrize("cls", [SearchSettings, LadderSettings, PassTimeSettings])
def test_the_configuration_files_of_the_package_are_valid(cls: type[Any]) -> None:
    module = {SearchSettings: searches, LadderSettings: ladder, PassTimeSettings: pass_times}[cls]
    name = module.__name__.rpartition(".")[2]
    run = read_experiment(name, "", cls, lambda _: Path("page.md"), [])
    assert run.settings.seeds >= 3
    assert run.rows_file == Path("page.jsonl")
    assert run.command == f"python -m experiments.{name} --config experiments/configs/{name}.yaml"
    assert json.loads(json.dumps(run.stored_settings)) == run.stored_settings


def test_a_command_names_the_page_that_it_writes(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("seeds: 2")
    given = ["--config", str(tmp_path / "own.yaml"), "--out", "results/own.md"]
    run = read_experiment("searches", "", SearchSettings, lambda _: Path("page.md"), given)
    assert run.settings == SearchSettings(seeds=2)
    assert run.out == Path("results/own.md")
    assert run.command == "python -m experiments.searches --config own.yaml --out results/own.md"


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("seed: 0.5", ConfigError, "seed must be of type int"),
        ("seconds: 3", ConfigError, "seconds must be a list of float"),
        ("searches: [1]", ConfigError, "searches must be of type str"),
        ("seeds_: 3", UnknownNameError, "unknown setting 'seeds_'; did you mean 'seeds'"),
        ("- 1", ConfigError, "must map names"),
        ("a: [", ConfigError, "is not YAML"),
    ],
)
def test_settings_are_checked(text: str, error: type[Exception], message: str, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(error, match=message):
        read_settings(file, SearchSettings)
    file.write_text("seconds: [3, 0.5]\nprograms: 2")
    assert read_settings(file, SearchSettings) == SearchSettings(seconds=(3.0, 0.5), programs=2)


# ---- searches


def test_a_row_has_the_confirmed_speedups_by_search_and_seed(tmp_path: Path) -> None:
    program = load_suite(write_suite(tmp_path)).find("chain")
    settings = SearchSettings(
        searches=("local{groups=fusion}", "greedy{groups=fusion}"), measurements=(1, 4), seconds=(1e9,), seeds=2
    )
    row = searches.search_row(_Counting, program, settings)
    assert list(searches.contenders(settings, 0)) == [
        "local{groups=fusion}", "local{groups=fusion} + analytic", "greedy{groups=fusion}",
        "greedy{groups=fusion} + analytic",
    ]  # fmt: skip
    for found in row["searches"].values():
        assert len(found["speedups"]) == 2
        for one, four, whole in found["speedups"]:
            assert 1 <= one <= four == whole
    rows = [{"program": "chain", **row}, {"program": "broken", "failure": "no"}]
    table = searches._table(rows, settings)
    assert len(table) == 5
    assert all(len(line) == len(table[0]) for line in table)
    assert len(searches.plot(rows, settings).axes) == 2


def test_plans_are_estimated_and_not_timed(tmp_path: Path) -> None:
    program = load_suite(write_suite(tmp_path)).find("chain")
    settings = SearchSettings(
        searches=("local{groups=fusion}",), models=("none",), reward="estimated-time", measurements=(1, 8), seconds=()
    )

    def never() -> Measurer:
        raise AssertionError("nothing is timed")

    row = searches.search_row(never, program, settings)
    module = parse(program.text())
    assert row["seconds"] == pytest.approx(analytic_seconds(PlanBuilder(module, "cpu").build(Deviation()).session))
    (found,) = row["searches"].values()
    assert all(1 <= one <= eight for one, eight in found["speedups"])
    (again,) = searches.search_row(never, program, settings)["searches"].values()
    assert again["speedups"] == found["speedups"]


def test_a_learned_policy_is_a_contender_by_predicted_time(tmp_path: Path) -> None:
    program = load_suite(write_suite(tmp_path)).find("chain")
    settings = SearchSettings(
        searches=("local{groups=fusion}",), models=("none",), reward="estimated-time", estimates="learned",
        policy="learned", policy_groups="fusion", measurements=(1, 6), seconds=(), seeds=1,
    )  # fmt: skip
    fusing_nothing = Policy("nothing", fusion=NoFusion())

    def never() -> Measurer:
        raise AssertionError("nothing is timed")

    row = searches.search_row(never, program, settings, fusing_nothing)
    session = PlanBuilder(parse(program.text()), "cpu").build(Deviation()).session
    assert row["seconds"] == pytest.approx(learned_seconds(session))
    assert set(row["searches"]) == {"local{groups=fusion}", searches.SAMPLES, searches.IMPROVED}
    improved = row["searches"][searches.IMPROVED]
    assert improved["speedups"][0][0] == 1.0  # what it starts from is slower than the default
    assert improved["measurements"] == [6]
    assert row["searches"][searches.SAMPLES]["measurements"] == [1]  # nothing else can be drawn
    with pytest.raises(UnknownNameError, match="cost model"):
        searches.search_row(never, program, replace(settings, estimates="learnt"), fusing_nothing)


def test_searches_do_not_see_test_programs() -> None:
    with pytest.raises(ManifestError, match="held out for tests"):
        searches.drawn(SearchSettings(suite="test"))
    assert len(searches.drawn(SearchSettings(suite="train", programs=2))) == 2
    sizes = [parse(p.text()).instruction_count for p in searches.drawn(SearchSettings(suite="train", instructions=60))]
    assert sizes and max(sizes) <= 60


# ---- the ladder


@pytest.mark.parametrize("agent", ["random", "bandit"])
def test_agents_play_episodes(agent: str, tmp_path: Path) -> None:
    (tmp_path / "loop.hlo").write_text(LOOP)
    env = CompileEnv(tmp_path, phases="passes+loops", passes="dce,while-loop-unroller", automatic=False)
    settings = LadderSettings(episodes=12)
    played = ladder.play(env, settings, agent, 1)
    assert len(played.speedups) == len(played.seconds) == 12
    assert max(played.speedups) > 1.5  # the loop kernel
    assert any(d.endswith(": kernel") for d in played.decisions)
    assert CompilationPlan.from_json(played.plan).loop_choices[-1].choice == "kernel"
    assert ladder.play(env, settings, agent, 1).speedups == played.speedups
    with pytest.raises(UnknownNameError, match="agent"):
        ladder.play(env, settings, "sarsa", 1)


def test_a_run_with_more_agents_and_seeds_continues(tmp_path: Path) -> None:
    rows = [{"agent": "random", "seed": 0}]
    file = tmp_path / "rows.jsonl"
    file.write_text(
        "\n".join(map(json.dumps, [{"settings": {"agents": ["random"], "seeds": 1, "episodes": 9}}, *rows]))
    )
    assert ladder.known_rows(file, {"agents": ["random", "ppo"], "seeds": 5, "episodes": 9}) == rows
    with pytest.raises(ResultError, match="other settings"):
        ladder.known_rows(file, {"agents": ["random"], "seeds": 1, "episodes": 10})


def test_the_episode_that_finds_the_plan() -> None:
    assert ladder.found_at([1.0, 9.4, 9.5, 10.0], 10.0, 0.05) == 3
    assert ladder.found_at([1.0, 2.0], 10.0, 0.05) is None


# ---- regret


THREE = """ENTRY e {
  x = f32[64] parameter(0)
  a = f32[64] negate(x)
  b = f32[64] tanh(a)
  ROOT c = f32[64] add(a, b)
}"""


def test_the_regret_of_policies_beside_a_proven_optimum() -> None:
    policies = fusion_optima.read_policies("default,none,savings")
    found = fusion_optima.examine("three", parse(THREE), policies)
    assert found is not None
    graph, ends = found
    assert set(graph.estimated) == set(ends.policies) == {"default", "none", "savings"}
    assert graph.best <= min(graph.estimated.values())
    assert graph.estimated["none"] == pytest.approx(FusionState(parse(THREE)).seconds())
    assert len(ends.sources) >= graph.states
    assert fusion_optima.examine("three", parse(THREE), policies, max_states=2) is None


def test_a_run_over_subgraphs_continues_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    subgraphs = [("three", parse(THREE)), ("two", parse(THREE.replace("tanh(a)", "add(a, x)")))]
    monkeypatch.setattr(fusion_optima, "subgraphs", lambda programs: iter(subgraphs))
    page = tmp_path / "optima.md"

    def run(graphs: str, states: str = "100") -> str:
        given = ["--graphs", graphs, "--measured", "0", "--policies", "default,none", "--states", states]
        assert fusion_optima.main([*given, "--suites", "quickstart", "--out", str(page)]) == 0
        return capsys.readouterr().out

    assert run("1").startswith("three")
    assert run("2").startswith("two")
    assert run("2") == ""
    assert "2 subgraphs" in page.read_text()
    with pytest.raises(ResultError, match="other settings"):
        run("2", "99")
    page.with_suffix(".json").write_text("{}")
    with pytest.raises(ResultError, match="cannot be continued"):
        run("2")


def test_programs_of_all_families_take_turns() -> None:
    def program(name: str, family: str) -> Program:
        return replace(load_suite("quickstart").programs[0], name=name, family=family)

    programs = [program("a", "x"), program("b", "x"), program("c", ""), program("d", "y"), program("e", "")]
    assert [p.name for p in fusion_optima.spread(programs)] == ["a", "c", "d", "e", "b"]


def test_mean_regret_has_an_interval() -> None:
    regret = fusion_optima.mean_regret([1.0, 1.0, 1.2, 1.0])
    assert regret.value == pytest.approx(0.05)
    assert regret.low <= 0.05 <= regret.high
    with pytest.raises(UnknownNameError, match="fusion policy"):
        fusion_optima.read_policies("defaults")


# ---- pass orders


def test_orders_are_compared_by_ops_and_time(tmp_path: Path) -> None:
    program = load_suite(write_suite(tmp_path)).find("chain")
    settings = PassTimeSettings(searches=("greedy",), search_budget=5, seeds=1)
    row = pass_times.order_row(_Counting(), program, settings, {})
    assert list(row["orders"]) == ["greedy search, op-count", "greedy search, estimated-time"]
    for (gains,) in row["orders"].values():
        assert gains["ops"] == pytest.approx(1.0)
        assert gains["measured"] > 0
    found = pass_times.summaries([{"program": "chain", **row}])
    assert found["greedy search, op-count"]["measured"].programs == 1
