"""Products with a matrix in compressed sparse rows as kernels: results of the interpreter, without Python."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import compile
from compiler.backends.cpu.executable import CpuExecutable
from compiler.interpreter import evaluate
from compiler.text import parse

PRODUCT = """
HloModule m
ENTRY e {{
  elements = {t}[9] parameter(0)
  ends = s32[5] parameter(1)
  columns = s32[9] parameter(2)
  dense = {t}[6{n}] parameter(3)
  ROOT p = {t}[4{n}] custom-call(elements, ends, columns, dense), custom_call_target="cpu_csr_sparse_dense_ffi"
}}
"""


@pytest.mark.parametrize(("t", "dtype"), [("f32", np.float32), ("f64", np.float64), ("s32", np.int32)])
@pytest.mark.parametrize("sizes", [(), (1,), (7,), (33,)])
def test_products_are_those_of_the_interpreter(t: str, dtype: type, sizes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    module = parse(PRODUCT.format(t=t, n="".join(f",{n}" for n in sizes)))
    ends = np.array([0, 3, 3, 6, 7], np.int32)  # an empty row, and two elements of padding
    columns = np.array([0, 5, 2, 1, 1, 4, 3, 6, 6], np.int32)
    args = [rng.integers(-9, 9, 9).astype(dtype), ends, columns, rng.integers(-9, 9, (6, *sizes)).astype(dtype)]
    exe = compile(module)
    assert isinstance(exe, CpuExecutable) and not exe.built.driver.host
    np.testing.assert_array_equal(exe(*args)[0], evaluate(module, args)[0])
