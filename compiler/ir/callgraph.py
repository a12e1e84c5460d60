"""The call graph: computations in post order, program size with all calls inlined, and nesting depth."""

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
"""Largest number of instructions of a program with every call inlined; that many take about a gigabyte."""
MAX_NESTING = 200
"""Deepest nesting of loops, branches, fusions and applied functions; passes over a program recurse by level."""
MAX_CALLS = 100_000
"""Deepest nesting of calls of any kind; few passes follow all of them."""


def callees_first(roots: Iterable[HloComputation]) -> list[HloComputation]:
    """Return the computations reachable from `roots` in post order: callees before callers."""
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
    """Return the size of each computation with every call inlined, in instructions; `order` has callees first."""
    sizes: dict[HloComputation, int] = {}
    for c in order:
        sizes[c] = len(c) + sum([sizes[f] for i in c.notable for f in i.called_computations()])
    return sizes


@dataclass(frozen=True)
class CallGraph:
    """Size and depth of a computation and everything it calls.

    Attributes:
        instructions: number of instructions with every call inlined.
        nesting: levels of loops, branches, fusions and applied functions.
        calls: levels of any kind, calls included.
    """

    instructions: int
    nesting: int
    calls: int

    @staticmethod
    def of(computation: HloComputation) -> CallGraph:
        """Return the size and depth of everything reachable from a computation."""
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
    """Check the size and depth of a module and return its call graph.

    Takes time linear in the size of the module, whereas a pass over an oversized program could take exponential time
    and memory.

    Raises:
        UnsupportedError: the program is too large or nests too deeply.
    """
    graph = CallGraph.of(module.entry)
    if graph.nesting > MAX_NESTING:
        raise UnsupportedError(
            f"module {module.name}: loops, branches, fusions and functions nest {graph.nesting} levels deep, and at "
            f"most {MAX_NESTING} are supported"
        )
    if graph.calls > MAX_CALLS:
        raise UnsupportedError(
            f"module {module.name}: calls nest {graph.calls} levels deep, and at most {MAX_CALLS} are supported"
        )
    if graph.instructions > MAX_INSTRUCTIONS:
        raise UnsupportedError(
            f"module {module.name}: with every call inlined the program has "
            f"{_count(graph.instructions)} instructions, and at most {MAX_INSTRUCTIONS} are supported"
        )
    return graph


def _count(n: int) -> str:
    """Format a number that may have thousands of digits."""
    return str(n) if n < 10**15 else f"more than 10^{(n.bit_length() - 1) * 30103 // 100000}"
