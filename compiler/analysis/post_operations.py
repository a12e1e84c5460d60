"""Elementwise ops after a product or convolution that a library's call computes, too, as a list of post-operations.

The library is oneDNN. A post-operation is listed only if it computes what HLO defines, within the errors that generated
kernels may have. Measured through products with one multiplication over 4 million floats:

- Its maximum, minimum and clip return the other operand for NaN, and so does its relu. Its exponential linear unit with
  a factor of 0 keeps NaN and is exactly `maximum(x, 0)`; a relu with another factor keeps NaN as well.
- Its tanh has an error of 1.2 units in the last place (2.6 are allowed), and its gelu by tanh differs from the exact
  value by at most 2.1 * 2**-24 |x| (as a formula it may by 2.8).
- Its exponential (4.3, and infinity for NaN), logistic and swish (3.5 and 4.4 for large negative numbers), logarithm
  (88.6 for infinity) and gelu by the error function (NaN for infinity) are not good enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from compiler.analysis.convolutions import is_weights_gradient
from compiler.analysis.library_work import library_flops
from compiler.errors import UnsupportedError
from compiler.ir import HloInstruction, Opcode
from compiler.ir.attributes import ConvDimLabels
from compiler.ir.types import PrimitiveType as T

Spread: TypeAlias = Literal["", "one", "features", "all"]

MOST_POSTS = 6
"""Most post-operations of one call."""
MIN_CONVOLUTION_FLOPS = 100_000
"""Convolutions with fewer floating point operations are computed by our kernels: a call takes a few microseconds."""

_FLOATS = frozenset({T.F32, T.F16, T.BF16})
_SAME_BYTES = frozenset({Opcode.RESHAPE, Opcode.BITCAST})
_BINARY = {Opcode.ADD: "add", Opcode.MULTIPLY: "multiply", Opcode.SUBTRACT: "subtract", Opcode.DIVIDE: "divide"}
_SLOW = frozenset({"tanh", "gelu-tanh", "sqrt", "divide"})
_UNARY = {Opcode.TANH: "tanh", Opcode.ABS: "abs", Opcode.SQRT: "sqrt"}
_WHY_NOT = {
    Opcode.MAXIMUM: "its maximum loses NaN",
    Opcode.MINIMUM: "its minimum loses NaN",
    Opcode.CLAMP: "its clip loses NaN",
    Opcode.EXPONENTIAL: "its exponential has a larger error than is allowed, and loses NaN",
    Opcode.LOGISTIC: "its logistic function has a larger error than is allowed",
    Opcode.LOG: "its logarithm of infinity is finite",
    Opcode.ERF: "its gelu by the error function is NaN for infinity",
}


@dataclass(frozen=True)
class Post:
    """One operation on the result of a product or convolution.

    Attributes:
        kind: "linear" (alpha x + beta), "max-zero" (which keeps NaN), "relu" (alpha x below 0; 0 for NaN without
            alpha), "tanh", "abs", "sqrt", "square", "gelu-tanh", or with a second operand "add", "multiply", "subtract"
            and "divide".
        operand: the input of the computation that is the second operand.
        spread: how the operand extends over the result: "one" number, one per feature ("features"), or "all" elements.
        alpha, beta: parameters.
    """

    kind: str
    operand: HloInstruction | None = None
    spread: Spread = ""
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True)
class Epilogue:
    """A product or convolution and what follows from its result.

    Attributes:
        hero: the product or convolution.
        inputs: its two operands, as inputs of the computation.
        posts: the operations, in order.
    """

    hero: HloInstruction
    inputs: tuple[HloInstruction, HloInstruction]
    posts: tuple[Post, ...]

    @property
    def is_faster(self) -> bool:
        """Whether one call is likely to be faster than a call and a kernel for the operations.

        Measured, see results/kernels/epilogues.md: after convolutions it is, but for tanh and gelu, and where the
        library reads another array of the size of the result; after products both take about the same time.
        """
        cheap = all(p.spread != "all" and p.kind not in _SLOW for p in self.posts)
        return bool(self.posts) and cheap and suits_call(self.hero)


def suits_call(hero: HloInstruction) -> bool:
    """Check for a convolution that a library is likely to compute faster than a generated kernel."""
    if hero.opcode is not Opcode.CONVOLUTION or is_weights_gradient(hero):
        return False
    return library_flops(hero) >= MIN_CONVOLUTION_FLOPS


def epilogue_of(inside: Sequence[HloInstruction], root: HloInstruction) -> Epilogue:
    """Return a computation as a product or convolution with post-operations.

    Args:
        inside: the instructions of the computation without its inputs, operands first.
        root: its result.

    Raises:
        UnsupportedError: it is something else; the message says what speaks against it.
    """
    heroes = [i for i in inside if i.opcode in (Opcode.DOT, Opcode.CONVOLUTION)]
    if len(heroes) != 1:
        raise UnsupportedError("a call computes one product or convolution")
    return _Matcher(inside, heroes[0], root).epilogue()


class _Matcher:
    """Walks from the hero to the root, from one value on which all later ones depend to the next."""

    def __init__(self, inside: Sequence[HloInstruction], hero: HloInstruction, root: HloInstruction) -> None:
        self.inside, self.hero, self.root = frozenset(inside), hero, root
        after = {hero}
        for i in inside:
            if not after.isdisjoint(i.operands):
                after.add(i)
        self.order = [i for i in inside if i in after]
        self.after = frozenset(after)
        self.features, self.feature_dim = _features(hero)
        self.reshaped = False

    def epilogue(self) -> Epilogue:
        """Return what was matched; raise UnsupportedError if something has no post-operation."""
        first, second = (self._source(o) for o in self.hero.operands[:2])
        if first is None or second is None:
            raise UnsupportedError(f"an operand of %{self.hero.name} is computed in the same kernel")
        if self.root not in self.after:
            raise UnsupportedError(f"the result does not follow from %{self.hero.name}")
        posts: list[Post] = []
        for start, stage in self._stages():
            posts += self._step(stage[0], start) if len(stage) == 1 else self._function(start, stage)
        joined = _joined(posts)
        if len(joined) > MOST_POSTS:
            raise UnsupportedError(f"a call has at most {MOST_POSTS} operations after its product")
        return Epilogue(self.hero, (first, second), tuple(joined))

    def _stages(self) -> list[tuple[HloInstruction, list[HloInstruction]]]:
        """Return the instructions between each value on which all later ones depend and the next such value."""
        uses = dict.fromkeys(self.order, 0)
        for i in self.order:
            for o in i.operands:
                if o in uses:
                    uses[o] += 1
        found, start, stage, pending = [], self.hero, list[HloInstruction](), uses[self.hero]
        for i in self.order[1:]:
            stage.append(i)
            pending -= sum(o in self.after for o in i.operands)
            if pending == 0:
                found.append((start, stage))
                start, stage = i, []
            pending += uses[i]
        if stage or start is not self.root or uses[self.root]:
            raise UnsupportedError(f"others than %{self.root.name} need a value that it is computed from")
        return found

    def _step(self, i: HloInstruction, x: HloInstruction) -> list[Post]:
        """Return the post-operations of one instruction of a value."""
        op = i.opcode
        if i.shape.element_type not in _FLOATS or not i.shape.is_array:
            raise UnsupportedError(f"%{i.name} computes no floats")
        if op in _SAME_BYTES:
            self.reshaped = True
            return []
        if op is Opcode.CONVERT:
            # A kernel holds half types as f32, so only the result is rounded.
            if i is self.root or i.shape.element_type is T.F32:
                return []
            raise UnsupportedError(f"%{i.name} rounds a value before the end")
        if op is Opcode.NEGATE:
            return [Post("linear", alpha=-1.0)]
        if op in _UNARY:
            return [Post(_UNARY[op])]
        if op is Opcode.MULTIPLY and i.operands[0] is i.operands[1]:
            return [Post("square")]
        if op is Opcode.MAXIMUM and 0.0 in (number_of(o) for o in i.operands):
            return [Post("max-zero")]
        if op in _BINARY and len(i.operands) == 2:
            return self._binary(i, x)
        raise UnsupportedError(_missing(i))

    def _binary(self, i: HloInstruction, x: HloInstruction) -> list[Post]:
        is_second = i.operands[0] is not x
        other = i.operands[0 if is_second else 1]
        if other in self.after:
            raise UnsupportedError(f"%{i.name} reads its operand twice")
        kind = _BINARY[i.opcode]
        value = number_of(other)
        if value is not None and kind != "divide":
            alpha = {"add": 1.0, "multiply": value, "subtract": -1.0 if is_second else 1.0}[kind]
            beta = {"add": value, "multiply": 0.0, "subtract": value if is_second else -value}[kind]
            return [Post("linear", alpha=alpha, beta=beta)]
        if is_second and kind == "divide":
            raise UnsupportedError(f"%{i.name} divides by the result, for which the library has no operation")
        operand, spread = self._operand(other, i)
        if is_second and kind == "subtract":
            return [Post("linear", alpha=-1.0), Post("add", operand, spread)]
        return [Post(kind, operand, spread)]

    def _operand(self, i: HloInstruction, user: HloInstruction) -> tuple[HloInstruction, Spread]:
        """Return the input that an operand of a binary operation is, and how it extends over the result."""
        if i.shape.element_type not in _FLOATS:
            raise UnsupportedError(f"%{i.name} is no array of floats")
        if i.opcode is Opcode.CONVERT:
            i = i.operands[0]
        if i.opcode is Opcode.BROADCAST:
            source, dims = self._source(i.operands[0]), tuple(i.attr("dimensions", ()))
            if source is not None and source.shape.num_elements == 1:
                return source, "one"
            if source is not None and self._along_features(i, dims):
                return source, "features"
        elif (found := self._source(i)) is not None and i.shape.num_elements == self.hero.shape.num_elements:
            if self.reshaped and self.feature_dim != self.hero.shape.rank - 1:
                raise UnsupportedError(f"%{user.name} follows a reshape of features that are not last")
            return found, "all"
        raise UnsupportedError(f"%{i.name} is neither an input, nor one number per feature")

    def _along_features(self, i: HloInstruction, dims: tuple[int, ...]) -> bool:
        sizes = i.shape.dimensions
        if self.feature_dim != self.hero.shape.rank - 1:
            return not self.reshaped and dims == (self.feature_dim,)
        last = tuple(range(len(sizes) - len(dims), len(sizes)))
        return dims == last and math.prod(sizes[d] for d in dims) == self.features

    def _source(self, i: HloInstruction) -> HloInstruction | None:
        """Return the input that has the same bytes as a value, or None."""
        while i in self.inside and i.opcode in _SAME_BYTES:
            i = i.operands[0]
        return None if i in self.inside else i

    # ---- functions of several instructions

    def _function(self, x: HloInstruction, stage: Sequence[HloInstruction]) -> list[Post]:
        """Return the post-operation of instructions that together are a known function of a value."""
        last = stage[-1]
        found = _select_of_sign(x, last) or _gelu(x, last, frozenset(stage))
        if found is not None:
            return [found]
        for i in stage:
            if i.opcode in _WHY_NOT:
                raise UnsupportedError(_missing(i))
        raise UnsupportedError(f"%{last.name} computes no function that the library has from %{x.name}")


def _missing(i: HloInstruction) -> str:
    why = f": {_WHY_NOT[i.opcode]}" if i.opcode in _WHY_NOT else ""
    return f"the library has no %{i.name} ({i.opcode.text}) as HLO defines it{why}"


def _features(hero: HloInstruction) -> tuple[int, int]:
    """Return the number of features of a result, and their dimension; of a product, the last one of them."""
    if hero.opcode is Opcode.CONVOLUTION:
        labels: ConvDimLabels = hero.attributes["dim_labels"]
        dim = labels.out.index("f")
        return hero.shape.dimensions[dim], dim
    rhs = hero.operands[1].shape
    summed = (*hero.attr("rhs_batch_dims", ()), *hero.attr("rhs_contracting_dims", ()))
    columns = math.prod(n for d, n in enumerate(rhs.dimensions) if d not in summed)
    return columns, hero.shape.rank - 1


def number_of(i: HloInstruction) -> float | None:
    """Return the number that all elements of a value have because they come from one constant, or None."""
    while i.opcode in (Opcode.BROADCAST, Opcode.RESHAPE, Opcode.CONVERT):
        i = i.operands[0]
    if i.opcode is not Opcode.CONSTANT or i.value.array is None or i.value.array.size != 1:
        return None
    return float(i.value.array.reshape(-1)[0])


def _joined(posts: Sequence[Post]) -> list[Post]:
    """Return operations with a multiplication and the addition after it joined, which rounds once instead of twice."""
    found: list[Post] = []
    for p in posts:
        last = found[-1] if found else None
        if last and p.kind == last.kind == "linear" and (p.alpha == 1.0 and last.beta == 0.0):
            found[-1] = Post("linear", alpha=last.alpha, beta=p.beta)
        else:
            found.append(p)
    return found


def _select_of_sign(x: HloInstruction, last: HloInstruction) -> Post | None:
    """Return `select(x > 0, x, alpha x)` as an operation, or None."""
    if last.opcode is not Opcode.SELECT or last.operands[1] is not x:
        return None
    test, _, other = last.operands
    if test.opcode is not Opcode.COMPARE or test.operands[0] is not x or number_of(test.operands[1]) != 0.0:
        return None
    if test.attributes["direction"] not in ("GT", "GE") or test.attr("type") == "TOTALORDER":
        return None
    alpha = number_of(other)
    if alpha is not None:
        return Post("relu") if alpha == 0.0 else None
    if other.opcode is not Opcode.MULTIPLY or x not in other.operands:
        return None
    alpha = number_of(other.operands[1 if other.operands[0] is x else 0])
    return None if alpha is None or alpha == 0.0 else Post("relu", alpha=alpha)


_CLOSE = 1e-6
"""Relative difference of constants that f32 does not distinguish, apart from their last digits."""


def _gelu(x: HloInstruction, last: HloInstruction, stage: frozenset[HloInstruction]) -> Post | None:
    """Return `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))` as an operation, in any order of its products, or None."""
    scale, factors = _factors(last, stage, x)
    sums = [f for f in factors if f is not x]
    if len(factors) != 2 or len(sums) != 1 or sums[0].opcode is not Opcode.ADD:
        return None
    parts = [(number_of(o), o) for o in sums[0].operands]
    numbers, values = [n for n, _ in parts if n is not None], [o for n, o in parts if n is None]
    if len(numbers) != 1 or len(values) != 1:
        return None
    inner, tanhs = _factors(values[0], stage, x)
    if len(tanhs) != 1 or tanhs[0].opcode is not Opcode.TANH or not math.isclose(inner, numbers[0], rel_tol=_CLOSE):
        return None
    if not math.isclose(scale * inner, 0.5, rel_tol=_CLOSE):
        return None
    polynomial = _polynomial(tanhs[0].operands[0], x)
    root = math.sqrt(2.0 / math.pi)
    wanted = {1: root, 3: 0.044715 * root}
    if polynomial is None or polynomial.keys() != wanted.keys():
        return None
    same = all(math.isclose(polynomial[n], c, rel_tol=4.0 * _CLOSE) for n, c in wanted.items())
    return Post("gelu-tanh") if same else None


def _factors(
    i: HloInstruction, stage: frozenset[HloInstruction], x: HloInstruction
) -> tuple[float, list[HloInstruction]]:
    """Return a value as a number times factors."""
    value = number_of(i)
    if value is not None:
        return value, []
    if i is x or i not in stage or i.opcode is not Opcode.MULTIPLY:
        return 1.0, [i]
    (a, first), (b, second) = (_factors(o, stage, x) for o in i.operands)
    return a * b, [*first, *second]


def _polynomial(i: HloInstruction, x: HloInstruction) -> Mapping[int, float] | None:
    """Return the coefficients by exponents of a polynomial in x of degree 3 at most, or None."""
    if i is x:
        return {1: 1.0}
    value = number_of(i)
    if value is not None:
        return {0: value} if value else {}
    if i.opcode not in (Opcode.ADD, Opcode.MULTIPLY):
        return None
    a, b = (_polynomial(o, x) for o in i.operands)
    if a is None or b is None:
        return None
    found: dict[int, float] = {}
    if i.opcode is Opcode.ADD:
        for terms in (a, b):
            for n, c in terms.items():
                found[n] = found.get(n, 0.0) + c
    else:
        for n, c in a.items():
            for m, d in b.items():
                found[n + m] = found.get(n + m, 0.0) + c * d
    return found if max(found, default=0) <= 3 else None
