"""The builder for lowerings of ATen ops: adds instructions with PyTorch's broadcasting and type promotion."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from compiler.errors import UnsupportedError
from compiler.frontends.names import set_argument_name
from compiler.ir import HloComputation, HloInstruction, HloModule, Literal, Opcode, PrimitiveType, Shape
from compiler.ir.shape import array_shape

Lowering = Callable[..., Any]
Registry = dict[str, Lowering]
F = TypeVar("F", bound=Lowering)
T = PrimitiveType

_TYPES = {
    "bool": T.PRED, "uint8": T.U8, "uint16": T.U16, "uint32": T.U32, "uint64": T.U64,
    "int8": T.S8, "int16": T.S16, "int32": T.S32, "int64": T.S64,
    "float16": T.F16, "bfloat16": T.BF16, "float32": T.F32, "float64": T.F64,
    "complex64": T.C64, "complex128": T.C128, "float8_e4m3fn": T.F8E4M3FN, "float8_e5m2": T.F8E5M2,
}  # fmt: skip
_BITS_OF = {"torch.bfloat16": ml_dtypes.bfloat16, "torch.float8_e4m3fn": ml_dtypes.float8_e4m3fn,
            "torch.float8_e5m2": ml_dtypes.float8_e5m2}  # fmt: skip


def element_type(dtype: Any) -> PrimitiveType:
    """Return the element type of a torch dtype."""
    name = str(dtype).removeprefix("torch.")
    if name not in _TYPES:
        raise UnsupportedError(f"torch dtype {name} has no element type in HLO")
    return _TYPES[name]


def to_numpy(tensor: Any) -> NDArray[Any]:
    """Return the values of a tensor, also of ml_dtypes types."""
    tensor = tensor.detach().cpu().contiguous()
    special = _BITS_OF.get(str(tensor.dtype))
    if special is None:
        return np.array(tensor.numpy())
    torch_int = {2: "int16", 1: "uint8"}[np.dtype(special).itemsize]
    bits = tensor.view(getattr(__import__("torch"), torch_int)).numpy()
    return np.array(bits).view(special)


class Lowerings(Registry):
    """A registry that decorators fill: `@LOWERINGS.op("add", "add_")`."""

    def op(self, *names: str) -> Callable[[F], F]:
        """Register the decorated function under these ATen names."""

        def keep(f: F) -> F:
            self.update(dict.fromkeys(names, f))
            return f

        return keep


class TorchBuilder:
    """Adds instructions to a computation; `result` is the current op's fake tensor, or several of them."""

    def __init__(self, module: HloModule, entry: HloComputation, outer: TorchBuilder | None = None) -> None:
        self.module, self.entry, self.outer = module, entry, outer
        self.node: Any = None
        self.result: Any = None
        self.what = ""
        self.overload = ""
        self.used: frozenset[int] = frozenset()
        self.computed_in: PrimitiveType | None = None
        self.random_state: HloInstruction | None = None
        self._functions: dict[Any, HloComputation] = {} if outer is None else outer._functions

    def start(self, node: Any, what: str, overload: str) -> None:
        """Start the next op; `used` becomes the set of those of its results that other ops use."""
        self.node, self.result, self.what, self.overload = node, node.meta.get("val"), what, overload
        self.computed_in = None
        self.used = frozenset(u.args[1] for u in node.users if "getitem" in str(u.target) and u.users)

    def inside(self, computation: HloComputation) -> TorchBuilder:
        """Return a builder for a computation that this one calls."""
        return TorchBuilder(self.module, computation, self)

    def draw_state(self) -> HloInstruction:
        """Return the state of the random generator, a parameter of the entry that is added when first needed."""
        if self.outer is not None:
            raise self.unsupported("a random number inside a branch or a loop")
        if self.random_state is None:
            shape = Shape(T.U64, (2,))
            self.random_state = self.entry.add_parameter(len(self.entry.parameters), shape, name="rng_state")
            set_argument_name(self.random_state, "rng_state")
        return self.random_state

    def tensor(self, value: Any) -> HloInstruction:
        """Return a tensor unchanged, and a Python number as the constant that torch would make of it."""
        if isinstance(value, HloInstruction):
            return value
        return self.constant(value, T.PRED if isinstance(value, bool) else T.S64 if isinstance(value, int) else T.F32)

    def unsupported(self, why: str) -> UnsupportedError:
        """Return the error for an unsupported variant of the current op."""
        return UnsupportedError(f"PyTorch op {self.what}: {why} is not supported by the torch frontend")

    @property
    def out(self) -> Shape:
        """The shape of the (first) result."""
        return self.out_at(0)

    def out_at(self, index: int) -> Shape:
        """Return the shape of the result at this position."""
        value = self.result[index] if isinstance(self.result, list | tuple) else self.result
        if not all(isinstance(d, int) for d in value.shape):
            raise self.unsupported("a result whose size depends on the data")
        return Shape(element_type(value.dtype), tuple(value.shape))

    @property
    def type(self) -> PrimitiveType:
        """The type in which the op is computed: that of the result, unless `in_single_precision` overrides it."""
        return self.computed_in or self.out.element_type

    # ---- instructions

    def add(
        self, opcode: Opcode, *operands: HloInstruction, shape: Shape | None = None, **attributes: Any
    ) -> HloInstruction:
        """Add an instruction."""
        return self.entry.add(opcode, operands, shape, attributes=attributes)

    def constant(self, array: Any, t: PrimitiveType) -> HloInstruction:
        """Add a constant array of this type."""
        value = np.asarray(array)
        with np.errstate(over="ignore"):  # a number that is too large is infinite
            cast = value.astype(t.dtype)
        return self.entry.add_constant(Literal.from_array(cast, Shape(t, value.shape)))

    def literal(self, array: NDArray[Any]) -> HloInstruction:
        """Add a constant with the values and the type of an array."""
        return self.entry.add_constant(Literal.from_array(array))

    def full(self, number: Any, shape: Shape) -> HloInstruction:
        """Add an array filled with one number."""
        return self.broadcast(self.constant(number, shape.element_type), shape.dimensions)

    def convert(self, x: HloInstruction, t: PrimitiveType) -> HloInstruction:
        """Convert `x` to another type like torch: to bool by a test for non-zero, to a real type by the real part."""
        if x.shape.element_type is t:
            return x
        if t is T.PRED:
            return self.add(Opcode.COMPARE, x, self.full(0, x.shape), direction="NE")
        if x.shape.element_type.is_complex and not t.is_complex:
            return self.convert(self.add(Opcode.REAL, x), t)
        return self.add(Opcode.CONVERT, x, shape=Shape(t, x.shape.dimensions))

    def broadcast(self, x: HloInstruction, dims: Sequence[int]) -> HloInstruction:
        """Broadcast `x` to these sizes: aligned to the right, with dimensions of size one repeated."""
        dims = tuple(dims)
        if x.shape.dimensions == dims:
            return x
        offset = len(dims) - x.shape.rank
        kept = [i for i, n in enumerate(x.shape.dimensions) if n == dims[i + offset]]
        if len(kept) != x.shape.rank:
            x = self.reshape(x, [x.shape.dimensions[i] for i in kept])
        return self.add(
            Opcode.BROADCAST, x, shape=Shape(x.shape.element_type, dims), dimensions=tuple(i + offset for i in kept)
        )

    def reshape(self, x: HloInstruction, dims: Sequence[int]) -> HloInstruction:
        """Reshape `x` unless it has these dimensions."""
        dims = tuple(dims)
        return x if x.shape.dimensions == dims else self.add(Opcode.RESHAPE, x, shape=Shape(x.shape.element_type, dims))

    def transpose(self, x: HloInstruction, order: Sequence[int]) -> HloInstruction:
        """Permute the dimensions of `x` unless the order is the identity."""
        order = tuple(order)
        return x if order == tuple(range(x.shape.rank)) else self.add(Opcode.TRANSPOSE, x, dimensions=order)

    def operand(self, value: Any, t: PrimitiveType, dims: Sequence[int]) -> HloInstruction:
        """Return a tensor or Python number with this type and these sizes."""
        if not isinstance(value, HloInstruction):
            return self.full(value, Shape(t, tuple(dims)))
        return self.broadcast(self.convert(value, t), dims)

    def binary(self, opcode: Opcode, a: Any, b: Any, t: PrimitiveType | None = None) -> HloInstruction:
        """Add a binary op on two tensors or numbers, by default in the type of the result."""
        t = t or self.type
        dims = broadcast_dims(a, b)
        return self.add(opcode, self.operand(a, t, dims), self.operand(b, t, dims))

    def compare(self, a: Any, b: Any, direction: str) -> HloInstruction:
        """Add a comparison in the type that both operands promote to."""
        t, dims = promoted(a, b), broadcast_dims(a, b)
        return self.add(Opcode.COMPARE, self.operand(a, t, dims), self.operand(b, t, dims), direction=direction)

    def select(self, p: HloInstruction, a: Any, b: Any, t: PrimitiveType | None = None) -> HloInstruction:
        """Select `a` where `p` is true, else `b`."""
        t = t or self.type
        dims = np.broadcast_shapes(p.shape.dimensions, broadcast_dims(a, b))
        return self.add(Opcode.SELECT, self.broadcast(p, dims), self.operand(a, t, dims), self.operand(b, t, dims))

    def function(self, opcode: Opcode, t: PrimitiveType) -> HloComputation:
        """Return the scalar computation `(a, b) -> a op b`, which is added to the module once."""

        def make() -> HloComputation:
            f = HloComputation(f"{opcode.text}_{t.text}")
            a, b = (f.add_parameter(i, array_shape(t)) for i in range(2))
            f.root = f.add(opcode, [a, b])
            return f

        return self.once((opcode, t), make)

    def once(self, key: Any, make: Callable[[], HloComputation]) -> HloComputation:
        """Return a shared computation, which `make` creates when it is first needed."""
        if key not in self._functions:
            self._functions[key] = self.module.add(make())
        return self._functions[key]

    def reduce(self, opcode: Opcode, x: HloInstruction, dims: Sequence[int], start: Any) -> HloInstruction:
        """Add a reduction by one opcode; the dimensions are dropped."""
        t = x.shape.element_type
        return self.add(
            Opcode.REDUCE, x, self.constant(start, t), dimensions=tuple(dims), to_apply=self.function(opcode, t)
        )

    def repeat(
        self,
        times: int,
        carried: Sequence[HloInstruction],
        step: Callable[..., Sequence[HloInstruction]],
        name: str,
    ) -> list[HloInstruction]:
        """Add a loop of `step(builder, number, *carried)`, which returns the next values; return the last ones."""
        start = self.add(Opcode.TUPLE, self.constant(0, T.S32), *carried)
        condition, body = HloComputation(f"{name}_condition"), HloComputation(f"{name}_body")
        number = condition.add(
            Opcode.GET_TUPLE_ELEMENT, [condition.add_parameter(0, start.shape)], attributes={"index": 0}
        )
        inside = self.inside(condition)
        condition.root = inside.compare(number, inside.constant(times, T.S32), "LT")
        state = body.add_parameter(0, start.shape)
        values = [body.add(Opcode.GET_TUPLE_ELEMENT, [state], attributes={"index": i}) for i in range(len(carried) + 1)]
        inside = self.inside(body)
        inside.result, inside.what = self.result, self.what
        results = step(inside, *values)
        body.root = inside.add(Opcode.TUPLE, inside.binary(Opcode.ADD, values[0], 1, T.S32), *results)
        loop = self.add(
            Opcode.WHILE, start, shape=start.shape, condition=self.module.add(condition), body=self.module.add(body)
        )
        return [self.add(Opcode.GET_TUPLE_ELEMENT, loop, index=i + 1) for i in range(len(carried))]

    def repeat_until(
        self,
        active: HloInstruction,
        carried: Sequence[HloInstruction],
        step: Callable[..., tuple[HloInstruction, Sequence[HloInstruction]]],
        most: int,
        name: str,
    ) -> list[HloInstruction]:
        """Add a loop that runs, at most `most` times, until no element is active; return the last values.

        `step(builder, number, *carried)` returns which elements stay active, and the next values, which inactive
        elements do not take.
        """
        start = self.add(Opcode.TUPLE, self.constant(0, T.S32), active, *carried)
        condition, body = HloComputation(f"{name}_condition"), HloComputation(f"{name}_body")
        state = condition.add_parameter(0, start.shape)
        number, alive = (condition.add(Opcode.GET_TUPLE_ELEMENT, [state], attributes={"index": i}) for i in (0, 1))
        inside = self.inside(condition)
        some = inside.reduce(Opcode.OR, alive, range(active.shape.rank), False)
        condition.root = inside.add(Opcode.AND, inside.compare(number, inside.constant(most, T.S32), "LT"), some)
        state = body.add_parameter(0, start.shape)
        number, alive, *values = (
            body.add(Opcode.GET_TUPLE_ELEMENT, [state], attributes={"index": i}) for i in range(len(carried) + 2)
        )
        inside = self.inside(body)
        inside.result, inside.what = self.result, self.what
        still, found = step(inside, number, *values)
        kept = [
            old if new is old else inside.add(Opcode.SELECT, alive, new, old)
            for new, old in zip(found, values, strict=True)
        ]
        still = inside.add(Opcode.AND, alive, still)
        body.root = inside.add(Opcode.TUPLE, inside.binary(Opcode.ADD, number, 1, T.S32), still, *kept)
        loop = self.add(
            Opcode.WHILE, start, shape=start.shape, condition=self.module.add(condition), body=self.module.add(body)
        )
        return [self.add(Opcode.GET_TUPLE_ELEMENT, loop, index=i + 2) for i in range(len(carried))]

    def keep_dims(self, x: HloInstruction, of: Shape, dims: Sequence[int]) -> HloInstruction:
        """Reshape a reduction of `of` over `dims` such that those dimensions have size one."""
        return self.reshape(x, [1 if d in dims else n for d, n in enumerate(of.dimensions)])


