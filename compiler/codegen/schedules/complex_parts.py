"""Arrays of complex numbers of which a kernel only uses the parts are arrays of floats.

A complex number is held as an integer of 64 bits, of which gcc 12 shifts and narrows vectors to get the parts. Where it
sees pairs of adjacent floats from which it computes other pairs, it computes both in one vector: a product takes three
shuffles, a multiplication and one that adds and subtracts in turns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, Var
from compiler.codegen.nest.loop_ir import Body, For
from compiler.codegen.nest.scalar_ops import ScalarOp
from compiler.codegen.nest.traversal import map_bodies, names_of, walk
from compiler.codegen.schedules.loop_transforms import has_loop
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

_KNOWN = (lir.Let, lir.Store, For, lir.If, lir.Accumulator, lir.Assign, lir.LocalArray, lir.LocalStore)
"""The statements of which it is known what they read."""
_PARTS = (Opcode.REAL, Opcode.IMAG)
_SAME = ScalarOp(Opcode.COPY, T.F32, T.F32)


def divide_complex(kernel: lir.Kernel) -> lir.Kernel:
    """Return a bound nest whose arguments of c64 are of f32, twice as many, where it only uses the parts of both."""
    arrays = {a.name for a in kernel.arguments if a.type is T.C64}
    if not arrays:
        return kernel
    statements = list(walk(kernel.body))
    if not all(isinstance(s, _KNOWN) for s in statements):
        return kernel
    divided = arrays - _held(statements, arrays)
    divided -= _apart(statements, divided)
    if not divided:
        return kernel
    lets = [s for s in statements if isinstance(s, lir.Let)]
    loaded = {s.name for s in lets if isinstance(s.value, lir.Load) and s.value.buffer in divided}
    others = [s for s in statements if not isinstance(s, lir.Store) or s.buffer not in divided]
    parts = _Parts(divided, loaded, {n for s in others for n in names_of(s)})
    arguments = tuple(
        replace(a, type=T.F32, elements=2 * a.elements) if a.name in divided else a for a in kernel.arguments
    )
    return replace(kernel, arguments=arguments, body=parts.body(kernel.body))


def _held(statements: Iterable[lir.Stmt], arrays: set[str]) -> set[str]:
    """Return the arrays of which some element is used as a whole, a part of it alone, or one made of a constant."""
    loaded: dict[str, set[str]] = defaultdict(set)
    stored: dict[str, set[str]] = defaultdict(set)
    made: dict[str, set[str]] = defaultdict(set)
    parts: dict[str, set[Opcode]] = defaultdict(set)
    whole: set[str] = set()
    for s in statements:
        v = s.value if isinstance(s, lir.Let) else None
        if isinstance(s, lir.Let) and isinstance(v, lir.Load) and v.buffer in arrays:
            loaded[v.buffer].add(s.name)
        elif isinstance(s, lir.Let) and isinstance(v, lir.Apply) and v.op.opcode is Opcode.COMPLEX:
            made[s.name].update(v.args)
        elif isinstance(v, lir.Apply) and v.op.opcode in _PARTS and v.op.type is T.C64:
            parts[v.args[0]].add(v.op.opcode)
        elif isinstance(s, lir.Store) and s.buffer in arrays:
            stored[s.buffer].add(s.value)
        else:
            whole.update(names_of(s))
    found = {a for a, names in loaded.items() if any(n in whole or len(parts[n]) < len(_PARTS) for n in names)}
    found |= {a for a, names in loaded.items() if any(names & others for others in stored.values())}
    # A constant part is masked into integers that are widened.
    fixed = {s.name for s in statements if isinstance(s, lir.Let) and isinstance(s.value, lir.Constant)}
    fixed |= {s.name for s in statements if isinstance(s, lir.Assign)}
    lasting = {name for name, args in made.items() if args.isdisjoint(fixed)}
    return found | {a for a, names in stored.items() if not names <= lasting}


def _apart(statements: Iterable[lir.Stmt], arrays: set[str]) -> set[str]:
    """Return those of some arrays that a vector loop accesses in which gcc would not compute pairs of adjacent floats.

    It does so where all results are such pairs, too. Otherwise it takes more instructions than integers need.
    """
    found: set[str] = set()
    for s in statements:
        if not isinstance(s, For) or not s.kind.is_vector or has_loop(s.body):
            continue
        inside = list(walk(s.body))
        values = [x.value if isinstance(x, lir.Let) else x for x in inside]
        accesses = [v for v in values if isinstance(v, lir.Load | lir.Store) and v.buffer in arrays]
        results = [x for x in inside if not isinstance(x, lir.Let)]
        defined = {s.var.name} | {x.name for x in inside if isinstance(x, lir.Let)}
        is_paired = not s.combined and all(isinstance(x, lir.Store) and x.buffer in arrays for x in results)
        found |= {v.buffer for v in accesses if not is_paired or not _is_adjacent(v.offset, s.var, defined)}
    return found


def _is_adjacent(offset: IndexExpr, var: Var, defined: set[str]) -> bool:
    """Check whether the iterations of a loop access adjacent elements, or all the same one."""
    distance = offset.coefficient(var)
    rest = offset - ix.of(var) * distance
    return distance in (0, 1) and all(v.name not in defined for v in rest.variables())


@dataclass
class _Parts:
    """Statements in which some arrays are of parts.

    Attributes:
        divided: the arrays.
        loaded: names of the elements that are loaded from them.
        whole: names that are read by anything but a store to these arrays.
        made: by the name of a number, the values of which it is made.
    """

    divided: set[str]
    loaded: set[str]
    whole: set[str]
    made: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def body(self, body: Body) -> Body:
        """Return statements that load and store parts."""
        return tuple(x for s in body for x in self._statement(s))

    def _statement(self, s: lir.Stmt) -> Body:
        if isinstance(s, lir.Store) and s.buffer in self.divided:
            real, imag = self.made[s.value]
            return lir.Store(s.buffer, s.offset * 2, real), lir.Store(s.buffer, s.offset * 2 + 1, imag)
        if not isinstance(s, lir.Let):
            return (map_bodies(s, self.body),)
        v = s.value
        if isinstance(v, lir.Load) and v.buffer in self.divided:
            offsets = v.offset * 2, v.offset * 2 + 1
            names = (_part(s.name, opcode) for opcode in _PARTS)
            return tuple(lir.Let(n, T.F32, lir.Load(v.buffer, o)) for n, o in zip(names, offsets, strict=True))
        if isinstance(v, lir.Apply) and v.op.opcode in _PARTS and v.args[0] in self.loaded:
            return (replace(s, value=lir.Apply(_SAME, (_part(v.args[0], v.op.opcode),))),)
        if isinstance(v, lir.Apply) and v.op.opcode is Opcode.COMPLEX:
            self.made[s.name] = v.args
            return (s,) if s.name in self.whole else ()
        return (s,)


def _part(name: str, opcode: Opcode) -> str:
    return f"{name}_{opcode.text}"
