"""Loops over rows that load elements far apart: their functions run in vectors, and results are the interpreter's."""

from __future__ import annotations

from dataclasses import replace

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


PATHS = """HloModule m
best {{
  a = f32[] parameter(0)
  i = s32[] parameter(1)
  b = f32[] parameter(2)
  j = s32[] parameter(3)
  more = pred[] compare(a, b), direction=GT
  same = pred[] compare(a, b), direction=EQ
  before = pred[] compare(i, j), direction=LT
  tie = pred[] and(same, before)
  first = pred[] or(more, tie)
  x = f32[] select(more, a, b)
  n = s32[] select(first, i, j)
  ROOT r = (f32[], s32[]) tuple(x, n)
}}
body {{
  c = (s32[], f32[{n},{k}], f32[{n},40,{k}], f32[{k},{k}], s32[40,{n},{k}]) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  a = f32[{n},{k}] get-tuple-element(c), index=1
  x = f32[{n},40,{k}] get-tuple-element(c), index=2
  t = f32[{k},{k}] get-tuple-element(c), index=3
  found = s32[40,{n},{k}] get-tuple-element(c), index=4
  zero = s32[] constant(0)
  one = s32[] constant(1)
  low = f32[] constant(-inf)
  next = s32[] add(i, one)
  e1 = f32[{n},1,{k}] dynamic-slice(x, zero, i, zero), dynamic_slice_sizes={{{n},1,{k}}}
  e2 = f32[{n},{k}] reshape(e1)
  e = f32[{n},{k},{k}] broadcast(e2), dimensions={{0,2}}
  ab = f32[{n},{k},{k}] broadcast(a), dimensions={{0,1}}
  tb = f32[{n},{k},{k}] broadcast(t), dimensions={{1,2}}
  s1 = f32[{n},{k},{k}] add(ab, tb)
  s2 = f32[{n},{k},{k}] add(s1, e)
  numbers = s32[{n},{k},{k}] iota(), iota_dimension=1
  both = (f32[{n},{k}], s32[{n},{k}]) reduce(s2, numbers, low, zero), dimensions={{1}}, to_apply=best
  m = f32[{n},{k}] get-tuple-element(both), index=0
  w = s32[{n},{k}] get-tuple-element(both), index=1
  w1 = s32[1,{n},{k}] reshape(w)
  kept = s32[40,{n},{k}] dynamic-update-slice(found, w1, i, zero, zero)
  ROOT r = (s32[], f32[{n},{k}], f32[{n},40,{k}], f32[{k},{k}], s32[40,{n},{k}]) tuple(next, m, x, t, kept)
}}
test {{
  c = (s32[], f32[{n},{k}], f32[{n},40,{k}], f32[{k},{k}], s32[40,{n},{k}]) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  end = s32[] constant(40)
  ROOT p = pred[] compare(i, end), direction=LT
}}
ENTRY e {{
  a = f32[{n},{k}] parameter(0)
  x = f32[{n},40,{k}] parameter(1)
  t = f32[{k},{k}] parameter(2)
  zero = s32[] constant(0)
  none = s32[40,{n},{k}] broadcast(zero), dimensions={{}}
  start = (s32[], f32[{n},{k}], f32[{n},40,{k}], f32[{k},{k}], s32[40,{n},{k}]) tuple(zero, a, x, t, none)
  w = (s32[], f32[{n},{k}], f32[{n},40,{k}], f32[{k},{k}], s32[40,{n},{k}]) while(start), condition=test, body=body
  m = f32[{n},{k}] get-tuple-element(w), index=1
  p = s32[40,{n},{k}] get-tuple-element(w), index=4
  ROOT r = (f32[{n},{k}], s32[40,{n},{k}]) tuple(m, p)
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
    assert [a.name for a in parts.arrays if isinstance(a, lir.LocalArray)] == ["a_apart", "b_apart"]
    assert len(parts.loads.body) == 4
    assert parts.stores is None
    assert not is_sparse(parts.computing)
    assert separated_bytes(loop()) == 20 * 8


def test_an_index_that_the_loop_computes_is_not_known_before_it() -> None:
    assert separate_sparse_loads(loop(runtime=True)) is None


def test_what_a_loop_stores_and_loads_again_is_not_moved() -> None:
    made = loop(stores=True)
    again = lir.Let("d", T.F32, lir.Load("o0", ix.of(made.var)))
    assert separate_sparse_loads(replace(made, body=(*made.body, again))) is None


def test_stores_to_adjacent_elements_stay_with_what_is_computed() -> None:
    parts = separate_sparse_loads(loop(stores=True))
    assert parts is not None
    assert parts.stores is None
    assert any(isinstance(s, lir.Store) for s in parts.computing.body)


@pytest.mark.parametrize(("n", "k"), [(24, 4), (19, 5)])
def test_the_most_likely_path_of_a_chain(n: int, k: int) -> None:
    """Each step stores the best predecessors of all states of a sequence, which are adjacent."""
    text = PATHS.format(n=n, k=k)
    rng = np.random.default_rng(4)
    args = [rng.integers(-9, 9, s).astype(np.float32) for s in ((n, k), (n, 40, k), (k, k))]
    executable = compile(text)
    assert problem(executable(*args), Reference.of(parse(text), args)) is None
    (source,) = [kernel.source for kernel in executable.kernels if kernel.kind == "loop-kernel"]
    assert "_out[" in source
