"""Adjacent elements that statements move one by one to adjacent elements are copied together.

gcc 12 finds few vectors for the elements of a short row that are written out, as those of a pad or a concatenation,
because it begins at the first element of a row. The copy of a known number of bytes is one to four moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.nest.loop_ir import Body, For
from compiler.codegen.nest.traversal import map_bodies, names_used, walk
from compiler.ir.types import PrimitiveType as T

MOST_BYTES = 64
"""Bytes of the longest run: gcc copies so many without a loop or a call."""
TRIPLE = 3
"""Elements of a run of which gcc makes vectors with those of other iterations, unless they are bytes."""


def copy_runs(kernel: lir.Kernel) -> lir.Kernel:
    """Return a bound nest in which runs of elements that are moved outside of vector loops are copied together."""
    shared = {kernel.arguments[n].name for pair in (*kernel.in_place, *kernel.must_alias) for n in pair}
    written = {s.buffer for s in walk(kernel.body) if isinstance(s, lir.Store | lir.Update)}
    types = {a.name: a.type for a in kernel.arguments if a.name not in shared}
    return replace(kernel, body=_Runs(types, written, Counter(names_used(kernel.body))).body(kernel.body))


@dataclass
class _Runs:
    """The runs in the statements of one kernel.

    Attributes:
        types: of the elements of the arrays that share no memory with others.
        written: the arrays that the kernel writes.
        uses: how often the values are used, by name.
    """

    types: Mapping[str, T]
    written: set[str]
    uses: Mapping[str, int]

    def body(self, body: Body, var: Var | None = None) -> Body:
        """Return the statements of a body, of a loop over a variable, outside of vector loops with runs as copies."""
        loads = {s.name: s.value for s in body if isinstance(s, lir.Let) and isinstance(s.value, lir.Load)}
        out: list[lir.Stmt] = []
        run: list[tuple[lir.Store, lir.Load]] = []
        copied: set[str] = set()

        def end_run() -> None:
            if len(run) > 1 and not self._is_dense_triple(run, var):
                store, load = run[0]
                out.append(lir.CopyElements(store.buffer, store.offset, load.buffer, load.offset, len(run)))
                copied.update(store.value for store, _ in run if self.uses[store.value] == 1)
            else:
                out.extend(store for store, _ in run)
            run.clear()

        for s in body:
            load = loads.get(s.value) if isinstance(s, lir.Store) else None
            if isinstance(s, lir.Store) and load is not None and self._is_moved(s, load):
                if not self._continues(run, s, load):
                    end_run()
                run.append((s, load))
            else:
                end_run()
                inner = s.var if isinstance(s, For) else var
                is_vector = isinstance(s, For) and s.kind.is_vector
                out.append(s if is_vector else map_bodies(s, partial(self.body, var=inner)))
        end_run()
        return tuple(s for s in out if not isinstance(s, lir.Let) or s.name not in copied)

    def _is_moved(self, s: lir.Store, load: lir.Load) -> bool:
        """Check for a store of an element of an array that nothing writes, as it is."""
        t = self.types.get(s.buffer)
        return t is not None and self.types.get(load.buffer) is t and load.buffer not in self.written

    def _is_dense_triple(self, run: Sequence[tuple[lir.Store, lir.Load]], var: Var | None) -> bool:
        store, _ = run[0]
        is_dense = var is not None and store.offset.coefficient(var) == TRIPLE
        return is_dense and len(run) == TRIPLE and self.types[store.buffer].byte_size > 1

    def _continues(self, run: Sequence[tuple[lir.Store, lir.Load]], s: lir.Store, load: lir.Load) -> bool:
        """Check whether an element follows the last one of a run where it is read and where it is written."""
        if not run or len(run) * self.types[s.buffer].byte_size >= MOST_BYTES:
            return False
        last, source = run[-1]
        is_next = s.buffer == last.buffer and s.offset == last.offset + 1
        return is_next and load.buffer == source.buffer and load.offset == source.offset + 1
