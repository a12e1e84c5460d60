"""The learned cost model of kernels: its features, predictions, files, and what is chosen by it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from compiler.analysis.cost_model import module_cost
from compiler.backends import measured_kernels
from compiler.backends.measured_kernels import MeasuredKernels
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.errors import PolicyError
from compiler.learned.boosted_trees import BoostedTrees
from compiler.learned.features.kernel_costs import COST_FEATURE_VERSION, COST_FEATURES, cost_features
from compiler.learned.kernel_calibration import calibrated, calibration_file, fit_calibration, store_calibration
from compiler.learned.kernel_cost import LearnedKernelCost, LearnedKernels
from compiler.learned.kernel_model import FORMAT, INPUTS, PRICED, correction_terms, model_inputs
from compiler.learned.learned_costs import LearnedCosts
from compiler.learned.policy_folder import read_policy_folder, write_policy_folder
from compiler.learned.tree_nodes import TreeNodes
from compiler.runtime.kernel_selector import most_promising
from compiler.runtime.kernel_sites import KernelSite
from tests.session.test_kernel_sites import TRANSPOSE, fused

ADD = """HloModule add
ENTRY e { p = f32[1000] parameter(0) q = f32[1000] parameter(1) ROOT r = f32[1000] add(p, q) }"""
SCALAR = """HloModule scalar
ENTRY e {
  p = f32[1000] parameter(0)
  q = f32[] parameter(1)
  x = f32[1000] exponential(p)
  b = f32[1000] broadcast(q), dimensions={}
  ROOT r = f32[1000] divide(x, b)
}"""
WIDTH = len(COST_FEATURES)


def _site(text: str = TRANSPOSE) -> KernelSite:
    (site,) = fused(text).kernel_sites()
    return site


def _counts(site: KernelSite, choice: KernelChoice | None = None, prefix: str = "nest: ") -> dict[str, float]:
    (row,) = cost_features(site, [choice or site.default], [1])
    return {
        name.removeprefix(prefix): round(2.0 ** float(value) - 1, 1)
        for name, value in zip(COST_FEATURES, row, strict=True)
        if name.startswith(prefix) and value
    }


STEP = 0.25


def _model(*members: dict[str, float], call: float = 1e-5) -> LearnedKernelCost:
    """Return a model whose members add weights times features, in steps, to the logarithm of the time of a call."""
    prices = np.zeros(len(PRICED), np.float32)
    prices[PRICED.index("call")] = call
    trees = tuple(_stairs(weights) for weights in members or ({},))
    return LearnedKernelCost(prices, np.ones(WIDTH, np.float32), trees)


def _stairs(weights: dict[str, float]) -> BoostedTrees:
    """Return trees of one split: each adds a weight times STEP where a feature is above its bound, at most 12."""
    splits = [(COST_FEATURES.index(f), n * STEP, w * STEP) for f, w in weights.items() for n in range(int(12 / STEP))]
    nodes = [
        row
        for n, (feature, bound, value) in enumerate(splits)
        for row in (
            (feature, bound, 3 * n + 1, 3 * n + 2, 0.0), (-1, 0.0, 3 * n + 1, 3 * n + 1, 0.0),
            (-1, 0.0, 3 * n + 2, 3 * n + 2, value),
        )
    ] or [(-1, 0.0, 0, 0, 0.0)]  # fmt: skip
    feature, threshold, left, right, value = np.array(nodes, np.float32).astype(np.float64).T
    roots = 3 * np.arange(max(1, len(splits)))
    whole = [a.astype(np.int64) for a in (roots, feature, left, right)]
    return BoostedTrees(TreeNodes(whole[0], whole[1], threshold, whole[2], whole[3]), value)


# ---- features


def test_counts_of_an_elementwise_kernel() -> None:
    found = _counts(_site(ADD))
    assert found["vector simple"] == 1000
    assert found["vector load next"] == 2000
    assert found["vector store next"] == 1000
    assert found["bytes in"] == 8000
    assert found["bytes out"] == 4000
    assert found["arguments"] == 3
    assert found["serial work"] == 4000
    assert "vector load strided" not in found


def test_functions_and_values_that_do_not_move_have_counts_of_their_own() -> None:
    found = _counts(_site(SCALAR))
    assert found["vector exponential"] == 1000
    assert found["vector divide"] == 1000
    assert found["vector load next"] == 1000
    assert found.get("vector load same", 0) + found.get("scalar load same", 0) >= 1


def test_a_transpose_without_tiles_has_strided_accesses_and_the_default_has_tiles() -> None:
    site = _site()
    plain = _counts(site, KernelChoice(schedule={"tile": 0}))
    assert plain["vector load strided"] + plain.get("vector store strided", 0) == 60_000
    assert _counts(site)["transposed"] > 0
    change = dict(zip(COST_FEATURES, cost_features(site, [KernelChoice(schedule={"tile": 0})], [1])[0], strict=True))
    assert change["change: transposed"] < 0
    assert change["change: bytes in"] == 0
    assert change["is default"] == 0


def test_features_do_not_depend_on_names_and_are_finite() -> None:
    renamed = TRANSPOSE.replace("a =", "other =").replace("(a)", "(other)")
    one, two = (cost_features(_site(text), [KernelChoice(), KernelChoice(schedule={"flags": 1})], [1, 1])
                for text in (TRANSPOSE, renamed))  # fmt: skip
    assert np.array_equal(one, two)
    assert np.isfinite(one).all()
    assert one.shape == (2, WIDTH)


# ---- predictions


def test_the_linear_part_prices_counts() -> None:
    model = _model()
    model.prices[PRICED.index("nest: vector load next")] = 1e-9
    predicted = model.predict(_site(ADD), [KernelChoice()])
    assert predicted.seconds[0] == pytest.approx(1e-5 + 2000e-9)
    assert predicted.spread[0] == 0


def test_members_give_the_mean_and_the_spread() -> None:
    unrolled = KernelChoice(schedule={"unroll": 4})
    model = _model({"field: unroll": -0.1}, {"field: unroll": -0.3})
    predicted = model.predict(_site(ADD), [KernelChoice(), unrolled])
    change = 2.5 - 1.0  # log2(1 + 4) and log2(1 + 1) in steps
    assert predicted.log_ratio == pytest.approx([0, -0.2 * change], abs=1e-6)
    assert predicted.ratio_spread == pytest.approx([0, 0.1 * change], abs=1e-6)


def test_work_in_parallel_loops_is_divided_among_the_cores() -> None:
    site = _site(ADD.replace("1000", "4000000"))
    alone = KernelChoice(schedule={"threads": 0})
    two = dataclasses.replace(site.target, device=dataclasses.replace(site.device, units=2))
    found = _model().predict(KernelSite(site.instruction, two), [KernelChoice(), alone])
    assert found.seconds[0] == pytest.approx(found.seconds[1] / 2, rel=1e-3)


def test_modules_cost_what_their_kernels_are_predicted_to_take() -> None:
    module = fused(ADD.replace("ROOT r =", "a =").replace(") }", ") ROOT t = f32[1000] tanh(a) }")).module
    costs = LearnedCosts(_model())
    found = module_cost(module, costs)
    kernels = [i for i in module.entry.instructions if costs.instruction(i)]
    assert found.seconds == pytest.approx(1e-5 * len(kernels))
    assert len(kernels) == 1
    assert all(costs.instruction(p) == 0 for p in module.entry.parameters)


# ---- files


def test_a_model_is_saved_and_loaded(tmp_path: Path) -> None:
    model = _model({"field: unroll": -0.1}, {"field: tile": 0.2})
    model.save(tmp_path / "model")
    loaded = LearnedKernelCost.load(tmp_path / "model")
    rows = cost_features(_site(), [KernelChoice(), KernelChoice(schedule={"tile": 8})], [1, 1])
    assert np.array_equal(loaded.log_seconds(rows), model.log_seconds(rows))
    assert loaded.digest == model.digest


def _edit(folder: Path, name: str, value: object) -> None:
    file = folder / "policy.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), name: value}))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("feature_version", 0, "feature version"),
        ("features", ["another"], "other features"),
        ("threads", "many", "incomplete"),
        ("threads", 0, "0 threads"),
        ("format", "hlogym-fusion", "instead of"),
    ],
)
def test_a_model_of_another_kind_is_refused(tmp_path: Path, name: str, value: object, message: str) -> None:
    _model().save(tmp_path)
    _edit(tmp_path, name, value)
    with pytest.raises(PolicyError, match=message):
        LearnedKernelCost.load(tmp_path)


def test_a_model_from_before_a_field_ignores_it(tmp_path: Path) -> None:
    model = _model({"field: unroll": -0.1})
    model.save(tmp_path)
    description, weights = read_policy_folder(tmp_path, FORMAT, COST_FEATURE_VERSION)
    unknown = ("field: tile", "nest: vector divide")
    kept = [n for n, name in enumerate(COST_FEATURES) if name not in unknown]
    weights["varied"] = weights["varied"][kept]
    columns = weights["0.feature"]
    columns[columns >= 0] = [[COST_FEATURES[n] for n in kept].index("field: unroll")] * int((columns >= 0).sum())
    weights["prices"] = np.delete(weights["prices"], PRICED.index("nest: vector divide"))
    description["features"] = [COST_FEATURES[n] for n in kept]
    write_policy_folder(tmp_path, description, weights)
    loaded = LearnedKernelCost.load(tmp_path)
    rows = cost_features(_site(), [KernelChoice(), KernelChoice(schedule={"unroll": 4})], [1, 1])
    assert np.array_equal(loaded.log_seconds(rows), model.log_seconds(rows))
    assert loaded.knows("unroll")
    assert loaded.knows("flags")
    assert not loaded.knows("tile")
    assert all("tile" not in c.schedule for c in LearnedKernels(loaded).candidates(_site()))


def test_weights_of_other_shapes_are_refused(tmp_path: Path) -> None:
    dataclasses.replace(_model(), prices=np.zeros(3, np.float32)).save(tmp_path)
    with pytest.raises(PolicyError, match="other shapes"):
        LearnedKernelCost.load(tmp_path)


def test_weights_that_are_no_trees_are_refused(tmp_path: Path) -> None:
    _model({"field: tile": 0.5}).save(tmp_path)
    description, weights = read_policy_folder(tmp_path, FORMAT, COST_FEATURE_VERSION)
    weights["0.left"][0] = 0  # a node that is its own child
    write_policy_folder(tmp_path, description, weights)
    with pytest.raises(PolicyError, match="do not form trees"):
        LearnedKernelCost.load(tmp_path)


def test_a_model_without_members_is_refused(tmp_path: Path) -> None:
    dataclasses.replace(_model(), members=()).save(tmp_path)
    with pytest.raises(PolicyError, match="0 members"):
        LearnedKernelCost.load(tmp_path)


def test_the_inputs_of_the_trees_tell_shares() -> None:
    rows = cost_features(_site(ADD), [KernelChoice()], [1])
    prices = np.zeros(len(PRICED), np.float32)
    prices[PRICED.index("call")], prices[PRICED.index("nest: vector load next")] = 1e-6, 1.5e-9
    linear, inputs = model_inputs(rows, prices)
    named = dict(zip(INPUTS, inputs[0], strict=True))
    assert np.exp(linear) == pytest.approx([4e-6])
    assert named["log linear"] == pytest.approx(np.log(4e-6))
    assert named["share: call"] == pytest.approx(0.25)
    assert named["share: nest: vector load next"] == pytest.approx(0.75)
    assert named["relative nest: vector simple"] == pytest.approx(np.log2(1001 / 4e-6))


# ---- choosing


def test_the_choice_that_is_predicted_fastest_is_taken() -> None:
    selector = LearnedKernels(_model({"field: tile": 0.5}))
    chosen = selector.choose_kernel(_site())
    assert chosen.schedule["tile"] == 0
    assert selector.choose_kernel(_site()) == chosen


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (_model({"field: tile": 0.5}, {"field: tile": -0.5}), {}),  # the members do not agree
        (_model({"field: tile": 0.001}), {}),  # the gain is less than the margin
        (_model({"field: tile": 0.5}, call=1e-9), {}),  # a short kernel
        (_model({"field: grain": 0.5}), {}),  # fields of threads, of which the model has seen one
        (_model({"field: tile": 0.5}, {"field: tile": 0.3}), {"caution": 10.0}),
        (_model({"field: tile": 0.5}), {"fields": ("unroll", "vector")}),
    ],
)
def test_the_default_is_kept_where_the_prediction_is_not_sure(
    model: LearnedKernelCost, options: dict[str, Any]
) -> None:
    selector = LearnedKernels(model)
    for name, value in options.items():
        setattr(selector, name, value)
    assert selector.choose_kernel(_site()) == KernelChoice()


def test_the_result_does_not_depend_on_the_choice() -> None:
    session = fused(TRANSPOSE)
    session.run_kernel_selector(LearnedKernels(_model({"field: tile": 0.5})))
    assert session.plan.kernels["main"]
    assert session.decided_by["kernels"] == "LearnedKernels"
    a = np.arange(60_000, dtype=np.float32).reshape(200, 300)
    assert np.array_equal(session.finish()(a)[0], -a.T)


class _Ranking:
    """Prefers great values of a knob."""

    def __init__(self, knob: str) -> None:
        self.knob = knob

    def rank(self, site: KernelSite, choices: Sequence[KernelChoice]) -> Sequence[float]:
        del site
        return [-c.schedule.get(self.knob, 0) for c in choices]


def test_the_most_promising_choices_come_after_the_first() -> None:
    choices = [KernelChoice(), *(KernelChoice(schedule={"tile": t}) for t in (8, 64, 16))]
    found = most_promising(_Ranking("tile"), _site(), choices, 3)
    assert [c.schedule.get("tile") for c in found] == [None, 64, 16]


def test_measured_kernels_measure_what_a_ranking_prefers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[KernelChoice] = []

    def fastest(self: MeasuredKernels, site: KernelSite, candidates: Sequence[KernelChoice]) -> KernelChoice:
        seen.extend(candidates)
        return site.default

    monkeypatch.setattr(measured_kernels.MeasuredKernels, "_fastest", fastest)
    MeasuredKernels(budget=3, ranking=_Ranking("tile")).choose_kernel(_site())
    assert seen[0] == KernelChoice()
    assert [c.schedule["tile"] for c in seen[1:]] == sorted(
        (c.schedule.get("tile", 0) for c in _site().offered(128)), reverse=True
    )[:2]


# ---- calibration


def _rows() -> npt.NDArray[np.float32]:
    rng = np.random.default_rng(0)
    rows = np.zeros((40, WIDTH), np.float32)
    rows[:, COST_FEATURES.index("field: tile")] = rng.uniform(0, 5, 40)
    rows[:, COST_FEATURES.index("kernel: log bytes read")] = rng.uniform(0.3, 1, 40)
    return rows


def test_calibration_finds_a_slower_machine() -> None:
    model, rows = _model({"field: tile": 0.4}), _rows()
    measured = 3 * np.exp(model.log_seconds(rows).mean(0))
    measured[0] *= 1000  # a disturbed timing
    found = fit_calibration(model, rows, list(measured))
    assert found.rows == 40
    assert found.before == pytest.approx(2.0, rel=0.01)
    assert found.after < 0.2
    better = dataclasses.replace(model, correction=found.coefficients)
    ratio = np.exp(better.log_seconds(rows) - model.log_seconds(rows)).mean(0)
    assert np.median(ratio) == pytest.approx(3, rel=0.2)


def test_a_calibration_needs_measurements() -> None:
    with pytest.raises(ValueError, match="at least eight"):
        fit_calibration(_model(), _rows()[:3], [1.0] * 3)


def test_a_calibration_is_used_by_its_model_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLOGYM_CACHE", str(tmp_path))
    model, other = _model({"field: tile": 0.4}), _model({"field: tile": 0.3})
    assert calibrated(model) is model
    found = fit_calibration(model, _rows(), list(2 * np.exp(model.log_seconds(_rows()).mean(0))))
    path = store_calibration(model, found)
    assert path.is_relative_to(tmp_path)
    assert np.array_equal(np.asarray(calibrated(model).correction), found.coefficients)
    assert calibrated(other) is other
    path.write_text("{}")
    assert calibrated(model) is model
    assert calibration_file(other) != path


def test_the_terms_of_a_calibration_are_finite_for_every_kernel() -> None:
    terms = correction_terms(np.zeros((1, WIDTH), np.float32), np.array([-30.0]))
    assert terms.shape == (1, _model().correction_size)
    assert np.isfinite(terms).all()
