"""The numerical uncertainty of a program's results, estimated by runs of the interpreter with perturbed roundings.

Two correct implementations round differently: they contract, reassociate, and approximate functions to a few units in
the last place. How this affects a result depends on the program. It is estimated as in Monte Carlo arithmetic: the
result of each op that rounds is perturbed at random by up to one unit in the last place, sums by as much as their order
can change. The elementwise spread of a few such runs is the tolerance for two implementations. A comparison or an index
that flips in such a run gives a large spread. So does a result that depends on the sign of a NaN, which no op specifies
and which is also chosen at random.

The output check (`env.rounding`) is narrower: it is made for this compiler, and must detect small faults. Here, another
compiler is also compared, and what it may do (cancelled products, overflows, ties) must be within the tolerance.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from compiler.errors import HlogymError
from compiler.interpreter import Context, evaluate
from compiler.interpreter.machine import Machine
from compiler.interpreter.registry import Evaluator, Value
from compiler.ir import HloInstruction, HloModule, Opcode, PrimitiveType
from compiler.ir.shape import Shape
from compiler.text import parse

Array = npt.NDArray[Any]

EXACT = frozenset(
    {
        Opcode.NEGATE, Opcode.ABS, Opcode.SIGN, Opcode.FLOOR, Opcode.CEIL, Opcode.ROUND_NEAREST_AFZ,
        Opcode.ROUND_NEAREST_EVEN, Opcode.MAXIMUM, Opcode.MINIMUM, Opcode.SELECT, Opcode.CLAMP, Opcode.COPY,
        Opcode.REAL, Opcode.IMAG, Opcode.COMPLEX, Opcode.REDUCE_PRECISION,
    }
)  # fmt: skip
SUMS = frozenset(
    {
        Opcode.REDUCE, Opcode.REDUCE_WINDOW, Opcode.DOT, Opcode.CONVOLUTION, Opcode.SCATTER,
        Opcode.SELECT_AND_SCATTER, Opcode.RAGGED_DOT, Opcode.FFT, Opcode.CHOLESKY, Opcode.TRIANGULAR_SOLVE,
        Opcode.CUSTOM_CALL, Opcode.BATCH_NORM_TRAINING, Opcode.BATCH_NORM_INFERENCE, Opcode.BATCH_NORM_GRAD,
    }
)  # fmt: skip
"""Ops that sum many terms per result; the effect of their order follows from the magnitudes of the terms."""
CORRECTLY_ROUNDED = {
    Opcode.ADD: np.add, Opcode.SUBTRACT: np.subtract, Opcode.MULTIPLY: np.multiply, Opcode.DIVIDE: np.divide,
    Opcode.SQRT: np.sqrt,
}  # fmt: skip
"""Ops whose exact results, if representable, are the same in all implementations."""

_BOUND_TO_TYPES = frozenset({Opcode.BITCAST_CONVERT, Opcode.CUSTOM_CALL, Opcode.REDUCE_PRECISION, Opcode.COMPLEX})
_NARROW = re.compile(r"\b(f32|bf16|f16)\[")

FACTOR = 8.0
"""Tolerance as a multiple of the spread of a few runs."""
STEPS = 8.0
"""Additional tolerance in units in the last place."""


@dataclass(frozen=True)
class Difference:
    """The first output that differs by more than its tolerance.

    Attributes:
        output: index of the output.
        count: number of elements that differ.
        size: number of elements.
        at: index of the element with the largest difference.
        found: the element's value.
        wanted: the expected value.
        allowed: the tolerance of the element.
        dtype: the element type.
    """

    output: int
    count: int
    size: int
    at: tuple[int, ...]
    found: Any
    wanted: Any
    allowed: float
    dtype: str

    def __str__(self) -> str:
        return (
            f"output {self.output} ({self.dtype}): {self.count} of {self.size} elements differ; at {list(self.at)} "
            f"{self.found!r}, wanted {self.wanted!r} within {self.allowed:.3g}"
        )


class Judge:
    """Compares results with the interpreter's.

    Args:
        module: the program.
        args: one array per parameter.
        wanted: the interpreter's results.
        seed: seed of the perturbations.
    """

    def __init__(self, module: HloModule, args: Sequence[Array], wanted: Sequence[Array], seed: int = 0) -> None:
        self.module, self.args, self.wanted, self.seed = module, args, wanted, seed
        self._runs: list[list[Array]] = []

    def difference(
        self, found: Sequence[Array], leeway: float = 1.0, wanted: Sequence[Array] | None = None
    ) -> Difference | str | None:
        """Return a difference that rounding does not explain, or None.

        Args:
            found: results of another implementation.
            leeway: factor on the tolerance.
            wanted: results to compare with instead of the interpreter's, with the same tolerance.
        """
        if len(found) != len(self.wanted):
            return f"{len(found)} results, wanted {len(self.wanted)}"
        for n, (a, b) in enumerate(zip(found, self.wanted, strict=True)):
            if a.dtype != b.dtype or a.shape != b.shape:
                return f"output {n} is {a.dtype}{list(a.shape)}, wanted {b.dtype}{list(b.shape)}"
        finding = None
        for runs in (0, 4, 24):
            finding = self._at_level(found, runs, leeway, wanted)
            if finding is None:
                return None
        return finding

    def unexplained(self, found: Sequence[Array], others: Sequence[Sequence[Array]], leeway: float) -> bool:
        """Return whether some element is close neither to the interpreter's result nor to any of the others."""
        self.difference(found)  # ensures that the perturbed runs exist
        for n, (a, b) in enumerate(zip(found, self.wanted, strict=True)):
            runs = [r[n] for r in self._runs]
            bad = [_judged(a, b, runs, leeway, w)[0] for w in (None, *(o[n] for o in others))]
            if b.size and np.logical_and.reduce(bad).any():
                return True
        return False

    def exact(self) -> list[Array] | None:
        """Return results that are computed in float64 and rounded at the end; None if the program depends on its types.

        A program depends on its types if it reads the bits of numbers or has custom calls.
        """
        if any(i.opcode in _BOUND_TO_TYPES for c in self.module.computations for i in c.instructions):
            return None
        try:
            module = parse(_NARROW.sub("f64[", str(self.module)))
            args = [a if a.dtype.kind in "biu" or "int" in a.dtype.name else a.astype(np.float64) for a in self.args]
            found = evaluate(module, args)
        except HlogymError:
            return None
        with np.errstate(all="ignore"):
            return [a.astype(b.dtype) for a, b in zip(found, self.wanted, strict=True)]

    def _at_level(
        self, found: Sequence[Array], runs: int, leeway: float, wanted: Sequence[Array] | None
    ) -> Difference | None:
        while len(self._runs) < runs:
            self._runs.append(perturbed(self.module, self.args, hash((self.seed, len(self._runs))) % 2**32))
        for n, (a, b) in enumerate(zip(found, self.wanted, strict=True)):
            finding = compare(n, a, b, [r[n] for r in self._runs[:runs]], leeway, None if wanted is None else wanted[n])
            if finding is not None:
                return finding
        return None


