"""Gathers of known rows become slices, reversed, repeated and concatenated."""

import numpy as np
import pytest

from compiler import parse
from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.passes import make_pass

ROWS = {  # indices, whether they are few runs
    "identity": (list(range(9)), True),
    "reversed": (list(range(8, -1, -1)), True),
    "every second": ([1, 3, 5, 7], True),
    "mirrored": ([3, 2, 1, *range(9), 7, 6], True),
    "repeated": ([0, 0, 0, *range(9), 8, 8], True),
    "continued": ([7, 8, *range(9), 0, 1], True),
    "one row": ([4, 4, 4], True),
    "a single row": ([4], True),
    "shuffled": ([0, 3, 6, 1, 4, 7, 2, 5, 8], False),
    "five runs": ([0, 2, 4, 0, 3, 6, 0, 4, 8, 1, 2, 3, 5, 7], False),
    "before the first": ([-1, 0, 1, 2], False),
    "behind the last": ([6, 7, 8, 9], False),
}


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("rows", ROWS)
def test_known_rows(rows: str, place: int) -> None:
    indices, few = ROWS[rows]
    n = len(indices)
    out = [4, 5]
    out.insert(place, n)
    offsets = ",".join(str(d) for d in range(3) if d != place)
    module = parse(f"""HloModule m
        ENTRY e {{ x = f32[4,9,5] parameter(0)
          i = s32[{n}] constant({{{", ".join(map(str, indices))}}})
          ROOT r = f32[{",".join(map(str, out))}] gather(x, i), offset_dims={{{offsets}}}, collapsed_slice_dims={{1}},
            start_index_map={{1}}, index_vector_dim=1, slice_sizes={{4,1,5}} }}""")
    x = np.random.default_rng(0).standard_normal((4, 9, 5)).astype(np.float32)
    (want,) = evaluate(module, [x])
    make_pass("gather-simplifier").run(module)
    opcodes = {i.opcode for i in module.entry.instructions}
    assert (Opcode.GATHER not in opcodes) == (few or n == 1)
    np.testing.assert_array_equal(evaluate(module, [x])[0], want)
