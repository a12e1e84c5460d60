"""Learning of the policy that ships: settings, drawn programs, fitting on data with a known answer, validation."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compiler.ir.verifier import verify
from compiler.learned.features.fusion_changes import CHANGE_FEATURES
from compiler.learned.features.sites import EXPANSION_FEATURES, Feature
from compiler.learned.whole_folder import read_whole
from compiler.policy import load_whole, resolve_policy
from compiler.text import parse
from env.gate import Verdict
from env.measurement import Measurement, Measurer, MeasurerOptions
from env.statistics import Interval
from env.store import PlanStore
from env.suites import ManifestError, load_suite
from env.summaries import summarise
from experiments.config import ConfigError
from experiments.learning.bandits import learnable_programs
from experiments.learning.deviations import changes_of, measured_row
from experiments.learning.drawn_programs import drawn_loop, drawn_product, write_drawn_programs
from experiments.learning.fitting import Sample, fit_bandit, samples_of
from experiments.learning.fusion_deviations import measured_again
from experiments.learning.fusion_fitting import LARGEST_LOG, ChangeSample, fit_changes
from experiments.learning.settings import (
    ChangeSettings,
    CollectSettings,
    LearningSettings,
    TrainSettings,
    read_settings,
)
from experiments.learning.training import NothingLearnedError, next_version, read_rows, train_policy, write_policy
from experiments.learning.validate import Validation, validation_row, write_validation
from experiments.yardstick.rows import Row
from tests.env.small_programs import LOOP, write_suite
from tests.learned.bandits import whole_folder

ROWS, KEEP, LOOPS = (
    next(n for n, f in enumerate(EXPANSION_FEATURES) if f.name == name)
    for name in ("rows", "choice is keep", "choice is loops")
)
TRAIN = TrainSettings(trees=8, depth=4, leaf=4, rules_depth=2, folds=4)


def sample(rows: float, log: float, number: int) -> Sample:
    """Return a measured change from `loops` to `keep` of a product with so many rows."""
    row = np.zeros(len(EXPANSION_FEATURES))
    row[[ROWS, KEEP]] = rows, 1
    return Sample("expansions", f"p{number}", f"f{number % 12}", "keep", "loops", tuple(row), log, 0.01)


def data(threshold: float, noise: float = 0.02) -> list[Sample]:
    """Return samples in which products with more rows than a threshold gain 40%, and others lose as much."""
    rng = random.Random(0)
    found = []
    for number in range(120):
        rows = rng.uniform(1, 100)
        while abs(rows - threshold) < 4:  # so that each fold finds a threshold that is right for the others
            rows = rng.uniform(1, 100)
        found.append(sample(rows, (0.4 if rows > threshold else -0.4) + rng.gauss(0, noise), number))
    return found


# ---- settings and programs


def test_the_file_of_the_package_can_be_read() -> None:
    settings = read_settings()
    assert settings.backend == "cpu"
    assert settings.collect.suite == "corpus/train"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("collect: {rouns: 3}", "unknown setting 'rouns'"), ("collect: 3", "must be a group"),
        ("seed: fast", "seed must be of type int"), ("train: {trees: true}", "trees must be of type int"),
        ("a: [", "is not YAML"),
    ],
)  # fmt: skip
def test_wrong_settings_are_named(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        read_settings(file)
    with pytest.raises(ConfigError, match="cannot read"):
        read_settings(tmp_path / "none.yaml")


def test_drawn_programs_are_valid_and_depend_on_the_seed_alone(tmp_path: Path) -> None:
    for seed in range(20):
        verify(parse(drawn_product(random.Random(seed))))
        verify(parse(drawn_loop(random.Random(seed))))
    first, second = (write_drawn_programs(tmp_path / n, 3, 2, seed=5) for n in "ab")
    programs = load_suite(str(first)).programs
    assert [p.split for p in programs] == ["train"] * 5
    assert [p.text() for p in programs] == [p.text() for p in load_suite(str(second)).programs]


def test_test_programs_are_refused() -> None:
    with pytest.raises(ManifestError, match="held out for tests"):
        learnable_programs("quickstart", 100, 0)


# ---- measuring


def test_changes_are_the_choices_other_than_the_default() -> None:
    changes = changes_of(parse(LOOP), "cpu", 500, 1.0)
    assert {c.default for c in changes} == {"kernel"}
    assert {"keep", "unroll-2", "unroll-4", "unroll-8"} <= {c.choice for c in changes}
    assert {c.choice for c in changes_of(parse(LOOP), "cpu", 30, 1.0)} < {c.choice for c in changes}
    assert changes_of(parse(LOOP), "cpu", 500, 1e-12) == []
    assert changes_of(parse(LOOP), "cpu", 1, 1.0) == []


def verdict(speedup: float, counts: bool) -> Verdict:
    one = Interval(1e-5, 1e-5, 1e-5)
    return Verdict(Interval(speedup, speedup * 0.98, speedup * 1.02), one, one, counts, 8)


class FakeMeasurer(Measurer):
    """Says that a plan that keeps its loop has a given speedup, and others none."""

    def __init__(self, speedups: list[float]) -> None:
        super().__init__(PlanStore(":memory:"), MeasurerOptions())
        self.speedups, self.restarted = speedups, 0

    def restart(self) -> None:
        self.restarted += 1

    def measure(self, program, plan, remeasure=False):  # type: ignore[no-untyped-def]
        del program, remeasure
        one = Interval(1e-5, 1e-5, 1e-5)
        if plan is None:
            return Measurement(one, thunks=1)
        if "keep" not in plan.loops.values():
            return Measurement(None, "run", "no")
        speedup = self.speedups.pop(0)
        return Measurement(one, verdict=verdict(speedup, abs(speedup - 1) > 0.01), thunks=1)


def test_samples_hold_what_a_policy_sees_and_the_log_of_the_speedup(tmp_path: Path) -> None:
    program = load_suite(str(write_suite(tmp_path / "suite"))).find("loop")
    row = measured_row(FakeMeasurer([1.25]), program, CollectSettings(changes=20, instructions=500), 0)
    (found,) = samples_of([{"program": "loop", **row}], "loops")
    assert (found.default, found.choice) == ("kernel", "keep")
    assert found.log == pytest.approx(np.log(1.25))
    assert found.error == pytest.approx(0.01, rel=0.01)  # an interval of 4% in all is 4 standard errors
    assert {s["failure"] for s in row["samples"] if "failure" in s} == {"run: no"}
    assert samples_of([{"program": "loop", **row}], "expansions") == []


class AlwaysMeasurer(FakeMeasurer):
    """Gives every plan the next speedup."""

    def measure(self, program, plan, remeasure=False):  # type: ignore[no-untyped-def]
        del program, remeasure
        one = Interval(1e-5, 1e-5, 1e-5)
        found = None if plan is None else verdict(self.speedups.pop(0), True)
        return Measurement(one, verdict=found, thunks=1)


def test_only_gains_are_measured_again(tmp_path: Path) -> None:
    program = load_suite(str(write_suite(tmp_path / "suite"))).find("chain")
    samples = [{"actions": [], "log": log, "error": 0.01} for log in (0.3, 0.01, -0.2)]
    row: Row = {"program": "chain", "samples": list(samples)}
    measured_again(AlwaysMeasurer([1.1]), program, row, 0.02)
    assert row["confirmed"] is True
    assert row["samples"][1:] == samples[1:]
    assert row["samples"][0]["log"] == pytest.approx(np.log(1.1))


# ---- fitting


def test_a_threshold_is_found_and_only_sure_changes_are_made() -> None:
    fitted = fit_bandit(data(30), "expansions", TRAIN, seed=0)
    assert fitted.bandit is not None
    assert fitted.forest is not None
    assert fitted.rules is not None
    for rows, expected in ((10.0, "loops"), (60.0, "keep"), (1000.0, "loops")):  # 1000: unlike every sample
        choices = ("loops", "keep")
        features = np.zeros((2, len(EXPANSION_FEATURES)))
        features[:, ROWS] = rows
        features[0, LOOPS], features[1, KEEP] = 1, 1
        assert choices[fitted.bandit.pick(choices, "loops", features.tolist())] == expected
    assert fitted.forest.changed == pytest.approx(0.7, abs=0.1)
    assert fitted.forest.slower <= TRAIN.slower
    assert 1 < fitted.forest.mean <= fitted.forest.possible
    (rule,) = fitted.bandit.rules.rules
    (condition,) = rule.conditions
    assert (condition.feature, condition.at_most) == (ROWS, False)
    assert condition.bound == pytest.approx(30, abs=4)
    assert rule.speedup == pytest.approx(np.exp(0.4), rel=0.02)


def test_nothing_is_expected_of_an_op_that_few_programs_have() -> None:
    op = EXPANSION_FEATURES.index(Feature("op is topk"))
    for number, expected in ((TRAIN.seen - 1, "loops"), (TRAIN.seen, "keep")):
        others = [sample(90.0, 1.4, 1000 + n) for n in range(number)]
        rare = [replace(s, row=(*s.row[:op], 1.0, *s.row[op + 1 :])) for s in others]
        bandit = fit_bandit([*data(30), *rare], "expansions", TRAIN, seed=0).bandit
        assert bandit is not None
        keep = rare[0].row
        default = [*keep[:KEEP], 0.0, *keep[KEEP + 1 :]]
        choices = ("loops", "keep")
        assert choices[bandit.pick(choices, "loops", [default, list(keep)])] == expected


def test_gains_that_nothing_predicts_are_left_alone() -> None:
    rng = random.Random(1)
    noise = [sample(rng.uniform(1, 100), rng.choice((-0.4, 0.4)), n) for n in range(120)]
    assert fit_bandit(noise, "expansions", TRAIN, seed=0).bandit is None
    assert fit_bandit([], "expansions", TRAIN, seed=0).bandit is None


def test_fitting_is_reproducible() -> None:
    first, second = (fit_bandit(data(50), "expansions", TRAIN, seed=3).bandit for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.rules == second.rules
    assert np.array_equal(first.forest.nodes.threshold, second.forest.nodes.threshold)


def rows_of(samples: list[Sample]) -> list[dict[str, object]]:
    return [
        {
            "program": s.program, "family": s.family,
            "samples": [{"phase": s.phase, "choice": s.choice, "default": s.default, "row": list(s.row), "log": s.log,
                         "error": s.error}],
        }
        for s in samples
    ]  # fmt: skip


def test_training_writes_a_policy_that_loads_with_its_card(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    lines = [json.dumps({"settings": {}}), *map(json.dumps, rows_of(data(30)))]
    file.write_text("\n".join(lines) + "\n")
    rows = read_rows(file)
    trained = train_policy(rows, LearningSettings(train=TRAIN))
    folder = tmp_path / "policy"
    assert next_version(folder) == "1"
    write_policy(folder, trained, "1", {})
    assert next_version(folder) == "2"
    assert read_whole(folder).default_for == ()
    assert list(load_whole(folder).parts) == ["expansions"]
    card = (folder / "README.md").read_text()
    for part in ("## Training", "## Results", "## Limits", "not validated yet", "no margin was safe", "rows above"):
        assert part in card
    write_policy(folder, trained, "2", {}, {"passed": True, "lines": ["- fine"]})
    assert read_whole(folder).default_for == ()
    write_policy(folder, trained, "2", {}, {"passed": True, "lines": ["- fine"]}, default=True)
    assert read_whole(folder).default_for == ("cpu",)
    assert load_whole(folder).provenance["samples"] == {"expansions": 120, "loops": 0}
    write_policy(folder, trained, "3", {}, {"passed": False, "lines": ["- slower"]}, default=True)
    assert read_whole(folder).default_for == ()


def test_a_policy_that_learned_nothing_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(NothingLearnedError, match="collect more"):
        write_policy(tmp_path / "policy", train_policy([], LearningSettings()), "1", {})


# ---- validation


def test_a_difference_counts_if_it_shows_again_in_a_fresh_process(tmp_path: Path) -> None:
    program = load_suite(str(write_suite(tmp_path / "suite"))).find("loop")
    policy = resolve_policy(str(whole_folder(tmp_path / "policies")), "cpu")
    measurer = FakeMeasurer([0.8, 1.0, 0.8, 0.8, 1.0])
    rows = [validation_row(measurer, program, policy) for _ in range(3)]
    assert [r["counts"] for r in rows] == [False, True, False]
    assert measurer.restarted == 2
    assert validation_row(FakeMeasurer([]), program, replace(policy, loops=None))["changed"] is False


def _validation(speedups: list[float]) -> Validation:
    rows = [
        {"program": f"p{n}", "speedup": [s, s, s], "counts": s != 1, "changed": s != 1, "decide_seconds": 0.1}
        for n, s in enumerate(speedups)
    ]
    summary = summarise({r["program"]: [[r["speedup"][0]]] for r in rows})  # type: ignore[misc, index]
    return Validation(rows, summary, 1 - summary.slower, 0.98, "above 1%")


@pytest.mark.parametrize(
    ("speedups", "passed"),
    [
        ([1.2] * 30 + [1.0] * 30, True), ([1.2] * 20 + [1.0] * 20, False),  # too few programs
        ([1.5] * 58 + [0.9] * 2, False), ([1.5] * 99 + [0.9], True), ([1.0] * 98 + [0.5] * 2, False),
    ],
)  # fmt: skip
def test_a_policy_may_be_the_default_if_it_is_seldom_slower(
    tmp_path: Path, speedups: list[float], passed: bool
) -> None:
    found = _validation(speedups)
    assert found.passed is passed
    assert found.to_json()["passed"] is passed
    page = write_validation(found, "learned@1", "command", tmp_path / "page.md")
    assert f"may be the default: {'yes' if passed else 'no'}" in page
    assert page.count("\n| p") == 1 + sum(s != 1 for s in speedups)  # with the header


def test_the_gain_of_the_changed_kernels_follows_from_that_of_the_program() -> None:
    # Kernels that take half of the time and become twice as fast save a quarter of it.
    sample = ChangeSample("p", "f", (), (0.0,), math.log(1 / 0.75), 0.0, 0.5)
    assert sample.kernels_log == pytest.approx(min(LARGEST_LOG, math.log(2)))
    slower = ChangeSample("p", "f", (), (0.0,), -math.log(1.1), 0.0, 0.5)
    assert slower.kernels_log == pytest.approx(-math.log(1.2))
    assert slower.is_slower


def test_changes_are_fitted_only_where_they_are_safe() -> None:
    settings = ChangeSettings(trees=8, depth=3, leaf=2, folds=4, slower=0.02)
    width = len(CHANGE_FEATURES)

    def samples(log: float) -> list[ChangeSample]:
        return [
            ChangeSample(
                f"p{n}", f"f{n % 8}", (), (float(n % 2), *(0.0,) * (width - 1)), log if n % 2 else -0.3, 0.01, 1
            )
            for n in range(80)
        ]

    fitted = fit_changes(samples(0.3), settings, "costs", 0)
    assert fitted.chooser is not None
    assert fitted.outcome is not None
    assert fitted.outcome.slower == 0
    assert fitted.outcome.changed == pytest.approx(0.5)
    assert fit_changes(samples(-0.2), settings, "costs", 0).chooser is None
