# ruff: noqa: E501  # programs in one line each read better in a table
"""Undocumented forms that XLA's own programs use: ignored text, repeated information, implicit defaults."""

from __future__ import annotations

import pytest

from compiler.errors import HloSyntaxError
from compiler.ir.verifier import verify
from compiler.text import parse
from tests.text.reference import assert_round_trip, reprint

DOT = "HloModule m\nENTRY e {\n x = f32[4,4] parameter(0)\n ROOT d = f32[4,4] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}, %s\n}"
CALL = 'HloModule m\nENTRY e {\n x = f32[4,2] parameter(0)\n ROOT c = f32[4,2] custom-call(x), custom_call_target="mine", %s\n}'
BITS = (
    "HloModule m\nENTRY e {\n s = u64[2] parameter(0)\n ROOT b = (u64[2], u32[4]) rng-bit-generator(s), algorithm=%s\n}"
)

FORMS = {
    "precision_in_capitals": DOT % "operand_precision={HIGH,Highest}",
    "dot_algorithm_in_capitals": DOT % "algorithm=DOT_BF16_BF16_F32_X3",
    "dot_algorithm_unset": DOT % "algorithm=unset",
    "rng_algorithm_in_capitals": BITS % "RNG_THREE_FRY",
    "schedule_in_small_letters": CALL % "schedule=schedule_latest",
    "api_version_in_small_letters": CALL % "api_version=api_version_typed_ffi",
    "layouts_of_operands_left_out": CALL % "operand_layout_constraints={f32[4,2]}",
    "empty_configuration_as_string": CALL % 'backend_config="{}"',
    "labels_of_dimensions_not_named": 'HloModule m\nENTRY e {\n x = s8[2,5,5,4,4] parameter(0)\n k = s8[2,2,4,4,8] parameter(1)\n ROOT c = s8[2,5,5,8,4] custom-call(x, k), window={size=2x2}, dim_labels=b01f?_01i?o->b01f?, custom_call_target="mine"\n}',
    "applied_by_a_custom_call": 'HloModule m\nf { p = s32[] parameter(0) ROOT n = s32[] negate(p) }\nENTRY e {\n x = s32[] parameter(0)\n ROOT c = s32[] custom-call(x), custom_call_target="mine", to_apply=f\n}',
    "space_before_dimensions": "HloModule m\nENTRY e {\n x = s32 [4,2] parameter(0)\n ROOT y = s32 [4,2] negate(s32 [4,2] x)\n}",
    "operands_missing": "HloModule m\nENTRY e {\n x = f32[] parameter(0)\n y = f32[] parameter(1)\n ROOT z = f32[] add(f32[] x, f32[], , y,)\n}",
    "outfeed_without_a_shape": "HloModule m\nENTRY e {\n x = f32[3] parameter(0)\n k = token[] after-all()\n ROOT o = token[] outfeed(x, k)\n}",
    "outfeed_of_another_shape": "HloModule m\nENTRY e {\n x = f32[3] parameter(0)\n k = token[] after-all()\n ROOT o = (f32[3]) outfeed(x, k)\n}",
    "send_without_context": "HloModule m\nENTRY e {\n x = f32[3] parameter(0)\n k = token[] after-all()\n s = (f32[3], token[]) send(x, k), channel_id=1\n ROOT d = (f32[3], token[]) send-done(s), channel_id=1\n}",
    "recv_of_another_context": "HloModule m\nENTRY e {\n k = token[] after-all()\n r = (u32[8], u32[8], token[]) recv(k), channel_id=1\n ROOT d = token[] recv-done(r), channel_id=1\n}",
    "transpose_told_by_its_operand": "HloModule m\nENTRY e {\n x = f32[3,4,5] parameter(0)\n t = transpose(x), dimensions={1,2,0}\n ROOT n = f32[4,5,3] negate(t)\n}",
    "transpose_of_a_layout": "HloModule m\nENTRY e {\n x = f32[3,4,5]{0,2,1} parameter(0)\n ROOT t = transpose(x), dimensions={2,0,1}\n}",
    "window_told_by_its_start": "HloModule m\nr { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }\nENTRY e {\n x = f32[8] parameter(0)\n z = bf16[] constant(0)\n ROOT w = reduce-window(x, z), window={size=2}, to_apply=r\n}",
    "main_thread_said": 'HloModule m\nw { p = f32[8] parameter(0) ROOT n = f32[8] negate(p) }\nENTRY e {\n x = f32[8] parameter(0)\n s = ((f32[8]), f32[8], u32[]) async-start(x), async_execution_thread="main", calls=w\n ROOT d = f32[8] async-done(s)\n}',
    "not_needed_by_the_root": "HloModule m\nENTRY e {\n x = f32[4] parameter(0)\n b = f32[4] abs(x)\n c = f32[4] cosine(x)\n d = f32[4] add(c, b)\n ROOT n = f32[4] negate(x)\n}",
    "shared_with_the_dead": "HloModule m\ng { ROOT k = s32[] constant(1) }\ndead { q = s32[] call(), to_apply=g\n ROOT r = s32[] negate(q) }\nENTRY e {\n ROOT q = s32[] call(), to_apply=g\n}",
    "a_name_given_below": "HloModule m\nENTRY e {\n x = (s32[], s32[]) parameter(0)\n y = s32[] add(s32[] constant(2), x#0)\n constant = s32[] constant(1)\n x_0 = s32[] add(y, constant)\n ROOT z = s32[] multiply(x_0, s32[] constant(3))\n}",
    "a_transfer_takes_the_layout_of_its_operand": "HloModule m\nENTRY e {\n x = f32[3,2]{0,1} parameter(0)\n k = token[] after-all()\n s = (f32[3,2]{1,0}, u32[], token[]) send(x, k), channel_id=1\n ROOT d = token[] send-done(s), channel_id=1\n}",
    "negative_zeros": "HloModule m\nENTRY e {\n a = bf16[2] constant({-0.0, 0})\n b = f16[] constant(-0.0)\n c = f8e5m2[2] constant({-0.0, 1})\n ROOT t = tuple(a, b, c)\n}",
}


