"""Arguments of kernels, and outputs that follow element by element from the op that a template computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compiler.codegen.lowering.emit import Emitter
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Index
from compiler.codegen.nest.scalar_ops import conversion
from compiler.errors import UnsupportedError
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape
from compiler.ir.types import PrimitiveType

__all__ = ["forward_index", "kernel_arguments", "set_source", "store_outputs"]


def kernel_arguments(parameters: Sequence[HloInstruction], outputs: Sequence[Shape]) -> tuple[lir.Argument, ...]:
    """Return the arguments of a kernel: `p0`, `p1`, ... for its parameters, then `o0`, `o1`, ... for its outputs."""
    shapes = [(f"p{n}", p.shape, False) for n, p in enumerate(parameters)]
    shapes += [(f"o{n}", s, True) for n, s in enumerate(outputs)]
    return tuple(lir.Argument(name, s.element_type, s.num_elements, output) for name, s, output in shapes)


def set_source(
    e: Emitter, op: HloInstruction, at: Index, computed_in: PrimitiveType, result: Callable[[], str]
) -> None:
    """Let the emitter read `op[at]`, the only element that a template has at hand; another raises UnsupportedError.

    Args:
        e: the emitter.
        op: the instruction that the template computes.
        at: the index of the element.
        computed_in: the type of the result, which is converted to that of the instruction.
        result: emits the result and returns its name.
    """
    t = op.shape.element_type

    def element(index: Index) -> str:
        if index != at:
            raise UnsupportedError(f"%{op.name}: its result is read at other places")
        name = result()
        return name if t is computed_in else e.apply(conversion(computed_in, t), name)

    e.sources[op] = element


def store_outputs(
    e: Emitter, op: HloInstruction, at: Index, roots: Sequence[HloInstruction], numbers: Sequence[int] | None = None
) -> lir.Body:
    """Return the statements that compute the elements of the outputs `o0`, `o1`, ... from `op[at]` and store them.

    All elements are computed before the first is stored, since an output may share its buffer with an input. Only the
    outputs with the given numbers are stored, if there are any.

    Raises:
        UnsupportedError: an output is not computed element by element from the instruction.
    """
    with e.guard() as body:
        stores = []
        for n in range(len(roots)) if numbers is None else numbers:
            r = roots[n]
            to = forward_index(op, r, at)
            stores.append(lir.Store(f"o{n}", ix.linearize(to, r.shape.dimensions), e.value(r, to)))
        for store in stores:
            e.add(store)
    return tuple(body.stmts)


def forward_index(start: HloInstruction, end: HloInstruction, index: Index) -> Index:
    """Return the index of the element of `end` that is computed from `start[index]`, through ops that keep elements.

    Raises:
        UnsupportedError: there is no path of elementwise ops, reshapes and transposes.
    """
    paths: dict[HloInstruction, Index] = {start: index}
    work = [start]
    while work:
        i = work.pop()
        if i is end:
            return paths[i]
        for user in i.users:
            if user not in paths:
                moved = _forward_step(i, user, paths[i])
                if moved is not None:
                    paths[user] = moved
                    work.append(user)
    raise UnsupportedError(f"%{end.name} is not computed element by element from %{start.name}")


def _forward_step(i: HloInstruction, user: HloInstruction, index: Index) -> Index | None:
    if user.opcode is Opcode.TRANSPOSE:
        return tuple(index[d] for d in user.dimensions)
    if user.opcode in (Opcode.RESHAPE, Opcode.BITCAST):
        return ix.reshaped(index, i.shape.dimensions, user.shape.dimensions)
    return index if user.shape.is_array and user.shape.dimensions == i.shape.dimensions else None
