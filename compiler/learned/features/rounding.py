"""The range and the precision of features: float16, as in observations."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["LIMIT", "halved", "rounded"]

LIMIT = 16.0
"""Largest absolute value of a feature; greater values are clipped."""


def rounded(features: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return features within LIMIT and with the precision of observations, float16."""
    return halved(features).astype(np.float32)


def halved(features: npt.NDArray[Any]) -> npt.NDArray[np.float16]:
    """Return features within LIMIT as float16."""
    clipped: npt.NDArray[Any] = np.minimum(np.maximum(features, -LIMIT), LIMIT)
    return clipped.astype(np.float16)
