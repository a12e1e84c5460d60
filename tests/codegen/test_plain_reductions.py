"""Tests of the answers about plain reductions, against lowering and binding them."""

import numpy as np

from compiler.codegen.build_target import CUDA_TARGET
from compiler.codegen.buildability import is_refused, kernel_refusal
from compiler.codegen.lowering.lower import roots_of
from compiler.codegen.lowering.nests import nests_of
from compiler.codegen.lowering.plain_reductions import is_certainly_built
from compiler.ir import HloComputation
from compiler.text import parse
from tests.codegen.random_fusions import random_fusion, random_nests

SUM = "add { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT r = f32[] add(a, b) }"


def test_certain_answers_are_those_of_the_code_generator() -> None:
    answers = []
    for seed in range(400):
        fused = random_fusion(np.random.default_rng(seed))
        built = is_certainly_built(fused.post_order(), roots_of(fused))
        assert built in (None, kernel_refusal(fused) is None)
        answers.append(built)
    assert True in answers
    assert None in answers


def test_certain_answers_about_several_nests_are_those_of_the_code_generator() -> None:
    answers = []
    for seed in range(150):
        fused = random_nests(np.random.default_rng(seed))
        outputs = roots_of(fused)
        built = is_certainly_built(fused.post_order(), outputs)
        assert built in (None, kernel_refusal(fused) is None)
        answers.append((built, len(nests_of(fused.post_order(), outputs)) > 1))
    assert {(True, False), (True, True), (None, True)} <= set(answers)


def test_certain_answers_about_blocks_of_a_gpu_are_those_of_the_code_generator() -> None:
    answers = []
    for seed in range(150):
        for make in (random_fusion, random_nests):
            fused = make(np.random.default_rng(seed))
            built = is_certainly_built(fused.post_order(), roots_of(fused), CUDA_TARGET.schedule)
            assert built in (None, kernel_refusal(fused, CUDA_TARGET) is None)
            answers.append(built)
    assert {True, None} <= set(answers)


def test_sums_of_whole_arrays_beside_other_outputs_are_not_certain_on_a_gpu() -> None:
    fused = _fused("""
        x = f32[64,100] parameter(0)
        zero = f32[] constant(0)
        s = f32[] reduce(x, zero), dimensions={0,1}, to_apply=add
        y = f32[300] parameter(1)
        e = f32[300] exponential(y)
        ROOT t = (f32[], f32[300]) tuple(s, e)""")
    assert is_certainly_built(fused.post_order(), roots_of(fused)) is True
    assert is_certainly_built(fused.post_order(), roots_of(fused), CUDA_TARGET.schedule) is None
    assert not is_refused(fused, CUDA_TARGET)  # each of them runs on blocks of its own


def _fused(body: str) -> HloComputation:
    return parse(f"HloModule m\n{SUM}\nENTRY main {{\n{body}\n}}").entry


def test_softmax_is_certain_to_be_built() -> None:
    fused = _fused("""
        x = f32[64,100] parameter(0)
        zero = f32[] constant(0)
        e = f32[64,100] exponential(x)
        s = f32[64] reduce(e, zero), dimensions={1}, to_apply=add
        b = f32[64,100] broadcast(s), dimensions={0}
        ROOT d = f32[64,100] divide(e, b)""")
    assert is_certainly_built(fused.post_order(), roots_of(fused)) is True
    assert not is_refused(fused)


def test_a_transposed_result_of_a_reduction_needs_the_code_generator() -> None:
    fused = _fused("""
        x = f32[100,100] parameter(0)
        zero = f32[] constant(0)
        s = f32[100] reduce(x, zero), dimensions={1}, to_apply=add
        b = f32[100,100] broadcast(s), dimensions={1}
        ROOT d = f32[100,100] divide(x, b)""")
    assert is_certainly_built(fused.post_order(), roots_of(fused)) is None
    assert is_refused(fused)  # each sum would be computed for each row


def test_reductions_of_other_dimensions_are_certainly_refused() -> None:
    fused = _fused("""
        x = f32[64,100] parameter(0)
        zero = f32[] constant(0)
        s = f32[64] reduce(x, zero), dimensions={1}, to_apply=add
        b = f32[64,100] broadcast(s), dimensions={0}
        ROOT t = f32[100] reduce(b, zero), dimensions={0}, to_apply=add""")
    assert is_certainly_built(fused.post_order(), roots_of(fused)) is False


def test_reductions_over_one_element_are_certain_to_be_built() -> None:
    fused = _fused("""
        x = f32[1,1000] parameter(0)
        y = f32[1000] parameter(1)
        zero = f32[] constant(0)
        s = f32[1000] reduce(x, zero), dimensions={0}, to_apply=add
        ROOT d = f32[1000] multiply(s, y)""")
    assert is_certainly_built(fused.post_order(), roots_of(fused)) is True
    assert not is_refused(fused)


def test_gradients_of_a_layer_norm_in_two_nests_are_certain_to_be_built() -> None:
    fused = _fused("""
        x = f32[2048,1024] parameter(0)
        g = f32[2048,1024] parameter(1)
        zero = f32[] constant(0)
        xg = f32[2048,1024] multiply(x, g)
        rows = f32[2048] reduce(xg, zero), dimensions={1}, to_apply=add
        kept = f32[2048,1] reshape(rows)
        over = f32[2048,1024] broadcast(rows), dimensions={0}
        dx = f32[2048,1024] subtract(g, over)
        columns = f32[1024] reduce(xg, zero), dimensions={0}, to_apply=add
        bias = f32[1024] reduce(g, zero), dimensions={0}, to_apply=add
        ROOT t = (f32[2048,1024], f32[1024], f32[2048,1], f32[1024]) tuple(dx, columns, kept, bias)""")
    assert is_certainly_built(fused.post_order(), roots_of(fused)) is True
    assert not is_refused(fused)


def test_outputs_without_elements_are_built() -> None:
    fused = _fused("""
        x = f32[0,100] parameter(0)
        zero = f32[] constant(0)
        ROOT s = f32[0] reduce(x, zero), dimensions={1}, to_apply=add""")
    assert is_certainly_built(fused.post_order(), roots_of(fused)) is not False
    assert not is_refused(fused)


def test_a_short_reduction_that_starts_from_a_long_one_is_built() -> None:
    fused = _fused("""
        x = f32[4000] parameter(0)
        y = f32[4] parameter(1)
        zero = f32[] constant(0)
        s = f32[] reduce(x, zero), dimensions={0}, to_apply=add
        ROOT t = f32[] reduce(y, s), dimensions={0}, to_apply=add""")
    assert is_certainly_built(fused.post_order(), roots_of(fused)) is not False
    assert not is_refused(fused)
