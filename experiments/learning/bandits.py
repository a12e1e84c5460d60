"""Learn expansions and loops from measured deviations: contextual bandits with immediate rewards.

python -m experiments.learning.bandits collect|collect-fusions [--config F.yaml] [--data F.jsonl]
python -m experiments.learning.bandits collect-more [--draw 7] [--seconds 5400]
python -m experiments.learning.bandits confirm [--seconds 600]

`collect-more` adds fusions of other programs, half of them by a model of those that were measured before. `confirm`
measures the gains among them again, on a quiet machine: those of a busy one are in part luck, and threads that wait for
a core make kernels on several threads look slow.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from compiler.fusion.actions import FusionAction
from compiler.fusion.state import FusionState
from compiler.learned.kernel_model import shipped_kernel_cost
from env.measurement import Measurer, MeasurerOptions
from env.store import PlanStore
from env.suites import Program, load_suite
from experiments.console import stdout
from experiments.headroom import drawn_by_family, refuse_test_programs
from experiments.learning.deviations import measured_row
from experiments.learning.drawn_programs import write_drawn_programs
from experiments.learning.fusion_deviations import Draw, drawn_actions, fusion_row, measured_again
from experiments.learning.fusion_fitting import change_forest, change_samples, guided_draw
from experiments.learning.settings import LearningSettings, add_settings, given_settings
from experiments.module_command import plain_errors
from experiments.results import ResultError, write_text
from experiments.yardstick.rows import Row, collect

__all__ = ["collect_fusions", "collect_more", "collect_samples", "confirm_gains", "draw_programs", "drawn_data",
           "fusion_data", "learnable_programs", "main", "measurer_options", "more_data", "rows_of"]  # fmt: skip

DATA = Path("runs/learning/deviations.jsonl")
MORE_PER_FAMILY = 40
"""Programs of each family of which `collect_more` measures fusions."""
GUIDED_SHARE = 5 / 8
"""Share of the actions of `collect_more` that a model draws; the others are drawn at random."""
FASTER = 0.02
"""Log of the speedup from which on a measured action is measured again."""
TIMEOUT = 30.0
"""Seconds after which a program counts as failed: nothing that small programs need takes so long."""


def draw_programs(suite: str, per_family: int, seed: int) -> list[Program]:
    """Return at most `per_family` programs of each family of a suite, in a random order."""
    return drawn_by_family(load_suite(suite).programs, per_family, seed=seed)


def learnable_programs(suite: str, per_family: int, seed: int) -> list[Program]:
    """Return programs that may guide what is learned, in a random order.

    Raises:
        ManifestError: the suite has programs that are held out for tests.
    """
    programs = draw_programs(suite, per_family, seed)
    refuse_test_programs(suite, programs)
    return programs


def collect_samples(settings: LearningSettings, data: Path) -> list[Row]:
    """Measure deviations of the programs of the settings; files of an interrupted run are continued.

    Those of the suite are written to `data`, those of the drawn programs beside it.

    Raises:
        ResultError: a file has other settings, or cannot be read or written.
        MeasurementError: nothing can be measured on this machine.
    """
    s = settings.collect
    drawn = write_drawn_programs(data.with_name("drawn"), s.products, s.loops, settings.seed)
    parts = [(drawn_data(data), list(load_suite(str(drawn)).programs))]
    parts.append((data, learnable_programs(s.suite, s.per_family, settings.seed)))
    options = measurer_options(settings, s.rounds, s.seconds)
    facts = {"backend": settings.backend, "seed": settings.seed, **asdict(s)}
    found: list[Row] = []
    with Measurer(PlanStore(":memory:"), options) as measurer:
        for path, programs in parts:
            found += collect(
                path, facts, programs, lambda p: measured_row(measurer, p, s, settings.seed), len(programs)
            )
    return found


def collect_fusions(settings: LearningSettings, data: Path) -> list[Row]:
    """Measure fusions beside the default ones; files of an interrupted run are continued.

    On the first programs actions are drawn at random. A model fitted on them draws those of the others.

    Raises:
        ResultError: a file has other settings, or cannot be read or written.
        MeasurementError: nothing can be measured on this machine.
    """
    s = settings.fusion
    programs = learnable_programs(s.suite, s.per_family + s.guided, settings.seed)
    first = {p.name for p in learnable_programs(s.suite, s.per_family, settings.seed)}
    options = measurer_options(settings, s.rounds, s.seconds)
    facts = {"backend": settings.backend, "seed": settings.seed, **asdict(s)}
    at_random, guided = fusion_data(data)
    with Measurer(PlanStore(":memory:"), options) as measurer:

        def collected(path: Path, part: Sequence[Program], draw: Draw | None) -> list[Row]:
            return collect(path, facts, part, lambda p: fusion_row(measurer, p, s, settings.seed, draw), len(part))

        found = collected(at_random, [p for p in programs if p.name in first], None)
        draw = _guide(found, programs, settings) if s.guided else None
        return found + collected(guided, [p for p in programs if p.name not in first], draw)


def collect_more(settings: LearningSettings, data: Path, draw: int, seconds: float = math.inf) -> list[Row]:
    """Measure fusions of other programs than before, in part those of which a model expects most.

    Args:
        settings: as for `collect_fusions`.
        data: file of measurements; those of fusions beside it guide the first model.
        draw: seed of what is drawn.
        seconds: after which no further program is begun.

    Raises:
        ResultError: a file has other settings, or cannot be read or written.
        MeasurementError: nothing can be measured on this machine.
    """
    s = settings.fusion
    programs = learnable_programs(s.suite, MORE_PER_FAMILY, draw)
    former = rows_of(fusion_data(data), "collect-fusions")
    guided = _guide(former, load_suite(s.suite).programs, settings)
    facts = {"backend": settings.backend, "seed": draw, "mixed": True, **asdict(s)}
    with Measurer(PlanStore(":memory:"), measurer_options(settings, s.rounds, s.seconds)) as measurer:
        return collect(
            more_data(data), facts, programs, lambda p: fusion_row(measurer, p, s, draw, _mixed(guided)), len(programs),
            seconds,
        )  # fmt: skip


def _mixed(guided: Draw | None) -> Draw:
    """Return what draws actions in part by a model and in part at random."""

    def draw(state: FusionState, count: int, rng: random.Random) -> list[FusionAction]:
        found = [] if guided is None else list(guided(state, max(2, int(count * GUIDED_SHARE)), rng))
        return list(dict.fromkeys([*found, *drawn_actions(state, count, rng)]))[:count]

    return draw


def confirm_gains(settings: LearningSettings, data: Path, seconds: float = math.inf) -> tuple[int, int]:
    """Measure the gains that `collect_more` found again; return how many were measured, and how many are left.

    The file has the later measurements instead of the former ones. Programs with greater gains come first; a run that
    ended early is continued by another one.

    Raises:
        ResultError: the file cannot be read or written.
        MeasurementError: nothing can be measured on this machine.
    """
    s, end = settings.fusion, time.monotonic() + seconds
    path = more_data(data)
    rows = rows_of([path], "collect-more")
    first = path.read_text("utf-8").partition("\n")[0]
    programs = {p.name: p for p in load_suite(s.suite).programs}
    open_rows = sorted((r for r in rows if _gains(r) > FASTER and "confirmed" not in r), key=_gains, reverse=True)
    done = 0
    with Measurer(PlanStore(":memory:"), measurer_options(settings, s.rounds, s.seconds)) as measurer:
        for row in open_rows:
            if time.monotonic() > end:
                break
            measured_again(measurer, programs[row["program"]], row, FASTER)
            done += 1
            write_text(path, "\n".join([first, *map(json.dumps, rows)]) + "\n")
    return done, len(open_rows) - done


def _gains(row: Row) -> float:
    return max((s.get("log", 0.0) for s in row.get("samples", ())), default=0.0)


def measurer_options(settings: LearningSettings, rounds: int, seconds: float) -> MeasurerOptions:
    """Return how a stage of learning measures, with this many ABBA blocks within these seconds at most."""
    return MeasurerOptions(
        settings.backend, rounds, TIMEOUT, seed=settings.seed, seconds=seconds, real_time=settings.real_time
    )


def _guide(rows: Sequence[Row], programs: Sequence[Program], settings: LearningSettings) -> Draw | None:
    """Return what draws actions by a model fitted on rows; None without samples, or without a model of kernel times."""
    model = shipped_kernel_cost()
    if model is None:
        return None
    samples = change_samples(rows, {p.name: p for p in programs}, settings.backend, model)
    return guided_draw(change_forest(samples, settings.changes, settings.seed), model) if samples else None


def rows_of(files: Sequence[Path], action: str) -> list[Row]:
    """Return the rows of files, each after its first line; `action` is what writes them.

    Raises:
        ResultError: one of them cannot be read.
    """
    try:
        return [json.loads(line) for f in files for line in f.read_text(encoding="utf-8").splitlines()[1:]]
    except (OSError, ValueError) as error:
        raise ResultError(f"cannot read {files[0]}: {error}; `bandits {action}` writes it") from error


def fusion_data(data: Path) -> tuple[Path, Path]:
    """Return the files with the measurements of fusions, at random and guided, that belong to that of the suite."""
    first, guided = (data.with_name(f"{data.stem}_{name}{data.suffix}") for name in ("fusion", "fusion_guided"))
    return first, guided


def more_data(data: Path) -> Path:
    """Return the file with the fusions that `collect_more` measured."""
    return data.with_name(f"{data.stem}_fusion_more{data.suffix}")


def drawn_data(data: Path) -> Path:
    """Return the file with the measurements of drawn programs that belongs to the file of the suite."""
    return data.with_name(f"{data.stem}_drawn{data.suffix}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["collect", "collect-fusions", "collect-more", "confirm"])
    add_settings(parser)
    parser.add_argument("--draw", type=int, default=7, help="seed of collect-more (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="time limit of collect-more and confirm")
    parser.add_argument("--data", type=Path, default=DATA, help="file of measurements (default: %(default)s)")
    o = parser.parse_args(arguments)
    settings = given_settings(o)
    if o.action == "collect":
        collect_samples(settings, o.data)
    elif o.action == "collect-fusions":
        collect_fusions(settings, o.data)
    elif o.action == "collect-more":
        collect_more(settings, o.data, o.draw, o.seconds)
    else:
        done, left = confirm_gains(settings, o.data, o.seconds)
        stdout.print(f"{done} programs measured again, {left} left")


if __name__ == "__main__":
    with plain_errors():
        main()
