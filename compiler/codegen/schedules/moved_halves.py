"""Numbers of f16 and bf16 that a kernel only moves are moved as bits.

They are computed in f32, and gcc 12 takes the conversions of f16 apart into single elements; those of bf16 take shifts.
A kernel that only selects, gathers, pads or transposes the elements of an array is that of integers of 16 bits.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.loop_ir import Body
from compiler.codegen.nest.scalar_ops import binary
from compiler.codegen.nest.traversal import map_bodies, names_of, walk
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T

_KNOWN = (
    lir.Let, lir.Store, lir.For, lir.If, lir.Reduce, lir.Accumulator, lir.Assign, lir.LocalArray, lir.LocalStore
)  # fmt: skip
"""The statements of which it is known what they read."""
_SIGNS = {Opcode.NEGATE: (Opcode.XOR, 0x8000), Opcode.ABS: (Opcode.AND, 0x7FFF)}
"""The ops on bits that change the sign of a number."""
MOVES = frozenset({Opcode.SELECT, Opcode.COPY, *_SIGNS})
"""The ops whose result is an operand, up to its sign."""


def move_as_bits(kernel: lir.Kernel) -> lir.Kernel:
    """Return a nest, before it is bound, whose arguments of f16 are of u16 where it only moves their elements."""
    for t in (T.F16, T.BF16):
        kernel = _moving(kernel, t)
    return kernel


def _moving(kernel: lir.Kernel, t: T) -> lir.Kernel:
    arrays = {a.name for a in kernel.arguments if a.type is t}
    if not arrays:
        return kernel
    statements = list(walk(kernel.body))
    if not all(isinstance(s, _KNOWN) for s in statements):
        return kernel
    moved = _moved(statements, arrays, t)
    if not moved:
        return kernel
    arguments = tuple(replace(a, type=T.U16) if a.name in moved else a for a in kernel.arguments)
    return replace(kernel, arguments=arguments, body=_of_bits(kernel.body, moved))


def _moved(statements: list[lir.Stmt], arrays: set[str], t: T) -> set[str]:
    """Return the arrays whose elements are only moved to others of them, and the values that are their elements."""
    values = {s.name for s in statements if isinstance(s, lir.Let | lir.Accumulator) and s.type is t}
    groups = _Groups(arrays | values)
    for s in statements:
        match s:
            case lir.Store():
                groups.join(s.buffer, s.value)
            case lir.Accumulator():
                groups.join(s.name, s.init)
            case lir.Assign():
                groups.join(s.name, s.value)
            case lir.Let(value=lir.Load() as v):
                groups.join(s.name, v.buffer)
            case lir.Let(value=lir.Current() as v):
                groups.join(s.name, v.name)
            case lir.Let(value=lir.Apply() as v) if v.op.opcode in MOVES:
                groups.join(s.name, *v.args[-2:])  # of a select without its condition
            case lir.Let(value=lir.Constant()):
                pass
            case _:
                groups.leave(*names_of(s), *([s.name] if isinstance(s, lir.Let) else []))
    return groups.kept(arrays)


class _Groups:
    """Names in groups that are all moved as bits, or none of a group.

    Args:
        names: arrays and values of f16; others are not moved as bits, nor is what is in a group with them.
    """

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self._above: dict[str, str] = {}
        self._left: set[str] = set()

    def _top(self, name: str) -> str:
        above = self._above
        while (next_ := above.get(name)) is not None:
            above[name] = above.get(next_, next_)
            name = next_
        return name

    def join(self, *names: str) -> None:
        """Make the groups of several names one."""
        inside = [n for n in names if n in self._names]
        for n in inside[1:]:
            first, other = self._top(inside[0]), self._top(n)
            if first != other:
                self._above[other] = first
        if len(inside) < len(names):
            self.leave(*inside)

    def leave(self, *names: str) -> None:
        """Note that names are not moved as bits."""
        self._left.update(n for n in names if n in self._names)

    def kept(self, arrays: set[str]) -> set[str]:
        """Return the names in the groups of some of these arrays that nothing has left."""
        left = {self._top(n) for n in self._left}
        tops = {self._top(n) for n in arrays} - left
        return {n for n in self._names if self._top(n) in tops}


def _of_bits(body: Body, moved: set[str]) -> Body:
    return tuple(map_bodies(x, lambda b: _of_bits(b, moved)) for s in body for x in _as_bits(s, moved))


def _as_bits(s: lir.Stmt, moved: set[str]) -> Body:
    """Return a statement whose values of some names are bits, after the constant that it needs for that."""
    if not isinstance(s, lir.Let | lir.Accumulator) or s.name not in moved:
        return (s,)
    v = s.value if isinstance(s, lir.Let) else None
    if isinstance(v, lir.Constant):
        v = lir.Constant(int(np.asarray(v.value, s.type.dtype).view(np.uint16)))
    elif isinstance(v, lir.Apply) and v.op.opcode in _SIGNS:
        opcode, mask = _SIGNS[v.op.opcode]
        bits = lir.Let(f"{s.name}_mask", T.U16, lir.Constant(mask))
        return bits, lir.Let(s.name, T.U16, lir.Apply(binary(opcode, T.U16), (*v.args, bits.name)))
    elif isinstance(v, lir.Apply):
        v = replace(v, op=replace(v.op, type=T.U16, result=T.U16))
    return (replace(s, type=T.U16) if v is None else lir.Let(s.name, T.U16, v),)
