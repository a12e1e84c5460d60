"""What is left of the headroom that a map has found: its best plans beside the default plan of the present compiler.

    python -m experiments.headroom_again results/headroom/corpus.jsonl [--programs N] [--real-time] [--out PAGE.md]

Rules that were changed because of a map make the default plan faster, so that the plans of the map gain less beside it.
Plans that cannot be replayed any more, because the passes have changed, are counted apart. Writes PAGE.md and .jsonl,
from which an interrupted run continues.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compiler.plan import CompilationPlan
from env.measurement import Measurer, MeasurerOptions
from env.store import PlanStore
from env.suites import Program, load_suite
from env.summaries import summarise
from experiments.module_command import plain_errors
from experiments.results import ResultError
from experiments.yardstick.rows import Row, collect, failure_lines, write_page

__all__ = ["again_row", "main", "read_map"]


def read_map(path: Path) -> tuple[str, list[Row]]:
    """Return the suites of a map, and its rows of programs for which a gain was confirmed.

    Raises:
        ResultError: the file is no map of `experiments.headroom`.
    """
    try:
        head, *rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        gains = [r for r in rows if any(g["plan"] for g in r.get("groups", {}).values())]
        return str(head["settings"]["suite"]), gains
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ResultError(f"{path} is no map of experiments.headroom: {error}") from error


def again_row(measurer: Measurer, program: Program, before: Row) -> Row:
    """Measure the plans of a program in a map beside the present default plan.

    Raises:
        HlogymError: the program cannot be measured.
    """
    default = measurer.measure_reference(program)
    plans = {name: g for name, g in before["groups"].items() if g["plan"]}
    now: dict[str, float | None] = {}
    for name, group in plans.items():
        found = measurer.measure(program, CompilationPlan.from_json(group["plan"]), remeasure=True)
        now[name] = None if found.verdict is None else float(found.verdict.speedup.value)
    former = max(g["speedup"][0] for g in plans.values())
    return {"before": before["seconds"], "seconds": default.time.value, "former": former, "now": now}


def _best(row: Row) -> float | None:
    """Return the speedup of the best plan beside the present default plan, at least 1; None if none can be replayed."""
    known = [s for s in row["now"].values() if s is not None]
    return max(1.0, *known) if known else None


def _lines(rows: Sequence[Row]) -> list[str]:
    whole = [r for r in rows if "now" in r]
    replayed = [r for r in whole if _best(r) is not None]
    if not replayed:
        return ["No plan of the map can be replayed."]
    former = summarise({r["program"]: [[r["former"]]] for r in replayed}).mean
    left = summarise({r["program"]: [[_best(r) or 1.0]] for r in replayed}).mean
    failed = failure_lines(rows)
    return [
        f"Of {len(whole)} programs for which the map has a faster plan than the default, {len(replayed)} have plans "
        "that can still be replayed. The best of them was faster than the default plan of then by "
        f"{former.value:.3f}x [{former.low:.3f}, {former.high:.3f}] as a geometric mean; beside the present default "
        f"plan it is {left.value:.3f}x [{left.low:.3f}, {left.high:.3f}] (1 where it is slower).",
        "",
        *failed,
    ]


def _table(rows: Sequence[Row]) -> list[list[str]]:
    def text(row: Row) -> str:
        best = _best(row)
        return "cannot be replayed" if best is None else f"{best:.2f}x"

    body = [
        [r["program"], f"{r['before'] * 1e6:.1f}", f"{r['seconds'] * 1e6:.1f}", f"{r['former']:.2f}x", text(r)]
        for r in sorted(rows, key=lambda r: str(r["program"]))
        if "now" in r
    ]
    return [["program", "default of then, us", "default now, us", "best plan then", "the same plan now"], *body]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("map", type=Path, help="file of rows that experiments.headroom has written")
    parser.add_argument("--programs", type=int, default=None, help="number of programs (default: all)")
    parser.add_argument("--rounds", type=int, default=9, help="ABBA blocks at most (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.2, help="time limit of the blocks (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=None, help="page to write (default: MAP_again.md)")
    parser.add_argument("--real-time", action="store_true", help="time at real-time priority, on a busy machine")
    o = parser.parse_args(arguments)
    suite, gains = read_map(o.map)
    before: dict[str, Any] = {r["program"]: r for r in gains}
    programs = [p for p in load_suite(suite).programs if p.name in before][: o.programs]
    out = o.out or o.map.with_name(f"{o.map.stem}_again.md")
    settings = {"map": str(o.map), "rounds": o.rounds, "seconds": o.seconds}
    options = MeasurerOptions(rounds=o.rounds, seconds=o.seconds, real_time=o.real_time)
    with Measurer(PlanStore(":memory:"), options) as measurer:
        rows = collect(
            out.with_suffix(".jsonl"), settings, programs,
            lambda p: again_row(measurer, p, before[p.name]), len(programs),
        )  # fmt: skip
    command = f"python -m experiments.headroom_again {o.map} --rounds {o.rounds} --seconds {o.seconds}"
    command += " --real-time" if o.real_time else ""
    sys.stdout.write(
        write_page(out, "What is left of the headroom", command, _lines(rows), _table(rows), out.with_suffix(".jsonl"))
    )


if __name__ == "__main__":
    with plain_errors():
        main()
