"""Elements that are loaded where a test holds, and 0 elsewhere, such as those of the padded input of a convolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.nest.traversal import names_defined
from compiler.codegen.schedules.cuda_wide import Lane
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T


@dataclass(frozen=True, slots=True)
class GuardedLoad:
    """An element that is loaded where a test holds, and 0 elsewhere.

    Attributes:
        tests: the statements that compute the test, without loads.
        condition: the name of its result.
        load: the load.
    """

    tests: tuple[lir.Let, ...]
    condition: str
    load: lir.Load

    def is_wide(self, var: Var, width: int) -> bool:
        """Check whether `width` adjacent elements along a variable are adjacent in memory and have the same test."""
        lane = Lane.of(var, ix.of(Var(f"{var.name}w", var.extent // width)), width)
        indices = (lir.index_of(s.value) for s in self.tests)
        return lane.is_wide(lane.place(self.load.offset)) and all(
            i is None or lane.is_uniform(lane.place(i)) for i in indices
        )


def guarded_load(stmts: Sequence[lir.Stmt], t: T, before: Sequence[lir.Stmt]) -> GuardedLoad | None:
    """Return the load of a type that statements make where a test holds, or None if they compute anything else.

    A conversion of the element to f32 may follow.

    Args:
        stmts: the statements; the last of them defines the element.
        t: the type in memory.
        before: the statements before them, which define constants.
    """
    tests: list[lir.Let] = []
    constants = {s.name: s.value.value for s in before if isinstance(s, lir.Let) and isinstance(s.value, lir.Constant)}
    found: tuple[str, str, lir.Load] | None = None  # accumulator, condition and load
    result, held = "", ""
    for s in stmts:
        match s:
            case lir.Let(value=lir.Constant() as value):
                constants[s.name] = value.value
                tests.append(s)
            case lir.Let(value=lir.IndexTest() | lir.IndexValue()):
                tests.append(s)
            case lir.Let(value=lir.Apply() as value) if found is None:
                tests.append(s)
            case lir.Accumulator() if not held:
                held = s.name
            case lir.If() if found is None and held:
                load = _load_or_zero(s, held, t, constants)
                if load is None:
                    return None
                found = held, s.condition, load
            case lir.Let(value=lir.Current(name=name)) if found is not None and name == held:
                result = s.name
            case lir.Let(value=lir.Apply() as value) if _is_widening(value, result):
                result = s.name
            case _:
                return None
    if found is None or not result:
        return None
    _, condition, load = found
    runtime = {v.name for v in load.offset.variables() if isinstance(v, ix.Runtime)}
    return GuardedLoad(tuple(tests), condition, load) if runtime.isdisjoint(names_defined(tuple(stmts))) else None


def _load_or_zero(s: lir.If, held: str, t: T, constants: dict[str, float]) -> lir.Load | None:
    """Return what a branch assigns to an accumulator if its condition holds, where the other branch assigns 0."""
    zeros = dict(constants)
    for x in s.otherwise[:-1]:
        if not isinstance(x, lir.Let) or not isinstance(x.value, lir.Constant):
            return None
        zeros[x.name] = x.value.value
    if not s.otherwise or len(s.then) != 2:
        return None
    (first, assigned), last = s.then, s.otherwise[-1]
    if not isinstance(first, lir.Let) or not isinstance(first.value, lir.Load) or first.type is not t:
        return None
    if assigned != lir.Assign(held, first.name) or not isinstance(last, lir.Assign) or last.name != held:
        return None
    return first.value if zeros.get(last.value) == 0 else None


def _is_widening(value: lir.Apply, of: str) -> bool:
    return bool(of) and value.args == (of,) and value.op.opcode is Opcode.CONVERT and value.op.result is T.F32
