"""Solution of tridiagonal systems whose matrix may be singular."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.interpreter.registry import Array


def solve_perturbed(lower: Array, diagonal: Array, upper: Array, b: Array) -> Array:
    """Return the solution of a tridiagonal system; pivots that are too small to divide by are moved away from 0.

    The factors are those of LAPACK's xLAGTF, and the pivots those of xLAGTS with a negative JOB, as in jaxlib.

    Args:
        lower: [n], element i is left of the diagonal in row i.
        diagonal: [n].
        upper: [n], element i is right of the diagonal in row i.
        b: [n, m], the right-hand sides.
    """
    with np.errstate(all="ignore"):
        u, x = _eliminated(lower, diagonal, upper, b)
        n = len(u)
        # The last row but one does not count in jaxlib.
        counted = [diagonal[:1], upper[: min(n - 1, 1)], u[: max(n - 2, 0)].ravel(), u[-1:, 0]]
        step = np.finfo(x.dtype).eps * np.abs(np.concatenate(counted)).max()
        for k in reversed(range(n)):
            row = x[k]
            for distance in range(1, min(3, n - k)):
                row = row - u[k, distance] * x[k + distance]
            pivot, row = _pivot(u[k, 0], row, step)
            x[k] = row / pivot
    return x


def _eliminated(lower: Array, diagonal: Array, upper: Array, b: Array) -> tuple[Array, Array]:
    """Return the upper triangular factor, a row of three elements for each, and the right-hand sides that belong to it.

    Of two rows, that with the larger first element, relative to its size, comes first.
    """
    n, x = len(diagonal), b.copy()
    u = np.zeros((n, 3), b.dtype)
    u[0, :2] = diagonal[0], upper[0] if n > 1 else 0
    size = np.abs(u[0]).sum()
    for k in range(n - 1):
        below = np.array([lower[k + 1], diagonal[k + 1], upper[k + 1] if k + 2 < n else 0], b.dtype)
        size_below = np.abs(below).sum()
        stays = below[0] == 0 or (u[k, 0] != 0 and np.abs(below[0]) / size_below <= np.abs(u[k, 0]) / size)
        if stays:
            factor = below[0] / u[k, 0] if below[0] != 0 else below[0]
            u[k + 1, :2] = below[1] - factor * u[k, 1], below[2]
            x[k + 1] = b[k + 1] - factor * x[k]
            size = size_below
        else:
            factor = u[k, 0] / below[0]
            u[k + 1, :2] = u[k, 1] - factor * below[1], -factor * below[2]
            u[k] = below
            x[k], x[k + 1] = b[k + 1], x[k] - factor * b[k + 1]
            size = np.abs(u[k + 1]).sum()
    return u, x


def _pivot(pivot: Any, row: Array, step: Any) -> tuple[Any, Array]:
    """Return a pivot and a row whose quotient does not overflow.

    The pivot is moved by the step, which is doubled until it suffices. A subnormal pivot that would do is scaled, and
    the row with it.
    """
    tiny = np.finfo(row.dtype).tiny
    step = np.copysign(max(step, tiny), pivot.real)
    largest = np.abs(row).max(initial=0)
    while (size := np.abs(pivot)) < 1:
        if size == 0 or largest * tiny > size:
            pivot, step = pivot + step, 2 * step
        elif size < tiny:
            return pivot / tiny, row / tiny
        else:
            break
    return pivot, row
