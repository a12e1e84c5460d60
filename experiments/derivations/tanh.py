"""The rational function behind `tanh_f32` of the CPU kernels: `python -m experiments.derivations.tanh` prints it.

tanh(x) = x P(x^2) / Q(x^2) on |x| <= 9, degrees 4 and 4, fitted to the least largest relative error by least squares
whose weights are adjusted to the error of the round before (Lawson), the denominator's weight to its last value
(Sanathanan and Koerner). Beyond 9 a float is 1 to the last bit but one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LIMIT = 9.0
ROUNDS = 60


def fit(p: int = 4, q: int = 4) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    """(largest relative error, coefficients of P, of Q), by rising powers of x^2."""
    chebyshev = (np.cos(np.pi * (np.arange(4000) + 0.5) / 4000) + 1) * LIMIT / 2
    x = np.unique(np.concatenate([chebyshev, np.linspace(1e-3, LIMIT, 4000)]))
    f, z = np.tanh(x) / x, (x / LIMIT) ** 2
    columns = [z**k for k in range(p + 1)] + [-f * z**k for k in range(1, q + 1)]
    matrix = np.stack(columns, axis=1)
    denominator, lawson = np.ones_like(x), np.ones_like(x)
    best = (np.inf, np.zeros(p + 1), np.zeros(q + 1))
    for _ in range(ROUNDS):
        weight = np.sqrt(lawson) / (f * denominator)
        solution = np.linalg.lstsq(matrix * weight[:, None], f * weight, rcond=None)[0]
        top, bottom = solution[: p + 1], np.concatenate([[1.0], solution[p + 1 :]])
        denominator = np.polyval(bottom[::-1], z)
        error = np.abs(np.polyval(top[::-1], z) / denominator / f - 1)
        if error.max() < best[0]:
            best = (float(error.max()), top / LIMIT ** (2 * np.arange(p + 1)), bottom / LIMIT ** (2 * np.arange(q + 1)))
        lawson *= np.sqrt(np.maximum(error / error.max(), 1e-3))
        lawson /= lawson.mean()
    return best


def main() -> None:
    """Print the coefficients as C constants."""
    error, top, bottom = fit()
    print(f"largest relative error before rounding: {error:.2e}")
    for name, values in (("P", top), ("Q", bottom)):
        print(name, ", ".join(f"{float(np.float32(v)).hex()}f" for v in values))


if __name__ == "__main__":
    main()
