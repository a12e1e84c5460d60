"""What samples of a round have in common."""

import numpy as np
import pytest

from compiler.support.rounds import beside_rounds


def test_slow_rounds_and_single_slow_samples_leave_no_trace() -> None:
    load = 1 + np.random.default_rng(1).exponential(0.5, 15)
    samples = np.outer([1e-5, 2e-5, 4e-5], load)
    samples[1, 3] *= 10
    samples[0, 8] /= 10

    rounds, beside = beside_rounds(samples.tolist())

    assert np.median(beside, axis=1) == pytest.approx(np.log([0.5, 1.0, 2.0]))
    steady = np.delete(np.arange(15), [3, 8])
    assert rounds[steady] == pytest.approx(np.log(2e-5 * load[steady]))


def test_a_sample_of_no_time_is_a_number() -> None:
    _, beside = beside_rounds([[0.0, 1e-6], [1e-6, 1e-6]])
    assert np.isfinite(beside).all()
