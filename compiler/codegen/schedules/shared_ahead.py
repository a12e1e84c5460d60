"""Loop kernels in which one warp of each block computes the shared state of the next steps.

All positions of a loop may share some state, such as the key of a random number generator. Every thread would compute
it for itself in every step, often in a chain that takes longer than the position does. Instead, one more warp per block
computes the steps of a round: first what the state of the next step needs, one step after another, then what only
positions need, one step per lane. Values that positions read go through shared memory, while the other warps run their
positions for the round before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind, Scope
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES, binary
from compiler.codegen.nest.traversal import map_indices, names_of, names_used
from compiler.codegen.schedules.cuda_shapes import WARP
from compiler.codegen.schedules.loads_ahead import load_ahead
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

MIN_COST = 64
"""Minimum cost of the shared state of a step, in flops, for which a warp and the waiting of a block are worthwhile."""
MAX_BYTES = 16 * 1024
"""Maximum size of the values of two rounds in shared memory."""


@dataclass(frozen=True)
class SharedState:
    """A loop whose shared state can be made ahead, with the statements of its tile in parts.

    Attributes:
        tiles: variable of the tiles.
        arrays: local arrays of the state of a position.
        start: accumulators of the shared state, and what they need.
        load: statements that load the state of a position.
        loop: the loop over the steps.
        static: definitions in a step that depend on no state.
        serial: definitions that the shared state of the next step needs.
        parallel: other definitions from shared state that positions need.
        assigns: assignments of the shared state.
        position: what a position computes in a step.
        store: statements that store the state of a position.
        store_shared: statements that store the shared state.
        types: element types of the shared values that others read, by their names.
    """

    tiles: Var
    arrays: tuple[lir.LocalArray, ...]
    start: Body
    load: Body
    loop: For
    static: tuple[lir.Let, ...]
    serial: tuple[lir.Let, ...]
    parallel: tuple[lir.Let, ...]
    assigns: Body
    position: Body
    store: Body
    store_shared: Body
    types: dict[str, T]


def find_shared(tile: For, outer: Iterable[str], unsafe: frozenset[str], steps: int) -> SharedState | None:
    """Return the parts of a tile whose shared state takes a while, or None if it cannot be made ahead.

    Args:
        tile: the loop over tiles of one position, with the loops over its lanes removed.
        outer: names that are defined before that loop.
        unsafe: buffers that the kernel may write.
        steps: number of steps of a round.
    """
    loops = [s for s in tile.body if isinstance(s, For | lir.While)]
    loop = loops[0] if len(loops) == 1 else None
    if not isinstance(loop, For) or loop.kind is not LoopKind.SERIAL:
        return None
    at = tile.body.index(loop)
    return _Analysis(tile, loop, set(outer), unsafe).parts(tile.body[:at], tile.body[at + 1 :], steps)


class _Analysis:
    """The search for what of a loop is shared by all positions."""

    def __init__(self, tile: For, loop: For, outer: set[str], unsafe: frozenset[str]) -> None:
        self.tile, self.loop, self.uniform, self.unsafe = tile, loop, outer, unsafe
        self.accumulators = {s.name for s in tile.body if isinstance(s, lir.Accumulator)}

    def parts(self, before: Body, after: Body, steps: int) -> SharedState | None:
        body = self.loop.body
        if not self.accumulators or not all(
            isinstance(s, lir.Let | lir.LocalStore | lir.Store | lir.Assign) for s in body
        ):
            return None
        arrays = tuple(s for s in before if isinstance(s, lir.LocalArray))
        start = tuple(s for s in before if isinstance(s, lir.Accumulator) or self._note_uniform(s))
        load = tuple(s for s in before if s not in arrays and s not in start)
        if not all(isinstance(s, lir.Let | lir.LocalStore) for s in load):
            return None
        shared = {s.name: s for s in body if isinstance(s, lir.Let) and self._note_uniform(s)}
        dynamic = self._dynamic(shared)
        assigns = tuple(s for s in body if isinstance(s, lir.Assign))
        if not all(s.name in self.accumulators and s.value in self.uniform for s in assigns):
            return None
        position = tuple(
            s for s in body if not isinstance(s, lir.Assign) and not (isinstance(s, lir.Let) and s.name in shared)
        )
        wanted = {n for n in names_used(position) if n in dynamic}
        currents = {n for n in dynamic if isinstance(shared[n].value, lir.Current)}
        serial = currents | _needed(shared, dynamic, {s.value for s in assigns})
        parallel = _needed(shared, dynamic, wanted) - serial
        if sum(_cost(shared[n]) for n in serial | parallel) < MIN_COST:
            return None
        passed = {n for n in serial if n in wanted or any(n in _names(shared[p]) for p in parallel)}
        passed |= parallel & wanted
        types = {n: shared[n].type for n in shared if n in passed}
        if sum(2 * steps * SCALAR_BYTES[t] for t in types.values()) > MAX_BYTES:
            return None
        stores = self._stores(after, load)
        if stores is None:
            return None
        lets = tuple(shared.values())
        return SharedState(
            self.tile.var, arrays, start, load, self.loop,
            tuple(s for s in lets if s.name not in dynamic), tuple(s for s in lets if s.name in serial),
            tuple(s for s in lets if s.name in parallel), assigns, position, *stores, types,
        )  # fmt: skip

    def _note_uniform(self, s: lir.Stmt) -> bool:
        """Check whether a definition has one value for all positions, and if so, note its name."""
        if not isinstance(s, lir.Let) or isinstance(s.value, lir.LocalLoad):
            return False
        if isinstance(s.value, lir.Load) and s.value.buffer in self.unsafe:
            return False
        known = {self.loop.var.name, *self.accumulators}
        if not all(n in self.uniform or n in known for n in names_of(s)):
            return False
        self.uniform.add(s.name)
        return True

    @staticmethod
    def _dynamic(shared: dict[str, lir.Let]) -> set[str]:
        """Return the names of shared values that depend on the state or on memory."""
        found: set[str] = set()
        for name, s in shared.items():
            if isinstance(s.value, lir.Current | lir.Load) or not found.isdisjoint(_names(s)):
                found.add(name)
        return found

    def _stores(self, after: Body, load: Body) -> tuple[Body, Body] | None:
        """Return what stores the state of a position and the shared state, or None if they cannot be separated."""
        lets = {s.name: s for s in after if isinstance(s, lir.Let)}
        branches = [s for s in after if isinstance(s, lir.If)]
        stores = tuple(s for s in after if isinstance(s, lir.Store))
        if len(lets) + len(branches) + len(stores) != len(after):
            return None
        for s in branches:
            test = lets[s.condition].value if s.condition in lets else None
            is_first = isinstance(test, lir.IndexTest) and (test.low, test.high) == (0, 0)
            if not is_first or not isinstance(test, lir.IndexTest) or test.value != ix.of(self.tile.var):
                return None
            if s.otherwise or not all(isinstance(x, lir.Let | lir.Store) for x in s.then):
                return None
        then = tuple(x for s in branches for x in s.then)
        own, common = (_needed(lets, set(lets), set(names_used(x))) for x in (stores, then))
        loaded = {s.name for s in load if isinstance(s, lir.Let)}
        used = {n for s in after for n in names_used((s,))}
        if not loaded.isdisjoint(used) or not loaded.isdisjoint(names_used(self.loop.body)):
            return None
        if any(isinstance(lets[n].value, lir.Current) for n in own):
            return None
        if any(isinstance(lets[n].value, lir.LocalLoad) for n in common):
            return None
        return (
            (*(s for n, s in lets.items() if n in own), *stores),
            (*(s for n, s in lets.items() if n in common), *then),
        )


def _names(s: lir.Let) -> set[str]:
    return set(names_of(s))


def _needed(lets: dict[str, lir.Let], among: set[str], wanted: Iterable[str]) -> set[str]:
    """Return those of some definitions that other names depend on."""
    found: set[str] = set()
    work = [n for n in wanted if n in among]
    while work:
        name = work.pop()
        if name not in found:
            found.add(name)
            work += [n for n in _names(lets[name]) if n in among]
    return found


def _cost(s: lir.Let) -> int:
    return max(1, s.value.op.flops) if isinstance(s.value, lir.Apply) else 0


# ---- the bound loop


def run_ahead(state: SharedState, steps: int, block: int, position: Body, unsafe: frozenset[str]) -> tuple[Body, int]:
    """Return the loop over blocks and the number of threads of a block.

    Args:
        state: the loop.
        steps: number of steps of a round.
        block: number of positions of a block.
        position: the statements of `state.position` as they are bound.
        unsafe: buffers that the kernel may write.
    """
    return _Rounds(state, steps, block, unsafe).blocks(position)


class _Rounds:
    """The rounds of one loop: in round r, shared values of round r are made and positions run round r - 1."""

    def __init__(self, state: SharedState, steps: int, block: int, unsafe: frozenset[str]) -> None:
        self.state, self.steps, self.block, self.unsafe = state, steps, block, unsafe
        name = state.loop.var.name
        self.first = -(-block // WARP) * WARP  # the warp that makes the shared values begins here
        self.threads = self.first + WARP
        self.name = name
        self.blocks_var = Var(f"{name}_block", -(-state.tiles.extent // block))
        self.thread = Var(f"{name}_thread", self.threads)
        self.round = Var(f"{name}_round", -(-state.loop.var.extent // steps) + 1)
        self.tile = ix.of(self.blocks_var) * block + ix.of(self.thread)

    def blocks(self, position: Body) -> tuple[Body, int]:
        s = self.state
        tests, is_mine = self._tests()
        makes, stores = f"{self.name}_makes", f"{self.name}_stores"
        is_first = lir.IndexTest(ix.of(self.blocks_var) * self.threads + ix.of(self.thread), self.first, self.first)
        body: Body = (
            *tests,
            lir.Let(makes, T.PRED, lir.IndexTest(ix.of(self.thread), self.first, None)),
            *(replace(a, scope=Scope.REGISTER) for a in s.arrays),
            *s.start,
            lir.If(is_mine, self._at_tile(s.load)),
            For(
                self.round, LoopKind.SERIAL,
                (lir.If(makes, self._make()), *self._run(is_mine, position), lir.Barrier()),
            ),
            lir.If(is_mine, self._at_tile(s.store)),
            *((lir.Let(stores, T.PRED, is_first), lir.If(stores, self._at_tile(s.store_shared))) if s.store_shared
              else ()),
        )  # fmt: skip
        rings = tuple(
            lir.LocalArray(self._ring(n), t, 2 * self.steps, Scope.SHARED) for n, t in s.types.items()
        )  # fmt: skip
        threads = For(self.thread, LoopKind.THREAD, body)
        return (For(self.blocks_var, LoopKind.BLOCK, (*rings, threads)),), self.threads

    def _tests(self) -> tuple[Body, str]:
        """Return definitions, and the name of the pred that is true for threads that have a position."""
        in_block, in_range, both = (f"{self.name}_{x}" for x in ("in_block", "in_range", "runs"))
        return (
            lir.Let(in_block, T.PRED, lir.IndexTest(ix.of(self.thread), None, self.block - 1)),
            lir.Let(in_range, T.PRED, lir.IndexTest(self.tile, None, self.state.tiles.extent - 1)),
            lir.Let(both, T.PRED, lir.Apply(binary(Opcode.AND, T.PRED), (in_block, in_range))),
        ), both

    def _ring(self, name: str) -> str:
        return f"{name}_ahead"

    def _at_tile(self, body: Body) -> Body:
        return map_indices(body, lambda i: i.substitute({self.state.tiles: self.tile}))

    def _at_step(self, body: Sequence[lir.Stmt], step: IndexExpr) -> Body:
        return map_indices(tuple(body), lambda i: i.substitute({self.state.loop.var: step}))

    def _place(self, back: int, step: Var) -> IndexExpr:
        """Return the place of a step of the round `back` before this one."""
        return (ix.of(self.round) + back).mod(2) * self.steps + ix.of(step)

    def _make(self) -> Body:
        """Return the statements by which a warp makes the shared values of a round."""
        s, trips = self.state, self.state.loop.var.extent
        base = ix.of(self.round) * self.steps
        step = Var(f"{self.name}_s", self.steps)
        serial = (
            *self._at_step((*s.static, *s.serial), base + ix.of(step)),
            *(lir.LocalStore(self._ring(x.name), self._place(0, step), x.name) for x in s.serial if _passed(x, s)),
            *s.assigns,
        )
        out: list[lir.Stmt] = [For(step, LoopKind.SERIAL, serial, base=base, limit=trips)]
        if s.parallel:
            part = Var(f"{self.name}_p", -(-self.steps // WARP))
            lane = ix.of(part) * WARP + (ix.of(self.thread) - self.first)
            at, valid = f"{self.name}_lane", f"{self.name}_valid"
            here = ix.of(ix.Runtime(at, 0, self.steps - 1))
            place = ix.of(self.round).mod(2) * self.steps + here
            parallel = (
                *(lir.Let(x.name, x.type, lir.LocalLoad(self._ring(x.name), place)) for x in s.serial if _passed(x, s)),
                *self._at_step((*s.static, *s.parallel), base + here),
                *(lir.LocalStore(self._ring(x.name), place, x.name) for x in s.parallel if _passed(x, s)),
            )
            known = f"{self.name}_known"
            out += [
                lir.Barrier(warp=True),
                For(
                    part, LoopKind.SERIAL,
                    (
                        lir.Let(at, T.S32, lir.IndexValue(lane)),
                        lir.Let(valid, T.PRED, lir.IndexTest(lane, None, self.steps - 1)),
                        lir.Let(known, T.PRED, lir.IndexTest(base + lane, None, trips - 1)),
                        lir.If(valid, (lir.If(known, parallel),)),
                    ),
                ),
            ]  # fmt: skip
        return tuple(out)

    def _run(self, is_mine: str, position: Body) -> Body:
        """Return the statements by which the other warps run their positions for the round before."""
        s, begun, step = self.state, f"{self.name}_begun", Var(f"{self.name}_r", self.steps)
        base = ix.of(self.round) * self.steps - self.steps
        place = self._place(1, step)
        wanted = set(names_used(position))
        reads = tuple(
            lir.Let(n, t, lir.LocalLoad(self._ring(n), place)) for n, t in s.types.items() if n in wanted
        )  # fmt: skip
        body = (*reads, *self._at_tile(self._at_step((*s.static, *position), base + ix.of(step))))
        loop = For(step, LoopKind.SERIAL, body, base=base, limit=s.loop.var.extent)
        loops = load_ahead(loop, self.unsafe)
        return (
            lir.Let(begun, T.PRED, lir.IndexTest(ix.of(self.round), 1, None)),
            lir.If(is_mine, (lir.If(begun, loops),)),
        )


def _passed(s: lir.Let, state: SharedState) -> bool:
    return s.name in state.types
