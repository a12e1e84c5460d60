"""Loops over rows of a few elements, which run in vectors once the iterations over these elements are written out."""

from __future__ import annotations

from compiler.codegen.nest.loop_ir import For, LoopKind
from compiler.codegen.nest.traversal import indices_in, walk
from compiler.codegen.nest.work import is_expensive, work_of
from compiler.codegen.schedules.known_tests import COPYABLE
from compiler.codegen.schedules.loop_transforms import has_loop

NEAR = 4
"""Maximum distance of elements that adjacent iterations of the outer loop access: vectors of as many are separated.
Only functions and divisions are worth vectors whose elements are gathered."""
LONG = 16
"""Minimum number of iterations of the loop around."""
MOST_WORK = 256
"""Maximum number of statements of the unrolled iterations."""
MOST_SHARED, MOST_LEFT = 2048, 512
"""The same before statements that iterations share, or that never run, are left out, and what then may be left."""
LONGEST_MOVE = 16
"""Elements of the longest row that is written out if they are only moved and its tests are known."""


def has_few_elements(s: For, short: int, most: int = MOST_WORK) -> bool:
    """Check whether a loop over rows is worth being one loop, without those over the elements of a row.

    It can be one if nothing remains of the branches in it.

    Args:
        s: the loop, before it is bound.
        short: maximum number of iterations of a loop that is unrolled.
        most: maximum number of statements of all iterations.
    """
    if not is_free(s) or s.var.extent < LONG or not has_loop(s.body):
        return False
    loops = [x for x in s.body if isinstance(x, For)]
    others = [x for x in s.body if not isinstance(x, For)]
    if has_loop(tuple(others)) or not all(isinstance(x, COPYABLE) for x in walk(s.body)):
        return False
    if not all(is_free(x) and x.var.extent <= short for x in loops):
        return False
    if sum(x.var.extent * work_of(x.body) for x in loops) > most:
        return False
    return all(abs(i.coefficient(s.var)) <= NEAR for i in indices_in(s.body)) or any(map(is_expensive, walk(s.body)))


def is_free(s: For) -> bool:
    """Check for a loop that is not bound, whose iterations are independent and begin at 0."""
    return s.kind is LoopKind.INDEPENDENT and s.base is None and not s.combined
