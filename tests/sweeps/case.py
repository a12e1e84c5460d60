"""Conformance cases: an op on an element type as HLO text, with its inputs, and the comparison of results."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.ir.types import BY_TEXT, PrimitiveType
from env import comparison, suites
from env.rounding import is_float, precision

Array = npt.NDArray[Any]

SMALL_FLOATS = (
    "f8e5m2", "f8e4m3", "f8e4m3fn", "f8e4m3b11fnuz", "f8e3m4", "f8e5m2fnuz", "f8e4m3fnuz",
    "f4e2m1fn", "f8e8m0fnu", "f6e3m2fn", "f6e2m3fn",
)  # fmt: skip
FLOATS = ("f16", "bf16", "f32", "f64")
SIGNED = ("s2", "s4", "s8", "s16", "s32", "s64")
UNSIGNED = ("u2", "u4", "u8", "u16", "u32", "u64")
INTEGERS = SIGNED + UNSIGNED
COMPLEX = ("c64", "c128")
NUMBERS = FLOATS + INTEGERS + COMPLEX
ALL = ("pred", *NUMBERS, *SMALL_FLOATS)
MAIN = ("f32", "bf16", "s32", "u8", "pred", "c64")
"""One element type of each kind, for ops that only move elements."""


@dataclass(frozen=True)
class Tolerance:
    """Tolerance for floats: `ulps` units of the type's precision, relative, and multiplied by `scale`, absolute."""

    ulps: float = 4
    scale: float = 1e-3

    def of(self, dtype: np.dtype[Any]) -> suites.Tolerance:
        """Return the tolerance for an element type; it allows subnormal numbers to be flushed to zero."""
        if not is_float(dtype):
            return suites.Tolerance(0.0, 0.0)
        p = precision(dtype)
        return suites.Tolerance(self.ulps * p.eps, self.ulps * p.eps * self.scale + 2 * p.tiny)


@dataclass(frozen=True, eq=False)
class Case:
    """One op with given inputs.

    Attributes:
        opcode: the opcode under test; the row of the results table.
        element_type: the element type under test; the cell of the row.
        name: name of the case, unique within the opcode and element type.
        text: HLO text of the module.
        args: arguments of the module.
        tolerance: None if results must be bitwise equal, except that any NaN equals any other.
        fast: whether the case also runs in the fast tests.
    """

    opcode: str
    element_type: str
    name: str
    text: str
    args: tuple[Any, ...]
    tolerance: Tolerance | None = None
    fast: bool = False

    @property
    def id(self) -> str:
        return f"{self.opcode}-{self.element_type}-{self.name}"


def shape(element_type: str, dims: Sequence[int] = ()) -> str:
    return f"{element_type}[{','.join(map(str, dims))}]"


def module(body: str, computations: str = "") -> str:
    """Return HLO text of a module with the given body of its entry."""
    lines = "\n  ".join(line.strip() for line in body.strip().splitlines())
    return f"HloModule case\n{computations}\nENTRY main {{\n  {lines}\n}}\n"


def simple(op: str, result: str, operands: Sequence[str], attributes: str = "", computations: str = "") -> str:
    """Return HLO text of a module with one op on parameters of the given shapes."""
    lines = [f"p{i} = {s} parameter({i})" for i, s in enumerate(operands)]
    names = ", ".join(f"p{i}" for i in range(len(operands)))
    lines.append(f"ROOT result = {result} {op}({names}){', ' + attributes if attributes else ''}")
    return module("\n".join(lines), computations)


def binary_computation(name: str, op: str, element_type: str) -> str:
    """Return HLO text of a computation that applies a binary op to two scalars."""
    t = f"{element_type}[]"
    return f"{name} {{\n  a = {t} parameter(0)\n  b = {t} parameter(1)\n  ROOT r = {t} {op}(a, b)\n}}\n"


def dtype(element_type: str) -> np.dtype[Any]:
    return BY_TEXT[element_type].dtype


def type_class(element_type: str) -> PrimitiveType:
    return BY_TEXT[element_type]


