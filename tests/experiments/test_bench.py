"""The rows and the table of `hlogym bench`, with peers whose times and outputs are given."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from compiler.errors import BackendError
from compiler.interpreter import evaluate
from compiler.text import parse
from env.statistics import Interval
from env.suites import KERNELS, Program, load_suite, random_inputs
from experiments.bench_rows import Row, bench_markdown, bench_table, cost_table, rows_json, summary
from experiments.natives.peers import Loaded, native_difference
from experiments.peak_memory import peak_memory
from experiments.peers import Contestant
from experiments.results import rich_table
from tests.experiments.shell import Shell

PEERS = ("xla", "inductor")


def interval(value: float) -> Interval:
    return Interval(value, value * 0.9, value * 1.1)


def row(name: str, **milliseconds: float) -> Row:
    ours = milliseconds["hlogym"]
    return Row(
        name,
        {n: interval(ms / 1e3) for n, ms in milliseconds.items()},
        {n: interval(ms / ours) for n, ms in milliseconds.items() if n != "hlogym"},
        {},
        fastest={n: ms / 2e3 for n, ms in milliseconds.items()},
    )


ROWS = (
    row("embedding_gradient_with_long_name_36", hlogym=2.0, xla=1.0, inductor=3.0),
    row("softmax", hlogym=1.0, xla=4.0, inductor=2.0),
    Row("absent", {"hlogym": interval(1.0)}, {}, {"xla": "no such op", "inductor": "no such op"}),
)


def test_the_ratio_is_to_the_faster_peer() -> None:
    assert [r.best for r in ROWS] == ["xla", "inductor", None]
    table = bench_table(ROWS, PEERS)
    assert table[0] == ["program", "hlogym", "xla", "inductor", "ratio", "95% interval"]
    assert table[1][1:] == ["2.00 ms", "1.00 ms", "3.00 ms", "0.50x", "0.45 to 0.55"]
    assert table[2][1:] == ["1.00 ms", "4.00 ms", "2.00 ms", "2.00x", "1.80 to 2.20"]
    assert table[3][1:] == ["1.00 s", "-", "-", "-", "-"]
    assert bench_table(ROWS[2:], ()) == [["program", "hlogym"], ["absent", "1.00 s"]]


def test_the_table_fits_into_100_columns(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    Console(width=100).print(rich_table(bench_table(ROWS, PEERS), "Time per call"))
    lines = capsys.readouterr().out.splitlines()
    assert any("embedding_gradient_with_long_name_36" in line and "0.45 to 0.55" in line for line in lines)


def test_the_summary_counts_programs_that_are_slower_than_a_peer() -> None:
    lines = summary(ROWS, PEERS)
    assert lines[0].startswith("geometric mean against xla: 1.41x")  # sqrt(0.5 * 4)
    assert lines[1].startswith("geometric mean against inductor: 1.73x")  # sqrt(1.5 * 2)
    assert lines[2].startswith("geometric mean against the better peer: 1.00x")  # sqrt(0.5 * 2)
    assert lines[3] == "below 0.95x the better peer: 1 of 2 programs"
    assert lines[4].startswith("of the fastest samples: 1.00x")
    assert lines[4].endswith("below 0.95x: 1 programs")
    assert summary(ROWS[2:], PEERS) == []


def test_markdown_shows_the_slowest_programs_first() -> None:
    text = bench_markdown(ROWS, PEERS, "Benchmark", {"commit": "abc"})
    order = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")]
    assert order == ["| program", "| absent", "| embedding_gradient_with_long_name_36", "| softmax"]
    assert "| softmax | 1.00 ms | 4.00 ms | 2.00 ms | 2.00x | 1.80 to 2.20 | 2.00x |" in text
    assert "- commit: abc" in text
    assert "- absent: xla left out: no such op" in text


def test_rows_as_json() -> None:
    first, _, absent = rows_json(ROWS)
    assert first["better_peer"] == "xla"
    assert first["ratios"]["xla"] == pytest.approx([0.5, 0.45, 0.55])
    assert first["fastest"] == {"hlogym": 1e-3, "xla": 0.5e-3, "inductor": 1.5e-3}
    assert absent["better_peer"] is None
    assert absent["failures"] == {"xla": "no such op", "inductor": "no such op"}


@pytest.mark.parametrize(
    ("got", "want", "finding"),
    [
        ([1.0, 2.0], [1.0, 2.001], None),
        ([1.0, 2.0], [1.0, 2.01], "output 0: 1 of 2 elements differ, the first at [1]: 2.0 instead of 2.01"),
        ([1.0, np.nan], [1.0, np.nan], None),
        ([1.0, np.nan], [1.0, 2.0], "the first at [1]: nan instead of 2.0"),
        ([[1.0, 2.0]], [1.0, 2.0], "output 0: [1, 2] instead of [2]"),
        ([3, 4], [3, 5], "the first at [1]: 4.0 instead of 5.0"),
        ([], [], None),
    ],
)
def test_outputs_of_native_programs_are_compared(got: Any, want: Any, finding: str | None) -> None:
    found = native_difference([np.asarray(got)], [np.asarray(want)], 1e-3)
    assert found is None if finding is None else finding in str(found)


def test_integers_may_have_another_width_and_every_output_counts() -> None:
    assert native_difference([np.array([3], np.int64)], [np.array([3], np.int32)], 1e-3) is None
    assert native_difference([], [np.zeros(1)], 1e-3) == "0 outputs instead of 1"


# ---- the command, with peers that need no other compiler


def fake_peer(change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> Callable[[str], Any]:
    """Return a class of peers that compute the right outputs with the interpreter, and change them."""

    class Fake:
        closed = 0

        def __init__(self, name: str, cache: Path | None = None) -> None:
            self.name = name

        def load(self, program: Program, seed: int) -> Loaded:
            if self.name == "eager":
                raise BackendError("not here")
            module = parse(program.text())
            arrays = random_inputs(program, [(s.dtype, s.dimensions) for s in module.entry.parameter_shapes], seed)
            outputs = [change(np.asarray(o)) for o in evaluate(module, arrays)]
            return Loaded(Contestant(self.name, lambda: outputs, lambda repeats: 1e-3), 0.25, 2e6, 1e-3)

        def close(self) -> None:
            Fake.closed += 1

    return Fake


@pytest.fixture
def hlogym(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(capsys, monkeypatch)


def test_bench_of_a_native_suite(hlogym: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer: Any = fake_peer(lambda outputs: outputs)
    monkeypatch.setattr("experiments.bench.NativePeer", peer)
    files = ("--json", "rows.json", "--markdown", "rows.md")
    against = ("--against", "xla,inductor,eager")
    reply = hlogym("bench", "kernels", "--only", "row_sums_128*", *against, "--rounds", "2", *files)
    assert reply.status == 1  # no program ran in eager mode
    assert "row_sums_128x256: eager left out: not here" in reply.err
    (found,) = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert found["seconds"]["xla"] == [1e-3, 1e-3, 1e-3]
    assert found["ratios"]["inductor"][0] == pytest.approx(1e-3 / found["seconds"]["hlogym"][0])
    assert found["first_result"]["xla"] == 0.25
    assert found["first_result"]["hlogym"] > 0
    assert "| row_sums_128x256 |" in (tmp_path / "rows.md").read_text()
    assert peer.closed == 3


def test_a_native_peer_with_other_outputs_is_not_timed(hlogym: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.bench.NativePeer", fake_peer(lambda outputs: outputs + 1))
    reply = hlogym("bench", "row_sums_128x256", "--against", "xla", "--rounds", "2")
    assert reply.status == 1
    assert "xla left out: its outputs differ: output 0: 128 of 128" in reply.err


def test_a_peer_that_is_not_installed_is_an_error_before_anything_is_timed(
    hlogym: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None if name == "jaxlib" else find(name, *more))
    reply = hlogym("bench", "row_sums_128x256", "softmax_128x256", "--against", "xla", "--rounds", "2")
    assert reply.status == 1
    assert reply.err.strip() == "error: XLA is not installed here; pip install 'hlogym[jax]'"
    assert reply.out == ""


def test_programs_of_the_native_suites_are_held_out_from_training() -> None:
    for suite in ("kernels", "models"):
        programs = load_suite(suite).programs
        assert programs
        assert {p.split for p in programs} == {"extra"}
    assert load_suite("kernels").find("softmax_128x256").path.parent == KERNELS


def test_costs_are_compared_as_ratios() -> None:
    rows = [
        Row("a", {}, {}, {}, first_result={"hlogym": 0.5, "xla": 1.0}, peak_bytes={"hlogym": 2e6, "xla": 1e6}),
        Row("b", {}, {}, {}, first_result={"hlogym": 0.5, "xla": 2.0}, peak_bytes={"hlogym": 2e6, "xla": None}),
    ]
    table = cost_table(rows, ["xla"])
    assert table[1:3] == [["a", "500 ms", "1.00 s", "2.0", "1.0"], ["b", "500 ms", "2.00 s", "2.0", "-"]]
    assert [line[2] for line in table[3:]] == ["2.83x", "0.50x"]  # sqrt(2 * 4), and one known pair


def test_peak_memory_is_what_a_call_uses_at_most() -> None:
    found = peak_memory(lambda: np.ones(8 << 20).sum())
    if found is None:
        pytest.skip("this system does not count the memory of a process")
    assert 60e6 < found < 100e6
    assert peak_memory(lambda: None) < 10e6  # type: ignore[operator]
