"""Searches and benchmarks in MLflow: one run each, with what was found and under which conditions."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from env.suites import Program
from experiments.bench_rows import OURS, Row, bench_markdown, rows_json
from experiments.console import error_console
from experiments.mlflow_store import TrackingError
from experiments.provenance import provenance
from experiments.tracking import TrackedRun

__all__ = ["track_bench", "track_tune"]


def track_tune(
    folder: Path, program: Program, settings: Mapping[str, Any], speedups: Sequence[float], found: Mapping[str, Any],
    plan: str,
) -> None:  # fmt: skip
    """Record a search; a store that fails is a warning, since the plan is written already.

    Args:
        folder: of the local store.
        program: what was tuned.
        settings: of the search.
        speedups: over the default plan, by measurement.
        found: the answer of the command.
        plan: the plan that was written, as JSON.
    """

    def record(run: TrackedRun) -> None:
        run.params({"program": program.name, **settings})
        run.dataset([program], program.suite or "none", "tuning")
        best = 1.0
        for step, speedup in enumerate(speedups):
            best = max(best, speedup)
            run.metrics({"speedup": speedup, "best": best}, step)
        run.metrics({"confirmed.speedup": found["speedup"][0], "confirmed.seconds": found["seconds"][0]}, 0)
        if found["noise"] is not None:
            run.tags({"noise": found["noise"]})
        _log_text(run, "plan.json", plan)

    _recorded(folder, f"tune-{program.name}", "tune", record)


def track_bench(
    folder: Path, programs: Sequence[Program], settings: Mapping[str, Any], rows: Sequence[Row],
    against: Sequence[str], noise: str | None,
) -> None:  # fmt: skip
    """Record a comparison: a nested run per program, and the table; a store that fails is a warning.

    Args:
        folder: of the local store.
        programs: what was timed.
        settings: of the comparison.
        rows: its results.
        against: the peers.
        noise: why the machine was noisy, or None.
    """

    def record(run: TrackedRun) -> None:
        run.params({"against": ",".join(against) or "none", **settings})
        run.dataset(programs, ",".join(dict.fromkeys(p.suite for p in programs)) or "none", "benchmark")
        if noise is not None:
            run.tags({"noise": noise})
        for row in rows:
            with TrackedRun(folder, row.program, parent=run.run_id) as child:
                child.params({"program": row.program})
                seconds = {f"{name}.seconds": s.value for name, s in row.seconds.items()}
                child.metrics(seconds | {f"{name}.ratio": r.value for name, r in row.ratios.items()}, 0)
                if row.failures:
                    child.tags({f"failure.{name}": why for name, why in row.failures.items()})
        ratios = {f"ratio.{r.program}": r.ratios[r.best].value for r in rows if r.best is not None}
        run.metrics(ratios | {f"seconds.{r.program}": r.seconds[OURS].value for r in rows if OURS in r.seconds}, 0)
        _log_text(run, "bench.md", bench_markdown(rows, against, "Benchmark", provenance()))
        _log_json(run, "bench.json", rows_json(rows))

    _recorded(folder, time.strftime("bench-%Y%m%d-%H%M%S"), "bench", record)


def _recorded(folder: Path, name: str, kind: str, record: Callable[[TrackedRun], None]) -> None:
    try:
        with TrackedRun(folder, name) as run:
            run.tags({**provenance(), "kind": kind})
            record(run)
    except TrackingError as error:
        error_console.print(f"warning: this is not recorded in MLflow: {error}", soft_wrap=True)


def _log_json(run: TrackedRun, name: str, value: Any) -> None:
    _log_text(run, name, json.dumps(value, indent=1))


def _log_text(run: TrackedRun, name: str, text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.write_text(text, encoding="utf-8")
        run.artifacts(file)
