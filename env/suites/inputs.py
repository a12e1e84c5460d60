"""Random inputs for programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from compiler.support.memory import SMALL, check_memory
from env.suites.input_specs import InputSpec, Normal, Randint
from env.suites.suite import ManifestError, Program

__all__ = ["random_inputs"]


def random_inputs(
    program: Program, shapes: Iterable[tuple[npt.DTypeLike, Sequence[int]]], seed: int
) -> list[npt.NDArray[Any]]:
    """Return random inputs for a program; the same seed gives the same inputs.

    Args:
        program: the program; inputs are drawn from its specs.
        shapes: numpy dtype and dimensions of every array that the program takes, in order.
        seed: seed of numpy's generator.

    Raises:
        ManifestError: the manifest has specs for another number of arrays.
        MemoryLimitError: the inputs do not fit into memory.
    """
    wanted = [(np.dtype(dtype), tuple(dims)) for dtype, dims in shapes]
    _check_memory(program, wanted)
    specs = program.inputs or tuple(_default_spec(dtype) for dtype, _ in wanted)
    if len(specs) != len(wanted):
        raise ManifestError(f"{program.name}: {len(specs)} input specs for {len(wanted)} parameters")
    rng = np.random.default_rng(seed)
    return [spec.draw(rng, dtype, dims) for spec, (dtype, dims) in zip(specs, wanted, strict=True)]


def _check_memory(program: Program, wanted: Sequence[tuple[np.dtype[Any], tuple[int, ...]]]) -> None:
    """Raise MemoryLimitError if the inputs do not fit into memory while they are drawn.

    Numbers are drawn in 64 bits, one array after the other.
    """
    sizes = [(math.prod(dims) * dtype.itemsize, math.prod(dims), dtype, dims) for dtype, dims in wanted]
    drawn = max([8 * count for _, count, dtype, _ in sizes if dtype.itemsize < 8], default=0)
    held = sum([size for size, *_ in sizes])
    if held + drawn <= SMALL:
        return
    _, _, dtype, dims = max(sizes, key=lambda s: s[0])
    check_memory(held + drawn, f"drawing inputs for {program.name} (the largest is {dtype}{list(dims)})")


def _default_spec(dtype: np.dtype[Any]) -> InputSpec:
    """Return normal values for floats, 0 to 99 for integers (fewer if the type holds fewer), both booleans."""
    if dtype == np.bool_:
        return Randint(0, 2)
    try:
        return Randint(0, min(100, int(ml_dtypes.iinfo(dtype).max) + 1))  # type: ignore[no-untyped-call]
    except ValueError:  # not an integer type
        return Normal()