def in_single_precision(lowering: F) -> F:
    """Decorate the lowering of a composite op to keep half-precision values in float32 until the result.

    PyTorch's kernels do so, too; intermediate rounding and overflow would differ otherwise.
    """

    @functools.wraps(lowering)
    def wide(b: TorchBuilder, *args: Any, **kwargs: Any) -> Any:
        t = b.out.element_type
        if not t.is_half:
            return lowering(b, *args, **kwargs)
        b.computed_in = T.F32
        args = tuple(_widened(b, a) for a in args)
        result = lowering(b, *args, **{name: _widened(b, a) for name, a in kwargs.items()})
        b.computed_in = None
        return b.convert(result, t)

    return cast(F, wide)


def _widened(b: TorchBuilder, value: Any) -> Any:
    is_half = isinstance(value, HloInstruction) and value.shape.element_type.is_half
    return b.convert(value, T.F32) if is_half else value


def broadcast_dims(*values: Any) -> tuple[int, ...]:
    """Return the sizes that these tensors are broadcast to; numbers are ignored."""
    return np.broadcast_shapes(*(v.shape.dimensions for v in values if isinstance(v, HloInstruction)))


def promoted(a: Any, b: Any) -> PrimitiveType:
    """Return the type of a comparison: that which the tensors promote to; numbers adapt to a tensor."""
    tensors = [v.shape for v in (a, b) if isinstance(v, HloInstruction)]
    numbers = [v for v in (a, b) if not isinstance(v, HloInstruction)]
    t = max(tensors, key=_rank_of).element_type
    if numbers and isinstance(numbers[0], float) and not (t.is_float or t.is_complex):
        return T.F32
    if numbers and not isinstance(numbers[0], bool) and t is T.PRED:
        return T.S64
    return t


def _rank_of(s: Shape) -> tuple[int, bool, int]:
    t = s.element_type
    kind = 3 if t.is_complex else 2 if t.is_float else 1 if t.is_integer else 0
    return kind, s.rank > 0, t.bits


def axes(dims: Any, rank: int) -> tuple[int, ...]:
    """Normalize dimension numbers, which may be negative; None or [] means all dimensions."""
    if dims is None or dims == []:
        return tuple(range(rank))
    listed = dims if isinstance(dims, list | tuple) else [dims]
    return tuple(sorted(d % max(rank, 1) for d in listed)) if rank else ()


def count(shape: Shape, dims: Sequence[int]) -> int:
    """Return the number of elements along these dimensions."""
    return math.prod(shape.dimensions[d] for d in dims)


def lowest(t: PrimitiveType) -> Any:
    """Return the initial value of a maximum."""
    return -math.inf if t.is_float else 0 if t is T.PRED else np.iinfo(t.dtype).min


def highest(t: PrimitiveType) -> Any:
    """Return the initial value of a minimum."""
    return math.inf if t.is_float else 1 if t is T.PRED else np.iinfo(t.dtype).max
