"""Loops over rows of a few elements, which run in vectors once the iterations over these elements are written out."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.codegen.nest import loop_ir as lir
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
LONGEST_MOVE = 32
"""Elements of the longest row that is written out if they are only moved and its tests are known."""
WITHOUT_TESTS, SEVERAL = 4, 3
"""Iterations of the longest loop that is written out without tests, and of that which also stores
into several arrays or places: longer ones are vectors."""
_MOVES = (lir.Load, lir.Constant, lir.IndexTest, lir.Current)


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


def moves_few(s: For) -> bool:
    """Check for a loop over a few elements, bound or not, that is written out if it is inside of another one."""
    if s.base is not None or s.combined or not 1 < s.var.extent <= LONGEST_MOVE:
        return False
    statements = list(walk(s.body))
    allowed = lir.Let | lir.Store | lir.If | lir.Accumulator | lir.Assign
    if not all(
        isinstance(x, allowed) and (not isinstance(x, lir.Let) or isinstance(x.value, _MOVES)) for x in statements
    ):
        return False
    stores = sum(isinstance(x, lir.Store) for x in statements)
    most = LONGEST_MOVE if any(isinstance(x, lir.If) for x in statements) else WITHOUT_TESTS if stores == 1 else SEVERAL
    return s.var.extent <= most and _is_written(s, statements)


def _is_written(s: For, statements: Sequence[lir.Stmt]) -> bool:
    """Check whether the tests of a loop are decided for each of its iterations, and its elements are adjacent."""
    tests = [x.value.value for x in statements if isinstance(x, lir.Let) and isinstance(x.value, lir.IndexTest)]
    stores = [x.offset for x in statements if isinstance(x, lir.Store)]
    decided = all(set(i.variables()) <= {s.var} for i in tests)
    return decided and bool(stores) and all(i.coefficient(s.var) == 1 for i in stores)
