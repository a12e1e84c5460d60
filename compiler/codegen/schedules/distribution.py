"""Distribution of blocks: each reduction of a block, and the loop over its outputs, becomes a nest of its own.

A block computes its outputs while the elements that it has reduced are in a cache, so that memory is read once. Where
they do not fit, or where there are fewer blocks than threads, nothing is gained by that: as nests that follow each
other in one kernel, reductions are divided among the threads, and outputs are written in the order of memory. The
values that one nest defines and another uses are kept in arrays with one element per result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind, Scope
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES
from compiler.codegen.nest.traversal import indices_in, names_used, walk
from compiler.codegen.schedules.loop_transforms import flat_nest, has_loop, perfect_nest
from compiler.ir.types import PrimitiveType

VALUE_BYTES = 64 * 1024
"""Maximum size of the values that the nests of one block share."""


def distributed(s: lir.Stmt) -> list[lir.Stmt] | None:
    """Return the nests of a loop over blocks, with the arrays that they share, or None if it cannot be distributed."""
    nest = perfect_nest(s)
    stages = _stages_of(nest[-1].body) if nest else None
    if stages is None or not all(f.kind is LoopKind.INDEPENDENT and f.base is None for f in nest):
        return None
    return _Distribution(nest, stages).statements()


def is_by_rows(nest: Sequence[For], sweeps: Sequence[lir.Stmt]) -> bool:
    """Check whether the elements that each iteration of a nest sweeps over are adjacent in memory."""
    outer = [f.var for f in nest]
    for s in sweeps:
        inner = [v for x in walk((s,)) for v in _variables(x)]
        for i in indices_in((s,)):
            steps = [abs(i.coefficient(v)) for v in outer if i.coefficient(v)]
            if steps and min(steps) < max((abs(i.coefficient(v)) for v in inner), default=0):
                return False
    return True


def _variables(s: lir.Stmt) -> tuple[Var, ...]:
    return s.vars if isinstance(s, lir.Reduce) else (s.var,) if isinstance(s, For) else ()


def _stages_of(body: Body) -> list[Body] | None:
    """Return the statements in groups of one reduction or one loop over outputs each, or None if there are others."""
    stages: list[list[lir.Stmt]] = [[]]
    loops = 0
    for s in body:
        is_loop = isinstance(s, For)
        if isinstance(s, For) and flat_nest(s) is None:
            return None
        if isinstance(s, lir.Reduce) and has_loop(s.body):
            return None
        if is_loop or isinstance(s, lir.Reduce):
            if is_loop or any(isinstance(x, lir.Reduce) for x in stages[-1]):
                stages.append([])
            loops += 1
        elif not isinstance(s, lir.Let | lir.Store) or any(isinstance(x, For) for x in stages[-1]):
            return None
        stages[-1].append(s)
    return [tuple(stage) for stage in stages if stage] if loops > 1 else None


@dataclass
class _Distribution:
    """The stages of one block.

    Attributes:
        nest: the loops around them.
        stages: their statements.
        arrays: name and type of the array that holds a value, by the value's name.
    """

    nest: Sequence[For]
    stages: Sequence[Body]
    arrays: dict[str, tuple[str, PrimitiveType]] = field(default_factory=dict)
    _copies: dict[str, lir.Let] = field(default_factory=dict)

    def __post_init__(self) -> None:
        dims = [f.var.extent for f in self.nest]
        self.results = math.prod(dims)
        self._at = ix.linearize([ix.of(f.var) for f in self.nest], dims)

    def statements(self) -> list[lir.Stmt] | None:
        """Return the nests, or None if they share too many values."""
        self._share()
        if sum(self.results * SCALAR_BYTES[t] for _, t in self.arrays.values()) > VALUE_BYTES:
            return None
        out: list[lir.Stmt] = [
            lir.LocalArray(array, t, self.results, Scope.KERNEL) for array, t in self.arrays.values()
        ]
        for stage in self.stages:
            (first, *_) = stage
            out.append(self._outputs(first) if isinstance(first, For) else self._reduction(stage))
        return out

    def _share(self) -> None:
        """Find the values that one stage defines and another uses."""
        known: dict[str, tuple[int, PrimitiveType]] = {}
        for n, stage in enumerate(self.stages):
            for s in stage:
                if isinstance(s, lir.Let):
                    known[s.name] = n, s.type
                    if isinstance(s.value, lir.Constant | lir.Load | lir.IndexValue | lir.IndexTest):
                        self._copies[s.name] = s
                elif isinstance(s, lir.Reduce):
                    known.update((r.name, (n, r.type)) for r in s.reductions)
        for n, stage in enumerate(self.stages):
            for name in self._needed(stage):
                if name not in self._copies and name in known and known[name][0] != n:
                    self.arrays[name] = f"{name}_values", known[name][1]

    def _needed(self, stage: Body) -> list[str]:
        """Return the names of values that a stage uses, with those that copies of definitions use, these first."""
        found: dict[str, None] = {}

        def visit(name: str) -> None:
            if name in self._copies:
                for used in names_used((self._copies[name],)):
                    visit(used)
            found.setdefault(name)

        for name in names_used(stage):
            visit(name)
        return list(found)

    def _before(self, stage: Body) -> list[lir.Let]:
        """Return the definitions of the values that a stage takes from others."""
        own = {s.name for s in stage if isinstance(s, lir.Let)} | {
            r.name for s in stage if isinstance(s, lir.Reduce) for r in s.reductions
        }
        out = []
        for name in self._needed(stage):
            if name in own:
                continue
            if name in self._copies:
                out.append(self._copies[name])
            elif name in self.arrays:
                array, t = self.arrays[name]
                out.append(lir.Let(name, t, lir.LocalLoad(array, self._at)))
        return out

    def _reduction(self, stage: Body) -> lir.Stmt:
        defined = [s.name for s in stage if isinstance(s, lir.Let)]
        defined += [r.name for s in stage if isinstance(s, lir.Reduce) for r in s.reductions]
        stores = [lir.LocalStore(self.arrays[n][0], self._at, n) for n in defined if n in self.arrays]
        body: Body = (*self._before(stage), *stage, *stores)
        for f in reversed(self.nest):
            body = (For(f.var, LoopKind.INDEPENDENT, body),)
        return body[0]

    def _outputs(self, s: For) -> lir.Stmt:
        """Return the nest of the outputs in the order of memory, with each value as far out as its index allows."""
        inner, statements = flat_nest(s) or ((s.var,), s.body)
        offset = next(x.offset for x in walk(statements) if isinstance(x, lir.Store))
        vars_ = sorted((*(f.var for f in self.nest), *inner), key=lambda v: -abs(offset.coefficient(v)))
        depth: dict[str, int] = {v.name: k for k, v in enumerate(vars_)}
        levels: list[list[lir.Stmt]] = [[] for _ in vars_]
        for x in (*self._before((s,)), *statements):
            level = len(vars_) - 1
            if isinstance(x, lir.Let):
                if not isinstance(x.value, lir.Current):
                    level = max((depth.get(name, 0) for name in names_used((x,))), default=0)
                depth[x.name] = level
            levels[level].append(x)
        body: Body = ()
        for v, own in zip(reversed(vars_), reversed(levels), strict=True):
            body = (For(v, LoopKind.INDEPENDENT, (*own, *body)),)
        return body[0]
