"""What the printer of C has to know of vector loops, so that gcc makes vectors of them."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.nest.traversal import names_defined, names_of, walk
from compiler.codegen.schedules.loop_transforms import has_loop
from compiler.codegen.schedules.tails import takes_a_vector

__all__ = ["VectorLoop", "reads_found_rows"]

SHORT_LOOP = 16
"""Number of statements up to which gcc makes copies of a loop for the outcomes of a test outside of it."""
LONG_LOOP, MOST_WRITTEN = 64, 16
"""Number of statements of a vector loop from which on registers do not suffice for two iterations of it at once, and
iterations of a loop up to which gcc writes them out."""


@dataclass(frozen=True)
class VectorLoop:
    """A vector loop that is printed.

    Attributes:
        var: its variable.
        defined: the names that it defines.
        varying: its variable, and those of the names that may differ between its elements.
        is_long: whether gcc makes no copies of it for the outcomes of a test outside of it.
    """

    var: Var
    defined: frozenset[str]
    varying: frozenset[str]
    is_long: bool

    @staticmethod
    def of(s: lir.For) -> VectorLoop:
        """Return what is known of a loop."""
        varying = {s.var.name}
        for x in walk(s.body):
            is_held = isinstance(x, lir.Accumulator) or (isinstance(x, lir.Let) and isinstance(x.value, lir.Current))
            if isinstance(x, lir.Let | lir.Accumulator) and (is_held or not varying.isdisjoint(names_of(x))):
                varying.add(x.name)
        is_long = len(s.body) > SHORT_LOOP or any(map(takes_a_vector, s.body))
        return VectorLoop(s.var, frozenset(names_defined(s.body)), frozenset(varying), is_long)


def repeats_long_vectors(s: lir.For) -> bool:
    """Check for a loop of few iterations of a long vector loop, as reductions have.

    gcc would write the iterations out, and compute them side by side with more values than there are registers.
    """
    if s.kind.is_vector or not 1 < s.var.extent <= MOST_WRITTEN:
        return False
    inside = s.body[0] if len(s.body) == 1 else None
    return (
        isinstance(inside, lir.For)
        and inside.kind.is_vector
        and len(inside.body) >= LONG_LOOP
        and not has_loop(inside.body)
    )


def reads_found_rows(s: lir.For) -> bool:
    """Check for a loop over rows whose numbers it computes, and which a vector loop inside of it reads and combines.

    gcc unrolls such a loop and jams the copies of the loop inside into one, which it cannot run in vectors because the
    address of the second row is then computed inside of it. It does not do so with stores to arrays, which may overlap.
    """
    inside = [x for x in s.body if isinstance(x, lir.For)]
    if s.kind.is_vector or len(inside) != 1 or not inside[0].kind.is_vector or has_loop(inside[0].body):
        return False
    if any(isinstance(x, lir.Store) for x in walk(s.body)):
        return False
    v, computed = inside[0].var, set(names_defined(s.body))
    offsets = [x.value.offset for x in walk(tuple(inside)) if isinstance(x, lir.Let) and isinstance(x.value, lir.Load)]
    return any(o.coefficient(v) and ix.depends_on(o, computed) for o in offsets)
