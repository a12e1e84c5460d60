"""From measured deviations to the folder of a whole policy, with its model card."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

from compiler.errors import HlogymError
from compiler.learned.site_policy import Bandit, SitePhase, save_bandit
from compiler.learned.whole_folder import read_whole, write_whole
from experiments.learning.bandits import drawn_data
from experiments.learning.fitting import Fitted, fit_bandit, samples_of
from experiments.learning.settings import LearningSettings
from experiments.provenance import provenance
from experiments.results import ResultError
from experiments.yardstick.rows import Row

__all__ = ["NothingLearnedError", "Trained", "read_rows", "train_policy", "write_policy"]

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
    """

    parts: Mapping[SitePhase, Fitted]
    counts: Mapping[SitePhase, int]
    programs: tuple[str, ...]
    settings: LearningSettings

    @property
    def bandits(self) -> dict[SitePhase, Bandit]:
        """The parts that may be used."""
        return {phase: f.bandit for phase, f in self.parts.items() if f.bandit is not None}

    def facts(self) -> dict[str, Any]:
        """Return what provenance records."""
        known = provenance()
        return {
            "command": COMMAND,
            **{name: known[name] for name in ("commit", "date", "machine", "c_compiler") if name in known},
            "settings": asdict(self.settings),
            "samples": dict(self.counts),
            "cross_validation": {phase: f.to_json() for phase, f in self.parts.items()},
            "programs": list(self.programs),
        }


def read_rows(data: Path) -> list[Row]:
    """Return the rows of a file that `collect` wrote, and of that of the drawn programs beside it.

    Raises:
        ResultError: it cannot be read.
    """
    try:
        lines = data.read_text(encoding="utf-8").splitlines()[1:]
        drawn = drawn_data(data)
        lines += drawn.read_text(encoding="utf-8").splitlines()[1:] if drawn.is_file() else []
        return [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise ResultError(f"cannot read {data}: {error}; `bandits collect` writes it") from error


def train_policy(rows: Sequence[Row], settings: LearningSettings) -> Trained:
    """Fit every part on measured deviations."""
    parts: dict[SitePhase, Fitted] = {}
    counts: dict[SitePhase, int] = {}
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
        if not parts:
            raise NothingLearnedError(
                f"no part is safe enough to be used ({trained.counts}); collect more deviations, or allow more slower "
                "programs with train.slower"
            )
        card = _card(version, trained, sorted(parts), facts)
        write_whole(folder, NAME, version, parts, [backend], default_for, facts, card)


def _card(version: str, trained: Trained, parts: Sequence[str], facts: Mapping[str, Any]) -> str:
    lines = [
        f"# Policy `{NAME}`, version {version}",
        "",
        f"Decides {', '.join(parts)} for the backend {trained.settings.backend}. The hand-written rules decide the "
        "rest, and also where the lower bound of the predicted gain does not exceed the margin.",
        "",
        "## Training",
        "",
        f"- command: `{facts['command']}`",
        *(f"- {name}: {facts[name]}" for name in ("commit", "date", "machine") if name in facts),
        f"- data: deviations from the default plan, measured on {len(trained.programs)} programs of "
        f"{trained.settings.collect.suite}: " + ", ".join(f"{n} of {phase}" for phase, n in trained.counts.items()),
        "- model: a forest per part that predicts the log of the speedup from the site and the choice",
        "",
        "## Results",
        "",
        "Cross-validation over families, on the changed decisions that were measured:",
        "",
        "| part | sites | changed | speedup over all | of the changed | slower of the changed | best possible |",
        "|---|---|---|---|---|---|---|",
    ]
    for phase, fitted in trained.parts.items():
        for form, o in (("forest", fitted.forest), ("rules", fitted.rules)):
            if o is not None:
                lines.append(
                    f"| {phase}, {form} | {o.sites} | {o.changed:.1%} | {o.mean:.3f}x | {o.changed_mean:.3f}x "
                    f"| {o.slower:.1%} | {o.possible:.3f}x |"
                )
        if fitted.forest is None:
            lines.append(f"| {phase} | | | no part: no margin was safe | | | |")
    lines += ["", "Validation against the rules, on programs of other draws and families:", ""]
    lines += facts.get("validation", {}).get("lines", ["not validated yet, so the rules stay the default."])
    lines += [
        "",
        "## Limits",
        "",
        f"- It was trained on one machine ({facts.get('machine', 'unknown')}) and small programs of at most "
        f"{trained.settings.collect.instructions} instructions. Sites whose features lie beyond those of the samples "
        "are left to the rules.",
        "- The gain that is predicted is that of the whole program in which a site was measured; how large a share of "
        "it the site is varies.",
        "- Test programs were not used.",
        "",
        "## Rules",
        "",
        'The readable form (`policy="learned:rules"`):',
        "",
    ]
    for phase, bandit in trained.bandits.items():
        lines += [f"### {phase}", "", *(f"- {rule.text(bandit.rules.features)}" for rule in bandit.rules.rules), ""]
    return "\n".join(lines)


def next_version(folder: Path) -> str:
    """Return the version after that of the policy in a folder: "1" if there is none."""
    try:
        return str(int(read_whole(folder).version) + 1)
    except (HlogymError, ValueError):
        return "1"
