"""Values that kernels compute again instead of reading them from memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler import CompilationSession, compile, parse
from compiler.codegen.build_target import C_TARGET
from compiler.fusion.policies import NoFusion
from compiler.fusion.recomputation import recompute_outputs
from compiler.interpreter import evaluate
from compiler.ir import HloModule, Opcode
from compiler.ir.verifier import verify
from compiler.passes import PassPipeline

GELU = """
HloModule gelu

add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }

forward {
  p = f32[128,256] parameter(0)
VALUE
  y = f32[128,256] multiply(p, t)
  ROOT r = (f32[128,256], f32[128,256]) tuple(y, t)
}

backward {
  t = f32[128,256] parameter(0)
  p = f32[128,256] parameter(1)
  g = f32[128,256] parameter(2)
  a = f32[128,256] multiply(p, t)
  ROOT r = f32[128,256] multiply(a, g)
}

ENTRY main {
  x = f32[128,96] parameter(0)
  w = f32[96,256] parameter(1)
  target = f32[128,256] parameter(2)
  p = f32[128,256] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  f = (f32[128,256], f32[128,256]) fusion(p), kind=kLoop, calls=forward
  y = f32[128,256] get-tuple-element(f), index=0
  t = f32[128,256] get-tuple-element(f), index=1
  zero = f32[] constant(0)
  loss = f32[] reduce(y, zero), dimensions={0,1}, to_apply=add
  g = f32[128,256] multiply(y, target)
  d = f32[128,256] fusion(t, READ, g), kind=kLoop, calls=backward
  dx = f32[128,96] dot(d, w), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  ROOT r = (f32[], f32[128,96]) tuple(loss, dx)
}
"""
"""A fusion that stores a VALUE of a product, which a later fusion reads beside READ."""


TANH = "t = f32[128,256] tanh(p)"
SUM = """z = f32[] constant(0)
  s = f32[128] reduce(p, z), dimensions={1}, to_apply=add
  b = f32[128,256] broadcast(s), dimensions={0}
  t = f32[128,256] OP(b, p)"""
REVERSED = "u = f32[128,256] reverse(p), dimensions={1}\n  t = f32[128,256] negate(u)"
GIVEN = """
HloModule given

forward {
  p = f32[128,256] parameter(0)
  t = f32[128,256] multiply(p, p)
  y = f32[128,256] add(p, t)
  ROOT r = (f32[128,256], f32[128,256]) tuple(y, t)
}

add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }

backward {
  t = f32[128,256] parameter(0)
  e = f32[128,256] READ
  z = f32[] constant(0)
  ROOT s = f32[] reduce(LAST, z), dimensions={0,1}, to_apply=add
}

ENTRY main {
  x = f32[128,256] parameter(0)
  f = (f32[128,256], f32[128,256]) fusion(x), kind=kLoop, calls=forward
  y = f32[128,256] get-tuple-element(f), index=0
  t = f32[128,256] get-tuple-element(f), index=1
  s = f32[] fusion(t), kind=kLoop, calls=backward
  ROOT r = (f32[128,256], f32[]) tuple(y, s)
}
"""
"""A fusion that stores the squares of an argument, which a later fusion reads and which does not read the argument."""


SOFTMAX = """
HloModule softmax

add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }
largest { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] maximum(a, b) }

weigh {
  s = f32[128,256] parameter(0)
  low = f32[] constant(-inf)
  m = f32[128] reduce(s, low), dimensions={1}, to_apply=largest
  ms = f32[128,256] broadcast(m), dimensions={0}
  d = f32[128,256] subtract(s, ms)
  x = f32[128,256] exponential(d)
  zero = f32[] constant(0)
  t = f32[128] reduce(x, zero), dimensions={1}, to_apply=REDUCER
  ts = f32[128,256] broadcast(t), dimensions={0}
  w = f32[128,256] divide(x, ts)
  ROOT r = (f32[128,256], f32[128], f32[128,256]) tuple(w, t, x)
}

backward {
  x = f32[128,256] parameter(0)
  g = f32[128,256] parameter(1)
  ROOT r = f32[128,256] multiply(x, g)
}

