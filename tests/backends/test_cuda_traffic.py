"""Rules that generated CUDA kernels keep, by the counts of the emulator: coalescing, and blocks for all units."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.backends.cuda import emulation
from env.suites import load_suite
from tests.sweeps.cuda_traffic import REASONS, Row, report, rows_of

PROGRAMS = ("softmax_2048x2048", "chain_f32_2048x2048", "row_sums_2048x2048", "bias_gelu_128x256", "adam_64k")
ROW = Row("kernels", "program", "fusion", "loop", grid=4096, block=256, bytes=1 << 24)
SCAN = replace(ROW, kind="scan", grid=66, memory=1.0)


@pytest.mark.skipif(not emulation.available(), reason="the emulator needs g++")
def test_kernels_use_whole_sectors_and_all_multiprocessors() -> None:
    suite = load_suite("kernels")
    rows = list(rows_of("kernels", [suite.find(name) for name in PROGRAMS]))
    assert {r.program for r in rows} == set(PROGRAMS)
    assert {f"{r.program}/{r.kernel}": r.faults for r in rows if r.faults and not r.reason} == {}
    for r in rows:
        assert 0.9 < r.memory < 1.1  # each argument moves once
        assert r.conflicts < 0.5


def test_rows_that_break_a_rule_are_offenders() -> None:
    assert ROW.faults == []
    assert replace(ROW, coalescing=0.5).faults == ["coalescing 50%"]
    assert replace(ROW, grid=16).faults == ["16 blocks for 16.8 MB"]
    assert replace(ROW, grid=16, bytes=4096).faults == []
    assert replace(ROW, spills=8).faults == ["8 bytes spilled"]
    assert replace(ROW, error="fails").faults == ["fails"]
    other = {"sm_80": {"registers": 40, "spills": 16, "occupancy": 0.5}}
    assert replace(ROW, elsewhere=other).faults == ["16 bytes spilled on sm_80"]
    assert not replace(ROW, elsewhere=other, l2=1.0).reason


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        pytest.param(
            replace(ROW, coalescing=0.5, l2=2.0, memory=1.0, microseconds=20), "", id="sectors are read twice"
        ),
        pytest.param(replace(ROW, coalescing=0.5, l2=2.0, memory=1.2, microseconds=8), "", id="and come twice, too"),
        pytest.param(
            replace(ROW, coalescing=0.5, l2=2.0, memory=1.0, microseconds=7.0),
            "as long as memory alone",
            id="as fast as its traffic",
        ),
        pytest.param(replace(ROW, coalescing=0.5, l2=1.0), "each byte comes 1.00 times", id="l1 serves the rest"),
        pytest.param(replace(ROW, coalescing=0.5, l2=8.0, bytes=4000), "arrays of 4.0 kB", id="small"),
        pytest.param(replace(ROW, grid=128, memory=1.0), "97% of the multiprocessors", id="nearly all"),
        pytest.param(replace(ROW, grid=4, memory=1.0), "", id="few blocks"),
        pytest.param(replace(ROW, coalescing=0.5, l2=3.0, traffic=0.2, limit="issue"), "20% of the time", id="hidden"),
        pytest.param(
            replace(SCAN, microseconds=5.5),
            "would save 2.0 us",
            id="half of the units",
        ),
        pytest.param(replace(SCAN, microseconds=20.0), "", id="long on half of the units"),
        pytest.param(replace(ROW, grid=4, memory=1 / 1024), "touches 16 kB", id="few updates"),
        pytest.param(replace(ROW, grid=4, memory=1.0, coalescing=0.5, l2=1.0), "", id="only one fault has a reason"),
        pytest.param(replace(ROW, coalescing=0.5, l2=1.0, spills=8), "", id="spills have no reason"),
    ],
)
def test_a_reason_follows_from_the_counts(row: Row, reason: str) -> None:
    assert row.faults
    assert reason in row.reason
    assert bool(row.reason) == bool(reason)


def test_the_table_lists_offenders_first(monkeypatch: pytest.MonkeyPatch) -> None:
    source: dict[str, object] = {"command": "c", "commit": "1", "machine": "m", "date": "d"}
    rows = [ROW, replace(ROW, program="slow", coalescing=0.25, l2=4.0)]
    assert "## Offenders (1)" in report(rows, source)
    needed = {name: {"registers": n, "spills": 0, "occupancy": 0.5} for name, n in (("sm_80", 40), ("sm_100", 44))}
    assert "| 40 / 42 / 44 | 50% |" in report([replace(ROW, registers=42, occupancy=0.5, elsewhere=needed)], source)
    monkeypatch.setitem(REASONS, "slow/*", "rows of three elements")
    text = report(rows, source)
    assert "## Offenders (0)" in text
    assert "| slow | fusion | coalescing 25% | rows of three elements |" in text
