"""Known differences of random programs, by source and number, with their causes."""

from __future__ import annotations

# Each follows from the numerical guarantees in ARCHITECTURE.md.
_HALF = "a kernel keeps half-precision values in float32, so that an intermediate value does not overflow or underflow"
_ZEROS = "a matrix product with an operand of zeros (the first state of a scan) is zero, also where the other holds NaN"
_TIE = "two values are equal once rounded to half precision, so that a comparison of them depends on the rounding"
_DENORMAL = "XLA's code flushes subnormal numbers to zero"
_BY_ZERO = "XLA simplifies zero times anything to zero, also if that is NaN"
_CLOSE = "a quotient or remainder close to an integer, which rounding in XLA moves to the other side"
_DEGENERATE = "XLA simplifies a reduction over a dimension of size 1 to the element, without applying the reducer"

KNOWN: dict[tuple[str, int], str] = {
    ("jax", 26): _CLOSE,
    ("jax", 101): _BY_ZERO,
    ("jax", 108): "the remainder of a subnormal number by itself: XLA's code divides by zero",
    ("jax", 138): f"{_HALF}; another output contains its bits",
    ("jax", 176): _BY_ZERO,
    ("jax", 341): "a loop that divides a value by itself and subtracts it from itself: only rounding errors remain",
    ("jax", 683): _DENORMAL,
    ("jax", 851): _HALF,
    ("jax", 1283): f"{_DENORMAL}: an epsilon of 1e-6 in half precision",
    ("jax", 1454): f"{_DENORMAL}: integers, reinterpreted as floats",
    ("jax", 1466): _DEGENERATE,
    ("jax", 1611): _CLOSE,
    ("jax", 1740): f"{_DENORMAL}: an epsilon of 1e-6 in half precision",
    ("jax", 1901): "a division by a difference of almost equal numbers, which XLA rounds to zero",
    ("jax", 1985): "factoring `x - x * c` gives infinity instead of inf - inf",
    ("jax", 2022): _DENORMAL,
    ("jax", 2063): "partial results overflow to plus or minus infinity, depending on their order",
    ("jax", 2095): _ZEROS,
    ("jax", 2141): _HALF,
    ("jax", 2171): _ZEROS,
    ("jax", 2175): _CLOSE,
    ("jax", 2364): _ZEROS,
    ("jax", 2829): f"{_DENORMAL}: an epsilon of 1e-6 in half precision",
    ("jax", 3017): _TIE,
    ("jax", 3292): _DENORMAL,
    ("jax", 3497): _ZEROS,
    ("jax", 3572): f"{_HALF}; its conversion to float32 and back changes nothing and is removed",
    ("jax", 3588): _DENORMAL,
    ("jax", 3977): "only XLA gives NaN, and not if the intermediate values are also outputs",
    ("jax", 4050): f"{_HALF}: the difference of a product and its own mean, one of which was rounded",
    ("jax", 4069): _DEGENERATE,
    ("jax", 4351): _HALF,
    ("jax", 4393): _DENORMAL,
    ("jax", 4395): "a simulator with bang-bang control, in which one element crosses zero a step earlier",
    ("jax", 4539): _DEGENERATE,
}
