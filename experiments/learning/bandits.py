"""Learn expansions and loops from measured deviations: contextual bandits with immediate rewards.

python -m experiments.learning.bandits collect [--config F.yaml] [--data F.jsonl]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from compiler.learned.kernel_model import shipped_kernel_cost
from env.measurement import Measurer, MeasurerOptions
from env.store import PlanStore
from env.suites import ManifestError, Program, load_suite
from experiments.headroom import drawn_by_family
from experiments.learning.deviations import measured_row
from experiments.learning.drawn_programs import write_drawn_programs
from experiments.learning.fusion_deviations import Draw, fusion_row
from experiments.learning.fusion_fitting import change_forest, change_samples, guided_draw
from experiments.learning.settings import LearningSettings, add_settings, given_settings
from experiments.module_command import plain_errors
from experiments.yardstick.rows import Row, collect

__all__ = ["collect_fusions", "collect_samples", "draw_programs", "drawn_data", "fusion_data", "learnable_programs",
           "main", "measurer_options"]  # fmt: skip

DATA = Path("runs/learning/deviations.jsonl")
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
    if any(p.split == "test" for p in programs):
        raise ManifestError(f"{suite} has programs held out for tests, which must not guide what is learned")
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


def fusion_data(data: Path) -> tuple[Path, Path]:
    """Return the files with the measurements of fusions, at random and guided, that belong to that of the suite."""
    first, guided = (data.with_name(f"{data.stem}_{name}{data.suffix}") for name in ("fusion", "fusion_guided"))
    return first, guided


def drawn_data(data: Path) -> Path:
    """Return the file with the measurements of drawn programs that belongs to the file of the suite."""
    return data.with_name(f"{data.stem}_drawn{data.suffix}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["collect", "collect-fusions"])
    add_settings(parser)
    parser.add_argument("--data", type=Path, default=DATA, help="file of measurements (default: %(default)s)")
    o = parser.parse_args(arguments)
    settings = given_settings(o)
    if o.action == "collect":
        collect_samples(settings, o.data)
    else:
        collect_fusions(settings, o.data)


if __name__ == "__main__":
    with plain_errors():
        main()
