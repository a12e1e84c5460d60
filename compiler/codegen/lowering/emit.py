"""The emitter of scalar code for one element of an instruction, hoisted to the outermost loop that permits it.

`Emitter.value(i, index)` emits everything that `i[index]` depends on. Each (instruction, index) pair is computed once,
in the outermost open loop on whose variables the index depends. Data movement becomes index arithmetic
(`indexing_maps`). A reduction becomes a loop, nested where its result is loop-invariant (`reductions`). An op whose
elements come from several operands becomes a branch (`select_regions`).
"""

from __future__ import annotations

from functools import cached_property

from compiler.codegen.lowering.emission import EmissionState
from compiler.codegen.lowering.reductions import reduce_values
from compiler.codegen.lowering.select_regions import REGION_OPS, RegionSelector, sliced_index
from compiler.codegen.lowering.windows import windows_of
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Index
from compiler.codegen.nest.indexing_maps import INDEXING_MAPS
from compiler.codegen.nest.scalar_ops import ScalarOp, conversion, is_value_type, scalar_op_of
from compiler.errors import UnsupportedError
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T


class Emitter(EmissionState):
    """The emitter of the statements of one fused computation."""

    @cached_property
    def _regions(self) -> RegionSelector:
        return RegionSelector(self)

    def values(self, i: HloInstruction, index: Index) -> tuple[str, ...]:
        """Implement `EmissionState.values`: compute each element once, hoisted as far as its index allows."""
        key = i, self.number(index)
        for frame in self.frames:
            known = frame.memo.get(key)
            if known is not None:
                return known
        # As within `at_depth`, but faster: this is done for each element that is emitted.
        outer = self.depth_of(index) + 1
        inner = self.frames[outer:]
        del self.frames[outer:]
        names = self.frames[-1].memo[key] = self._emit(i, index)
        self.frames += inner
        return names

    def _emit(self, i: HloInstruction, index: Index) -> tuple[str, ...]:
        op, operands = i.opcode, i.operands
        t = i.shape.element_type
        if i in self.sources:
            return (self.sources[i](index),)
        if op is Opcode.GET_TUPLE_ELEMENT:
            element = self.element(i)
            if element is not None:
                return (self.value(element, index),)
            return (self.values(self.tuple_of(i), index)[i.attributes["index"]],)
        if op is Opcode.REDUCE:
            return reduce_values(self, i, index)
        if op in (Opcode.FUSION, Opcode.CALL):
            return (self.value(self.enter(i), index),)
        if (
            op is Opcode.OPTIMIZATION_BARRIER and i.shape.is_array
        ):  # in a loop kernel, where each value is computed once per step anyway
            return (self.value(operands[0], index),)
        if not is_value_type(t):
            raise UnsupportedError(f"%{i.name}: element type {t.text} has no kernel")
        if op is Opcode.PARAMETER and i in self.bound:
            return (self.value(self.bound[i], index),)
        if op is Opcode.PARAMETER:
            return (self.let(t, lir.Load(self.input_name(i), ix.linearize(index, i.shape.dimensions))),)
        if op is Opcode.CONSTANT:
            return (self._constant(i, index),)
        if op is Opcode.IOTA:
            return (self._counted(t, index[i.attributes["iota_dimension"]]),)
        if op is Opcode.MAP:
            args = [self.value(o, index) for o in operands]
            return self.inline(i.attributes["to_apply"], args)
        moved = INDEXING_MAPS.get(op)
        if moved is not None:
            return (self.value(operands[0], moved(i, index)),)
        if op in REGION_OPS:
            return (self._regions.value(i, index),)
        if op is Opcode.DYNAMIC_SLICE:
            return (self.value(operands[0], sliced_index(self, i, index)),)
        if op is Opcode.GATHER:
            return (self._gather(i, index),)
        windows = windows_of(i)
        if windows is not None:
            return (self.value(operands[0], windows.index(index)),)
        scalar_op = scalar_op_of(i)
        if any(not o.shape.is_scalar and o.shape.dimensions != i.shape.dimensions for o in operands):
            raise UnsupportedError(f"%{i.name}: {op.text} of operands of different sizes has no kernel")
        names = [self.value(o, () if o.shape.is_scalar else index) for o in operands]
        return (self.apply(scalar_op, *names),)

    def _counted(self, t: T, number: ix.IndexExpr) -> str:
        """Return an index as a number of type t, by a conversion if kernels hold the type as bits or round to it."""
        if t.is_integer or t in (T.F32, T.F64):
            return self.counted(t, number)
        counted = self.let(T.F32, lir.IndexValue(number))
        if t is T.C64:
            return self.apply(ScalarOp(Opcode.COMPLEX, T.F32, t), counted, self.constant(0.0, T.F32))
        return self.apply(conversion(T.F32, t), counted)

    def _constant(self, i: HloInstruction, index: Index) -> str:
        a = i.value.array
        if a is None or a.size == 0:
            raise UnsupportedError(f"%{i.name}: an empty constant must stay outside the kernel")
        if a.size > 1 and all(x.is_const for x in index):
            element = a[tuple(x.const for x in index)]
        elif a.tobytes() == a.flat[:1].tobytes() * a.size:
            element = a.flat[0]
        else:
            raise UnsupportedError(f"%{i.name}: a constant array must stay outside the kernel")
        t = i.shape.element_type
        with self.at_depth(0):
            return self.constant(element, t)

    def _gather(self, i: HloInstruction, index: Index) -> str:
        x, indices = i.operands
        offset_dims = i.attributes["offset_dims"]
        collapsed = i.attributes.get("collapsed_slice_dims", ())
        batching = i.attributes.get("operand_batching_dims", ())
        index_batching = i.attributes.get("start_indices_batching_dims", ())
        start_map, sizes = i.attributes["start_index_map"], i.attributes["slice_sizes"]
        vector_dim = i.attributes["index_vector_dim"]
        batch = [at for k, at in enumerate(index) if k not in offset_dims]
        window = iter([index[k] for k in offset_dims])
        absent = {*collapsed, *batching}
        source = [ix.const(0) if d in absent else next(window) for d in range(x.shape.rank)]

        def start_at(k: int) -> Index:
            if vector_dim == indices.shape.rank:
                return tuple(batch)
            return (*batch[:vector_dim], ix.const(k), *batch[vector_dim:])

        for k, d in enumerate(start_map):
            source[d] = source[d] + self.clamped_start(indices, start_at(k), x.shape.dimensions[d] - sizes[d])
        batch_dims = [k for k in range(indices.shape.rank) if k != vector_dim]
        for d, b in zip(batching, index_batching, strict=True):
            source[d] = source[d] + batch[batch_dims.index(b)]
        return self.value(x, tuple(source))
