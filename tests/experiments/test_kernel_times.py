"""The dataset of kernel times, the training of the cost model on it, and the measures of its quality."""

from __future__ import annotations

import dataclasses
import gzip
import random
from pathlib import Path

import numpy as np
import pytest

from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.learned.features.kernel_costs import COST_FEATURES
from compiler.learned.kernel_cost import LearnedKernelCost
from compiler.learned.kernel_model import PRICED, priced_amounts
from env.suites import ManifestError, Program
from experiments import calibration
from experiments.kernel_times import transfer
from experiments.kernel_times.__main__ import main
from experiments.kernel_times.choosing import (
    MeasuredKernel,
    best_choices,
    chosen_by_forest,
    measured_kernels,
    threads_by_estimate,
)
from experiments.kernel_times.collect import CollectOptions, by_turns, collect
from experiments.kernel_times.dataset import (
    ChoiceTime,
    DatasetError,
    KernelTimes,
    append_lines,
    read_dataset,
    site_of,
)
from experiments.kernel_times.matrices import TimesMatrix, times_matrix
from experiments.kernel_times.quality import field_errors, quality, spearman
from experiments.kernel_times.timing import TimingOptions, choice_times, draw_choices, kernel_inputs, time_choices
from experiments.kernel_times.training import TrainingOptions, fit_prices, train
from experiments.kernel_times.transfer import transferred
from tests.session.test_kernel_sites import TRANSPOSE, fused

DOT = """HloModule dot
ENTRY e { a = f32[40,50] parameter(0) b = f32[50,60] parameter(1)
  ROOT r = f32[40,60] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0} }"""
TILED = KernelChoice(schedule={"tile": 8})
FAST = TimingOptions(rounds=2, sample=1e-6)


def _kernel(split: str = "train", seconds: float = 1e-5) -> KernelTimes:
    site = fused(TRANSPOSE).kernel_sites()[0]
    times = (ChoiceTime(KernelChoice(), 1, seconds, 0.0), ChoiceTime(TILED, 1, 2 * seconds, 0.01))
    return KernelTimes(site.fingerprint, str(site.module()), "p", split, split, "default", 2, times)


# ---- the dataset


def test_a_dataset_is_read_as_it_was_written(tmp_path: Path) -> None:
    path, kernel = tmp_path / "times.jsonl", _kernel()
    append_lines(path, [{"format": 1, "date": "today"}])
    append_lines(path, [kernel.to_json(), kernel.to_json(), {"done": ["p"]}])
    header, kernels, programs = read_dataset(path)
    assert header["date"] == "today"
    assert kernels == [kernel]
    assert programs == {"p"}


def test_an_unfinished_line_is_ignored_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "times.jsonl"
    append_lines(path, [{"format": 1}])
    path.write_text(path.read_text() + '{"fingerp')
    assert read_dataset(path)[1] == []
    append_lines(path, [_kernel().to_json()])
    assert len(read_dataset(path)[1]) == 1


def test_a_compressed_dataset_is_read(tmp_path: Path) -> None:
    plain, packed, kernel = tmp_path / "times.jsonl", tmp_path / "times.jsonl.gz", _kernel()
    append_lines(plain, [{"format": 1}, kernel.to_json()])
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_dataset(packed)[1] == [kernel]
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(DatasetError, match="cannot read"):
        read_dataset(packed)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read"),
        ("{}\n", "no kernel"),
        ('{"format": 7}\n', "format 1"),
        ("no JSON\n", "line 1"),
        ('{"format": 1}\n{"fingerprint": "f", "times": [[1, 2]]}\n', "no kernel"),
    ],
)
def test_what_is_no_dataset_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "times.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DatasetError, match=message):
        read_dataset(path)


def test_the_site_of_a_stored_kernel_is_that_of_the_program() -> None:
    site = fused(TRANSPOSE).kernel_sites()[0]
    stored = site_of(_kernel())
    assert stored.fingerprint == site.fingerprint
    assert stored.spec is not None
    assert site.spec is not None
    assert stored.spec.symbol == site.spec.symbol