@pytest.mark.parametrize("form", FORMS)
def test_xla_reads_the_same_program(form: str) -> None:
    assert_round_trip(FORMS[form])


@pytest.mark.parametrize("mode", ["HIGHEST", "Default"])
def test_an_accuracy_may_be_in_capitals(mode: str) -> None:
    text = f"HloModule m\nENTRY e {{\n x = f32[] parameter(0)\n ROOT y = f32[] tanh(x), result_accuracy={{mode={mode}}}\n}}"
    verify(assert_round_trip(text))


REFUSED = {
    DOT % "operand_precision={high,fast}": "unknown precision 'fast', expected one of default, high, highest",
    DOT % "algorithm=dot_f32_f32_f64": "algorithm cannot be 'dot_f32_f32_f64'; did you mean 'dot_f32_f32_f32'?",
    DOT % "algorithm=rng_default": "algorithm cannot be 'rng_default'",
    BITS % "dot_f32_f32_f32": "algorithm cannot be 'dot_f32_f32_f32'; rng_default, rng_three_fry, rng_philox",
    CALL % "operand_layout_constraints={4,2}": "expected a shape, found '4'",
    CALL % "custom_call_schedule=SCHEDULE_LATEST": "custom-call has no attribute 'custom_call_schedule'; did you mean",
    CALL % "dim_labels=b0f_0io->b01f": "input, kernel and output must have the same number of dimensions",
    CALL % "dim_labels=b0f?_0io->bf?": "the same number of spatial dimensions",
    "HloModule m\nENTRY e {\n ROOT x = f32[4,4]{1,0:T(2,2)P(f32[4,4]{1,0})} parameter(0)\n}": "a layout takes D, T, L, #, *, E, S, SC and M",
    "HloModule m\nr { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }\nENTRY e {\n x = f32[4] parameter(0)\n ROOT y = f32[4] all-reduce(x), replica_groups=mine, to_apply=r\n}": "expected groups of devices like {{0,1},{2,3}}, [2,2]<=[4] or mesh[...], found 'mine'",
    "HloModule m\nENTRY e {\n x = f32[4] parameter(0)\n s = ((f32[4]), f32[4]) parameter-start(x)\n ROOT d = f32[4] async-done(s)\n}": "unknown opcode 'parameter-start'",
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_what_xla_refuses_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(HloSyntaxError) as caught:
        parse(text)
    assert REFUSED[text] in caught.value.message
    with pytest.raises(Exception, match="error"):
        reprint(text)


@pytest.mark.parametrize("value", ["0", "{...}"])
def test_a_constant_no_machine_holds_is_refused(value: str) -> None:
    text = f"HloModule m\nENTRY e {{\n ROOT c = f32[4000000000,4000000000,4000000000] constant({value})\n}}"
    with pytest.raises(HloSyntaxError, match="does not fit into memory"):
        parse(text, fill_elided=True)


def test_xla_prints_what_it_was_not_told() -> None:
    assert "(f32[3]{0}, u32[], token[]) send(%x, %k)" in reprint(FORMS["send_without_context"])
    s = parse(FORMS["send_without_context"]).entry.find("s")
    assert s is not None
    assert str(s.shape) == "(f32[3], u32[], token[])"
