"""Donation: which results of a program take over the memory of which arguments.

The header of a module says so: `input_output_alias` pairs parts of the result with parts of the parameters, and
`buffer_donor` offers parts of the parameters to any result. A donated argument and its result are one buffer, which the
program may update in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.header import Aliases, Donors, Index, subshape
from compiler.ir.module import HloModule
from compiler.ir.shape import Shape

__all__ = ["donations", "may_donate"]

Array = NDArray[Any]


def donations(module: HloModule) -> dict[int, int]:
    """Return the number of the result that takes over each donated argument, by the argument's number.

    Arguments and results are numbered by leaves. A pair with different shapes or types is left out: its result cannot
    be the array that was passed. So is a donor that no remaining result resembles.
    """
    inputs, outputs = _arrays(module.entry.parameter_shapes), _arrays([module.entry.root.shape])
    out: dict[int, int] = {}
    aliases = module.header.get("input_output_alias")
    for alias in aliases.entries if isinstance(aliases, Aliases) else ():
        source = _leaf_number(module.entry.parameter_shapes, alias.source, alias.index)
        target = _leaf_number([module.entry.root.shape], 0, alias.output)
        if source is not None and target is not None and _alike(inputs[source], outputs[target]):
            out[source] = target
    donors = module.header.get("buffer_donor")
    for donor in donors.entries if isinstance(donors, Donors) else ():
        source = _leaf_number(module.entry.parameter_shapes, donor.parameter, donor.index)
        if source is None or source in out:
            continue
        taken = set(out.values())
        free = (n for n, s in enumerate(outputs) if n not in taken and _alike(inputs[source], s))
        target = next(free, None)
        if target is not None:
            out[source] = target
    return out


def may_donate(arguments: Sequence[Array], number: int) -> bool:
    """Check whether a result may take over an argument: it owns its memory, and no other argument shares it."""
    a = arguments[number]
    if not (a.flags.writeable and a.flags.owndata):
        return False
    return not any(np.may_share_memory(a, b) for n, b in enumerate(arguments) if n != number)


def _arrays(shapes: Sequence[Shape]) -> list[Shape]:
    return [leaf for s in shapes for leaf in s.leaves() if leaf.is_array]


def _leaf_number(shapes: Sequence[Shape], which: int, index: Index) -> int | None:
    """Return the number of an array among the leaves of all shapes, or None if the index does not name an array."""
    part = subshape(shapes[which], index)
    if part is None or not part.is_array:
        return None
    number = len(_arrays(shapes[:which]))
    shape = shapes[which]
    for i in index:
        number += len(_arrays(shape.tuple_shapes[:i]))
        shape = shape.tuple_shapes[i]
    return number


def _alike(a: Shape, b: Shape) -> bool:
    return a.element_type is b.element_type and a.dimensions == b.dimensions and a.byte_size > 0
