"""All conformance cases, and the opcodes that have none with the reason."""

from __future__ import annotations

from collections.abc import Iterator

from tests.sweeps import elementwise_cases
from tests.sweeps.case import Case

NO_CASES: dict[str, str] = {
    "parameter": "every case has some",
}


def all_cases() -> Iterator[Case]:
    """Every case, in the order of the families."""
    for family in (elementwise_cases.cases, elementwise_cases.constant_cases):
        yield from family()