def test_rows_know_the_default_of_their_kernel(tmp_path: Path) -> None:
    cache = tmp_path / "features.npz"
    kernels = [_kernel(), dataclasses.replace(_kernel(), fingerprint="another")]
    found = times_matrix(kernels, cache)
    assert found.default.tolist() == [0, 0, 2, 2]
    assert found.kernel.tolist() == [0, 0, 1, 1]
    assert np.exp(found.log_seconds) == pytest.approx([1e-5, 2e-5] * 2)
    again = times_matrix(kernels, cache)
    assert np.array_equal(again.features, found.features)
    part = found.rows(found.kernel == 1)
    assert part.default.tolist() == [0, 0]


# ---- choices and times


def test_drawn_choices_differ_in_their_code_and_start_with_the_default() -> None:
    site = fused(TRANSPOSE).kernel_sites()[0]
    found = draw_choices(site, 8, random.Random(0))
    assert next(iter(found)) == site.default
    assert len(found) == 8
    assert len({s.symbol for s in found.values() if s is not None}) == 8
    assert all(site.check(c) is None for c in found)


def test_other_implementations_are_among_the_choices() -> None:
    site = fused(DOT).kernel_sites()[0]
    assert {c.implementation for c in draw_choices(site, 8, random.Random(0))} == set(site.choices.options)


def test_every_choice_is_timed() -> None:
    site = fused(TRANSPOSE).kernel_sites()[0]
    found = time_choices(site, [KernelChoice(), TILED], (1,), FAST)
    assert [t.choice for t in found] == [KernelChoice(), TILED]
    assert all(t.seconds > 0 and t.noise >= 0 and t.threads == 1 for t in found)


def test_what_slows_down_whole_rounds_does_not_count() -> None:
    rng = np.random.default_rng(3)
    load = 1 + rng.exponential(0.3, 21)
    default, tiled = 1e-5 * load, 0.9e-5 * load
    default[4] = 0.2e-5  # a sample that is too short would be the fastest
    tiled[7] *= 3
    others = {(KernelChoice(schedule={"unroll": n}), 1): (1e-5 * load).tolist() for n in (2, 4, 8)}

    found = choice_times({(KernelChoice(), 1): default.tolist(), (TILED, 1): tiled.tolist(), **others})

    assert [t.choice for t in found[:2]] == [KernelChoice(), TILED]
    assert found[1].seconds / found[0].seconds == pytest.approx(0.9, rel=1e-6)
    assert found[0].seconds == pytest.approx(1e-5 * load.min(), rel=1e-6)
    for own, other in zip(found[1].halves or (), found[0].halves or (), strict=True):
        assert own / other == pytest.approx(0.9, rel=1e-6)


def test_one_choice_alone_has_its_fastest_sample() -> None:
    (found,) = choice_times({(TILED, 2): [3e-6, 2e-6, 4e-6]})
    assert (found.choice, found.threads) == (TILED, 2)
    assert found.seconds == pytest.approx(2e-6)
    assert found.noise == pytest.approx(0.5)
    assert choice_times({}) == []


def test_large_kernels_are_not_timed() -> None:
    site = fused(TRANSPOSE).kernel_sites()[0]
    assert time_choices(site, [KernelChoice()], (1,), dataclasses.replace(FAST, most_bytes=1000)) == []


def test_inputs_have_small_values_of_the_right_types() -> None:
    shapes = fused(DOT).kernel_sites()[0].module().entry.parameter_shapes
    first, second = kernel_inputs(shapes)
    assert first.shape == (40, 50)
    assert second.dtype == np.float32
    assert first.min() >= 0.5
    assert not np.array_equal(first.ravel()[:100], second.ravel()[:100])


# ---- collection


def _programs(folder: Path, split: str = "train") -> list[Program]:
    path = folder / "transposed.hlo"
    path.write_text(TRANSPOSE)
    return [Program("transposed", "s", split, path, "", family="f")]  # type: ignore[arg-type]


