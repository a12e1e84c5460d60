"""Lowering of a loop together with the packing and unpacking of its state, which are one fusion.

The initial values are computed where a tile of positions loads its state, and what is made of the final values where it
stores it: splitting a stacked array into columns, say, and stacking the columns again.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence

from compiler.analysis.loop_marks import packed_loop
from compiler.analysis.while_loop import SHARED_ELEMENTS
from compiler.codegen.lowering.emit import Emitter
from compiler.codegen.lowering.outputs import kernel_arguments
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Index, IndexExpr
from compiler.codegen.schedules.schedule import Schedule
from compiler.codegen.templates.loop_lowering import Level, LoopLowering
from compiler.codegen.templates.loop_state import ELEMENT_LIMIT, LoopState, states_of
from compiler.errors import UnsupportedError
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode

__all__ = ["lower_packed_loop", "packed_loop"]


def lower_packed_loop(
    fused: HloComputation, roots: Sequence[HloInstruction], loop: HloInstruction, schedule: Schedule
) -> lir.Kernel:
    """Return the nest of a fused computation whose parameters become the initial values of a loop.

    Args:
        fused: the computation.
        roots: its outputs, made of the final values of the loop.
        loop: the `while`; its operand is a tuple.
        schedule: its lanes and its axis are those of the loop.

    Raises:
        UnsupportedError: the loop cannot become one kernel, or what surrounds it is not computed position by position.
    """
    *preferred, state = states_of(loop, on_gpu=True)  # loops of one thread, or of few positions, are those of a GPU
    for divided in preferred:
        with contextlib.suppress(UnsupportedError):
            axis, extent = divided.axis(schedule.axis)
            return _PackedLowering(fused, roots, loop, divided, axis, extent, schedule).kernel()
    axis, extent = (0, 1) if state.is_sequential() else state.axis(schedule.axis)
    return _PackedLowering(fused, roots, loop, state, axis, extent, schedule).kernel()


class _PackedLowering(LoopLowering):
    """Lowers a loop whose initial values are computed from `fused`'s parameters and whose results are `roots`."""

    def __init__(
        self,
        fused: HloComputation,
        roots: Sequence[HloInstruction],
        loop: HloInstruction,
        state: LoopState,
        axis: int,
        extent: int,
        schedule: Schedule,
    ) -> None:
        super().__init__(state, axis, extent, schedule)
        self.fused, self.roots, self.loop = fused, roots, loop
        self.start = loop.operands[0]
        if self.start.opcode is not Opcode.TUPLE:
            raise UnsupportedError(f"%{loop.name}: its initial values must be a tuple")
        self.emitter = Emitter(fused)
        for i in loop.users:
            if i.opcode is not Opcode.GET_TUPLE_ELEMENT:
                raise UnsupportedError(f"%{i.name} uses the result of a loop as a whole")
            self.emitter.sources[i] = self._final_reader(i.attributes["index"])
        self.stack_outputs = {k: n for n, k in enumerate(map(self._element, roots)) if k in state.stacked}
        if self.stack_outputs.keys() != state.stacked:
            raise UnsupportedError(f"%{loop.name}: a stacked array must be a result")

    def _element(self, root: HloInstruction) -> int | None:
        """Return which element of the final state an output is, or None if it is computed from elements."""
        is_element = root.opcode is Opcode.GET_TUPLE_ELEMENT and root.operands[0] is self.loop
        return root.attributes["index"] if is_element else None

    def _argument(self, k: int) -> int | None:
        """Return the number of the parameter that is initial value `k` and nothing else, or None."""
        value = self.start.operands[k]
        alone = value.opcode is Opcode.PARAMETER and list(self.start.operands).count(value) == 1
        return value.parameter_number if alone and list(value.users) == [self.start] else None

    def _finish(self) -> lir.Kernel:
        parameters = self.fused.parameters
        must, may = [], []
        for n, root in enumerate(self.roots):
            k = self._element(root)
            argument = None if k is None else self._argument(k)
            if k in self.state.stacked:
                if argument is None:
                    raise UnsupportedError(f"%{root.name}: the initial value of a stacked array must be an argument")
                must.append((argument, len(parameters) + n))
            elif argument is not None and k in self.state.per_position:
                may.append((argument, len(parameters) + n))
        stmts = tuple(self.emitter.frames[0].stmts)
        arguments = kernel_arguments(parameters, [r.shape for r in self.roots])
        return lir.Kernel("loop-kernel", arguments, stmts, tuple(may), tuple(must))

    # ---- initial values

    def _initial(self, k: int, index: Index) -> str:
        return self.emitter.value(self.start.operands[k], index)

    def _kept(self, level: Level) -> list[int]:
        return level.state.kept(self.axis, self.extent)

    def _stack_name(self, k: int) -> str:
        return f"o{self.stack_outputs[k]}"

    # ---- results

    def _store_state(self) -> None:
        e = self.emitter
        for n, root in enumerate(self.roots):
            at = self._axis_of(root)
            if at is None or self._element(root) in self.state.stacked:
                continue
            dims = root.shape.dimensions
            for rest in itertools.product(*(range(d) for k, d in enumerate(dims) if k != at)):
                others = iter(rest)
                index = tuple(self.position if k == at else ix.const(next(others)) for k in range(len(dims)))
                e.add(lir.Store(f"o{n}", ix.linearize(index, dims), e.value(root, index)))

    def _store_shared(self, number: IndexExpr) -> None:
        """Store the results that depend on the shared state alone, from the first tile."""
        e = self.emitter
        small = [(n, r) for n, r in enumerate(self.roots) if self._axis_of(r) is None]
        if not small or (number.is_const and number.const != 0):
            return
        first = e.index_test(number, 0, 0)
        e.hoist_limit = len(e.frames) - 1
        stores = []
        for n, r in small:
            for at in itertools.product(*(range(d) for d in r.shape.dimensions)):
                index = self._constant_index(at)
                stores.append(lir.Store(f"o{n}", ix.linearize(index, r.shape.dimensions), e.value(r, index)))
        e.hoist_limit = 0
        e.add(lir.If(first, tuple(stores)))

    def _axis_of(self, root: HloInstruction) -> int | None:
        """Return the dimension of an output along which positions are stored; None: it is made of the shared state.

        Raises:
            UnsupportedError: the output has no such dimension, or too many elements per position.
        """
        k, dims = self._element(root), root.shape.dimensions
        if k is not None and k in self.state.shared:
            return None
        if k is not None and k in self.state.per_position:
            return 0 if self.axis == 0 else len(dims) - 1
        found = [d for d, n in enumerate(dims) if n == self.extent]
        if not found and root.shape.num_elements <= SHARED_ELEMENTS:
            return None
        if not found or math.prod(dims) // self.extent > ELEMENT_LIMIT:
            raise UnsupportedError(f"%{root.name}: {root.shape} is not computed position by position")
        return found[0 if self.axis == 0 else -1]

    def _final_reader(self, k: int) -> Callable[[Index], str]:
        def read(index: Index) -> str:
            if k in self.state.per_position or k in self.state.shared:
                return self._read_changed(self.level, k, index)
            raise UnsupportedError(f"carried value {k} of shape {self.state.shapes[k]} is read after the loop")

        return read
