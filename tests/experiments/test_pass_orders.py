"""Pass orders on the command line: training with each agent, export, use, and the counts of an evaluation."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from compiler.learned.pass_order import load_pass_order
from compiler.text import parse
from env.statistics import Interval
from env.suites import load_suite
from experiments.cli import app
from experiments.pass_orders.contenders import compare_orders, evaluate_orders
from experiments.pass_orders.evaluation import BASELINE, DEFAULT, Contender, OrderEvaluation, OrderRow
from experiments.pass_orders.tables import summary_table
from experiments.report import read_progress
from tests.agents.test_pass_orders import TEXT, scripted
from tests.env.small_programs import write_suite

runner = CliRunner()
SMALL = [
    "--set",
    "n_steps=32",
    "--set",
    "batch_size=16",
    "--set",
    "hidden=8",
    "--set",
    "n_epochs=1",
    "--set",
    "budget=12",
]


def invoke(*arguments: str | Path) -> str:
    result = runner.invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("agent", ["maskable-ppo", "a2c", "dqn"])
def test_train_resume_export_and_run(agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    suite, runs = write_suite(tmp_path / "suite"), tmp_path / "runs"
    shared: list[str | Path] = [
        "--suite", suite, "--env", "hlogym/PassOrder-v0", "--agent", agent, "--runs", runs, "--name", "o",
        "--set", "reward=op-count", "--set", "environments=2", *SMALL,
    ]  # fmt: skip
    invoke("train", *shared, "--timesteps", "128", "--checkpoint-every", "64")
    run = runs / "o"
    points = read_progress(run / "progress.jsonl")
    assert points[-1]["timesteps"] >= 96
    assert points[-1]["episodes"] > 0
    order = load_pass_order(run / "policy")
    assert order.budget == 12
    assert order.provenance["programs"] == sorted(p.name for p in load_suite(suite).programs)
    assert "after 128 steps" in invoke("export", "o", "-o", tmp_path / "copy", "--runs", runs)
    program = next(p for p in load_suite(suite).programs)
    printed = invoke("opt", str(program.path), "--order", tmp_path / "copy")
    assert parse(printed).result_shape == parse(program.text()).result_shape


def test_evaluate_writes_results_with_provenance(tmp_path: Path) -> None:
    suite = write_suite(tmp_path / "suite")
    scripted(2, 0, 1).save(tmp_path / "policy")
    printed = invoke("evaluate", tmp_path / "policy", "--suite", str(suite), "--budget", "15",
                     "--baselines", "random,beam", "--results", tmp_path / "results")  # fmt: skip
    assert "learned" in printed
    (data,) = (tmp_path / "results").glob("pass-order-*.json")
    results = json.loads(data.read_text())
    assert [r["program"] for r in results["rows"]] == [p.name for p in load_suite(suite).programs]
    assert {"command", "commit", "machine", "date"} <= results["provenance"].keys()
    assert all(c["applications"] <= 75 for r in results["rows"] for n, c in r["contenders"].items() if "beam" in n)
    result = runner.invoke(app, ["evaluate", str(tmp_path / "policy"), "--baselines", "bem"])
    assert result.exit_code != 0


def test_a_learned_contender_has_the_op_count_of_its_policy(tmp_path: Path) -> None:
    (tmp_path / "m.hlo").write_text(TEXT)
    (program,) = load_suite(tmp_path).programs
    row = compare_orders(program, {"learned": scripted(2, 0, 1)}, 20, 60, ("greedy",))
    # Before: broadcast, add, three negates, multiply, tanh, add, transpose. After: multiply, add, transpose.
    assert row.written == 9
    assert row.contenders["learned"].ops == 3
    assert row.contenders["greedy (60)"].ops == 3
    assert not row.seen


def test_ratios_and_worse_programs() -> None:
    def row(name: str, once: int, default: int, learned: int) -> OrderRow:
        found = {BASELINE: Contender(once, 50), DEFAULT: Contender(default, 90), "l": Contender(learned, 20)}
        return OrderRow(name, "s", "test", False, 40, found, {"l": Interval(2.0, 1.5, 2.5)})

    evaluation = OrderEvaluation(20, 60, (row("a", 20, 10, 10), row("b", 10, 10, 20)), {})
    # The geometric mean of 10/20 and 20/10 is 1; that of 10/10 and 20/10 is the square root of 2.
    assert evaluation.ratio("l", BASELINE).value == pytest.approx(1)
    assert evaluation.ratio("l", DEFAULT).value == pytest.approx(2**0.5)
    assert evaluation.worse("l", DEFAULT) == ["b"]
    speed = evaluation.speedup("l")
    assert speed is not None
    assert speed.value == pytest.approx(2)
    assert "| l | 1.000 " in summary_table(evaluation)[-1]
    assert "1 (50.0%)" in summary_table(evaluation)[-1]


@pytest.mark.slow
def test_fixed_and_learned_orders_are_timed(tmp_path: Path) -> None:
    from env.measurement import Measurer

    suite = load_suite(write_suite(tmp_path / "suite"))
    with Measurer() as measurer:
        found = evaluate_orders(
            suite.programs, {"learned": scripted(2, 0, 1)}, 20, 40, {}, ("random",), measurer, rounds=3
        )
    for row in found.rows:
        assert not row.failure
        assert {BASELINE, DEFAULT, "learned", "random (20)"} <= row.speedups.keys()