def test_collection_continues_where_it_ended(tmp_path: Path) -> None:
    out, programs = tmp_path / "times.jsonl", _programs(tmp_path)
    options = CollectOptions(choices=3, timing=FAST)
    assert list(collect(programs, out, options))[-1][0] == 1
    header, kernels, programs_done = read_dataset(out)
    assert programs_done == {"transposed"}
    assert {k.fusion for k in kernels} <= {"default", "random"}
    assert all(len(k.times) > 1 and k.family == "f" for k in kernels)
    assert len({k.fingerprint for k in kernels}) == len(kernels) > 0
    assert "commit" in header
    list(collect(programs, out, options))
    assert read_dataset(out)[1] == kernels


def test_test_programs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="held out"):
        list(collect(_programs(tmp_path, "test"), tmp_path / "times.jsonl", CollectOptions()))


def test_families_take_turns(tmp_path: Path) -> None:
    (one,) = _programs(tmp_path)
    programs = [
        dataclasses.replace(one, name=f"{f}{n}", family=f) for f, count in (("a", 5), ("b", 2)) for n in range(count)
    ]
    order = [p.family for p in by_turns(programs, 0)]
    assert sorted(order[:2]) == sorted(order[2:4]) == ["a", "b"]
    assert order[4:] == ["a"] * 3


# ---- training


def _matrix(kernels: int = 60, seed: int = 0) -> TimesMatrix:
    """Return kernels of three choices: 1 us, and 2 ns per load, and more of it with greater tiles."""
    rng = np.random.default_rng(seed)
    rows = 3 * kernels
    features = np.zeros((rows, len(COST_FEATURES)), np.float32)
    loads = np.repeat(rng.integers(10, 100_000, kernels), 3)
    tile = rng.uniform(0, 6, rows)
    features[:, COST_FEATURES.index("nest: vector load next")] = np.log2(1.0 + loads)
    features[:, COST_FEATURES.index("field: tile")] = tile
    seconds = (1e-6 + 2e-9 * loads) * np.exp(0.2 * tile)
    first = np.repeat(np.arange(0, rows, 3), 3)
    noise = np.zeros(rows, np.float32)
    logs = np.log(seconds)
    return TimesMatrix(features, logs, noise, np.stack((logs, logs), 1), np.repeat(np.arange(kernels), 3), first)


def test_prices_are_found_from_times() -> None:
    data = _matrix()
    features = data.features.copy()
    features[:, COST_FEATURES.index("field: tile")] = 0
    seconds = 1e-6 + 2e-9 * priced_amounts(features)[:, PRICED.index("nest: vector load next")]
    prices = fit_prices(dataclasses.replace(data, features=features, log_seconds=np.log(seconds)))
    found = {name: float(p) for name, p in zip(PRICED, prices, strict=True) if p}
    assert found == pytest.approx({"call": 1e-6, "nest: vector load next": 2e-9}, rel=1e-3)


def test_training_learns_what_the_linear_part_cannot() -> None:
    options = TrainingOptions(members=2, trees=400, leaves=7, columns=1.0, rows=1.0)
    model = train(_matrix(), options, {"kernels": 60})
    unseen = _matrix(seed=1)
    found = quality(unseen, model.log_seconds(unseen.features), 0.03, 1.0)
    untrained = train(_matrix(), dataclasses.replace(options, trees=1), {})
    before = quality(unseen, untrained.log_seconds(unseen.features), 0.03, 1.0)
    assert found.error < 0.5 * before.error
    assert found.loss < 0.5 * found.default_loss
    assert found.correlation > 0.99
    again = train(_matrix(), options, {})
    assert again.digest == model.digest
    assert model.provenance["rows"] == 180


def test_nothing_to_train_on_is_an_error() -> None:
    empty = _matrix(1)
    with pytest.raises(ValueError, match="nothing"):
        train(empty.rows(np.zeros(3, bool)), TrainingOptions(), {})


