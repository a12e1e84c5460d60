"""Differences of random programs that have been looked into, by source and number, with their causes."""

from __future__ import annotations

# Each is one of the promises of ARCHITECTURE.md ("Numbers: what is promised").
_HALF = "a kernel holds half-precision values in float32, so that an intermediate number does not overflow or vanish"
_ZEROS = "a matrix product with an operand of zeros (the first state of a scan) is zero, also where the other holds NaN"
_TIE = "two values are equal once rounded to half precision, so that a comparison of them depends on the rounding"
_DENORMAL = "XLA's code takes numbers below the least normal one for zero"
_BY_ZERO = "XLA takes zero times anything for zero, also where that is NaN"
_CLOSE = "a quotient or a remainder at the edge of a whole number, which XLA's rounding moves across"
_DEGENERATE = "XLA takes a reduction over a dimension of size 1 for the element, whatever its function does with it"

KNOWN: dict[tuple[str, int], str] = {
    ("jax", 26): _CLOSE,
    ("jax", 101): _BY_ZERO,
    ("jax", 108): "the remainder of a denormal number by itself: XLA's code divides by zero",
    ("jax", 138): f"{_HALF}; another output shows the bits of it",
    ("jax", 176): _BY_ZERO,
    ("jax", 341): "a loop that divides and subtracts a value by and from itself: what is left is rounding errors of "
    "rounding errors, and ties among them",
    ("jax", 683): _DENORMAL,
    ("jax", 851): _HALF,
    ("jax", 1283): f"{_DENORMAL}: an epsilon of 1e-6 in half precision",
    ("jax", 1454): f"{_DENORMAL}: whole numbers, taken for the bits of floats",
    ("jax", 1466): _DEGENERATE,
    ("jax", 1611): _CLOSE,
    ("jax", 1740): f"{_DENORMAL}: an epsilon of 1e-6 in half precision",
    ("jax", 1901): "a division by a difference of nearly equal numbers, which XLA rounds to zero",
    ("jax", 1985): "a common factor is taken out of `x - x * c`, which is infinite where that was inf - inf",
    ("jax", 2022): _DENORMAL,
    ("jax", 2063): "partial results overflow, to one side or the other by their order",
    ("jax", 2095): _ZEROS,
    ("jax", 2141): _HALF,
    ("jax", 2171): _ZEROS,
    ("jax", 2175): _CLOSE,
    ("jax", 2364): _ZEROS,
    ("jax", 2829): f"{_DENORMAL}: an epsilon of 1e-6 in half precision",
    ("jax", 3017): _TIE,
    ("jax", 3292): _DENORMAL,
    ("jax", 3497): _ZEROS,
    ("jax", 3572): f"{_HALF}; its conversion to float32 and back to half precision changes nothing and is taken out",
    ("jax", 3588): _DENORMAL,
    ("jax", 3977): "XLA alone gives NaN, and not where its intermediate numbers are results as well",
    ("jax", 4050): f"{_HALF}: the difference of a product and its own mean, of which one was rounded",
    ("jax", 4069): _DEGENERATE,
    ("jax", 4351): _HALF,
    ("jax", 4393): _DENORMAL,
    ("jax", 4395): "a simulator with a bang-bang control, of which one element crosses zero a step earlier",
    ("jax", 4539): _DEGENERATE,
}