def generator(*key: object) -> np.random.Generator:
    """Return a random generator that depends only on the key."""
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def values(element_type: str, dims: Sequence[int], key: object = 0, low: float = -3, high: float = 3) -> Array:
    """Return random values: floats in [low, high), integers over the whole range of the type, or booleans."""
    t, rng = type_class(element_type), generator(element_type, tuple(dims), key)
    if t is PrimitiveType.PRED:
        return rng.integers(0, 2, dims).astype(np.bool_)
    if t.is_complex:
        return (rng.uniform(low, high, dims) + 1j * rng.uniform(low, high, dims)).astype(t.dtype)
    if t.is_float:
        return rng.uniform(low, high, dims).astype(t.dtype)
    return integers(element_type, dims, rng)


def quarters(element_type: str, dims: Sequence[int], key: object = 0) -> Array:
    """Return random multiples of 1/4 in [-2, 2], whose products all types sum exactly."""
    rng = generator(element_type, tuple(dims), key)
    return np.asarray(rng.integers(-8, 9, dims) / 4).astype(type_class(element_type).dtype)


def integers(element_type: str, dims: Sequence[int], rng: np.random.Generator) -> Array:
    """Return random integers over the whole range of the type."""
    t = type_class(element_type)
    raw = rng.integers(0, 1 << 63, dims, dtype=np.uint64) * np.uint64(2) + rng.integers(0, 2, dims, dtype=np.uint64)
    if t.bits >= 8:
        return np.asarray(raw).astype(np.dtype(f"u{t.bits // 8}")).view(t.dtype)
    low = np.asarray(raw % np.uint64(1 << t.bits)).astype(np.int8)
    return np.asarray(low - ((1 << (t.bits - 1)) if t.is_signed else 0)).astype(np.int8).astype(t.dtype)


def edges(element_type: str) -> Array:
    """Return edge values of a type: zeros, ones, extremes, infinities, NaN."""
    t = type_class(element_type)
    if t is PrimitiveType.PRED:
        return np.array([False, True])
    if t.is_integer:
        low, high = (-(1 << (t.bits - 1)), (1 << (t.bits - 1)) - 1) if t.is_signed else (0, (1 << t.bits) - 1)
        wide = np.int64 if t.is_signed else np.uint64
        found = sorted({v for v in (low, low + 1, -2, -1, 0, 1, 2, 3, 5, 7, high - 1, high) if low <= v <= high})
        return np.array(found, wide).astype(t.dtype)
    if t.is_complex:
        part = np.array([0.0, -0.0, 1.0, -1.0, 2.5, -0.5])
        return (part[:, None] + 1j * part[None, :]).reshape(-1).astype(t.dtype)
    plain = np.array([0, -0.0, 0.25, -0.25, 0.5, -0.5, 1, -1, 1.5, -1.5, 2, -2, 2.5, -2.5, 3.75, -3.75, 6, -6])
    far = np.array([100, -100, 1e4, -1e4, 1e30, -1e30, np.inf, -np.inf, np.nan])
    with np.errstate(all="ignore"):
        return np.concatenate([plain, far]).astype(t.dtype)


def pairs(element_type: str) -> tuple[Array, Array]:
    """Return all pairs of edge values as two arrays."""
    e = edges(element_type)
    return np.repeat(e, len(e)), np.tile(e, len(e))


def difference(found: Sequence[Array], wanted: Sequence[Array], tolerance: Tolerance | None) -> str | None:
    """Return how the results differ, or None if they agree."""
    if tolerance is not None and len(found) == len(wanted):
        findings = (comparison.difference([a], [b], tolerance.of(b.dtype)) for a, b in zip(found, wanted, strict=True))
        return next((f"result {i}: {what}" for i, what in enumerate(findings) if what is not None), None)
    exact = comparison.difference(found, wanted, suites.Tolerance(0.0, 0.0))
    if exact is not None:
        return exact
    signs = [i for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if _signs_differ(a, b)]
    return f"result {signs[0]}: the sign of a zero" if signs else None


def _signs_differ(a: Array, b: Array) -> bool:
    if a.dtype.kind == "c":
        return _signs_differ(a.real, b.real) or _signs_differ(a.imag, b.imag)
    if not is_float(a.dtype):
        return False
    x, y = a.astype(np.float64), b.astype(np.float64)
    return bool(np.any((x == 0) & (np.signbit(x) != np.signbit(y))))
