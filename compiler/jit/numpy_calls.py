"""Calls with numpy arrays, which go to the executable directly."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from compiler.jit.programs import Program
from compiler.jit.tracing import Traced

__all__ = ["NumpyCall", "leaf_key"]

_SCALARS = frozenset((bool, int, float, complex))


def leaf_key(leaf: Any) -> Any:
    """Return what the signature depends on of a numpy array or Python scalar; None for other leaves."""
    kind = type(leaf)
    if kind is np.ndarray:
        return leaf.dtype, leaf.shape
    if kind in _SCALARS:
        return kind
    if isinstance(leaf, np.generic):
        return leaf.dtype, ()
    return (leaf.dtype, leaf.shape) if isinstance(leaf, np.ndarray) else None


class NumpyCall:
    """A program with the conversions of its arguments and results.

    Args:
        traced: the function for one signature.
        program: its program.
        leaves: arguments of that signature.
    """

    def __init__(self, traced: Traced, program: Program, leaves: list[Any]) -> None:
        self._program, self._executable, self._tree = program, program.executable, traced.out_tree
        self._hoisted = [np.asarray(h) for h in traced.hoisted]
        # Programs have booleans in place of float0, the type of derivatives by integers, which has no values.
        dtypes = [
            np.dtype(bool) if aval.dtype == jax.dtypes.float0 else aval.dtype
            for aval in traced.jaxpr.in_avals[len(traced.hoisted) :]
        ]
        self._dtypes = dtypes
        # Arrays of the right type are passed as they are.
        self._converted = [
            n for n, (leaf, dtype) in enumerate(zip(leaves, dtypes, strict=True))
            if type(leaf) is not np.ndarray or leaf.dtype != dtype
        ]  # fmt: skip
        self._empty = [
            (n, aval.shape) for n, aval in enumerate(traced.jaxpr.out_avals) if aval.dtype == jax.dtypes.float0
        ]

    def __call__(self, leaves: list[Any]) -> Any:
        """Return the results as a tree of numpy arrays."""
        for n in self._converted:
            leaves[n] = np.asarray(leaves[n], self._dtypes[n])
        results = self._executable(*self._hoisted, *leaves)
        if self._empty:
            results = list(results)
            for n, shape in self._empty:
                results[n] = np.zeros(shape, jax.dtypes.float0)
        return jax.tree_util.tree_unflatten(self._tree, results)
