"""Yardstick runs continue where they ended, and say what their rows show."""

import json
from pathlib import Path

import pytest

from compiler import compile
from compiler.errors import HlogymError
from env.gate import GATE
from env.suites import Program
from experiments.headroom import main as headroom
from experiments.headroom import summaries
from experiments.headroom_again import main as headroom_again
from experiments.results import ResultError
from experiments.yardstick import rows as yardstick_rows
from experiments.yardstick.agreement import agreement_lines, agreement_table, end_to_end
from experiments.yardstick.races import aa_lines, planted_lines, race_table
from experiments.yardstick.rows import Row, collect, drawn_programs, forget_rows_of_other_code, write_page


def programs(*names: str) -> list[Program]:
    return [Program(n, "here", "train", Path(f"{n}.hlo"), "") for n in names]


def test_a_run_continues_and_ends_at_its_limit(tmp_path: Path) -> None:
    asked: list[str] = []

    def measure(program: Program) -> Row:
        asked.append(program.name)
        if program.name == "bad":
            raise HlogymError("it is\nbroken")
        return {"skipped": "too short"} if program.name == "short" else {"value": len(asked)}

    file, settings, given = tmp_path / "rows.jsonl", {"seed": 1}, programs("a", "bad", "short", "b", "c")
    assert [r["program"] for r in collect(file, settings, given, measure, 1)] == ["a"]
    rows = collect(file, settings, given, measure, 2)
    assert asked == ["a", "bad", "short", "b"]
    assert rows[1] == {"program": "bad", "failure": "it is broken"}
    assert collect(file, settings, given, measure, 2) == rows
    assert asked == ["a", "bad", "short", "b"]
    with pytest.raises(ResultError, match="other settings"):
        collect(file, {"seed": 2}, given, measure, 2)
    file.write_text("no json")
    with pytest.raises(ResultError, match="cannot be continued"):
        collect(file, settings, given, measure, 2)


def test_rows_of_other_code_are_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"

    def collected(number: int, **settings: int) -> list[Row]:
        forget_rows_of_other_code(file, settings)
        return collect(file, settings, programs("a"), lambda p: {"number": number}, 1)

    assert collected(1, seed=1, code=1) == collected(2, seed=1, code=1) == [{"program": "a", "number": 1}]
    assert collected(3, seed=1, code=2) == [{"program": "a", "number": 3}]
    with pytest.raises(ResultError, match="other settings"):  # nothing is lost by a mistyped option
        collected(4, seed=2, code=3)
    file.write_text("not JSON")
    with pytest.raises(ResultError, match="cannot be continued"):
        collected(5, seed=1, code=2)


def test_the_order_of_programs_depends_on_the_seed() -> None:
    names = [p.name for p in drawn_programs("quickstart,linear_algebra", 3)]
    assert len(names) == len(set(names)) > 8
    assert names == [p.name for p in drawn_programs("quickstart,linear_algebra", 3)]
    assert names != [p.name for p in drawn_programs("quickstart,linear_algebra", 4)]


def race(speedup: float, counts: bool, seconds: float = 1e-3) -> list[float | bool]:
    return [speedup, speedup - 0.01, speedup + 0.01, seconds, counts, 25]


RACES: list[Row] = [
    {"program": "a", "races": [race(1.02, True), race(1.0, False)]},
    {"program": "b", "races": [race(0.98, True)]},
    {"program": "c", "races": [race(1.03, True, 1e-5)]},
    {"program": "d", "failure": "cannot be read"},
]


def test_false_gains_are_counted_apart_from_losses() -> None:
    text = "\n".join(aa_lines(RACES, "above 1%"))
    assert "false gains: 2 of 4 (50.00%" in text
    assert "false losses: 1" in text
    assert "not measured: 1" in text
    assert len(race_table(RACES)) == 5


def test_planted_gains_are_counted_for_long_programs() -> None:
    text = "\n".join(planted_lines(RACES, "above 1%", 0.03))
    assert "found: 2 of 4; of those longer than 100 us 1 of 3 (33%" in text


def test_agreement_is_a_rank_correlation_over_all_plans() -> None:
    rows: list[Row] = [
        {"program": "a", "pairs": [[0.0, 0.0, 0.005], [0.1, 0.12, 0.12], [-1.0, -0.9, -0.9]], "seconds": 1e-3},
        {"program": "b", "pairs": [[0.2, 0.3, 0.3], [0.3, 0.4, 0.4], [0.4, 0.5, 0.5]], "seconds": 1e-3},
        {"program": "c", "skipped": "takes 1.0 us", "seconds": 1e-6},
        {"program": "d", "skipped": "has no other plan", "seconds": 1e-3},
    ]
    text = "\n".join(agreement_lines(rows))
    assert "rank correlation over all plans: 1.000" in text
    assert "shorter than 20 us: 1; with one plan only: 1" in text
    assert "agreement on what is a gain, a loss or neither: 100.0%" in text
    assert [row[-1] for row in agreement_table(rows)[1:]] == ["1.00", "1.00", "takes 1.0 us", "has no other plan"]


