"""Stages of large reductions beside reductions of the same rows."""

import numpy as np
import pytest

from compiler import compile, parse
from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.passes.reductions.reduce_stages import ReduceStages

LOSS = """HloModule m
add {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }}
max {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] maximum(a, b) }}
ENTRY e {{
  x = f32[{rows},{n}] parameter(0)
  low = f32[] constant(-inf)
  zero = f32[] constant(0)
  m = f32[{rows}] reduce(x, low), dimensions={{1}}, to_apply=max
  mb = f32[{rows},{n}] broadcast(m), dimensions={{0}}
  d = f32[{rows},{n}] subtract(x, mb)
  p = f32[{rows},{n}] exponential(d)
  ROOT s = f32[] reduce(p, zero), dimensions={{0,1}}, to_apply=add
}}
"""


@pytest.mark.parametrize(("rows", "n", "stage"), [(300, 5000, 300), (9000, 500, None), (20, 50000, None)])
def test_the_first_stage_is_a_result_per_row_if_rows_are_reduced_before(rows: int, n: int, stage: int | None) -> None:
    module, before = parse(LOSS.format(rows=rows, n=n)), parse(LOSS.format(rows=rows, n=n))
    assert ReduceStages().run(module)
    sizes = [i.shape.dimensions for i in module.entry.instructions if i.opcode is Opcode.REDUCE]
    assert ((stage,) in [s for s in sizes if s != (rows,) or sizes.count(s) > 1]) == (stage is not None)
    x = np.random.default_rng(0).normal(size=(rows, n)).astype(np.float32)
    np.testing.assert_allclose(evaluate(module, [x])[0], evaluate(before, [x])[0], rtol=1e-4)


def test_a_loss_reads_its_rows_once_on_a_gpu() -> None:
    kernels = compile(LOSS.format(rows=300, n=5000), backend="cuda").kernels
    assert sum(k.bytes > 4 * 300 * 5000 for k in kernels) == 1
