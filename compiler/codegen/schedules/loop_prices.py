"""The estimated time of bound loops on one thread, by which a schedule decides by default whether threads share them.

A count of the statements errs by two thirds in the median on kernels of 1 to 30 us, because a division or a scalar
gather takes many times as long as an addition in a vector. A price per count of `nest_counts` errs by a quarter.
"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.counts import nest_counts
from compiler.codegen.nest.loop_ir import Body

__all__ = ["loop_nanoseconds"]

PRICES: dict[str, float] = {
    **dict.fromkeys(("vector simple", "vector multiply", "vector wide integer"), 0.005),
    **dict.fromkeys(("vector assign", "vector test", "vector branch"), 0.005),
    **dict.fromkeys(("vector load next", "vector store next", "vector store same"), 0.035),
    **dict.fromkeys(("vector load strided", "vector load gathered"), 0.05),
    **dict.fromkeys(("vector store strided", "vector store gathered"), 0.05),
    **dict.fromkeys(("vector exponential", "vector trigonometric"), 0.26),
    "vector convert": 0.02, "vector divide": 0.07, "vector local": 0.001, "vector index": 0.1, "vector loops": 0.25,
    **dict.fromkeys(("scalar simple", "scalar multiply", "scalar wide integer", "scalar convert"), 0.05),
    **dict.fromkeys(("scalar assign", "scalar test", "scalar branch", "scalar local"), 0.05),
    **dict.fromkeys(("scalar load same", "scalar store same"), 0.05),
    **dict.fromkeys(("scalar load next", "scalar store next"), 0.14),
    **dict.fromkeys(("scalar load strided", "scalar load gathered"), 1.0),
    **dict.fromkeys(("scalar store strided", "scalar store gathered"), 1.0),
    **dict.fromkeys(("scalar exponential", "scalar trigonometric"), 8.0),
    "scalar divide": 1.0, "scalar index": 0.1, "serial loops": 0.5,
    "product flops": 0.008, "products": 25.0, "transposed": 0.09, "streamed": 0.05,
    "updates": 0.3, "sort work": 3.0, "scan steps": 0.5, "flagged": 0.5,
}  # fmt: skip
"""Nanoseconds of each count of a nest; other counts are free.

They are least squares of relative errors, without negative prices, over the 1086 generated kernels of training families
in results/learning/data/kernels.jsonl.gz that take 0.3 to 300 us (AMD EPYC with AVX-512, one thread, data in the
caches), rounded. Counts that too few of these kernels have, or that come with others only, have prices of the same
order.
"""

LEAST_PRICE = 0.025
"""Nanoseconds of a statement of `work_of` at least: long chains of integer operations take more than their prices."""


def loop_nanoseconds(body: Body, arguments: Sequence[lir.Argument], work: int = 0) -> float:
    """Return the estimated nanoseconds of statements that are bound to a CPU, on one thread; linear in their number.

    Args:
        body: bound statements.
        arguments: the arguments of their kernel.
        work: the work of the statements before they were bound, from `work_of`.
    """
    counts = nest_counts(body, arguments)
    return max(LEAST_PRICE * work, sum(counts.get(name, 0.0) * price for name, price in PRICES.items()))
