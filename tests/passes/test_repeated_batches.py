"""Dots of operands that repeat matrices along a batch dimension: the same results, without the repetition."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from compiler.interpreter import evaluate
from compiler.ir import HloModule, Opcode
from compiler.ir.verifier import check_module
from compiler.passes.infrastructure.registry import make_pass
from compiler.text import parse
from tests.passes.programs import difference, reference


def simplified(text: str) -> HloModule:
    """Run the pass, check that it keeps the results, and return the module."""
    module = parse(f"HloModule m\nENTRY e {{\n{text}\n}}")
    rng = np.random.default_rng(0)
    args = [rng.normal(size=s.dimensions).astype(np.float32) for s in module.parameter_shapes]
    want = reference(module, args)
    make_pass("dot-of-blocks").run(module)
    assert check_module(module) == []
    assert difference(evaluate(module, args), want) is None
    return module


def largest(module: HloModule) -> int:
    """Return the elements of the largest broadcast or reshape that a dot reads."""
    dots = [i for i in module.entry.instructions if i.opcode is Opcode.DOT]
    return max(o.shape.num_elements for i in dots for o in i.operands)


def program(order: tuple[int, ...], left: bool, tiled: bool, unit: str = "") -> str:
    """Return a dot of keys [2 heads, 9 keys, 8] for 2 x 3 heads of queries [5, 8], in some order of dimensions.

    Args:
        order: the order of heads, keys and depth in the cache of keys.
        left: whether the keys are the left operand.
        tiled: whether groups of heads come before the heads that share keys, and not after.
        unit: "1," for a dimension of one element before the others.
    """
    sizes = [(2, 9, 8)[n] for n in order]
    head = order.index(0)
    dims = [k + (k > head or (tiled and k == head)) for k in range(3)]
    wide = [*sizes[:head], *((3, 2) if tiled else (2, 3)), *sizes[head + 1 :]]
    merged = [*sizes[:head], 6, *sizes[head + 1 :]]
    shift = 1 if unit else 0
    dims = [*range(shift), *(d + shift for d in dims)]
    cache, repeated, keys = (unit + ",".join(map(str, x)) for x in (sizes, wide, merged))
    keys = keys.removeprefix(unit)
    q, k = ("q", "x") if not left else ("x", "q")
    own = f"{{{head}}}", f"{{{order.index(2)}}}"
    other = "{0}", "{2}"
    (lb, lc), (rb, rc) = (own, other) if left else (other, own)
    result = "6,9,5" if left else "6,5,9"
    return f"""
      q = f32[6,5,8] parameter(0)
      k = f32[{cache}] parameter(1)
      w = f32[{repeated}] broadcast(k), dimensions={{{",".join(map(str, dims))}}}
      x = f32[{keys}] reshape(w)
      ROOT r = f32[{result}] dot({q}, {k}), lhs_batch_dims={lb}, rhs_batch_dims={rb}, lhs_contracting_dims={lc},
        rhs_contracting_dims={rc}"""


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize(("left", "tiled", "unit"), [(False, False, ""), (True, False, "1,"), (False, True, "1,")])
def test_heads_that_share_keys_are_multiplied_together(
    order: tuple[int, ...], left: bool, tiled: bool, unit: str
) -> None:
    module = simplified(program(order, left, tiled, unit))
    assert largest(module) == 6 * 5 * 8


def test_one_head_of_keys_for_all_queries_is_one_product() -> None:
    module = simplified(
        """
      q = f32[6,5,4] parameter(0)
      k = f32[9,4] parameter(1)
      x = f32[6,9,4] broadcast(k), dimensions={1,2}
      ROOT r = f32[6,5,9] dot(q, x), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2},
        rhs_contracting_dims={2}"""
    )
    (dot,) = [i for i in module.entry.instructions if i.opcode is Opcode.DOT]
    assert not dot.attr("lhs_batch_dims", ())


def test_large_results_are_not_transposed() -> None:
    """With the keys on the left, heads would have to be moved from the end of 6 x 9 x 50 results."""
    text = program((0, 1, 2), True, False).replace("6,5,8", "6,50,8").replace("6,9,5]", "6,9,50]")
    assert largest(simplified(text)) == 6 * 50 * 8
    assert all(i.opcode is not Opcode.TRANSPOSE for i in simplified(text).entry.instructions)