ENTRY main {
  s = f32[128,256] parameter(0)
  v = f32[256,96] parameter(1)
  g = f32[128,256] parameter(2)
  f = (f32[128,256], f32[128], f32[128,256]) fusion(s), kind=kLoop, calls=weigh
  w = f32[128,256] get-tuple-element(f), index=0
  t = f32[128] get-tuple-element(f), index=1
  x = f32[128,256] get-tuple-element(f), index=2
  y = f32[128,96] dot(w, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  d = f32[128,256] fusion(x, g), kind=kLoop, calls=backward
  dv = f32[256,96] dot(w, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  ROOT r = (f32[128], f32[128,96], f32[256,96], f32[128,256]) tuple(t, y, dv, d)
}
"""
"""A softmax that stores its weights, their sums by REDUCER and its exponentials, of which products read the weights."""


def program(value: str = TANH, read: str = "p") -> HloModule:
    return parse(GELU.replace("VALUE", value).replace("READ", read))


def stored(module: HloModule) -> int:
    """Return how many arrays the first fusion of a program stores."""
    first = next(i for i in module.entry.post_order() if i.opcode is Opcode.FUSION)
    return len([s for s in first.shape.leaves() if s.is_array])


def inputs_of(module: HloModule) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s.dimensions).astype(np.float32) for s in module.entry.parameter_shapes]


def test_a_kernel_computes_again_what_follows_from_an_array_it_reads() -> None:
    module = program()
    before = str(module)
    changed = recompute_outputs(module, C_TARGET)
    assert (stored(module), stored(changed)) == (2, 1)
    assert str(module) == before
    assert_same_results(module, changed)


@pytest.mark.parametrize(
    ("value", "read", "why"),
    [
        (TANH, "target", "the product would be alive instead of its tanh"),
        (REVERSED, "p", "it follows from other elements"),
        (SUM.replace("OP", "power"), "p", "an expensive op would follow from a sum that is not stored"),
        ("u = f32[128,256] tanh(p)\n  t = f32[128,256] tanh(u)", "p", "it takes longer than loading it"),
    ],
)
def test_other_values_are_stored(value: str, read: str, why: str) -> None:
    module = program(value, read)
    assert recompute_outputs(module, C_TARGET) is module, why


def assert_same_results(module: HloModule, changed: HloModule) -> None:
    verify(changed)
    inputs = inputs_of(module)
    for found, wanted in zip(evaluate(changed, inputs), evaluate(module, inputs), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_kernel_computes_again_what_follows_from_a_reduction_which_is_stored_instead() -> None:
    module = program(SUM.replace("OP", "add"))
    changed = recompute_outputs(module, C_TARGET)
    first = next(i for i in changed.entry.post_order() if i.opcode is Opcode.FUSION)
    assert [s.dimensions for s in first.shape.leaves()] == [(128, 256), (128,)]
    assert_same_results(module, changed)


def test_a_kernel_computes_again_what_follows_from_an_argument() -> None:
    module = parse(GIVEN.replace("READ", "negate(t)").replace("LAST", "e"))
    changed = recompute_outputs(module, C_TARGET)
    assert (stored(module), stored(changed)) == (2, 1)
    assert_same_results(module, changed)


@pytest.mark.parametrize(
    "read", ["reverse(t), dimensions={0}", "negate(t)\n  m = f32[128,256] reverse(e), dimensions={1}"]
)
def test_what_follows_from_an_argument_is_stored_where_elements_move(read: str) -> None:
    module = parse(GIVEN.replace("READ", read).replace("LAST", "m" if "m = " in read else "e"))
    assert recompute_outputs(module, C_TARGET) is module


def test_exponentials_of_a_softmax_are_computed_from_its_weights() -> None:
    module = parse(SOFTMAX.replace("REDUCER", "add"))
    changed = recompute_outputs(module, C_TARGET)
    assert (stored(module), stored(changed)) == (3, 2)
    verify(changed)
    inputs = inputs_of(module)
    for found, wanted in zip(evaluate(changed, inputs), evaluate(module, inputs), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_exponentials_that_are_not_divided_by_their_sum_are_stored() -> None:
    module = parse(SOFTMAX.replace("REDUCER", "largest"))
    assert recompute_outputs(module, C_TARGET) is module


def test_kernels_are_chosen_for_what_is_computed_again() -> None:
    session = CompilationSession(program(), pipeline=PassPipeline("none", ()))
    session.run_passes()
    session.run_fusion_policy(NoFusion())
    without = session.fork().final_module().fingerprint()
    sites = session.kernel_sites()
    assert {s.instruction.parent.parent for s in sites if s.instruction.parent} == {session.final_module()}
    for site in sites:
        if site.choices.size > 1:
            session.set_kernel(site, site.choices[1])
    assert session.kernel_bindings
    assert session.final_module().fingerprint() == without != session.module.fingerprint()
    assert session.fork().final_module() is session.final_module()


def test_compiled_programs_need_less_memory_and_compute_the_same() -> None:
    module = program()
    executable = compile(module, pipeline=[], fusion_policy="none")
    assert executable.memory is not None
    array = 128 * 256 * 4
    assert executable.memory.temporaries < 4 * array  # the product, g and d, and in the forward fusion y
    inputs = inputs_of(module)
    for found, wanted in zip(executable(*inputs), evaluate(module, inputs), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-3)


def test_a_session_goes_on_as_it_was_after_it_has_built_a_program() -> None:
    session = CompilationSession(program(), pipeline=[])
    session.fusion.module.reorder()
    before = str(session.fusion.module)
    executable = session.finish()
    assert str(session.fusion.module) == before
    assert str(executable.module) != before
