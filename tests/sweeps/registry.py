"""All conformance cases, and the opcodes without cases."""

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
    "parameter": "used in every case",
    "infeed": "XLA:CPU cannot be fed through jaxlib; has separate tests",
    "outfeed": "XLA:CPU's outfeed cannot be read through jaxlib; has separate tests",
    "all-reduce-done": "covered by all-reduce-start",
    "all-gather-done": "covered by all-gather-start",
    "collective-permute-done": "covered by collective-permute-start",
}


def all_cases() -> Iterator[Case]:
    """Yield the cases written as HLO text, family by family."""
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
    """Yield all cases, including those that JAX lowers first, which takes longer than all the others together."""
    yield from all_cases()
    yield from library_cases.cases()
