"""What the printer of C has to know of a vector loop: which names it defines, and which differ between its elements."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.nest.traversal import names_defined, names_of, walk

__all__ = ["VectorLoop"]

SHORT_LOOP = 16
"""Number of statements up to which gcc makes copies of a loop for the outcomes of a test outside of it."""


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
        return VectorLoop(s.var, frozenset(names_defined(s.body)), frozenset(varying), len(s.body) > SHORT_LOOP)
