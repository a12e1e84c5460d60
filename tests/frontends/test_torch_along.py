"""Products of one dimension with a constant matrix."""

from types import SimpleNamespace

import numpy as np
import pytest

from compiler.frontends.torch_along import along
from compiler.frontends.torch_builder import TorchBuilder
from compiler.interpreter import evaluate
from compiler.ir import HloComputation, HloModule, Opcode, PrimitiveType, Shape

F32 = PrimitiveType.F32


def band(rows: int, columns: int, first: list[int], width: int, seed: int = 0) -> np.ndarray:
    """Return a matrix whose columns have `width` numbers from their first rows on, as far as those are inside."""
    rng, matrix = np.random.default_rng(seed), np.zeros((rows, columns))
    for column, start in enumerate(first):
        for row in range(max(start, 0), min(start + width, rows)):
            matrix[row, column] = rng.normal()
    return matrix


MATRICES = {
    "every second row": band(8, 4, [0, 2, 4, 6], 2),
    "beyond both ends": band(8, 5, [-1, 1, 3, 5, 7], 3),
    "uneven": band(6, 5, [0, 0, 1, 3, 3], 2),
    "backwards": band(5, 5, [4, 3, 2, 1, 0], 1),
    "one column": band(4, 1, [2], 2),
    "zero column": band(5, 3, [0, 5, 3], 2),
    "all zero": np.zeros((3, 4)),
    "dense": band(20, 3, [0, 0, 0], 20),
    "ones": np.kron(np.eye(3), np.ones((2, 1))),
}


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("name", MATRICES)
def test_product_with_matrix(name: str, dim: int) -> None:
    matrix = MATRICES[name]
    sizes = [2, 3, 4]
    sizes[dim] = matrix.shape[0]
    x = np.random.default_rng(1).normal(size=sizes).astype(np.float32)
    found = np.asarray(evaluate(program(x, dim, matrix), [x])[0])
    np.testing.assert_allclose(found, np.moveaxis(np.tensordot(x, matrix, (dim, 0)), -1, dim), rtol=1e-4, atol=1e-5)


def test_narrow_matrices_are_not_products() -> None:
    x = np.zeros((6, 6), np.float32)
    module = program(x, 1, MATRICES["uneven"])
    assert not any(i.opcode is Opcode.DOT for i in module.entry.instructions)


def test_excluded_elements_do_not_contribute() -> None:
    x = np.array([np.inf, 1, 2, np.nan], np.float32)
    matrix = band(4, 3, [1, 1, 2], 1)
    matrix[2, 1] = 3.0
    found = np.asarray(evaluate(program(x, 0, matrix), [x])[0])
    assert np.isfinite(found).all()


def program(x: np.ndarray, dim: int, matrix: np.ndarray) -> HloModule:
    """Return the module that multiplies its argument."""
    module, entry = HloModule("test"), HloComputation("main")
    b = TorchBuilder(module, entry)
    b.result = SimpleNamespace(shape=())
    entry.root = along(b, entry.add_parameter(0, Shape(F32, x.shape)), dim, matrix)
    module.add(entry, entry=True)
    return module
