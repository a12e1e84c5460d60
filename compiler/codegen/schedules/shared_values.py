"""Values that all rows share are computed once, before the loop over the rows, and kept in local arrays.

In `x[i, j] * rsqrt(v[j] + eps)`, the square root depends on the column alone. Within the loops it would be computed for
each element; before them it is computed once for each column. In `x[i, j] * w[256 * j]`, the elements of `w` would be
loaded one by one for each row; a copy of them is read in vectors.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, IndexSymbol, Runtime, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES, conversion
from compiler.codegen.nest.traversal import indices_in, map_bodies, map_indices, names_of, names_used, walk
from compiler.codegen.nest.work import is_expensive, work_of
from compiler.codegen.schedules.lanes import is_column_loop, reads_far_rows
from compiler.codegen.schedules.loop_transforms import has_loop
from compiler.ir.types import PrimitiveType as T

SHARED_BYTES = 64 * 1024
"""Maximum size of all values of a kernel that are kept."""
MIN_RUNS = 4
"""Minimum number of times that a value would be computed otherwise."""
MIN_ROWS = 16
"""Minimum number of times that the loop around is run in which values are kept for one iteration of it: its iterations
are divided among threads, and each has a loop of its own."""
MIN_ELEMENTS = 16
"""Minimum number of elements of the rows of such a loop."""
MIN_WORK = 6
"""Minimum work of a value that is kept; a cheaper one is computed where it is needed."""
GATHER_WORK = 6
"""Work of a load from an array whose elements are apart in memory, whichever loop is the innermost."""
WIDE_WORK = 3
"""Work of a statement on integers of 64 bits: a vector has half as many, and where they are indices, gathers too."""
NARROW_LIMIT = 2**30
"""Index arithmetic that stays below this has room in 32 bits."""
_WIDE = (T.S64, T.U64)

Loop: TypeAlias = "For | lir.Reduce"


def share_values(kernel: lir.Kernel) -> Body:
    """Return the statements of a kernel with the values that all iterations of an outer loop share before that loop."""
    stored = frozenset(s.buffer for s in walk(kernel.body) if isinstance(s, lir.Store | lir.Update))
    is_narrow = all(i.magnitude < NARROW_LIMIT for i in indices_in(kernel.body))
    sizes = {a.name: a.elements for a in kernel.arguments}
    return _shared(kernel.body, _Around(stored, is_narrow, sizes))


@dataclass(frozen=True)
class _Around:
    """What is known around a loop.

    Attributes:
        stored: buffers that the kernel writes.
        is_narrow: whether 32 bits suffice for all indices of the kernel.
        sizes: elements of the arguments.
        names: of the values that are defined.
        variables: those of the loops around.
    """

    stored: frozenset[str]
    is_narrow: bool
    sizes: Mapping[str, int]
    names: frozenset[str] = frozenset()
    variables: tuple[Var, ...] = ()


def _shared(body: Body, around: _Around) -> Body:
    """Return the statements in a loop, or outside of all, with what the iterations of each loop share before it."""
    around = replace(around, names=around.names | {s.name for s in body if isinstance(s, lir.Let)})
    out: list[lir.Stmt] = []
    room = SHARED_BYTES
    for s in body:
        if isinstance(s, For) and s.kind is LoopKind.INDEPENDENT and s.base is None:
            sharing = _Sharing(s, around, room)
            s = replace(s, body=sharing.body(s.body, ()))
            room = sharing.room
            out += sharing.before
            rows = math.prod(v.extent for v in (*around.variables, s.var))
            of_columns = _is_of_columns(s)
            if rows >= MIN_ROWS and (of_columns or _is_of_rows(s)):
                inner = _shared(s.body, replace(around, variables=(*around.variables, s.var)))
                s = s if not of_columns and _reads_apart(inner) else replace(s, body=inner)
        out.append(s)
    return tuple(out)


def _is_of_rows(s: For) -> bool:
    """Check for a loop around loops over long rows of single elements, with nothing but values beside these loops."""
    depth = 1
    while has_loop(s.body):
        inner = [x for x in s.body if not isinstance(x, lir.Let)]
        if len(inner) != 1 or not isinstance(inner[0], For):
            return False
        depth, s = depth + 1, inner[0]
    return depth > 2 and s.var.extent >= MIN_ELEMENTS and all(isinstance(x, lir.Let | lir.Store) for x in s.body)


def _is_of_columns(s: For) -> bool:
    """Check for a loop around one column reduction that computes functions for each of its rows."""
    inner = [x for x in s.body if not isinstance(x, lir.Let)]
    if len(inner) != 1 or not isinstance(inner[0], For) or not is_column_loop(inner[0]):
        return False
    return any(is_expensive(x) for r in inner[0].body if isinstance(r, lir.Reduce) for x in r.body)


def _reads_apart(body: Body) -> bool:
    """Check for rows whose elements are apart in memory, so that a transpose in tiles is better than to keep values."""
    loops = [s for s in walk(body) if isinstance(s, For) and not has_loop(s.body)]
    return any(abs(i.coefficient(s.var)) > 1 for s in loops[-1:] for i in indices_in(s.body))


def _work_of(lets: Sequence[lir.Let]) -> int:
    """Return the work of definitions that need each other; the C compiler simplifies wide ones of indices alone."""
    wide = WIDE_WORK if any(isinstance(x.value, lir.Load) for x in lets) else 1
    return sum(work_of((x,)) * (wide if x.type in _WIDE else 1) for x in lets)


def _vars_of(s: Loop) -> tuple[Var, ...]:
    return s.vars if isinstance(s, lir.Reduce) else (s.var,)


@dataclass
class _Sharing:
    """The search below one outer loop.

    Attributes:
        loop: the outer loop.
        around: what is known before the loop.
        room: bytes that may still be kept.
        before: the statements that compute the values that are kept.
    """

    loop: For
    around: _Around
    room: int
    before: list[lir.Stmt] = field(default_factory=list)
    _arrays: dict[Hashable, str] = field(default_factory=dict)
    _numbers: dict[Hashable, int] = field(default_factory=dict)

    def body(self, body: Body, path: tuple[tuple[Loop, Body], ...]) -> Body:
        """Return the body of a loop, given the loops between it and the outer one with the statements before them."""
        out: list[lir.Stmt] = []
        for s in body:
            if isinstance(s, For | lir.Reduce) and (isinstance(s, lir.Reduce) or self._is_free(s)):
                out.append(self._loop(s, (*path, (s, tuple(out)))))
            else:
                out.append(s)
        return tuple(out)

    @staticmethod
    def _is_free(s: For) -> bool:
        return s.base is None and not s.combined

    def _loop(self, s: Loop, path: tuple[tuple[Loop, Body], ...]) -> Loop:
        if not all(isinstance(x, lir.Let | lir.Store | lir.LocalStore) for x in s.body):
            if isinstance(s, For) and not has_loop(s.body):
                if _has_tests_of(s.body, s.var):
                    return s  # it is divided where the tests change
                return replace(s, body=self._branches(s.body, [v for loop, _ in path for v in _vars_of(loop)]))
            return replace(s, body=self.body(s.body, path))
        outer = path[-2][0] if len(path) > 1 else self.loop
        if isinstance(s, lir.Reduce) and isinstance(outer, For) and reads_far_rows(outer):
            return s  # each of these elements is read once for many columns
        variables = [v for loop, _ in path for v in _vars_of(loop)]
        lets = [x for _, before in path for x in before if isinstance(x, lir.Let)]
        own = [x for x in s.body if isinstance(x, lir.Let)]
        values = _Values(self.around, variables, self._numbers)
        for let in (*lets, *own):
            values.add(let)
        mine = {x.name for x in own}
        needed = self._needed(s, values)
        numbers = _used_as_numbers(s) if self.around.is_narrow else set(needed)
        kept = {}
        for name in needed:  # grows: what a value is computed from may be worth an array if the value is not
            wide = values.of[name].type
            t = T.S32 if wide in _WIDE and name not in numbers else wide
            found = self._keep(name, t, values, variables)
            if found is not None:
                kept[name] = lir.Let(name, t, found)
            else:
                needed += [n for n in names_used((values.of[name],)) if n in mine and n not in needed]
        body: Body = tuple(kept.get(x.name, x) if isinstance(x, lir.Let) else x for x in s.body)
        return replace(s, body=_without_unused(body, s))

    def _branches(self, body: Body, variables: Sequence[Var]) -> Body:
        """Return statements with branches whose loads of shared elements that are not adjacent in memory read a copy.

        Elements are copied only if every index is inside the array, because the branch may not be taken.
        """
        values = _Values(self.around, variables, self._numbers)

        def kept(x: lir.Stmt) -> lir.Stmt:
            if not isinstance(x, lir.Let) or not isinstance(x.value, lir.Load):
                return map_bodies(x, lambda inner: tuple(map(kept, inner)))
            low, high = x.value.offset.range
            if low >= 0 and high < self.around.sizes.get(x.value.buffer, 0):
                values.add(x)
            found = self._keep(x.name, x.type, values, variables) if x.name in values.of else None
            return x if found is None else lir.Let(x.name, x.type, found)

        return tuple(map(kept, body))

    @staticmethod
    def _needed(s: Loop, values: _Values) -> list[str]:
        """Return the shared values that statements of a loop need which are not shared themselves."""
        own = {x.name for x in s.body if isinstance(x, lir.Let)}
        used = [n for x in s.body if not (isinstance(x, lir.Let) and x.name in values.of) for n in names_of(x)]
        if isinstance(s, lir.Reduce):
            used += [r.value for r in s.reductions]
        return [n for n in dict.fromkeys(used) if n in own and n in values.of]

    def _keep(self, name: str, t: T, values: _Values, variables: Sequence[Var]) -> lir.LocalLoad | None:
        """Return the load of type t that replaces a value, or None if it is not worth an array."""
        let, used = values.of[name], values.used[name]
        axes = [v for v in variables if v in used]
        size = math.prod(v.extent for v in axes)
        runs = self.loop.var.extent * math.prod(v.extent for v in variables if v not in used)
        if let.type is T.PRED or not axes or runs < MIN_RUNS or self.loop.var in used:
            return None
        closure = values.closure(name)
        if _work_of(closure) + GATHER_WORK * sum(_is_apart(x, axes) for x in closure) < MIN_WORK:
            return None
        at = ix.linearize([ix.of(v) for v in axes], [v.extent for v in axes])
        fresh = {v: Var(f"{v.name}k", v.extent) for v in axes}
        moved: Mapping[IndexSymbol, IndexExpr] = {v: ix.of(f) for v, f in fresh.items()}
        key = (t, values.key(name, {v: n for n, v in enumerate(axes)}), tuple(v.extent for v in axes))
        if key not in self._arrays:
            bytes_kept = size * SCALAR_BYTES[t]
            if bytes_kept > self.room:
                return None
            self.room -= bytes_kept
            array = self._arrays[key] = f"{name}_{self.loop.var.name}_shared"  # parts of a loop have the same names
            store: Body = (lir.LocalStore(array, at, name),)
            if t is not let.type:
                narrow = f"{name}_narrow"
                to = lir.Let(narrow, t, lir.Apply(conversion(let.type, t), (name,)))
                store = (to, lir.LocalStore(array, at, narrow))
            nest = map_indices((*closure, *store), lambda i: i.substitute(moved))
            for v in reversed(axes):
                nest = (For(fresh[v], LoopKind.INDEPENDENT, nest),)
            scope = lir.Scope.PRIVATE if self.around.variables else lir.Scope.KERNEL
            self.before += [lir.LocalArray(array, t, size, scope), *nest]
        return lir.LocalLoad(self._arrays[key], at)


def _has_tests_of(body: Body, variable: Var) -> bool:
    """Check for tests of an index that varies with a variable."""
    tests = (x for x in walk(body) if isinstance(x, lir.Let) and isinstance(x.value, lir.IndexTest))
    return any(variable in _variables_in(x) for x in tests)


def _used_as_numbers(s: Loop) -> set[str]:
    """Return the names that statements of a loop use other than in indices."""
    used = {r.value for r in s.reductions} if isinstance(s, lir.Reduce) else set()
    for x in s.body:
        if isinstance(x, lir.Store | lir.LocalStore):
            used.add(x.value)
        elif isinstance(x, lir.Let) and isinstance(x.value, lir.Apply):
            used.update(x.value.args)
    return used


def _is_apart(let: lir.Let, axes: Sequence[Var]) -> bool:
    """Check for a load of which no two elements that differ in the index of one axis are adjacent."""
    if not isinstance(let.value, lir.Load):
        return False
    strides = [abs(let.value.offset.coefficient(v)) for v in axes]
    return any(strides) and min(n for n in strides if n) > 1


@dataclass
class _Values:
    """The definitions that do not depend on the outer loop.

    Attributes:
        around: what is known before the outer loop.
        variables: those of the loops inside the outer one.
        numbers: of what values are, see `key`.
        of: the definitions by name.
        used: for each of them the variables on which it depends.
    """

    around: _Around
    variables: Sequence[Var]
    numbers: dict[Hashable, int]
    of: dict[str, lir.Let] = field(default_factory=dict)
    used: dict[str, frozenset[Var]] = field(default_factory=dict)

    def add(self, let: lir.Let) -> None:
        """Add a definition if it is shared."""
        v = let.value
        if isinstance(v, lir.Load):
            shared = v.buffer not in self.around.stored and self._is_shared(v.offset)
        elif isinstance(v, lir.IndexValue | lir.IndexTest):
            shared = self._is_shared(v.value)
        else:
            shared = isinstance(v, lir.Constant) or (isinstance(v, lir.Apply) and all(map(self._is_known, v.args)))
        if shared:
            self.of[let.name] = let
            operands = [self.used[n] for n in names_used((let,)) if n in self.used]
            self.used[let.name] = frozenset(_variables_in(let)).union(*operands)

    def _is_known(self, name: str) -> bool:
        return name in self.of or name in self.around.names

    def _is_shared(self, i: IndexExpr) -> bool:
        return all(self._is_known(v.name) if isinstance(v, Runtime) else self._is_free(v) for v in i.variables())

    def _is_free(self, v: IndexSymbol) -> bool:
        return v in self.variables or v in self.around.variables

    def closure(self, name: str) -> list[lir.Let]:
        """Return the definitions that compute a value, operands first."""
        found: dict[str, lir.Let] = {}

        def visit(name: str) -> None:
            let = self.of.get(name)
            if let is None or name in found:
                return
            for operand in names_used((let,)):
                visit(operand)
            found[name] = let

        visit(name)
        return list(found.values())

    def key(self, name: str, axes: Mapping[Var, int]) -> int:
        """Return a number of what a value is: equal for definitions with other names and other variables.

        Operands enter by their numbers, because nested keys would be hashed once for each path to them.
        """
        at: dict[IndexSymbol, IndexExpr] = {v: IndexExpr(((Var(f"axis{n}", v.extent), 1),)) for v, n in axes.items()}
        keys: dict[str, int] = {}
        for let in self.closure(name):
            (moved,) = map_indices((let,), lambda i: i.substitute(at))
            names = tuple(keys.get(n, n) for n in names_used((moved,)))
            value = moved.value if isinstance(moved, lir.Let) else None
            text = value.op if isinstance(value, lir.Apply) else repr(value)
            keys[let.name] = self.numbers.setdefault((let.type, text, names), len(self.numbers))
        return keys[name]


def _variables_in(s: lir.Stmt) -> set[Var]:
    return {v for i in indices_in((s,)) for v in i.variables() if isinstance(v, Var)}


def _without_unused(body: Body, s: Loop) -> Body:
    """Return the body of a loop without definitions that nothing uses."""
    used = {r.value for r in s.reductions} if isinstance(s, lir.Reduce) else set()
    kept: list[lir.Stmt] = []
    for x in reversed(body):
        if not isinstance(x, lir.Let) or x.name in used:
            used.update(names_of(x))
            kept.append(x)
    return tuple(reversed(kept))