def test_the_quality_of_perfect_and_of_reversed_predictions() -> None:
    data = _matrix()
    perfect = quality(data, data.log_seconds[None], 0.03, 1.0)
    assert perfect.correlation == pytest.approx(1)
    assert perfect.within == pytest.approx(1)
    assert (perfect.error, perfect.loss, perfect.worse) == (0, 0, 0)
    assert perfect.careful_loss < perfect.default_loss
    worst = quality(data, -data.log_seconds[None], 0.03, 1.0)
    assert worst.correlation == pytest.approx(-1)
    assert worst.loss > worst.default_loss > 0
    unsure = quality(data, np.stack([data.log_seconds, -data.log_seconds]), 0.03, 1.0)
    assert unsure.careful_loss == pytest.approx(unsure.default_loss)


def test_errors_of_single_changes() -> None:
    data = _matrix(2)
    data.features[:, COST_FEATURES.index("field: tile")] = [0, 3, 3, 0, 3, 3]
    data.features[2, COST_FEATURES.index("field: cache")] = 1
    logs = np.log(np.array([1.0, 2, 5, 1, 2, 2]))
    data = dataclasses.replace(data, log_seconds=logs)
    (found,) = field_errors(data, np.zeros((1, 6)))
    assert (found.change, found.rows) == ("tile", 3)  # the other choice changes two fields
    assert found.effect == found.error == pytest.approx(np.log(2))


def test_ranks_of_equal_values() -> None:
    assert spearman(np.array([1.0, 1, 2]), np.array([3.0, 3, 9])) == pytest.approx(1)
    assert np.isnan(spearman(np.array([1.0, 1]), np.array([1.0, 2])))


# ---- another machine


def test_a_slower_machine_is_calibrated_away(monkeypatch: pytest.MonkeyPatch) -> None:
    model = train(_matrix(), TrainingOptions(members=2, trees=100), {})
    here = _matrix(seed=1)
    slow = dataclasses.replace(here, log_seconds=model.log_seconds(here.features).mean(0) + np.log(3.0))
    seconds = np.exp(slow.log_seconds).tolist()
    monkeypatch.setattr(transfer, "measured_rows", lambda limit: (slow.features[:30], seconds[:30]))
    found = transferred(model, slow, slow.kernel < 40, draws=3)
    names, accuracies = zip(*found, strict=True)
    assert names[0] == "none"
    assert "30 times" in names[1]
    assert [len(a) for a in accuracies] == [1, 1, 3, 3]  # there are not 100 kernels to calibrate with
    assert accuracies[0][0].error == pytest.approx(2.0)
    assert max(a.error for part in accuracies[1:] for a in part) < 0.5


# ---- the commands


def test_train_and_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, model, page = tmp_path / "times.jsonl", tmp_path / "model", tmp_path / "page.md"
    validation = dataclasses.replace(_kernel("validation", 3e-5), fingerprint="another")
    append_lines(data, [{"format": 1, "commit": "c"}, _kernel().to_json(), validation.to_json()])
    main(["train", str(data), "--out", str(model), "--trees", "2", "--members", "2"])
    assert LearnedKernelCost.load(model).provenance["families"] == ["train"]
    main(["report", str(data), str(model), "--out", str(page)])
    assert "| validation families | 2 |" in page.read_text()
    assert page.read_text() in capsys.readouterr().out


def test_a_machine_is_calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLOGYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(calibration, "calibration_programs", lambda: iter([TRANSPOSE, DOT]))
    model = train(_matrix(), TrainingOptions(members=1, trees=1), {})
    model.save(tmp_path / "model")
    site = fused(TRANSPOSE).kernel_sites()[0]
    times = [ChoiceTime(KernelChoice(schedule={"tile": 8 * n}), 1, 1e-3, 0.0) for n in range(1, 9)]
    monkeypatch.setattr(calibration, "measure_calibration", lambda seconds: [(site, times)])
    calibration.calibrate(tmp_path / "model")
    assert len(list((tmp_path / "cache" / "calibration").iterdir())) == 1


def test_calibration_programs_have_kernels() -> None:
    programs = list(calibration.calibration_programs())
    assert len(programs) >= 50
    assert all(len(fused(text).kernel_sites()) == 1 for text in (programs[0], *programs[-5:]))


