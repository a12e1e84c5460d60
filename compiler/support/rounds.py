"""Times of several things that were measured in rounds, each once per round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["beside_rounds"]

LEAST = 1e-12
"""Seconds that a sample counts as at least."""


def beside_rounds(
    samples: Sequence[Sequence[float]],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return what the samples of each round have in common, and how much longer each sample is; both as logarithms.

    What else the machine does slows down all samples of a round, whose median is what they have in common. The median
    of what is left is a time that other work hardly changes: fastest samples, each of another moment, have four times
    its error.

    Args:
        samples: times in seconds, a row for each thing, as many in each.

    Returns:
        A number for each round, and an array of the shape of the samples.
    """
    logs = np.log(np.maximum(np.array(samples, np.float64), LEAST))
    rounds = np.median(logs, axis=0)
    return rounds, logs - rounds
