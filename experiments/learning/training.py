"""From measured deviations to the folder of a whole policy, with its model card."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from compiler.errors import HlogymError
from compiler.learned.fusion_changes import save_changes
from compiler.learned.kernel_model import shipped_kernel_cost
from compiler.learned.site_policy import Bandit, SitePhase, save_bandit
from compiler.learned.whole_folder import read_whole, write_whole
from env.suites import load_suite
from experiments.learning.bandits import drawn_data, fusion_data, more_data, rows_of
from experiments.learning.fitting import Fitted, fit_bandit, samples_of
from experiments.learning.fusion_fitting import FittedChanges, change_samples, fit_changes, known_opcodes
from experiments.learning.model_card import FORMER, model_card
from experiments.learning.settings import LearningSettings
from experiments.provenance import provenance
from experiments.yardstick.rows import Row

__all__ = ["NothingLearnedError", "Trained", "next_version", "read_fusion_rows", "read_rows", "train_fusion",
           "train_policy", "write_policy"]  # fmt: skip

COMMAND = "python -m experiments.learning.retrain"
NAME = "learned"


class NothingLearnedError(HlogymError, RuntimeError):
    """Training in which no part is safe enough to be used."""


@dataclass(frozen=True)
class Trained:
    """The fitted parts of a policy.

    Attributes:
        parts: phase -> what was fitted, also where no margin was safe.
        counts: phase -> number of samples.
        programs: names of the programs with samples.
        settings: of the training.
        changes: what was fitted for fusion; None: nothing was.
        former: provenance of the policy from which the other parts are taken over.
    """

    parts: Mapping[SitePhase, Fitted]
    counts: Mapping[str, int]
    programs: tuple[str, ...]
    settings: LearningSettings
    changes: FittedChanges | None = None
    former: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bandits(self) -> dict[SitePhase, Bandit]:
        """The parts that may be used."""
        return {phase: f.bandit for phase, f in self.parts.items() if f.bandit is not None}

    def joined(self, fusion: Trained) -> Trained:
        """Return the same with the part for fusion of another training."""
        programs = tuple(sorted({*self.programs, *fusion.programs}))
        return replace(self, counts={**self.counts, **fusion.counts}, programs=programs, changes=fusion.changes)

    def facts(self) -> dict[str, Any]:
        """Return what provenance records."""
        known = provenance()
        return {
            "command": f"{COMMAND} --keep-sites" if self.former else COMMAND,
            **{name: known[name] for name in ("commit", "date", "machine", "c_compiler") if name in known},
            "settings": asdict(self.settings),
            "samples": {**self.former.get("samples", {}), **self.counts},
            "cross_validation": {**self.former.get("cross_validation", {}), **self._validated()},
            "programs": sorted({*self.former.get("programs", ()), *self.programs}),
            **({"former": {n: self.former[n] for n in FORMER if n in self.former}} if self.former else {}),
        }

    def _validated(self) -> dict[str, Any]:
        found = {str(phase): f.to_json() for phase, f in self.parts.items()}
        if self.changes is not None:
            outcome = self.changes.outcome
            found["fusion"] = {} if outcome is None else {"forest": outcome.to_json()}
        return found


def read_rows(data: Path) -> list[Row]:
    """Return the rows of a file that `collect` wrote, and of that of the drawn programs beside it.

    Raises:
        ResultError: it cannot be read.
    """
    drawn = drawn_data(data)
    return rows_of([data, *([drawn] if drawn.is_file() else [])], "collect")


def read_fusion_rows(data: Path) -> list[Row]:
    """Return the rows of the files that `collect_fusions` wrote, and `collect_more` if it ran.

    Raises:
        ResultError: they cannot be read.
    """
    more = more_data(data)
    return rows_of([*fusion_data(data), *([more] if more.is_file() else [])], "collect-fusions")


def train_fusion(rows: Sequence[Row], settings: LearningSettings, former: Mapping[str, Any] | None = None) -> Trained:
    """Fit the part for fusion alone on measured fusions.

    Args:
        rows: as `collect_fusions` measures them.
        settings: of the training.
        former: provenance of the policy from which the other parts are taken over.

    Raises:
        NothingLearnedError: there is no model of kernel times.
    """
    model = shipped_kernel_cost()
    if model is None:
        raise NothingLearnedError("there is no cost model of kernels, by which changes of fusions are described")
    programs = {p.name: p for p in load_suite(settings.fusion.suite).programs}
    samples = change_samples(rows, programs, settings.backend, model)
    names = tuple(sorted({s.program for s in samples}))
    opcodes = known_opcodes((programs[n] for n in names), settings.backend, settings.changes.seen)
    fitted = fit_changes(samples, settings.changes, model.digest, settings.seed, opcodes)
    return Trained({}, {"fusion": len(samples)}, names, settings, fitted, former or {})


def train_policy(rows: Sequence[Row], settings: LearningSettings) -> Trained:
    """Fit the parts for expansions and loops on measured deviations."""
    parts: dict[SitePhase, Fitted] = {}
    counts: dict[str, int] = {}
    programs: set[str] = set()
    for phase in get_args(SitePhase):
        samples = samples_of(rows, phase)
        counts[phase] = len(samples)
        programs.update(s.program for s in samples)
        parts[phase] = fit_bandit(samples, phase, settings.train, settings.seed)
    return Trained(parts, counts, tuple(sorted(programs)), settings)


def write_policy(
    folder: Path,
    trained: Trained,
    version: str,
    extra: Mapping[str, Path],
    validation: Mapping[str, Any] | None = None,
    default: bool = False,
) -> None:
    """Write the whole policy.

    Args:
        folder: to write.
        trained: its parts for expansions and loops.
        version: recorded in plans.
        extra: phase -> folder of a part that was made elsewhere, such as a model of kernel times.
        validation: the result of validation, which says whether the policy may be the default; None: there is none.
        default: let it be the default of its backend, if validation allows it.

    Raises:
        NothingLearnedError: no part is safe enough to be used.
        PolicyError: the folder cannot be written.
    """
    facts = trained.facts()
    if validation is not None:
        facts["validation"] = dict(validation)
    backend = trained.settings.backend
    allowed = validation is not None and validation.get("passed") is True
    default_for = [backend] if default and allowed else []
    with tempfile.TemporaryDirectory() as made:
        parts = dict(extra)
        for phase, bandit in trained.bandits.items():
            parts[phase] = Path(made) / phase
            save_bandit(parts[phase], phase, replace(bandit, provenance={"samples": trained.counts[phase]}))
        if trained.changes is not None and trained.changes.chooser is not None:
            parts["fusion"] = Path(made) / "fusion"
            chooser = replace(trained.changes.chooser, provenance={"samples": trained.counts["fusion"]})
            save_changes(parts["fusion"], chooser)
        if not parts:
            raise NothingLearnedError(
                f"no part is safe enough to be used ({trained.counts}); collect more deviations, or allow more slower "
                "programs with train.slower"
            )
        write_whole(folder, NAME, version, parts, [backend], default_for, facts, model_card(version, parts, facts))


def next_version(folder: Path) -> str:
    """Return the version after that of the policy in a folder: "1" if there is none."""
    try:
        return str(int(read_whole(folder).version) + 1)
    except (HlogymError, ValueError):
        return "1"
