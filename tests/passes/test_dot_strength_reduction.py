"""Dots rewritten as multiplications and sums."""

import ml_dtypes
import numpy as np
import pytest

from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.ir.verifier import check_module
from compiler.passes.infrastructure.registry import make_pass
from compiler.text import parse


@pytest.mark.parametrize("sides", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize(("m", "n"), [(1, 5), (5, 1), (4, 3), (1, 1)])
@pytest.mark.parametrize("batch", [1, 2])
def test_products_as_loops_are_the_same_products(m: int, n: int, batch: int, sides: tuple[int, int]) -> None:
    left, right = ((6, m) if sides[0] else (m, 6)), ((n, 6) if sides[1] else (6, n))
    module = parse(
        f"HloModule m\nENTRY e {{ a = f32[{batch},{left[0]},{left[1]}] parameter(0)\n"
        f"b = f32[{batch},{right[0]},{right[1]}] parameter(1)\n"
        f"ROOT d = f32[{batch},{m},{n}] dot(a, b), lhs_batch_dims={{0}}, rhs_batch_dims={{0}}, "
        f"lhs_contracting_dims={{{1 if sides[0] else 2}}}, rhs_contracting_dims={{{2 if sides[1] else 1}}} }}"
    )
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((batch, *s)).astype(np.float32) for s in (left, right))
    assert make_pass("dot-strength-reduction{max_contracted=6,max_multiplications=120}").run(module)
    assert check_module(module) == []
    assert all(i.opcode is not Opcode.DOT for i in module.entry.instructions)
    want = np.matmul(a.transpose(0, 2, 1) if sides[0] else a, b.transpose(0, 2, 1) if sides[1] else b)
    np.testing.assert_allclose(evaluate(module, [a, b])[0], want, rtol=1e-5, atol=1e-5)


def test_only_products_within_the_limits_become_loops() -> None:
    text = (
        "HloModule m\nENTRY e { a = f32[7,2,3] parameter(0) b = f32[7,3,4] parameter(1)\n"
        "ROOT d = f32[7,2,4] dot(a, b), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, "
        "rhs_contracting_dims={1} }"
    )
    # One dot of the batch does 2 * 3 * 4 multiplications.
    assert make_pass("dot-strength-reduction{max_contracted=3,max_multiplications=24}").run(parse(text))
    assert not make_pass("dot-strength-reduction{max_contracted=3,max_multiplications=23}").run(parse(text))
    assert not make_pass("dot-strength-reduction{max_contracted=2}").run(parse(text))


HALF_VECTORS = "dot-strength-reduction{max_contracted=4,max_multiplications=4,half_vectors=true}"


def product_text(matrix: str, vector: str, result: str, contracting: str, batch: str = "") -> str:
    a, b = f"f32[{matrix}]", f"f32[{vector}]"
    return (
        f"HloModule m\nENTRY e {{ x = bf16[{matrix}] parameter(0) a = {a} convert(x) b = {b} parameter(1)\n"
        f"ROOT d = f32[{result}] dot(a, b), {batch}{contracting} }}"
    )


@pytest.mark.parametrize(
    ("matrix", "vector", "result", "dims", "batch", "subscripts"),
    [
        ("9,70", "70", "9", (1, 0), "", "ij,j->i"),
        ("70,9", "70", "9", (0, 0), "", "ji,j->i"),
        ("9,70", "1,70", "9,1", (1, 1), "", "ij,kj->ik"),
        ("3,9,70", "3,70", "3,9", (2, 1), "lhs_batch_dims={0}, rhs_batch_dims={0}, ", "bij,bj->bi"),
    ],
)
def test_half_matrices_times_vectors_become_sums_of_products(
    matrix: str, vector: str, result: str, dims: tuple[int, int], batch: str, subscripts: str
) -> None:
    contracting = f"lhs_contracting_dims={{{dims[0]}}}, rhs_contracting_dims={{{dims[1]}}}"
    module = parse(product_text(matrix, vector, result, contracting, batch))
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal([int(n) for n in sizes.split(",")]).astype(np.float32) for sizes in (matrix, vector))
    x = a.astype(ml_dtypes.bfloat16)

    assert make_pass(HALF_VECTORS).run(module)

    assert check_module(module) == []
    assert all(i.opcode is not Opcode.DOT for i in module.entry.instructions)
    want = np.einsum(subscripts, x.astype(np.float32), b)
    np.testing.assert_allclose(evaluate(module, [x, b])[0], want, rtol=1e-4, atol=1e-4)


def test_other_products_keep_their_limits_beside_half_vectors() -> None:
    contracting = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    wide = product_text("9,70", "70,2", "9,2", contracting)
    single = product_text("9,70", "70", "9", contracting).replace("bf16", "f32").replace("convert", "negate")
    assert not make_pass(HALF_VECTORS).run(parse(wide))
    assert not make_pass(HALF_VECTORS).run(parse(single))


SHORT_VECTORS = "dot-strength-reduction{max_contracted=4,max_multiplications=4,short_vectors=16}"


@pytest.mark.parametrize(
    ("matrix", "vector", "result", "dims", "is_rewritten"),
    [
        ("900,16", "16", "900", (1, 0), True),
        ("16,900", "16,1", "900,1", (0, 0), True),
        ("900,17", "17", "900", (1, 0), False),
        ("900,16", "16,2", "900,2", (1, 0), False),
    ],
)
def test_matrices_times_short_vectors_become_sums_of_products(
    matrix: str, vector: str, result: str, dims: tuple[int, int], is_rewritten: bool
) -> None:
    contracting = f"lhs_contracting_dims={{{dims[0]}}}, rhs_contracting_dims={{{dims[1]}}}"
    text = product_text(matrix, vector, result, contracting).replace("bf16", "f32").replace("convert", "negate")
    module = parse(text)
    rng = np.random.default_rng(5)
    args = [rng.standard_normal([int(n) for n in s.split(",")]).astype(np.float32) for s in (matrix, vector)]
    assert make_pass(SHORT_VECTORS).run(module) == is_rewritten
    np.testing.assert_allclose(evaluate(module, args)[0], evaluate(parse(text), args)[0], rtol=1e-4, atol=1e-4)
