"""The correspondence of dimensions in a reshape: the finest groups of input and output dimensions of equal size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Group(NamedTuple):
    """Input dimensions `source` (a range) have the same elements in the same order as output dimensions `target`."""

    source: range
    target: range


def reshape_groups(source: Sequence[int], target: Sequence[int]) -> list[Group]:
    """Return the finest groups in order; every dimension of input and output is in exactly one.

    Dimensions of size 1 join the group before them, or the first one. Arrays without elements are one group.
    """
    if 0 in source or 0 in target:
        return [Group(range(len(source)), range(len(target)))]
    groups: list[Group] = []
    i = j = 0
    while i < len(source) or j < len(target):
        i0, j0 = i, j
        a = source[i] if i < len(source) else 1
        b = target[j] if j < len(target) else 1
        i, j = min(i + 1, len(source)), min(j + 1, len(target))
        while a != b:
            if a < b:
                a *= source[i]
                i += 1
            else:
                b *= target[j]
                j += 1
        groups.append(Group(range(i0, i), range(j0, j)))
    return groups


def kept_dimensions(source: Sequence[int], target: Sequence[int]) -> dict[int, int] | None:
    """Map each input dimension of size other than 1 to its output dimension.

    Return None unless the reshape only adds or drops dimensions of size 1.
    """
    big_source = [d for d, n in enumerate(source) if n != 1]
    big_target = [d for d, n in enumerate(target) if n != 1]
    if [source[d] for d in big_source] != [target[d] for d in big_target]:
        return None
    return dict(zip(big_source, big_target, strict=True))
