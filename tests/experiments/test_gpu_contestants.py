"""The contestants of a race on a GPU: how they are timed, and that they compute the same."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.gpu.contestants import Contestant, works_in_a_loop

HEAD = """HloModule jit_many

%add (a: s32[], b: s32[]) -> s32[] {
  %a = s32[] parameter(0)
  %b = s32[] parameter(1)
  ROOT %s = s32[] add(%a, %b)
}

"""
LOOP = """%body.1 (t: (s32[], f32[8], f32[8])) -> (s32[], f32[8], f32[8]) {{
  %t = (s32[], f32[8]{{0}}, f32[8]{{0}}) parameter(0)
  %one = s32[] constant(1)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[8]{{0}} get-tuple-element(%t), index=2
  %next = s32[] fusion(%i, %one), kind=kLoop, calls=%add
  {work}
  ROOT %r = (s32[], f32[8]{{0}}, f32[8]{{0}}) tuple(%next, %y, %x)
}}

ENTRY %main (x: f32[8]) -> f32[8] {{
  %w = (s32[], f32[8]{{0}}, f32[8]{{0}}) while(%start), condition=%cond.1, body=%body.1
}}
"""


def test_a_loop_that_only_copies_is_told_from_one_that_works() -> None:
    copies = HEAD + LOOP.format(work="%y = f32[8]{0} copy(%x)")
    works = HEAD + LOOP.format(work="%y = f32[8]{0} fusion(%x), kind=kLoop, calls=%tanh")
    assert not works_in_a_loop(copies)
    assert works_in_a_loop(works)
    assert not works_in_a_loop(HEAD)


def test_the_least_of_both_ways_of_timing_counts() -> None:
    calls: list[str] = []

    def contestant(seconds: float) -> Contestant:
        return Contestant("x", list, lambda: calls.append("run"), lambda: calls.append("wait"), lambda n: seconds)

    _, on_device = contestant(1e-12).sample(3)
    assert on_device == 1e-12
    assert calls == ["run", "wait"] * 4 + ["run"] * 3 + ["wait"]
    _, steady = contestant(100.0).sample(3)
    assert steady < 100.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax_128x256", "product_relu_64x256x128", "top_k_2_of_8192x16"])
def test_the_peers_compute_the_same(name: str) -> None:
    pytest.importorskip("jax")
    pytest.importorskip("torch")
    from compiler.text import parse
    from env.suites import Program, load_suite
    from experiments.gpu.contestants import jax_contestant, torch_contestant
    from experiments.gpu.programs import inputs_of
    from experiments.natives.peers import native_difference
    from experiments.natives.tables import find_native

    program: Program = load_suite("kernels").find(name)
    native = find_native("kernels", name)
    arrays = inputs_of(program, parse(program.text()), 0)
    xla, eager = jax_contestant(native, arrays, "cpu"), torch_contestant(native, arrays, "eager", "cpu")
    assert native_difference(xla.outputs(), eager.outputs(), native.rtol) is None
    assert xla.device_seconds is not None  # its loop is not moved
    for c in (xla, eager):
        called, on_device = c.sample(2)
        assert called > 0
        assert 0 < on_device < np.inf
