"""Scatters on a CPU whose updates take long: a vector loop computes them for a block, and a second loop applies them.

Updates are applied one after the other, because several may have one target. In a histogram, the targets are computed
from floats, and the same loop would compute them one by one. Local arrays pass them on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Runtime
from compiler.codegen.nest.loop_ir import Body, For, LoopKind
from compiler.codegen.nest.traversal import names_used, walk
from compiler.codegen.nest.work import work_of
from compiler.codegen.schedules.short_rows import Blocks
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

BLOCK, LEAST = 256, 32
"""Updates of a block, and of the shortest scatter that is divided."""
MIN_WORK, MOST_ARRAYS = 4, 6
"""Least work of an update per value that is stored for the second loop, and most such values."""


def block_updates(s: For) -> For:
    """Return a loop over the updates of a scatter as one over blocks of them, if computing them takes long."""
    count = next((n for n, x in enumerate(s.body) if not isinstance(x, lir.Let)), len(s.body))
    lets, tail = _before_branches([x for x in s.body[:count] if isinstance(x, lir.Let)], s.body[count:])
    if s.base is not None or s.var.extent < LEAST or not tail:
        return s
    if not all(isinstance(x, lir.If | lir.Let | lir.Update) for x in walk(tail)):
        return s
    again, passed = _divided(lets, tail)
    written = {x.buffer for x in walk(tail) if isinstance(x, lir.Update)}
    first = [x for x in lets if x.name not in {y.name for y in again}]
    if not passed or len(passed) > MOST_ARRAYS or any(x.type is T.PRED for x in passed):
        return s
    if work_of(tuple(first)) < MIN_WORK * len(passed) or any(_loads(x, written) for x in lets):
        return s
    blocks = Blocks(s.var, BLOCK)
    at = ix.of(blocks.at)
    arrays = [lir.LocalArray(_array(x), x.type, blocks.size) for x in passed]
    stores = [lir.LocalStore(_array(x), at, x.name) for x in passed]
    loads = [lir.Let(x.name, x.type, lir.LocalLoad(_array(x), at)) for x in passed]
    compute = blocks.over("c", (*lets, *stores))
    apply = replace(blocks.over("a", (*loads, *again, *tail)), kind=LoopKind.ATOMIC)
    return For(blocks.block, LoopKind.SERIAL, (*arrays, compute, apply))


def _before_branches(lets: list[lir.Let], tail: Body) -> tuple[list[lir.Let], Body]:
    """Return the definitions with those inside of branches that may be made for updates outside of the output, too."""
    out: list[lir.Stmt] = []
    for x in tail:
        inner = [y for y in x.then if isinstance(y, lir.Let)] if isinstance(x, lir.If) and not x.otherwise else []
        if isinstance(x, lir.If) and all(not isinstance(y.value, lir.Load) or _is_cheap(y) for y in inner):
            lets = [*lets, *inner]
            x = replace(x, then=tuple(y for y in x.then if not isinstance(y, lir.Let)))
        out.append(x)
    return lets, tuple(out)


def _divided(lets: Sequence[lir.Let], tail: Body) -> tuple[list[lir.Let], list[lir.Let]]:
    """Return the definitions that the second loop makes again, and those that it takes from the first one."""
    known = {x.name: x for x in lets}
    again: dict[str, lir.Let] = {}
    passed: dict[str, lir.Let] = {}

    def need(name: str) -> None:
        let = known.get(name)
        if let is None or name in again or name in passed:
            return
        if _is_cheap(let):
            for operand in names_used((let,)):
                need(operand)
            again[name] = let
        else:
            passed[name] = let

    for name in names_used(tail):
        need(name)
    return list(again.values()), list(passed.values())


def _is_cheap(let: lir.Let) -> bool:
    """Check whether a value is made again: a load at an index of the loop, or a test or conversion of integers."""
    v = let.value
    if isinstance(v, lir.Load):
        return not any(isinstance(x, Runtime) for x in v.offset.variables())
    if isinstance(v, lir.Apply):
        widens = v.op.opcode is Opcode.CONVERT and v.op.type in (T.S32, T.U32) and v.op.result in (T.S64, T.U64)
        return widens or (v.op.opcode in (Opcode.AND, Opcode.OR) and v.op.type is T.PRED)
    return isinstance(v, lir.Constant | lir.IndexValue | lir.IndexTest)


def _loads(let: lir.Let, buffers: set[str]) -> bool:
    return isinstance(let.value, lir.Load) and let.value.buffer in buffers


def _array(let: lir.Let) -> str:
    return f"{let.name}_updates"
