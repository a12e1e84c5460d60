"""The rational approximation of `tanh_f32` in the CPU kernels.

    python -m experiments.derivations.tanh

tanh(x) = x P(x^2) / Q(x^2) on |x| <= 9, with P and Q of degree 4. The fit minimises the largest relative error by
iteratively reweighted least squares: Lawson's weights follow the error of the previous round, and the residual is
divided by the previous denominator (Sanathanan and Koerner). Beyond 9, float32 tanh is 1 up to one unit in the last
place.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LIMIT = 9.0
ROUNDS = 60


def fit(p: int = 4, q: int = 4) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    """Return the largest relative error and the coefficients of P and Q, in ascending powers of x^2."""
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