# ---- what choosing kernels is worth


def _measured(family: str, one: list[float], two: list[float]) -> MeasuredKernel:
    """A serial loop with choices of the grain; its work, a constant price and the value of the grain are features."""
    choices = (KernelChoice(), *(KernelChoice(schedule={"grain": 1000 * n}) for n in range(1, len(one))))
    kernel = dataclasses.replace(_kernel(), program=family, family=family)
    features = np.zeros((len(one), len(COST_FEATURES)), np.float32)
    features[:, COST_FEATURES.index("kernel: kind loop")] = 1
    features[:, COST_FEATURES.index("nest: serial work")] = 17
    features[:, COST_FEATURES.index("field: grain")] = np.arange(len(one))
    return MeasuredKernel(kernel, choices, np.array(one), np.array(two), features)


def test_the_best_choice_of_noisy_times_is_valued_by_the_other_times() -> None:
    lucky = _measured("f", [1e-5, 0.5e-5, 1e-5], [1e-5, 1e-5, 1e-5])
    row = best_choices([lucky])[1]
    assert row[:4] == ["all", "1", "2", "1.000x"]
    assert row[4:6] == ["1.000x", "1"]


def test_a_forest_gains_what_holds_in_every_family_and_nothing_else() -> None:
    nan = float("nan")
    faster = [_measured(f"f{n}", [2e-5, 1e-5, 4e-5], [nan, nan, nan]) for n in range(16)]
    row = next(r for r in chosen_by_forest(faster, 0) if r[:3] == ["training, default fusions", "0", "0.05"])
    assert row[3:] == ["16", "16", "2.0000x", "0.0%", "2.0000x"]
    slower = [_measured(f"f{n}", [1e-5, 2e-5, 4e-5], [nan, nan, nan]) for n in range(16)]
    row = next(r for r in chosen_by_forest(slower, 0) if r[:3] == ["training, default fusions", "0", "0.05"])
    assert row[3:6] == ["16", "0", "1.0000x"]


def test_threads_count_where_the_estimated_time_is_long_enough() -> None:
    nan = float("nan")
    kernels = [_measured(f"f{n}", [3.2e-6, 3.2e-6], [nan, 1.6e-6]) for n in range(4)]
    found = {tuple(r[:2]): r[2:] for r in threads_by_estimate(kernels)[1:]}
    assert found["measured", "3 us"] == ["4", "4", "2.000x", "4", "0"]
    assert found["measured", "4 us"] == ["0", "0", "", "0", "0"]


def test_noisy_times_on_two_threads_leave_the_choice_out() -> None:
    first = _kernel()
    times = (*first.times, ChoiceTime(KernelChoice(), 2, 1e-5, 0.0), ChoiceTime(TILED, 2, 1e-5, 0.5))
    kernel = dataclasses.replace(first, times=times)
    data = times_matrix([kernel.with_threads((1,))])
    assert measured_kernels([kernel], data, 0.1) == []
    (found,) = measured_kernels([kernel], data, 1.0)
    assert found.choices == (KernelChoice(), TILED)
    assert found.seconds.tolist() == [1e-5, 1e-5]


def test_losses_do_not_count_the_luck_of_the_fastest_measurement() -> None:
    rng = np.random.default_rng(0)
    kernels, choices = 400, 6
    logs = rng.normal(0.0, 0.1, (kernels * choices, 2)) - 12.0  # no choice is faster than another
    data = TimesMatrix(
        np.zeros((len(logs), len(COST_FEATURES)), np.float32), logs.min(1), np.zeros(len(logs), np.float32), logs,
        np.repeat(np.arange(kernels), choices), np.repeat(np.arange(kernels) * choices, choices),
    )  # fmt: skip
    found = quality(data, np.zeros((2, len(logs))), 0.1, 1.0)
    assert abs(found.default_loss) < 0.02
    assert abs(found.careful_loss) < 0.02
    assert found.default_loss < np.expm1(
        (data.log_seconds[::choices] - data.log_seconds.reshape(-1, choices).min(1)).mean()
    )