def compare(
    number: int,
    found: Array,
    wanted: Array,
    runs: Sequence[Array],
    leeway: float = 1.0,
    instead: Array | None = None,
) -> Difference | None:
    """Compare elementwise with `wanted`, or with `instead`; the tolerance is the distance of `runs` from `wanted`."""
    bad, allowed = _judged(found, wanted, runs, leeway, instead)
    if not bad.any():
        return None
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    apart = np.abs(found.astype(wide) - (wanted if instead is None else instead).astype(wide))
    off = np.where(bad, np.nan_to_num(apart, nan=np.inf), -1.0)
    at = tuple(int(k) for k in np.unravel_index(int(np.argmax(off)), bad.shape))
    b = wanted if instead is None else instead
    return Difference(number, int(bad.sum()), bad.size, at, found[at], b[at], float(allowed[at]), wanted.dtype.name)


def _judged(
    found: Array, wanted: Array, runs: Sequence[Array], leeway: float, instead: Array | None
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
    """Return which elements differ, and the tolerance of each element."""
    if wanted.dtype.kind == "c":
        size = [np.abs(r - wanted) for r in runs]  # an error of one part is also allowed in the other
        parts = []
        for part in (np.real, np.imag):
            moved = [part(wanted) + s for s in size]
            parts.append(_judged(part(found), part(wanted), moved, leeway, None if instead is None else part(instead)))
        return parts[0][0] | parts[1][0], np.maximum(parts[0][1], parts[1][1])
    with np.errstate(all="ignore"):
        if wanted.dtype.kind in "biu" or "int" in wanted.dtype.name:
            a, b = found, wanted if instead is None else instead
            bad = np.asarray(a != b) & ~_any([np.asarray(r != wanted) for r in runs], b.shape)
            allowed = np.zeros(b.shape)
        else:
            a, b = found.astype(np.float64), wanted.astype(np.float64)
            others = [r.astype(np.float64) for r in runs]
            eps, tiny = _precision(wanted.dtype)
            spread = np.zeros(b.shape, np.float64)
            unstable = np.zeros(b.shape, bool)
            for r in others:
                finite = np.isfinite(r) & np.isfinite(b)
                spread = np.maximum(spread, np.where(finite, np.abs(r - b), 0))
                unstable |= ~finite & ~((r == b) | (np.isnan(r) & np.isnan(b)))
            if instead is not None:
                b = instead.astype(np.float64)
            allowed = leeway * (FACTOR * spread + STEPS * eps * np.abs(b)) + tiny
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            near = np.isfinite(a) & np.isfinite(b) & (np.abs(a - b) <= allowed)
            bad = ~(same | near | unstable)
    return np.asarray(bad), allowed


def _any(masks: Sequence[Array], shape: tuple[int, ...]) -> Array:
    out = np.zeros(shape, bool)
    for m in masks:
        out |= m
    return out


def _precision(dtype: Any) -> tuple[float, float]:
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return float(info.eps), float(info.tiny)


# ---- perturbed runs of the interpreter


def perturbed(module: HloModule, args: Sequence[Array], seed: int) -> list[Array]:
    """Return the results of the module with random perturbations of its roundings."""
    rng = np.random.default_rng(seed)

    def decorate(i: HloInstruction, evaluator: Evaluator) -> Evaluator:
        if not _rounds(i):
            return evaluator

        def moved(machine: Machine, instruction: HloInstruction, values: list[Value]) -> Value:
            operands = list(values)

            def again(*others: Value) -> Value:
                return evaluator(machine, instruction, list(others))

            return _moved(rng, instruction, evaluator(machine, instruction, [*values]), again, operands)

        return moved

    return evaluate(module, [np.array(a) for a in args], Context(decorate=decorate))


def _rounds(i: HloInstruction) -> bool:
    leaves = [s for s in i.shape.leaves() if s.is_array]
    if not any(s.element_type.is_float or s.element_type.is_complex for s in leaves):
        return False
    if i.opcode is Opcode.CONVERT:
        source = i.operands[0].shape.element_type
        to = leaves[0].element_type
        return source.bits > to.bits if source.is_float else source.is_integer and source.bits > 16
    if i.opcode in SUMS:
        return not _selects(i)
    return i.opcode.is_elementwise and i.opcode not in EXACT


def _selects(i: HloInstruction) -> bool:
    """Return whether the reducer returns one of its operands unchanged."""
    called = i.attributes.get("to_apply")
    if called is None or i.opcode is Opcode.CUSTOM_CALL:
        return False
    return called.root.opcode in (Opcode.MAXIMUM, Opcode.MINIMUM, Opcode.PARAMETER)


def _moved(
    rng: np.random.Generator, i: HloInstruction, result: Value, again: Callable[..., Value], operands: Sequence[Value]
) -> Value:
    if i.opcode in SUMS:
        sizes = again(*(_magnitudes(v) for v in operands)) if _is_linear(i) else result
        terms = max((o.shape.num_elements for o in i.operands if o.shape.is_array), default=1)
        # Errors of partial sums accumulate like a random walk over the terms that one lane or thread sums.
        each = max(1, terms // max(1, _count(i.shape)))
        return _moved_sum(rng, i.shape, result, sizes, max(1.0, 0.5 * each**0.25))
    x = np.asarray(result)
    eps = _eps(i.shape.element_type)
    moved = _times(x, eps, rng)
    products = [np.asarray(v) for o, v in zip(i.operands, operands, strict=True) if _is_product(o)]
    if products and i.opcode in (Opcode.ADD, Opcode.SUBTRACT) and x.dtype.kind != "c":
        # With contraction, the product is not rounded before the addition, even if it cancels.
        with np.errstate(all="ignore"):
            size = sum((np.abs(p.astype(np.float64)) for p in products), np.float64(0))
            off = moved.astype(np.float64) + 0.5 * eps * size * rng.uniform(-1, 1, x.shape)
            return np.where(np.isfinite(off), off, moved.astype(np.float64)).astype(x.dtype)
    if i.opcode in CORRECTLY_ROUNDED and x.dtype != np.float64 and x.dtype.kind != "c":
        wide = CORRECTLY_ROUNDED[i.opcode](*(np.asarray(v).astype(np.float64) for v in operands))
        return np.where(np.broadcast_to(wide, x.shape) == x.astype(np.float64), x, moved)
    return moved


def _is_product(i: HloInstruction) -> bool:
    while i.opcode in (Opcode.RESHAPE, Opcode.BROADCAST, Opcode.TRANSPOSE, Opcode.SLICE, Opcode.NEGATE):
        i = i.operands[0]
    return i.opcode is Opcode.MULTIPLY


def _count(shape: Shape) -> int:
    return max((s.num_elements for s in shape.leaves() if s.is_array), default=1)


def _is_linear(i: HloInstruction) -> bool:
    if i.opcode in (Opcode.DOT, Opcode.CONVOLUTION, Opcode.RAGGED_DOT, Opcode.SELECT_AND_SCATTER):
        return True
    reduces = i.opcode in (Opcode.REDUCE, Opcode.REDUCE_WINDOW, Opcode.SCATTER)
    return reduces and i.attributes["to_apply"].root.opcode is Opcode.ADD


def _magnitudes(v: Value) -> Value:
    if isinstance(v, tuple):
        return v
    if v.dtype.kind in "biu" or "int" in v.dtype.name:
        return v
    return np.abs(v).astype(v.dtype)


def _moved_sum(rng: np.random.Generator, shape: Shape, result: Value, sizes: Value, factor: float) -> Value:
    if isinstance(result, tuple):
        parts = zip(shape.tuple_shapes, result, sizes, strict=True)
        return tuple(_moved_sum(rng, s, r, z, factor) for s, r, z in parts)
    t = shape.element_type
    if not (t.is_float or t.is_complex):
        return result
    gathered = 2.0**-23 if t.is_float and t.bits < 32 else _eps(t)
    wide = np.complex128 if t.is_complex else np.float64
    x = np.asarray(result).astype(wide)
    size = np.abs(np.asarray(sizes).astype(wide))
    with np.errstate(all="ignore"):
        noise = gathered * factor * np.where(np.isfinite(size), size, 0) * rng.uniform(-1, 1, x.shape)
        out = np.where(np.isfinite(x), x + noise, x)
        out = np.where(np.isfinite(out), out + np.abs(out) * _eps(t) * rng.uniform(-1, 1, x.shape), out)
        # Partial sums of such large terms overflow in one order and not in another.
        limit = np.finfo(np.float64 if t in (PrimitiveType.F64, PrimitiveType.C128) else np.float32).max
        other = rng.choice(np.array([np.nan, np.inf, -np.inf, 0.0]), x.shape)
        out = np.where((size > limit / 2) & (other != 0), other, out)
        return np.asarray(out).astype(result.dtype)


def _times(x: Array, eps: float, rng: np.random.Generator) -> Array:
    """Perturb each element by a relative error of about `eps`; sometimes round to fewer bits, so that ties appear."""
    if not x.size:
        return x
    wide = np.complex128 if x.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        factor = 1 + eps * rng.uniform(-1.5, 1.5, x.shape)
        if wide is np.float64 and rng.random() < 0.3:
            digits, exponents = np.frexp(x.astype(wide))
            out = np.ldexp(np.round(digits / (2 * eps)) * (2 * eps), exponents)
        else:
            out = x.astype(wide) * factor
        out = np.where(np.isfinite(x.astype(wide)), out, x.astype(wide))
        if wide is np.float64:
            out = np.where(np.isnan(out), np.copysign(np.nan, factor - 1), out)
        return out.astype(x.dtype)


def _eps(t: PrimitiveType) -> float:
    if t.is_complex:
        return 2.0**-23 if t is PrimitiveType.C64 else 2.0**-52
    return _precision(t.dtype)[0]
