"""All conformance cases, and the opcodes that have none with the reason."""

from __future__ import annotations

from collections.abc import Iterator

from tests.sweeps import (
    control_cases,
    convolution_cases,
    corner_cases,
    elementwise_cases,
    library_cases,
    movement_cases,
    reduction_cases,
)
from tests.sweeps.case import Case

NO_CASES: dict[str, str] = {
    "parameter": "every case has some",
    "infeed": "the oracle has no way to feed XLA:CPU; tested on its own",
    "outfeed": "the oracle has no way to read what XLA:CPU gives; tested on its own",
    "all-reduce-done": "with all-reduce-start",
    "all-gather-done": "with all-gather-start",
    "collective-permute-done": "with collective-permute-start",
}


def all_cases() -> Iterator[Case]:
    """Every case that is written down, in the order of the families."""
    for family in (
        elementwise_cases.cases,
        elementwise_cases.constant_cases,
        movement_cases.cases,
        reduction_cases.cases,
        convolution_cases.cases,
        control_cases.cases,
        corner_cases.cases,
    ):
        yield from family()


def whole_sweep() -> Iterator[Case]:
    """Every case, also those that JAX has to lower first, which takes longer than all the others together."""
    yield from all_cases()
    yield from library_cases.cases()
