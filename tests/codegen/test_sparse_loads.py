"""Loops over rows that load elements far apart: their functions run in vectors, and results are the interpreter's."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import compile
from compiler.codegen.nest import index as ix
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import Var
from compiler.codegen.nest.scalar_ops import ScalarOp
from compiler.codegen.schedules.sparse_loads import is_sparse, separate_sparse_loads, separated_bytes
from compiler.ir import Opcode
from compiler.ir.types import PrimitiveType as T
from compiler.text import parse
from env.reference import Reference
from tests.codegen.running import problem

FORWARD = """HloModule m
most {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT m = f32[] maximum(a, b) }}
sum {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }}
body {{
  c = (s32[], f32[{n},{k}], f32[{n},20,{k}], f32[{k},{k}]) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  a = f32[{n},{k}] get-tuple-element(c), index=1
  x = f32[{n},20,{k}] get-tuple-element(c), index=2
  t = f32[{k},{k}] get-tuple-element(c), index=3
  zero = s32[] constant(0)
  one = s32[] constant(1)
  none = f32[] constant(0)
  low = f32[] constant(-inf)
  next = s32[] add(i, one)
  e1 = f32[{n},1,{k}] dynamic-slice(x, zero, i, zero), dynamic_slice_sizes={{{n},1,{k}}}
  e2 = f32[{n},{k}] reshape(e1)
  e = f32[{n},{k},{k}] broadcast(e2), dimensions={{0,2}}
  ab = f32[{n},{k},{k}] broadcast(a), dimensions={{0,1}}
  tb = f32[{n},{k},{k}] broadcast(t), dimensions={{1,2}}
  s1 = f32[{n},{k},{k}] add(ab, tb)
  s2 = f32[{n},{k},{k}] add(s1, e)
  m = f32[{n},{k}] reduce(s2, low), dimensions={{1}}, to_apply=most
  mb = f32[{n},{k},{k}] broadcast(m), dimensions={{0,2}}
  d = f32[{n},{k},{k}] subtract(s2, mb)
  p = f32[{n},{k},{k}] exponential(d)
  q = f32[{n},{k}] reduce(p, none), dimensions={{1}}, to_apply=sum
  l = f32[{n},{k}] log(q)
  a2 = f32[{n},{k}] add(l, m)
  ROOT r = (s32[], f32[{n},{k}], f32[{n},20,{k}], f32[{k},{k}]) tuple(next, a2, x, t)
}}
test {{
  c = (s32[], f32[{n},{k}], f32[{n},20,{k}], f32[{k},{k}]) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  end = s32[] constant(20)
  ROOT p = pred[] compare(i, end), direction=LT
}}
ENTRY e {{
  a = f32[{n},{k}] parameter(0)
  x = f32[{n},20,{k}] parameter(1)
  t = f32[{k},{k}] parameter(2)
  zero = s32[] constant(0)
  start = (s32[], f32[{n},{k}], f32[{n},20,{k}], f32[{k},{k}]) tuple(zero, a, x, t)
  w = (s32[], f32[{n},{k}], f32[{n},20,{k}], f32[{k},{k}]) while(start), condition=test, body=body
  ROOT r = f32[{n},{k}] get-tuple-element(w), index=1
}}"""


@pytest.mark.parametrize(("n", "k"), [(32, 4), (19, 3), (300, 5)])
def test_the_forward_algorithm_of_a_chain(n: int, k: int) -> None:
    """The elements of a step of adjacent sequences are a whole sequence apart."""
    text = FORWARD.format(n=n, k=k)
    rng = np.random.default_rng(4)
    args = [rng.normal(size=s).astype(np.float32) for s in ((n, k), (n, 20, k), (k, k))]
    executable = compile(text)
    assert problem(executable(*args), Reference.of(parse(text), args)) is None
    (source,) = [kernel.source for kernel in executable.kernels if kernel.kind == "loop-kernel"]
    assert "_apart[" in source


def loop(stores: bool = False, runtime: bool = False) -> lir.For:
    """Return a loop over 20 rows that loads two elements of each, which are 100 elements long."""
    v = Var("i", 20)
    at = ix.of(v) * 100
    load = lir.Load("p0", at + ix.of(ix.Runtime("a", 0, 9)) if runtime else at + 1)
    store = lir.Store("o0", ix.of(v), "c") if stores else lir.LocalStore("s", ix.of(v), "c")
    body = (
        lir.Let("a", T.S32, lir.Load("p0", at)),
        lir.Let("b", T.F32, load),
        lir.Let("c", T.F32, lir.Apply(ScalarOp(Opcode.EXPONENTIAL, T.F32, T.F32), ("b",))),
        store,
    )
    return lir.For(v, lir.LoopKind.INDEPENDENT, body)


def test_what_is_separated() -> None:
    parts = separate_sparse_loads(loop())
    assert parts is not None
    arrays, loads, computing = parts
    assert [a.name for a in arrays if isinstance(a, lir.LocalArray)] == ["a_apart", "b_apart"]
    assert len(loads.body) == 4
    assert not is_sparse(computing)
    assert separated_bytes(loop()) == 20 * 8


def test_what_is_not_separated() -> None:
    """A store might change what is loaded, and an index that the loop computes is not known before it."""
    assert separate_sparse_loads(loop(stores=True)) is None
    assert separate_sparse_loads(loop(runtime=True)) is None
