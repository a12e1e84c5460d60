"""Dots with dimensions in every order on the cpu backend, against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import CompileOptions, compile
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, PrimitiveType
from compiler.ir.shape import array_shape
from compiler.runtime.thunks import GemmThunk
from env.reference import Reference
from tests.codegen.running import problem

T = PrimitiveType


def random_dot(rng: np.random.Generator, entry: HloComputation, t: T, sizes: tuple[int, ...]) -> HloInstruction:
    """Add a dot of two new parameters with random batch, contracting and free dimensions in random order."""
    counts = [int(rng.integers(0, 3)) for _ in range(4)]
    batch, contracting, left, right = ([int(rng.choice(sizes)) for _ in range(n)] for n in counts)
    operands, orders = [], []
    for free in (left, right):
        dims = [*batch, *contracting, *free]
        order = [int(k) for k in rng.permutation(len(dims))]
        shape = array_shape(t, *(dims[k] for k in order))
        operands.append(entry.add_parameter(len(entry.parameters), shape))
        orders.append([order.index(k) for k in range(len(dims))])
    shuffled = [int(k) for k in rng.permutation(len(contracting))]
    b = len(batch)
    return entry.add(
        Opcode.DOT, operands,
        lhs_batch_dims=tuple(orders[0][:b]), rhs_batch_dims=tuple(orders[1][:b]),
        lhs_contracting_dims=tuple(orders[0][b + k] for k in shuffled),
        rhs_contracting_dims=tuple(orders[1][b + k] for k in shuffled),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("t", "sizes", "count"),
    [
        (T.F32, (1, 2, 3, 5), 60), (T.F64, (1, 2, 4), 30), (T.F32, (0, 1, 3), 20), (T.BF16, (2, 3), 6),
        (T.S32, (2, 3), 6), (T.F32, (17, 20), 5),
    ],
    ids=str,
)  # fmt: skip
def test_random_dots_match_the_interpreter(t: T, sizes: tuple[int, ...], count: int) -> None:
    rng = np.random.default_rng(count)
    module, entry = HloModule("dots"), HloComputation("main")
    dots: list[HloInstruction] = []
    while len(dots) < count:
        dot = random_dot(rng, entry, t, sizes)
        if dot.shape.num_elements < 100_000:
            dots.append(dot)
    entry.root = entry.add(Opcode.TUPLE, dots)
    module.add(entry, entry=True)
    args = [rng.integers(-3, 4, s.dimensions).astype(s.dtype) for s in module.parameter_shapes]
    exe = compile(module, options=CompileOptions(optimize=False))
    assert problem(exe(*args), Reference.of(module, args)) is None
    if t in (T.F32, T.F64):
        assert any(isinstance(thunk, GemmThunk) for thunk in exe.thunks)


@pytest.mark.parametrize("dims", [(130, 70, 90), (2000, 3, 40), (3, 2000, 40), (1, 700, 500), (700, 1, 500)])
def test_large_products_run_on_several_threads(dims: tuple[int, int, int]) -> None:
    m, n, k = dims
    rng = np.random.default_rng(0)
    for left, right in (((m, k), (k, n)), ((k, m), (n, k))):
        a, b = rng.normal(size=left).astype(np.float32), rng.normal(size=right).astype(np.float32)
        lc, rc = left.index(k), right.index(k)
        text = (
            f"HloModule m\nENTRY main {{\n a = f32[{left[0]},{left[1]}] parameter(0)\n"
            f" b = f32[{right[0]},{right[1]}] parameter(1)\n"
            f" ROOT d = f32[{m},{n}] dot(a, b), lhs_contracting_dims={{{lc}}}, rhs_contracting_dims={{{rc}}}\n}}"
        )
        wanted = (a if lc else a.T).astype(np.float64) @ (b.T if rc else b)
        np.testing.assert_allclose(compile(text)(a, b)[0], wanted, rtol=1e-4, atol=1e-3)
