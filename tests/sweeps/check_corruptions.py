"""Corruptions of correct outputs, similar to those of wrong kernels, to test whether the output check detects them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from compiler.interpreter import Context, Evaluator, evaluate
from compiler.interpreter.machine import Machine
from compiler.interpreter.registry import Value
from compiler.ir import HloInstruction
from env.rounding import is_float
from tests.sweeps.check_subjects import Subject

Array = npt.NDArray[Any]
Corruption = Callable[[Array, Array, np.random.Generator], Array]
"""`(right, stale, rng) -> wrong`: a correct output, the same output on other inputs, and a random generator."""

CORRUPTIONS: dict[str, Corruption] = {}


@dataclass(frozen=True)
class Trial:
    """The check of one corrupted output.

    Attributes:
        program: name of the program.
        output: index of the output.
        corruption: name of the corruption.
        before: whether the former check, relative to the largest magnitude, detected it.
        now: whether the current check detected it.
    """

    program: str
    output: int
    corruption: str
    before: bool
    now: bool


def _add(what: str) -> Callable[[Corruption], Corruption]:
    def register(corruption: Corruption) -> Corruption:
        CORRUPTIONS[what] = corruption
        return corruption

    return register


# ---- lost values


@_add("all but the largest 0.3% of the elements zero")
def _mostly_zero(x: Array, stale: Array, rng: np.random.Generator) -> Array:
    size = np.abs(_wide(x))
    return np.where(size >= np.quantile(size, 0.997), x, np.zeros_like(x))


@_add("the smaller half of the elements zero")
def _small_zero(x: Array, stale: Array, rng: np.random.Generator) -> Array:
    size = np.abs(_wide(x))
    return np.where(size > np.median(size), x, np.zeros_like(x))


@_add("elements below a thousandth of the largest zero")
def _tiny_zero(x: Array, stale: Array, rng: np.random.Generator) -> Array:
    size = np.abs(_wide(x))
    return np.where(size > 1e-3 * size[np.isfinite(size)].max(initial=0), x, np.zeros_like(x))


@_add("the last eight elements never written (zeros)")
def _zero_tail(x: Array, stale: Array, rng: np.random.Generator) -> Array:
    return _changed(x, slice(-8, None), lambda tail: np.zeros_like(tail))


@_add("the last eight elements never written (stale)")
def _stale_tail(x: Array, stale: Array, rng: np.random.Generator) -> Array:
    out = x.copy()
    out.reshape(-1)[-8:] = stale.reshape(-1)[-8:]
    return out


@_add("the last row stale")
def _stale_row(x: Array, stale: Array, rng: np.random.Generator) -> Array:
    out = _rows(x.copy())
    out[-1] = _rows(stale)[-1]
    return out.reshape(x.shape)


@_add("all elements stale")
def _stale(x: Array, stale: Array, rng: np.random.Generator) -> Array:
    return stale.copy()


@_add("all elements equal to the mean")
def _constant(x: Array, stale: Array, rng: np.random.Generator) -> Array:
    finite = _wide(x)[np.isfinite(_wide(x))]
    return np.full(x.shape, np.asarray(finite.mean() if finite.size else 0).astype(x.dtype))


# ---- inexact values


def _scaled(what: str, factor: float, where: Callable[[Array, np.random.Generator], Any]) -> None:
    def corrupt(x: Array, stale: Array, rng: np.random.Generator) -> Array:
        rows = _rows(x.copy())
        at = where(rows, rng)
        rows[at] = _times(rows[at], factor)
        return rows.reshape(x.shape)

    CORRUPTIONS[what] = corrupt


def _any_element(rows: Array, rng: np.random.Generator) -> Any:
    live = np.argwhere(_wide(rows) != 0)
    return tuple(live[rng.integers(len(live))]) if len(live) else (0, 0)


_scaled("one element off by 1%", 1.01, _any_element)
_scaled("one element off by 10%", 1.1, _any_element)
_scaled("one element with the wrong sign", -1.0, _any_element)
_scaled("the last element off by 10%", 1.1, lambda rows, rng: (-1, -1))
_scaled("one row off by 1%", 1.01, lambda rows, rng: int(rng.integers(len(rows))))
_scaled("one column off by 1%", 1.01, lambda rows, rng: (slice(None), int(rng.integers(rows.shape[1]))))
_scaled("the last tile of 8 by 8 off by 10%", 1.1, lambda rows, rng: (slice(-8, None), slice(-8, None)))
_scaled("all elements off by 0.1%", 1.001, lambda rows, rng: slice(None))


@_add("all elements with the wrong sign")
def _negated(x: Array, stale: Array, rng: np.random.Generator) -> Array:
    return _times(x, -1.0)


@_add("rounded to bfloat16")
def _coarse(x: Array, stale: Array, rng: np.random.Generator) -> Array:
    if x.dtype not in (np.float32, np.float64):
        return x
    return x.astype(ml_dtypes.bfloat16).astype(x.dtype)


@_add("one element NaN")
def _nan(x: Array, stale: Array, rng: np.random.Generator) -> Array:
    if not is_float(x.dtype):
        return x
    return _changed(x, int(rng.integers(x.size)), lambda _: np.asarray(np.nan, x.dtype))


@_add("one integer off by one")
def _off_by_one(x: Array, stale: Array, rng: np.random.Generator) -> Array:
    if is_float(x.dtype):
        return x
    at = int(rng.integers(x.size))
    return _changed(x, at, lambda v: ~v if x.dtype == np.bool_ else (v + v.dtype.type(1)).astype(x.dtype))


# ---- values in wrong positions


@_add("all elements shifted by one")
def _shifted(x: Array, stale: Array, rng: np.random.Generator) -> Array:
    return np.roll(x.reshape(-1), 1).reshape(x.shape)


@_add("the last row shifted by one element")
def _shifted_row(x: Array, stale: Array, rng: np.random.Generator) -> Array:
    rows = _rows(x.copy())
    rows[-1] = np.roll(rows[-1], 1)
    return rows.reshape(x.shape)


@_add("two elements swapped")
def _swapped(x: Array, stale: Array, rng: np.random.Generator) -> Array:
    out = x.copy().reshape(-1)
    i, k = rng.integers(x.size, size=2)
    out[[i, k]] = out[[k, i]]
    return out.reshape(x.shape)


@_add("transposed")
def _transposed(x: Array, stale: Array, rng: np.random.Generator) -> Array:
    return np.ascontiguousarray(_rows(x).T).reshape(x.shape)


def _wide(x: Array) -> Array:
    return np.abs(x).astype(np.float64) if x.dtype.kind == "c" else x.astype(np.float64)


def _rows(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1]) if x.ndim else x.reshape(1, 1)


def _times(x: Array, factor: float) -> Array:
    if not is_float(x.dtype):
        return x
    wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    return (wide * factor).astype(x.dtype)


def _changed(x: Array, at: Any, how: Callable[[Array], Array]) -> Array:
    out = x.copy().reshape(-1)
    out[at] = how(out[at])
    return out.reshape(x.shape)


# ---- trials


def try_subject(subject: Subject, seed: int = 0) -> Iterator[Trial]:
    """Try all corruptions that change an output, and the program computed in bfloat16."""
    reference, stale = subject.reference(seed), subject.outputs(seed + 1)
    right = reference.outputs
    rng = np.random.default_rng(seed)

    def judged(output: int, what: str, wrong: Array) -> Trial:
        before = relative_to_largest(wrong, right[output])
        now = reference.difference([*right[:output], wrong, *right[output + 1 :]], subject.program.tolerance)
        return Trial(subject.program.name, output, what, before, now is not None)

    for i, x in enumerate(right):
        for what, corruption in CORRUPTIONS.items() if x.size else ():
            with np.errstate(all="ignore"):
                wrong = corruption(x, stale[i], rng)
            if not _same(wrong, x):
                yield judged(i, what, wrong)
    coarse = evaluate(subject.module, reference.inputs, Context(decorate=_in_bfloat16))
    for i, x in enumerate(coarse):
        if not _same(x, right[i]) and x.dtype == np.float32:
            yield judged(i, "computed in bfloat16", x)


def _same(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()


def _in_bfloat16(instruction: HloInstruction, evaluator: Evaluator) -> Evaluator:
    if not instruction.shape.is_array or instruction.shape.dtype != np.float32:
        return evaluator

    def run(machine: Machine, i: HloInstruction, values: list[Value]) -> Value:
        return np.asarray(evaluator(machine, i, values)).astype(ml_dtypes.bfloat16).astype(np.float32)

    return run


_BEFORE = ((20, 1e-4, 1e-5), (9, 1e-2, 1e-3), (6, 4e-2, 1e-2), (0, 2.5e-1, 6e-2))


def relative_to_largest(got: Array, want: Array) -> bool:
    """Return whether outputs differ by the former check: `|got - want| <= atol * largest + rtol * |want|`."""
    if not is_float(want.dtype):
        return bool(np.any(got != want))
    real = want.real.dtype if want.dtype.kind == "c" else want.dtype
    bits = int(ml_dtypes.finfo(real).nmant)  # type: ignore[no-untyped-call]
    _, rtol, atol = next(t for t in _BEFORE if bits >= t[0])
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    g, w = got.astype(wide), want.astype(wide)
    finite = np.isfinite(g) & np.isfinite(w)
    with np.errstate(all="ignore"):
        scale = max(1.0, float(np.abs(w[np.isfinite(w)]).max(initial=0)))
        near = finite & (np.abs(g - w) <= atol * scale + rtol * np.abs(w))
    wrong = ~(near | (g == w) | (np.isnan(g) & np.isnan(w)))
    return bool(wrong.any())
