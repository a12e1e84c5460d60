"""Who calls whom: computations in order, how much they hold when calls are written out, and how deep they nest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compiler.errors import UnsupportedError
from compiler.ir.opcodes import Opcode

if TYPE_CHECKING:
    from compiler.ir.computation import HloComputation
    from compiler.ir.module import HloModule

MAX_INSTRUCTIONS = 1_000_000
"""Most instructions of a program once what is called is written out at each call: they take a gigabyte."""
MAX_NESTING = 200
"""Most levels of loops, branches, fusions and functions inside each other. Walks over programs recurse by them."""
MAX_CALLS = 100_000
"""Most calls inside each other, loops and functions counted; few walks follow them all."""


def callees_first(roots: Iterable[HloComputation]) -> list[HloComputation]:
    """Computations that `roots` reach, those they call before them."""
    order: list[HloComputation] = []
    done: set[HloComputation] = set()
    for root in roots:
        if root in done:
            continue
        done.add(root)
        stack = [(root, iter(root.called_computations()))]
        while stack:
            node, pending = stack[-1]
            for c in pending:
                if c not in done:
                    done.add(c)
                    stack.append((c, iter(c.called_computations())))
                    break
            else:
                stack.pop()
                order.append(node)
    return order


def written_out(order: Iterable[HloComputation]) -> dict[HloComputation, int]:
    """Instructions of each computation with those of what it calls, once for each call; callees come first."""
    sizes: dict[HloComputation, int] = {}
    for c in order:
        sizes[c] = len(c) + sum([sizes[f] for i in c.notable for f in i.called_computations()])
    return sizes


@dataclass(frozen=True)
class CallGraph:
    """What a walk over a computation and all it calls has to reckon with.

    Attributes:
        instructions: when everything is written out.
        nesting: levels of loops, branches, fusions and functions inside each other.
        calls: levels of any kind, calls included.
    """

    instructions: int
    nesting: int
    calls: int

    @staticmethod
    def of(computation: HloComputation) -> CallGraph:
        """The graph below a computation."""
        order = callees_first([computation])
        calls: dict[HloComputation, int] = {}
        nesting: dict[HloComputation, int] = {}
        for c in order:
            calls[c] = nesting[c] = 0
            for i in c.notable:
                for f in i.called_computations():
                    calls[c] = max(calls[c], calls[f] + 1)
                    nesting[c] = max(nesting[c], nesting[f] + (i.opcode is not Opcode.CALL))
        return CallGraph(written_out(order)[computation], nesting[computation], calls[computation])


def check_call_graph(module: HloModule) -> CallGraph:
    """The call graph of a module's entry.

    Raises:
        UnsupportedError: the program is larger or nests deeper than can be worked on. It takes time in proportion to
            the module to find out, where work on the program could take time and memory without bound.
    """
    graph = CallGraph.of(module.entry)
    if graph.nesting > MAX_NESTING:
        raise UnsupportedError(
            f"module {module.name}: loops, branches, fusions and functions nest {graph.nesting} levels deep, and at "
            f"most {MAX_NESTING} can be worked on"
        )
    if graph.calls > MAX_CALLS:
        raise UnsupportedError(
            f"module {module.name}: calls nest {graph.calls} levels deep, and at most {MAX_CALLS} can be worked on"
        )
    if graph.instructions > MAX_INSTRUCTIONS:
        raise UnsupportedError(
            f"module {module.name}: with what it calls written out at each call the program has "
            f"{_count(graph.instructions)} instructions, and at most {MAX_INSTRUCTIONS} can be worked on"
        )
    return graph


def _count(n: int) -> str:
    """A number that may have thousands of digits."""
    return str(n) if n < 10**15 else f"more than 10^{(n.bit_length() - 1) * 30103 // 100000}"
