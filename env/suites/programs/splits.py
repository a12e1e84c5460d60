"""The split of each family of the suite "programs".

The test families are frozen: `manifest.json` holds a hash over their programs, and a test compares the two. A new family
goes to train or validation.
"""

from __future__ import annotations

from env.suites.suite import Split

__all__ = ["TEST_FAMILIES", "VALIDATION_FAMILIES", "split_of_family"]

TEST_FAMILIES: frozenset[str] = frozenset({"layer_norm"})
VALIDATION_FAMILIES: frozenset[str] = frozenset()


def split_of_family(family: str) -> Split:
    """Return the split of a family."""
    if family in TEST_FAMILIES:
        return "test"
    return "validation" if family in VALIDATION_FAMILIES else "train"
