"""The table of dumps, on small programs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tests.sweeps import dumps
from tests.sweeps.dumps import line, page, summary, sweep

FOUND: dict[str, Any] = {
    "error": "", "instructions": 3, "seconds": {"fusion": 90.0}, "cpu_seconds": {"passes": 50.0, "fusion": 12.0},
    "kernels": 2, "launches": 4, "host_ops": {"cholesky: none": 1},
}  # fmt: skip


def test_results_that_are_there_are_not_made_again(tmp_path: Path, monkeypatch: Any) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.hlo").write_text(name * 10)
    asked: list[tuple[str, str]] = []

    def run(path: Path, backend: str, options: argparse.Namespace) -> dict[str, Any]:
        asked.append((path.stem, backend))
        return FOUND | {"error": "no" if (path.stem, backend) == ("b", "cuda") else ""}

    monkeypatch.setattr(dumps, "run_apart", run)
    options = argparse.Namespace(
        folder=tmp_path, only=None, limit=None, backends=["cpu", "cuda"], seconds=60.0, again=""
    )
    rows: dict[str, Any] = {"a": {"program": "a", "bytes": 10, "cpu": FOUND}}
    assert len(list(sweep(rows, options))) == 3
    assert asked == [("a", "cuda"), ("b", "cpu"), ("b", "cuda")]
    options.again = "failed"
    assert len(list(sweep(rows, options))) == 1 and asked[-1] == ("b", "cuda")


def test_the_table_names_what_was_refused_and_what_is_over_the_limits() -> None:
    row = {"program": "a", "copies": ["b"], "bytes": 1, "cpu": FOUND, "cuda": {"error": "UnsupportedError: %r\nmore"}}
    cells = line(row).split(" | ")
    assert cells[:5] == ["| a (and 1 equal)", "3", "90.0", "62.0", "12.00"]
    assert cells[-1] == "cpu: 1 x cholesky: none; cuda refused: UnsupportedError: %r |"
    text = "\n".join(summary([row]))
    assert "2 files, 1 of them distinct" in text and "cuda: 1 tried, 0 compile, 1 do not" in text
    assert "1 took over 60" in text and "1 took over 10 s" in text


def test_the_page_lists_what_was_not_reached() -> None:
    made = FOUND | {"commit": "0", "machine": "m"}
    rows: list[dict[str, Any]] = [{"program": "a", "copies": [], "cpu": made}, {"program": "b", "copies": []}]
    table, _, rest = page(rows, []).partition("Not reached yet, 1 dumps:")
    assert "| a |" in table and "| b |" not in table and "1 files, 1 of them distinct" in table
    assert rest.split() == ["-", "b"]
