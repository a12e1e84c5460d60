"""Settings of learning, read from a YAML file."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import yaml

from experiments.config import ConfigError

__all__ = ["DEFAULT_FILE", "ChangeSettings", "CollectSettings", "FusionSettings", "LearningSettings", "RuleSettings",
           "TrainSettings", "ValidateSettings", "add_settings", "given_settings", "read_settings"]  # fmt: skip

DEFAULT_FILE = Path(__file__).parent / "learning.yaml"
_T = TypeVar("_T")


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the options that say with which settings to learn."""
    parser.add_argument("--config", type=Path, default=DEFAULT_FILE, help="settings (default: %(default)s)")
    parser.add_argument("--real-time", action="store_true", help="time programs at real-time priority")


def given_settings(options: argparse.Namespace) -> LearningSettings:
    """Return the settings that `add_settings` read.

    Raises:
        ConfigError: see `read_settings`.
    """
    settings = read_settings(options.config)
    return replace(settings, real_time=settings.real_time or options.real_time)


@dataclass(frozen=True)
class MeasuredPrograms:
    """Which programs are measured, and how long.

    Attributes:
        suite: comma-separated suites, without programs held out for tests.
        per_family: number of programs of each family at most.
        instructions: programs with more of them after the passes are left out, because they take long to build.
        longest: programs with a longer estimated time, in seconds, are left out, because the interpreter is slow.
        rounds: ABBA blocks per measurement at most.
        seconds: time limit of these blocks.
    """

    suite: str = "corpus/train"
    per_family: int = 40
    instructions: int = 160
    longest: float = 0.002
    rounds: int = 7
    seconds: float = 0.1


@dataclass(frozen=True)
class CollectSettings(MeasuredPrograms):
    """Which deviations are measured; loops that would be unrolled to more than half of `instructions` are left out.

    Attributes:
        products, loops: number of programs drawn around a product, and around a loop, besides those of the suite.
        changes: number of deviations per program at most.
    """

    products: int = 150
    loops: int = 100
    changes: int = 3


@dataclass(frozen=True)
class FusionSettings(MeasuredPrograms):
    """Which changes of fusions are measured.

    Attributes:
        guided: number of further programs of each family, on which the actions are measured of which a first model
            expects most.
        changes: number of actions that are measured after the default fusions.
        further: number of actions that are measured after the best one, and so on.
        steps: number of actions after the default ones at most.
        gain: share of the time that an action must save for others to be measured after it.
    """

    per_family: int = 20
    instructions: int = 200
    longest: float = 0.002
    seconds: float = 0.06
    guided: int = 20
    changes: int = 8
    further: int = 4
    steps: int = 3
    gain: float = 0.03


@dataclass(frozen=True)
class ForestSettings:
    """How a forest is grown and validated.

    Attributes:
        trees: number of trees.
        depth: greatest depth of a tree.
        leaf: least number of samples in a leaf.
        folds: number of parts of cross-validation, each with families of its own.
    """

    trees: int = 32
    depth: int = 8
    leaf: int = 4
    folds: int = 8


@dataclass(frozen=True)
class TrainSettings(ForestSettings):
    """How the models of expansions and loops are fitted.

    Attributes:
        rules_depth: greatest number of conditions of a rule.
        seen: least number of programs that have an op; the default is kept for sites of other ops.
        slower: share of the changed programs that may become slower beyond the noise floor in cross-validation.
    """

    rules_depth: int = 4
    seen: int = 8
    slower: float = 0.05


@dataclass(frozen=True)
class ChangeSettings(ForestSettings):
    """How the model of changes of fusions is fitted.

    Attributes:
        seen: least number of programs that have a feature, such as a kernel that sorts, or an opcode; actions with a
            feature that fewer have are not taken, and programs with such an opcode keep the default fusions.
        slower: share of all programs that may become slower beyond the noise in cross-validation.
        steps: greatest number of actions after the default fusions of a program.
    """

    trees: int = 96
    depth: int = 12
    leaf: int = 3
    seen: int = 20
    slower: float = 0.01
    steps: int = 4


@dataclass(frozen=True)
class RuleSettings:
    """How the forest of changes of fusions is distilled into rules.

    Attributes:
        per_family: number of programs of each family at most, whose actions are looked at.
        instructions: larger programs are left out.
        depth: greatest number of conditions of a rule.
        leaf: least number of actions behind a rule.
        agreement: share of these that the forest would take at least.
        emphasis: weight of an action that the forest would take, as against one that it would not.
        folds: number of parts of cross-validation, each with families of its own.
        right: share of what the rules take on other families that the forest must take, too; else there are no rules.
    """

    per_family: int = 8
    instructions: int = 400
    depth: int = 5
    leaf: int = 4
    agreement: float = 0.75
    emphasis: float = 5.0
    folds: int = 6
    right: float = 0.6


@dataclass(frozen=True)
class ValidateSettings:
    """How a policy is compared with the rules.

    Attributes:
        suite: comma-separated suites, without programs held out for tests.
        per_family: number of programs of each family at most.
        rounds: ABBA blocks per program at most.
        seconds: time limit of these blocks.
        not_worse: share of programs that must not be slower beyond the noise floor before a policy may be the default.
    """

    suite: str = "corpus/validation"
    per_family: int = 14
    rounds: int = 15
    seconds: float = 0.3
    not_worse: float = 0.98


@dataclass(frozen=True)
class LearningSettings:
    """All settings; the file has a section for each group.

    Attributes:
        backend: that programs are measured on.
        seed: of all draws.
        real_time: whether programs are timed at real-time priority, for machines that do other work as well.
    """

    backend: str = "cpu"
    seed: int = 0
    real_time: bool = False
    collect: CollectSettings = field(default_factory=CollectSettings)
    fusion: FusionSettings = field(default_factory=FusionSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    changes: ChangeSettings = field(default_factory=ChangeSettings)
    rules: RuleSettings = field(default_factory=RuleSettings)
    validate: ValidateSettings = field(default_factory=ValidateSettings)


def read_settings(file: Path = DEFAULT_FILE) -> LearningSettings:
    """Return the settings of a YAML file; what it leaves out has its default.

    Raises:
        ConfigError: it cannot be read, has an unknown setting, or a value of another type.
    """
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        raise ConfigError(f"{file} is not YAML: {' '.join(str(error).split())}") from error
    return _made(LearningSettings, {} if data is None else data, str(file))


def _made(kind: type[_T], data: Any, where: str) -> _T:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must be a group of settings, not {data!r:.80}")
    types = get_type_hints(kind)
    unknown = [name for name in data if name not in types]
    if unknown:
        raise ConfigError(f"{where}: unknown setting {unknown[0]!r:.80}; settings are {', '.join(types)}")
    values: dict[str, Any] = {}
    for f in fields(kind):  # type: ignore[arg-type]  # every group is a dataclass
        if f.name not in data:
            continue
        value, wanted = data[f.name], types[f.name]
        if isinstance(wanted, type) and is_dataclass(wanted):
            values[f.name] = _made(wanted, value, f"{where}: {f.name}")
        elif isinstance(value, bool) or not isinstance(value, (int, float) if wanted is float else wanted):
            raise ConfigError(f"{where}: {f.name} must be of type {wanted.__name__}, not {value!r:.80}")
        else:
            values[f.name] = wanted(value)
    return kind(**values)
