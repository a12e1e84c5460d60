"""Which instructions become part of the fusion of an attention."""

import pytest

from compiler import compile, parse
from compiler.ir import Opcode
from compiler.passes.dots.attention_fusion import AttentionFusion

SLOPES = """HloModule m
max { a = f32[] parameter(0) b = f32[] parameter(1) ROOT m = f32[] maximum(a, b) }
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY e {
  q = f32[2,4,64,32] parameter(0)
  k = f32[2,4,64,32] parameter(1)
  v = f32[2,4,64,32] parameter(2)
  s = f32[2,4,64,64] dot(q, k), lhs_batch_dims={0,1}, rhs_batch_dims={0,1}, lhs_contracting_dims={3},
    rhs_contracting_dims={3}
  slopes = f32[4] constant({0.5, 0.25, 0.125, 0.0625})
  row = f32[64,64] iota(), iota_dimension=0
  column = f32[64,64] iota(), iota_dimension=1
  d = f32[64,64] subtract(row, column)
  far = f32[2,4,64,64] broadcast(d), dimensions={2,3}
  each = f32[2,4,64,64] broadcast(slopes), dimensions={1}
  bias = f32[2,4,64,64] multiply(far, each)
  x = f32[2,4,64,64] subtract(s, bias)
  low = f32[] constant(-inf)
  most = f32[2,4,64] reduce(x, low), dimensions={3}, to_apply=max
  mosts = f32[2,4,64,64] broadcast(most), dimensions={0,1,2}
  y = f32[2,4,64,64] subtract(x, mosts)
  w = f32[2,4,64,64] exponential(y)
  zero = f32[] constant(0)
  total = f32[2,4,64] reduce(w, zero), dimensions={3}, to_apply=sum
  totals = f32[2,4,64,64] broadcast(total), dimensions={0,1,2}
  p = f32[2,4,64,64] divide(w, totals)
  ROOT o = f32[2,4,64,32] dot(p, v), lhs_batch_dims={0,1}, rhs_batch_dims={0,1}, lhs_contracting_dims={3},
    rhs_contracting_dims={2}
}"""


def test_a_table_is_an_operand_of_the_fusion() -> None:
    module = parse(SLOPES)
    assert AttentionFusion().run(module)
    fusion = module.entry.root
    assert fusion.opcode is Opcode.FUSION
    assert [o.name for o in fusion.operands if o.opcode is Opcode.CONSTANT] == ["slopes"]
    tables = [
        i for i in fusion.attributes["calls"].instructions if i.opcode is Opcode.CONSTANT and not i.shape.is_scalar
    ]
    assert tables == []


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_attention_with_a_slope_of_each_head_is_one_kernel(backend: str) -> None:
    assert [k.kind for k in compile(SLOPES, backend=backend).kernels] == ["attention"]