def test_ties_of_the_reward_limit_the_raw_correlation() -> None:
    # By hand: ranks 1.5, 1.5, 3 against 1, 2, 3, whose correlation is 1.5 / sqrt(1.5 * 2).
    rows: list[Row] = [{"program": "a", "pairs": [[0.0, 0.0, 0.004], [0.0, 0.0, -0.003], [1.0, 1.0, 1.0]]}]
    text = "\n".join(agreement_lines(rows))
    assert "rank correlation over all plans: 1.000" in text
    assert "more than 0.866 is not possible" in text


def test_two_rounds_in_turns_are_an_abba_block() -> None:
    # The machine slows down by half from each sample to the next, which cancels out between a round and its reverse.
    default = [1.0, 3.375] * 12
    plan = [1.5 / 1.25, 2.25 / 1.25] * 12
    verdict = end_to_end([s * 1e-3 for s in default], [s * 1e-3 for s in plan], GATE)
    assert verdict.speedup.value == pytest.approx(1.25)
    assert verdict.blocks == 12


def test_a_page_names_its_command_and_machine(tmp_path: Path) -> None:
    text = write_page(tmp_path / "p.md", "Title", "python -m x", ["said"], [["a|b", "c"], ["1", "2"]])
    assert text == (tmp_path / "p.md").read_text()
    assert "- command: `python -m x`" in text
    assert "- machine: " in text
    assert text.count("\n|") == 3


def test_a_page_names_the_runs_that_measured_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, page, given = tmp_path / "rows.jsonl", tmp_path / "p.md", programs("a", "b", "c")

    def run(commit: str, limit: int) -> str:
        facts = {"commit": commit, "machine": "M", "date": "2026-01-01"}
        monkeypatch.setattr(yardstick_rows, "_this_run", lambda: facts)
        collect(file, {}, given, lambda p: {}, limit)
        return write_page(page, "Title", "python -m x", [], [["a"], ["1"]], file)

    assert "- commit: one\n- machine: M\n" in run("one", 1)
    assert "- commit: one\n" in run("two", 1)  # nothing was measured again
    assert "- commit: one (1 row), two (2 rows)\n- machine: M\n" in run("two", 3)
    file.write_text('{"settings": {}}\n{"program": "a"}\n')
    assert "- commit: not recorded\n" in run("three", 1)
    assert "- commit: not recorded (1 row), three (2 rows)\n" in run("three", 3)


def test_headroom_counts_programs_without_a_gain_as_one() -> None:
    rows: list[Row] = [
        {"program": n, "groups": {"loops": {"speedup": [s, s, s], "plan": None}}} for n, s in (("a", 4.0), ("b", 1.0))
    ]
    found = summaries([*rows, {"program": "c", "failure": "x"}], ["loops"])["loops"]
    assert found.mean.value == pytest.approx(2.0)
    assert found.faster == 0.5


def test_headroom_of_a_small_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "tiny.hlo").write_text(
        "HloModule m\nENTRY e { x = f32[64] parameter(0) t = f32[64] tanh(x) ROOT r = f32[64] add(t, x) }"
    )
    out = tmp_path / "page.md"
    arguments = ["--suite", str(tmp_path / "suite"), "--budget", "2", "--group", "kernels,fusion", "--rounds", "3"]
    headroom([*arguments, "--seconds", "0.05", "--out", str(out)])
    assert "| kernels | 1.000x" in out.read_text()  # it is too short for a gain to count
    assert "tiny" in capsys.readouterr().out
    _, row = map(json.loads, out.with_suffix(".jsonl").read_text().splitlines())
    assert set(row["groups"]) == {"kernels", "fusion"}
    assert out.with_suffix(".svg").is_file()


def test_headroom_is_not_looked_for_in_test_programs() -> None:
    with pytest.raises(HlogymError, match="held out for tests"):
        headroom(["--suite", "test", "--budget", "1"])


def test_what_is_left_of_the_headroom(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = tmp_path / "suite"
    suite.mkdir()
    text = "HloModule m\nENTRY e { x = f32[64] parameter(0) t = f32[64] tanh(x) ROOT r = f32[64] add(t, x) }"
    for name in ("kept", "other"):
        (suite / f"{name}.hlo").write_text(text)
    made = compile(text, fusion_policy="none").plan, compile(text.replace("64", "32")).plan
    plan, stale = ("" if p is None else p.to_json() for p in made)
    rows = [
        {"program": n, "seconds": 1e-5, "groups": {"fusion": {"speedup": [2.0, 1.9, 2.1], "plan": p}}}
        for n, p in (("kept", plan), ("other", stale))
    ]
    lines = [{"settings": {"suite": str(suite)}}, *rows, {"program": "plain", "groups": {"fusion": {"plan": None}}}]
    (tmp_path / "map.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    headroom_again([str(tmp_path / "map.jsonl"), "--rounds", "3", "--seconds", "0.05"])
    page = capsys.readouterr().out
    assert "Of 2 programs" in page and "1 have plans that can still be replayed" in page
    assert "cannot be replayed" in (tmp_path / "map_again.md").read_text()
    (tmp_path / "map.jsonl").write_text("{}\n")
    with pytest.raises(ResultError, match="no map"):
        headroom_again([str(tmp_path / "map.jsonl")])
