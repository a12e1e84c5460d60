"""Memory of a result that holds values of another type before."""

import numpy as np
import pytest

from compiler import compile
from compiler.interpreter import evaluate
from compiler.text import parse


@pytest.mark.parametrize(
    "rest",
    [
        "ROOT r = s64[3] bitcast-convert(i)",
        "ROOT r = s64[3] convert(i)",
        "n = f32[3] convert(i) ROOT r = c64[3] complex(n, n)",
    ],
)
def test_an_op_of_the_interpreter_writes_its_own_type(rest: str) -> None:
    # The kernel overwrites the imaginary parts, so the interpreter writes them into the memory of the result.
    module = parse(f"ENTRY e {{ x = c128[3] parameter(0) i = f64[3] imag(x) {rest} }}")
    x = np.array([1j, 2 + 3j, 4], np.complex128)
    np.testing.assert_array_equal(compile(module)(x)[0], evaluate(module, [x])[0])
