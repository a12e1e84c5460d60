# ruff: noqa: E501  # a rule in one line each reads better in a table
"""The rules of well-formed HLO as a table: for each a program that violates it, a valid twin, and the message.

Both are one string: `<<broken||sound>>` holds what differs. Lines end in `;`. The violating instruction is named `bad`; the
finding must name it and its line. The rules are those of XLA's `hlo_verifier.cc` and `shape_inference.cc`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TWINS = re.compile(r"<<(.*?)\|\|(.*?)>>")


class Rule(NamedTuple):
    """A pattern for the message, and both programs."""

    message: str
    broken: str
    sound: str


def _programs(source: str) -> tuple[str, str]:
    source = source if source.startswith("HloModule") else "HloModule m; " + source
    broken, sound = (_TWINS.sub(side, source).replace("; ", "\n") for side in (r"\1", r"\2"))
    return broken, sound


ADD = "add { a = f32[] parameter(0); b = f32[] parameter(1); ROOT s = f32[] add(a, b) }; "
F = "f { p = f32[4] parameter(0); ROOT r = f32[4] negate(p) }; "
SCALAR = "f { p = f32[] parameter(0); ROOT r = f32[] negate(p) }; "
X = "ENTRY e {; x = f32[4] parameter(0); "
Y = "ENTRY e {; x = f32[4] parameter(0); y = f32[4] parameter(1); "
M = "ENTRY e {; x = f32[4,6] parameter(0); "

_SHAPES = {
    "result": ("expected f32\\[4\\]", X + "ROOT bad = f32[<<5||4>>] negate(x) }"),
    "result_type": ("expected f32\\[4\\]", X + "ROOT bad = <<s32||f32>>[4] negate(x) }"),
    "operands": ("operands must have one shape", X + "y = f32[<<5||4>>] parameter(1); ROOT bad = f32[4] add(x, y) }"),
    "operand_types": ("operands must have one shape", X + "y = <<f64||f32>>[4] parameter(1); ROOT bad = f32[4] maximum(x, y) }"),
    "arity": ("takes 2 operand\\(s\\), got 3", X + "ROOT bad = f32[4] add(x, x<<, x||>>) }"),
    "bits": ("takes integers or pred", "ENTRY e {; x = <<f32||s32>>[4] parameter(0); ROOT bad = <<f32||s32>>[4] and(x, x) }"),
    "floats": ("takes floating-point numbers", "ENTRY e {; x = <<s32||f32>>[4] parameter(0); ROOT bad = <<s32||f32>>[4] floor(x) }"),
    "smooth": ("floating-point or complex", "ENTRY e {; x = <<s32||c64>>[4] parameter(0); ROOT bad = <<s32||c64>>[4] sine(x) }"),
    "numbers": ("takes numbers", "ENTRY e {; x = <<pred||s8>>[4] parameter(0); ROOT bad = <<pred||s8>>[4] subtract(x, x) }"),
    "finite": ("takes floating-point", "ENTRY e {; x = <<s32||f32>>[4] parameter(0); ROOT bad = pred[4] is-finite(x) }"),
    "counted_bits": ("takes integers", "ENTRY e {; x = <<f32||u32>>[4] parameter(0); ROOT bad = <<f32||u32>>[4] popcnt(x) }"),
    "magnitude": ("expected f32\\[4\\]", "ENTRY e {; x = c64[4] parameter(0); ROOT bad = <<c64||f32>>[4] abs(x) }"),
    "complex": ("complex takes f32 or f64", "ENTRY e {; x = <<f16||f32>>[4] parameter(0); ROOT bad = c64[4] complex(x, x) }"),
    "compare_type": ("comparison type must be SIGNED", "ENTRY e {; x = s32[4] parameter(0); ROOT bad = pred[4] compare(x, x), direction=LT, type=<<UNSIGNED||SIGNED>> }"),
    "compare_order": ("complex numbers have no order", "ENTRY e {; x = c64[4] parameter(0); ROOT bad = pred[4] compare(x, x), direction=<<LT||NE>> }"),
    "compare_result": ("expected pred\\[4\\]", X + "ROOT bad = <<u8||pred>>[4] compare(x, x), direction=LT }"),
    "select_pred": ("needs a pred operand", "ENTRY e {; x = f32[4] parameter(0); p = <<s32||pred>>[4] parameter(1); ROOT bad = f32[4] select(p, x, x) }"),
    "select_scalar": ("must be a scalar or have the shape", "ENTRY e {; x = f32[4] parameter(0); p = pred[<<3||4>>] parameter(1); ROOT bad = f32[4] select(p, x, x) }"),
    "clamp": ("must be a scalar of the operand's type", "ENTRY e {; x = f32[4] parameter(0); l = f32[<<2||>>] parameter(1); ROOT bad = f32[4] clamp(l, x, l) }"),
    "convert": ("must have the operand's dimensions", X + "ROOT bad = s32[<<2||4>>] convert(x) }"),
    "convert_complex": ("take its real or imag part", "ENTRY e {; x = c64[4] parameter(0); ROOT bad = <<f32||c128>>[4] convert(x) }"),
    "bitcast_convert": ("bits of an element must agree", X + "ROOT bad = <<u16||u32>>[4] bitcast-convert(x) }"),
    "bitcast_convert_complex": ("between complex and other types", "ENTRY e {; x = <<c64||f64>>[4] parameter(0); ROOT bad = f64[4] bitcast-convert(x) }"),
    "stochastic_bits": ("as wide as the operand", X + "r = <<u16||u32>>[4] parameter(1); ROOT bad = s8[4] stochastic-convert(x, r) }"),
    "reduce_precision": ("exponent_bits must be at least 1", X + "ROOT bad = f32[4] reduce-precision(x), exponent_bits=<<0||5>>, mantissa_bits=2 }"),
    "iota_rank": ("out of range", "ENTRY e {; ROOT bad = s32[4] iota(), iota_dimension=<<1||0>> }"),
    "iota_type": ("counts in numbers", "ENTRY e {; ROOT bad = <<pred||u8>>[4] iota(), iota_dimension=0 }"),
    "reshape": ("cannot reshape", X + "ROOT bad = f32[<<5||2,2>>] reshape(x) }"),
    "reshape_type": ("cannot reshape", X + "ROOT bad = <<s32||f32>>[2,2] reshape(x) }"),
    "dynamic_reshape": ("needs one size for each", X + "n = s32[] constant(2); ROOT bad = f32[<=2,<=2] dynamic-reshape(x, n<<||, n>>) }"),
    "transpose": ("not a permutation", M + "ROOT bad = f32[<<4||6>>,4] transpose(x), dimensions={<<0,0||1,0>>} }"),
    "broadcast": ("does not fit result dimension", X + "ROOT bad = f32[<<5||4>>,2] broadcast(x), dimensions={0} }"),
    "broadcast_rank": ("must name one result dimension", X + "ROOT bad = f32[4,2] broadcast(x), dimensions={<<0,1||0>>} }"),
    "broadcast_type": ("cannot change the type", X + "ROOT bad = <<f64||f32>>[4,2] broadcast(x), dimensions={0} }"),
    "slice": ("does not fit a dimension", X + "ROOT bad = f32[4] slice(x), slice={[0:<<5||4>>]} }"),
    "slice_rank": ("slice has 1 dimensions", M + "ROOT bad = f32[4,6] slice(x), slice={[0:4]<<||, [0:6]>>} }"),
    "concatenate": ("cannot concatenate", M + "y = f32[4,<<5||6>>] parameter(1); ROOT bad = f32[8,6] concatenate(x, y), dimensions={0} }"),
    "concatenate_dimension": ("needs one dimension", X + "ROOT bad = f32[8] concatenate(x, x), dimensions={<<1||0>>} }"),
    "pad_value": ("pad value must be a f32 scalar", X + "v = <<s32||f32>>[] constant(0); ROOT bad = f32[6] pad(x, v), padding=1_1 }"),
    "pad_rank": ("padding has 2 dimensions", X + "v = f32[] constant(0); ROOT bad = f32[6] pad(x, v), padding=1_1<<x0_0||>> }"),
    "pad_negative": ("makes a dimension of size 4 negative", X + "v = f32[] constant(0); ROOT bad = f32[<<1||0>>] pad(x, v), padding=<<-3||-2>>_-2 }"),
    "reverse": ("repeated dimensions", M + "ROOT bad = f32[4,6] reverse(x), dimensions={0,<<0||1>>} }"),
    "dynamic_slice_index": ("start indices must be integer", X + "i = <<f32||s32>>[] constant(0); ROOT bad = f32[1] dynamic-slice(x, i), dynamic_slice_sizes={1} }"),
    "dynamic_slice_index_types": ("start indices must have one type", M + "i = s32[] constant(0); j = <<s64||s32>>[] constant(0); ROOT bad = f32[1,1] dynamic-slice(x, i, j), dynamic_slice_sizes={1,1} }"),
    "dynamic_slice_count": ("needs 2 start indices", M + "i = s32[] constant(0); ROOT bad = f32[1,1] dynamic-slice(x, i<<||, i>>), dynamic_slice_sizes={1,1} }"),
    "dynamic_slice_size": ("do not fit", X + "i = s32[] constant(0); ROOT bad = f32[<<5||4>>] dynamic-slice(x, i), dynamic_slice_sizes={<<5||4>>} }"),
    "dynamic_update": ("does not fit into", X + "u = f32[<<5||3>>] parameter(1); i = s32[] constant(0); ROOT bad = f32[4] dynamic-update-slice(x, u, i) }"),
    "dimension_size": ("must name one dimension", X + "ROOT bad = s32[] get-dimension-size(x), dimensions={<<1||0>>} }"),
    "set_dimension_size": ("must be an s32 scalar", X + "n = <<s64||s32>>[] parameter(1); ROOT bad = f32[<=4] set-dimension-size(x, n), dimensions={0} }"),
    "gather_slice": ("slice size of collapsed", M + "i = s32[2,1] parameter(1); ROOT bad = f32[2,6] gather(x, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={<<2||1>>,6} }"),
    "gather_indices": ("gather indices must be integers", M + "i = <<f32||s32>>[2,1] parameter(1); ROOT bad = f32[2,6] gather(x, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,6} }"),
    "gather_map": ("start_index_map \\[0, 1\\] must have 1 entries", M + "i = s32[2,1] parameter(1); ROOT bad = f32[2,6] gather(x, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0<<,1||>>}, index_vector_dim=1, slice_sizes={1,6} }"),
    "gather_offsets": ("must ascend", M + "i = s32[1] parameter(1); ROOT bad = f32[1,6] gather(x, i), offset_dims={<<1,0||0,1>>}, collapsed_slice_dims={}, start_index_map={0}, index_vector_dim=0, slice_sizes={1,6} }"),
    "scatter_updates": ("does not have the batch dimensions", ADD + X + "i = s32[2,1] parameter(1); u = f32[<<3||2>>] parameter(2); ROOT bad = f32[4] scatter(x, i, u), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add }"),
    "scatter_rank": ("must have rank 1", ADD + X + "i = s32[2,1] parameter(1); u = f32[2<<,1||>>] parameter(2); ROOT bad = f32[4] scatter(x, i, u), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add }"),
    "scatter_window": ("exceeds the operand", ADD + M + "i = s32[2,1] parameter(1); u = f32[2,<<7||6>>] parameter(2); ROOT bad = f32[4,6] scatter(x, i, u), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add }"),
    "scatter_dims": ("out of range for rank 1", ADD + X + "i = s32[2,1] parameter(1); u = f32[2] parameter(2); ROOT bad = f32[4] scatter(x, i, u), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={<<1||0>>}, index_vector_dim=1, to_apply=add }"),
    "dot_sizes": ("must have the same size", M + "y = f32[<<4||6>>,3] parameter(1); ROOT bad = f32[4,3] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0} }"),
    "dot_numbers": ("contracting dimensions differ in number", "ENTRY e {; x = f32[4,4] parameter(0); ROOT bad = f32[<<4||4,4>>] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0<<,1||>>} }"),
    "ragged_dot": ("needs one ragged dimension", M + "y = f32[2,6,5] parameter(1); g = s32[2] parameter(2); ROOT bad = f32[4,5] ragged-dot(x, y, g), lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0<<,1||>>}, rhs_group_dims={0} }"),
    "convolution": ("input features", "ENTRY e {; x = f32[1,<<3||2>>,8] parameter(0); k = f32[4,2,3] parameter(1); ROOT bad = f32[1,4,6] convolution(x, k), window={size=3}, dim_labels=bf0_oi0->bf0 }"),
    "convolution_window": ("window size 2 differs from kernel size 3", "ENTRY e {; x = f32[1,2,8] parameter(0); k = f32[4,2,3] parameter(1); ROOT bad = f32[1,4,<<7||6>>] convolution(x, k), window={size=<<2||3>>}, dim_labels=bf0_oi0->bf0 }"),
    "convolution_groups": ("output features 4 must be a multiple", "ENTRY e {; x = f32[1,6,8] parameter(0); k = f32[<<4||6>>,2,3] parameter(1); ROOT bad = f32[1,<<4||6>>,6] convolution(x, k), window={size=3}, dim_labels=bf0_oi0->bf0, feature_group_count=3 }"),
    "cholesky": ("square matrices", "ENTRY e {; x = f32[4,<<3||4>>] parameter(0); ROOT bad = f32[4,<<3||4>>] cholesky(x) }"),
    "triangular_solve": ("shared dimension", "ENTRY e {; a = f32[4,4] parameter(0); x = f32[<<3||4>>,4] parameter(1); ROOT bad = f32[<<3||4>>,4] triangular-solve(a, x), left_side=true, lower=true, transpose_a=NO_TRANSPOSE }"),
    "fft_type": ("RFFT takes f32 or f64", "ENTRY e {; x = <<c64||f32>>[4] parameter(0); ROOT bad = c64[3] fft(x), fft_type=RFFT, fft_length={4} }"),
    "fft_length": ("fft_length \\[5\\] does not fit", X + "ROOT bad = c64[3] fft(x), fft_type=RFFT, fft_length={<<5||4>>} }"),
    "batch_norm": ("operand 1 must be f32\\[6\\]", M + "s = f32[<<4||6>>] parameter(1); o = f32[6] parameter(2); ROOT bad = (f32[4,6], f32[6], f32[6]) batch-norm-training(x, s, o), epsilon=0.1, feature_index=1 }"),
    "batch_norm_index": ("feature_index 2 out of range", M + "s = f32[6] parameter(1); ROOT bad = (f32[4,6], f32[6], f32[6]) batch-norm-training(x, s, s), epsilon=0.1, feature_index=<<2||1>> }"),
    "rng": ("must be a f32 scalar", "ENTRY e {; l = <<f64||f32>>[] constant(0); h = f32[] constant(1); ROOT bad = f32[4] rng(l, h), distribution=rng_uniform }"),
    "rng_normal": ("rng_normal draws floats", "ENTRY e {; l = s32[] constant(0); ROOT bad = s32[4] rng(l, l), distribution=rng_<<normal||uniform>> }"),
    "rng_bits": ("must have the old one's shape", "ENTRY e {; s = u64[2] parameter(0); ROOT bad = (u64[<<3||2>>], u32[4]) rng-bit-generator(s), algorithm=rng_three_fry }"),
    "rng_state": ("expected u64\\[2\\]", "ENTRY e {; ROOT bad = u64[<<3||2>>] rng-get-and-update-state(), delta=1 }"),
    "topk": ("k=5 does not fit", X + "ROOT bad = (f32[<<5||2>>], s32[<<5||2>>]) topk(x), k=<<5||2>>, largest=true }"),
    "bitcast_size": ("bitcast between different sizes", X + "ROOT bad = f32[<<8||4>>] bitcast(x) }"),
    "tuple_element": ("no element 2", "ENTRY e {; x = (f32[4], f32[4]) parameter(0); ROOT bad = f32[4] get-tuple-element(x), index=<<2||1>> }"),
    "tuple": ("expected \\(f32\\[4\\], f32\\[4\\]\\)", X + "ROOT bad = (f32[4], f32[<<5||4>>]) tuple(x, x) }"),
    "barrier": ("expected f32\\[4\\]", X + "ROOT bad = f32[<<5||4>>] opt-barrier(x) }"),
    "after_all": ("expected token", "ENTRY e {; k = token[] after-all(); ROOT bad = <<f32||token>>[] after-all(k) }"),
    "add_dependency": ("operand 1 must be a token", X + "k = token[] after-all(); ROOT bad = f32[4] add-dependency(x, <<x||k>>) }"),
    "unbounded": ("has an unbounded dimension", "ENTRY e {; ROOT bad = f32[<<?||4>>] parameter(0) }"),
    "parameters": ("numbered \\[0, 2\\], expected 0 to 1", "ENTRY e {; x = f32[4] parameter(0); y = f32[4] parameter(<<2||1>>); ROOT s = f32[4] add(x, y) }"),
}  # fmt: skip

_CALLS = {
    "reduce_parameters": ("must take 2 scalars", "g { a = f32[] parameter(0); <<||b = f32[] parameter(1); >>ROOT r = f32[] negate(a) }; " + X + "z = f32[] constant(0); ROOT bad = f32[] reduce(x, z), dimensions={0}, to_apply=g }"),
    "reduce_elements": ("the operand's elements are f32", "g { a = <<s32||f32>>[] parameter(0); b = <<s32||f32>>[] parameter(1); ROOT r = <<s32||f32>>[] add(a, b) }; " + X + "z = <<s32||f32>>[] constant(0); ROOT bad = <<s32||f32>>[] reduce(x, z), dimensions={0}, to_apply=g }"),
    "reduce_initial": ("does not fit the accumulator", ADD + X + "z = <<s32||f32>>[] constant(0); ROOT bad = f32[] reduce(x, z), dimensions={0}, to_apply=add }"),
    "reduce_initial_rank": ("must be a scalar", ADD + X + "z = f32[<<1||>>] parameter(1); ROOT bad = f32[] reduce(x, z), dimensions={0}, to_apply=add }"),
    "reduce_dimensions": ("repeated dimensions", ADD + M + "z = f32[] constant(0); ROOT bad = f32[] reduce(x, z), dimensions={0,<<0||1>>}, to_apply=add }"),
    "reduce_count": ("as many initial values", ADD + X + "z = f32[] constant(0); ROOT bad = f32[] reduce(x, z<<, z||>>), dimensions={0}, to_apply=add }"),
    "reduce_window": ("window has 2 dimensions", ADD + X + "z = f32[] constant(0); ROOT bad = f32[3] reduce-window(x, z), window={size=2<<x2||>>}, to_apply=add }"),
    "window_size": ("window size must be positive", ADD + X + "z = f32[] constant(0); ROOT bad = f32[<<5||3>>] reduce-window(x, z), window={size=<<0||2>>}, to_apply=add }"),
    "window_padding": ("padding makes a dimension of size 4 negative", ADD + X + "z = f32[] constant(0); ROOT bad = f32[0] reduce-window(x, z), window={size=1 pad=<<-3||-2>>_-2}, to_apply=add }"),
    "window_dilation": ("must be positive", ADD + X + "z = f32[] constant(0); ROOT bad = f32[3] reduce-window(x, z), window={size=2 lhs_dilate=<<-1||1>>}, to_apply=add }"),
    "select_and_scatter": ("source f32\\[3\\] must have dimensions \\[2\\]", "ge { a = f32[] parameter(0); b = f32[] parameter(1); ROOT s = pred[] compare(a, b), direction=GE }; " + ADD + X + "s = f32[<<3||2>>] parameter(1); z = f32[] constant(0); ROOT bad = f32[4] select-and-scatter(x, s, z), window={size=2 stride=2}, select=ge, scatter=add }"),
    "select_function": ("must return pred", "ge { a = f32[] parameter(0); b = f32[] parameter(1); ROOT s = <<f32[] add(a, b)||pred[] compare(a, b), direction=GE>> }; " + ADD + X + "s = f32[2] parameter(1); z = f32[] constant(0); ROOT bad = f32[4] select-and-scatter(x, s, z), window={size=2 stride=2}, select=ge, scatter=add }"),
    "sort": ("comparator g must return pred", "g { a = f32[] parameter(0); b = f32[] parameter(1); ROOT r = <<f32[] add(a, b)||pred[] compare(a, b), direction=LT>> }; " + X + "ROOT bad = f32[4] sort(x), dimensions={0}, to_apply=g }"),
    "sort_parameters": ("must take 4 scalars", "g { a = f32[] parameter(0); b = f32[] parameter(1); <<||c = f32[] parameter(2); d = f32[] parameter(3); >>ROOT r = pred[] compare(a, b), direction=LT }; " + X + "ROOT bad = (f32[4], f32[4]) sort(x, x), dimensions={0}, to_apply=g }"),
    "sort_dimension": ("sort needs one dimension", "g { a = f32[] parameter(0); b = f32[] parameter(1); ROOT r = pred[] compare(a, b), direction=LT }; " + X + "ROOT bad = f32[4] sort(x), dimensions={<<1||0>>}, to_apply=g }"),
    "map": ("must take 1 scalars", "g { a = f32[] parameter(0); <<b = f32[] parameter(1); ||>>ROOT r = f32[] negate(a) }; " + X + "ROOT bad = f32[4] map(x), dimensions={0}, to_apply=g }"),
    "map_result": ("must return a scalar", "g { a = f32[] parameter(0); ROOT r = <<f32[1] reshape(a)||f32[] negate(a)>> }; " + X + "ROOT bad = f32[4] map(x), dimensions={0}, to_apply=g }"),
    "scan": ("scan has 2 carries", "g { a = f32[] parameter(0); b = f32[] parameter(1); ROOT t = (f32[], f32[]) tuple(a, b) }; " + X + "c = f32[] constant(0); ROOT bad = (f32[4], f32[]) scan(x<<||, c>>), dimensions={0}, num_carries=<<2||1>>, to_apply=g }"),
    "while_condition": ("must return pred", "c { s = f32[4] parameter(0); ROOT p = <<f32||pred>>[] constant(1) }; " + F + X + "ROOT bad = f32[4] while(x), condition=c, body=f }"),
    "while_body": ("the loop carries", "c { s = f32[4] parameter(0); ROOT p = pred[] constant(1) }; b { s = f32[4] parameter(0); ROOT r = f32[<<2||4>>] slice(s), slice={[0:<<2||4>>]} }; " + X + "ROOT bad = f32[4] while(x), condition=c, body=b }"),
    "while_parameters": ("takes 2 arguments", "c { s = f32[4] parameter(0); ROOT p = pred[] constant(1) }; b { s = f32[4] parameter(0); <<t = f32[4] parameter(1); ||>>ROOT r = f32[4] negate(s) }; " + X + "ROOT bad = f32[4] while(x), condition=c, body=b }"),
    "call_arguments": ("takes 1 arguments, got 2", F + X + "ROOT bad = f32[4] call(x<<, x||>>), to_apply=f }"),
    "call_shape": ("parameter 0 of f is", F + "ENTRY e {; x = f32[<<5||4>>] parameter(0); ROOT bad = f32[4] call(x), to_apply=f }"),
    "call_result": ("expected f32\\[4\\]", F + X + "ROOT bad = f32[<<5||4>>] call(x), to_apply=f }"),
    "branches": ("branches need 3 operands", F + "ENTRY e {; p = pred[] parameter(0); x = f32[4] parameter(1); ROOT bad = f32[4] conditional(p, x<<||, x>>), true_computation=f, false_computation=f }"),
    "branch_chooser": ("must be pred\\[\\] or s32", F + "ENTRY e {; p = <<f32||s32>>[] parameter(0); x = f32[4] parameter(1); ROOT bad = f32[4] conditional(p, x, x), branch_computations={f, f} }"),
    "branch_rank": ("must be a scalar", F + "ENTRY e {; p = s32[<<1||>>] parameter(0); x = f32[4] parameter(1); ROOT bad = f32[4] conditional(p, x, x), branch_computations={f, f} }"),
    "branch_pred": ("pred selects true_computation", F + "ENTRY e {; p = pred[] parameter(0); x = f32[4] parameter(1); ROOT bad = f32[4] conditional(p, x, x), <<branch_computations={f, f}||true_computation=f, false_computation=f>> }"),
    "branch_results": ("branch g returns", F + "g { p = f32[4] parameter(0); ROOT r = f32[<<2||4>>] slice(p), slice={[0:<<2||4>>]} }; ENTRY e {; p = pred[] parameter(0); x = f32[4] parameter(1); ROOT bad = f32[4] conditional(p, x, x), true_computation=f, false_computation=g }"),
    "fusion_unused": ("is not used", "g { p = f32[4] parameter(0); d = f32[4] sine(p); ROOT r = f32[4] <<negate(p)||negate(d)>> }; " + X + "ROOT bad = f32[4] fusion(x), kind=kLoop, calls=g }"),
    "fusion_root": ("has users in it", "g { p = f32[4] parameter(0); <<ROOT ||>>r = f32[4] negate(p); <<||ROOT >>d = f32[4] sine(r) }; " + X + "ROOT bad = f32[4] fusion(x), kind=kLoop, calls=g }"),
    "fusion_shared": ("is also called by %bad", F + "g { p = f32[4] parameter(0); ROOT r = f32[4] negate(p) }; " + X + "w = f32[4] fusion(x), kind=kLoop, calls=f; ROOT bad = f32[4] call(w), to_apply=<<f||g>> }"),
    "fusion_result": ("expected f32\\[4\\]", F + X + "ROOT bad = f32[<<2||4>>] fusion(x), kind=kLoop, calls=f }"),
    "fusion_alias": ("names operand 3 of 1", F + X + "ROOT bad = f32[4] fusion(x), kind=kLoop, calls=f, output_to_operand_aliasing={{}: (<<3||0>>, {})} }"),
    "fusion_alias_index": ("names a part that", F + X + "ROOT bad = f32[4] fusion(x), kind=kLoop, calls=f, output_to_operand_aliasing={{<<1||>>}: (0, {})} }"),
    "fusion_alias_shape": ("is between different shapes", "g { p = f32[4] parameter(0); q = f32[2] parameter(1); s = f32[2] slice(p), slice={[0:2]}; ROOT r = f32[2] add(s, q) }; " + X + "y = f32[2] parameter(1); ROOT bad = f32[2] fusion(x, y), kind=kLoop, calls=g, output_to_operand_aliasing={{}: (<<0||1>>, {})} }"),
    "entry_called": ("calls the entry", "ENTRY e { ROOT x = f32[4] parameter(0) }; f { ROOT x = f32[4] parameter(0) }; g {; x = f32[4] parameter(0); ROOT bad = f32[4] call(x), to_apply=<<e||f>> }"),
    "thread": ("runs on thread main, but %g", 'g { p = f32[4] parameter(0); ROOT r = f32[4] negate(p) }<<, execution_thread="side"||>>; ' + X + "ROOT bad = f32[4] call(x), to_apply=g }"),
    "composite_name": ("composite.name", F + X + 'ROOT bad = f32[4] call(x), to_apply=f, is_composite=true, frontend_attributes={composite.<<title||name>>="n",composite.attributes={},composite.version="1"} }'),
    "composite_version": ("composite.version must be a number", F + X + 'ROOT bad = f32[4] call(x), to_apply=f, is_composite=true, frontend_attributes={composite.name="n",composite.attributes={},composite.version="<<one||1>>"} }'),
    "layout_constraints": ("has 1 shapes for 2 operands", X + 'ROOT bad = f32[4] custom-call(x, x), custom_call_target="t", operand_layout_constraints={f32[4]{0}<<||, f32[4]{0}>>} }'),
    "layout_constraint_shapes": ("operand_layout_constraints has f32\\[5\\]", X + 'ROOT bad = f32[4] custom-call(x), custom_call_target="t", operand_layout_constraints={f32[<<5||4>>]{0}} }'),
    "custom_call_alias": ("names a part that", X + 'ROOT bad = (f32[4], f32[4]) custom-call(x), custom_call_target="t", output_to_operand_aliasing={{<<2||1>>}: (0, {})} }'),
    "custom_call_alias_shape": ("is between different shapes", X + 'ROOT bad = (f32[4], f32[5]) custom-call(x), custom_call_target="t", output_to_operand_aliasing={{<<1||0>>}: (0, {})} }'),
    "seed": ("GetRngSeed takes no operands", 'ENTRY e {; ROOT bad = <<u32||u64>>[] custom-call(), custom_call_target="GetRngSeed" }'),
}  # fmt: skip

_STATE = "((f32[4]), f32[4], u32[])"
_W = "w { p = f32[4] parameter(0); ROOT r = f32[4] negate(p) }; "
_W2 = "w { p = f32[4] parameter(0); q = f32[4] parameter(1); ROOT r = (f32[4], f32[4]) tuple(p, q) }; "
_LOOP = (
    "v { p = f32[4] parameter(0); ROOT r = f32[4] sine(p) }; "
    "c { s = (f32[4], ((f32[4]), f32[4], u32[])) parameter(0); ROOT p = pred[] constant(0) }; "
    "b { s = (f32[4], ((f32[4]), f32[4], u32[])) parameter(0); a = ((f32[4]), f32[4], u32[]) get-tuple-element(s), index=1; %; "
    "ROOT t = (f32[4], ((f32[4]), f32[4], u32[])) tuple(d, n) }; "
    + X + "s = ((f32[4]), f32[4], u32[]) async-start(x), calls=w; i = (f32[4], ((f32[4]), f32[4], u32[])) tuple(x, s); "
    "l = (f32[4], ((f32[4]), f32[4], u32[])) while(i), condition=c, body=b; z = ((f32[4]), f32[4], u32[]) get-tuple-element(l), index=1; "
    "ROOT k = f32[4] async-done(z), calls=w }"
)  # fmt: skip
_SEND = "k = token[] after-all(); "

_CHAINS = {
    "copy_start": ("must be used by one copy-done", X + "bad = (f32[4], f32[4], u32[]) copy-start(x); ROOT w = f32[4] <<get-tuple-element(bad), index=0||copy-done(bad)>> }"),
    "copy_start_shape": ("expected \\(f32\\[4\\], f32\\[4\\], u32\\[\\]\\)", X + "bad = (f32[4], f32[<<5||4>>], u32[]) copy-start(x); ROOT w = f32[4] copy-done(bad) }"),
    "copy_done": ("goes with a copy-start", X + "s = (f32[4], f32[4], u32[]) <<parameter(1)||copy-start(x)>>; ROOT bad = f32[4] copy-done(s) }"),
    "gather_done": ("goes with a all-gather-start", "ENTRY e {; x = f32[4] parameter(0); <<s = (f32[4], f32[4]) tuple(x, x)||s = (f32[4], f32[4]) all-gather-start(x), dimensions={0}>>; ROOT bad = f32[4] all-gather-done(s) }"),
    "permute_start": ("must be used by one collective-permute-done", X + "bad = (f32[4], f32[4]) collective-permute-start(x), source_target_pairs={}; ROOT d = f32[4] <<get-tuple-element(bad), index=1||collective-permute-done(bad)>> }"),
    "async_used": ("must be used by one async-update", _W + X + f"bad = {_STATE} async-start(x), calls=w; ROOT y = f32[4] <<negate(x)||async-done(bad)>> }}"),
    "async_other_use": ("must be used by one async-update", _W + X + f"bad = {_STATE} async-start(x), calls=w; k = token[] after-all(); <<n = {_STATE} add-dependency(bad, k); ||>>ROOT d = f32[4] async-done(bad) }}"),
    "async_end": ("must continue", _W + X + f"s = {_STATE} <<custom-call(x), custom_call_target=\"t\"||async-start(x), calls=w>>; ROOT bad = f32[4] async-done(s) }}"),
    "async_holds": ("may hold parameters and one", "w { p = f32[4] parameter(0); <<d = f32[4] sine(p); ROOT r = f32[4] negate(d)||ROOT r = f32[4] negate(p)>> }; " + X + f"bad = {_STATE} async-start(x), calls=w; ROOT y = f32[4] async-done(bad) }}"),
    "async_thread": ("but its computation %w on side", "w { p = f32[4] parameter(0); ROOT r = f32[4] negate(p) }<<, execution_thread=\"side\"||>>; " + X + f"bad = {_STATE} async-start(x), calls=w; ROOT y = f32[4] async-done(bad) }}"),
    "async_shared": ("is also called by %bad", _W + F + X + f"s = {_STATE} async-start(x), calls=w; d = f32[4] async-done(s); ROOT bad = f32[4] call(d), to_apply=<<w||f>> }}"),
    "async_operand": ("the shape has f32\\[5\\]", _W + X + "bad = ((f32[<<5||4>>]), f32[4], u32[]) async-start(x), calls=w; ROOT d = f32[4] async-done(bad) }"),
    "async_operands": ("the shape has 2", _W2 + Y + "bad = ((f32[4], f32[4]), (f32[4], f32[4]), u32[]) async-start(x<<||, y>>), calls=w; ROOT d = (f32[4], f32[4]) async-done(bad) }"),
    "async_result": ("the shape has f32\\[5\\]", _W + X + "bad = ((f32[4]), f32[<<5||4>>], u32[]) async-start(x), calls=w; ROOT d = f32[<<5||4>>] async-done(bad) }"),
    "async_unbound": ("of %w are bound", _W + X + "s = ((), f32[4], u32[]) async-start(), calls=w; <<||u = ((f32[4]), f32[4], u32[]) async-update(s, x); >>ROOT bad = f32[4] async-done(<<s||u>>) }"),
    "async_update_binds": ("the shape has 0", _W2 + Y + "s = ((f32[4]), (), u32[]) async-start(x), calls=w; bad = ((f32[4]<<||, f32[4]>>), (), u32[]) async-update(s, y); ROOT d = (f32[4], f32[4]) async-done(bad) }"),
    "async_update_operand": ("the shape has f32\\[5\\]", _W2 + Y + "s = ((f32[4]), (), u32[]) async-start(x), calls=w; bad = ((f32[4], f32[<<5||4>>]), (), u32[]) async-update(s, y); ROOT d = (f32[4], f32[4]) async-done(bad) }"),
    "async_update_result": ("shape has \\(f32\\[5\\]\\)", _W2 + Y + "s = ((f32[4], f32[4]), (), u32[]) async-start(x, y), calls=w; bad = ((f32[4], f32[4]), (f32[<<5||4>>]), u32[]) async-update(s); ROOT d = (f32[<<5||4>>], f32[4]) async-done(bad) }"),
    "async_done_result": ("w returns \\(f32\\[4\\], f32\\[4\\]\\)", _W2 + Y + "s = ((f32[4], f32[4]), (f32[4]), u32[]) async-start(x, y), calls=w; ROOT bad = (f32[4]<<||, f32[4]>>) async-done(s) }"),
    "async_first_operand": ("must be the first operand", "w { p = f32[4] parameter(0); q = ((f32[4]), f32[4], u32[]) parameter(1); ROOT r = f32[4] negate(p) }; v { p = f32[4] parameter(0); ROOT r = f32[4] negate(p) }; " + Y + "<<bad||n>> = ((f32[4]), f32[4], u32[]) async-start(y), calls=v; " + "s = ((f32[4]), (), u32[]) async-start(x), calls=w; <<||t = (((f32[4]), f32[4], u32[]), f32[4]) tuple(n, x); g = ((f32[4]), f32[4], u32[]) get-tuple-element(t), index=0; >>u = ((f32[4], ((f32[4]), f32[4], u32[])), (), u32[]) async-update(s, <<bad||g>>); d = f32[4] async-done(u); ROOT o = f32[4] negate(d)<<; q = f32[4] negate(x)||; q = f32[4] async-done(g)>> }"),
    "async_twice": ("is ended twice", _W + X + f"bad = {_STATE} async-start(x), calls=w; t = ({_STATE}, f32[4]) tuple(bad, x); g = {_STATE} get-tuple-element(t), index=0; d = f32[4] async-done(g)<<; h = {_STATE} get-tuple-element(t), index=0; k = f32[4] async-done(h)||>>; ROOT n = f32[4] negate(d) }}"),
    "async_open": ("has no matching async-done", _W + X + f"bad = {_STATE} async-start(x), calls=w; t = ({_STATE}, f32[4]) tuple(bad, x); g = {_STATE} get-tuple-element(t), index=0; y = f32[4] get-tuple-element(t), index=1; ROOT d = f32[4] <<negate(y)||async-done(g)>> }}"),
    "async_loop_update": ("must be used by one async-update", _W + _LOOP.replace("%", "<<bad||up>> = ((f32[4]), f32[4], u32[]) async-update(a), calls=w; d = f32[4] get-tuple-element(s), index=0; n = ((f32[4]), f32[4], u32[]) <<opt-barrier(a)||opt-barrier(up)>>")),
    "async_loop_computation": ("calls %v, but %s", _W + _LOOP.replace("%", "bad = f32[4] async-done(a), calls=<<v||w>>; d = f32[4] negate(bad); n = ((f32[4]), f32[4], u32[]) async-start(d), calls=w")),
    "async_alias": ("names operand 1 of 1", _W + X + "bad = ((f32[4]), f32[4], u32[]) async-start(x), calls=w, output_to_operand_aliasing={{1}: (<<1||0>>, {})}; ROOT d = f32[4] async-done(bad) }"),
    "async_alias_whole": ("must name a part of the result", _W + X + "bad = ((f32[4]), f32[4], u32[]) async-start(x), calls=w, output_to_operand_aliasing={{<<||1>>}: (0, {})}; ROOT d = f32[4] async-done(bad) }"),
    "async_update_alias": ("must be between parts of the context", _W + X + "s = ((f32[4]), f32[4], u32[]) async-start(x), calls=w; bad = ((f32[4]), f32[4], u32[]) async-update(s), output_to_operand_aliasing={{2}: (0, {<<1||2>>})}; ROOT d = f32[4] async-done(bad) }"),
    "async_update_alias_operand": ("must be of operand 0", _W2 + Y + "s = ((f32[4]), (), u32[]) async-start(x), calls=w; bad = ((f32[4], f32[4]), (), u32[]) async-update(s, y), output_to_operand_aliasing={{2}: (<<1||0>>, {2})}; ROOT d = (f32[4], f32[4]) async-done(bad) }"),
    "send_channel": ("has channel_id 2", X + _SEND + "s = (f32[4], u32[], token[]) send(x, k), channel_id=1; ROOT bad = token[] send-done(s), channel_id=<<2||1>> }"),
    "send_kind": ("must both be host transfers", X + _SEND + "s = (f32[4], u32[], token[]) send(x, k), channel_id=1, is_host_transfer=true; ROOT bad = token[] send-done(s), channel_id=1<<||, is_host_transfer=true>> }"),
    "send_end": ("send-done does not match", X + _SEND + "s = (f32[4], u32[], token[]) <<custom-call(x), custom_call_target=\"t\"||send(x, k), channel_id=1>>; ROOT bad = token[] send-done(s), channel_id=1 }"),
    "send_users": ("must have one user", X + _SEND + "bad = (f32[4], u32[], token[]) send(x, k), channel_id=1; <<o = (f32[4], u32[], token[]) opt-barrier(bad); ||>>ROOT d = token[] send-done(bad), channel_id=1 }"),
    "recv_channel": ("has channel_id 2", "ENTRY e {; " + _SEND + "r = (f32[4], u32[], token[]) recv(k), channel_id=1; ROOT bad = (f32[4], token[]) recv-done(r), channel_id=<<2||1>> }"),
    "host_channel": ("have different signatures", "ENTRY e {; x = f32[4] parameter(0); y = f32[<<5||4>>] parameter(1); k = token[] after-all(); s = (f32[4], u32[], token[]) send(x, k), channel_id=1, is_host_transfer=true; d = token[] send-done(s), channel_id=1, is_host_transfer=true; bad = (f32[<<5||4>>], u32[], token[]) send(y, d), channel_id=1, is_host_transfer=true; ROOT o = token[] send-done(bad), channel_id=1, is_host_transfer=true }"),
    "outfeed_token": ("operand 1 must be a token", X + _SEND + "ROOT bad = token[] outfeed(x, <<x||k>>), outfeed_shape=f32[4] }"),
    "outfeed_shape": ("outfeed_shape is f32\\[5\\]", X + _SEND + "ROOT bad = token[] outfeed(x, k), outfeed_shape=f32[<<5||4>>] }"),
    "infeed": ("must yield \\(data, token\\)", "ENTRY e {; k = token[] after-all(); ROOT bad = ((f32[4]), <<f32||token>>[]) infeed(k) }"),
}  # fmt: skip

_REPLICAS = "HloModule m, replica_count=4; "
_PARTITIONS = "HloModule m, num_partitions=4; "
_COLLECTIVES = {
    "groups_once": ("must name each of 0 to 1 once", "HloModule m, replica_count=2; " + ADD + X + "ROOT bad = f32[4] all-reduce(x), replica_groups={{0,<<0||1>>}}, to_apply=add }"),
    "groups_empty": ("has an empty group", "HloModule m, replica_count=2; " + ADD + X + "ROOT bad = f32[4] all-reduce(x), replica_groups={{0,1}<<,{}||>>}, to_apply=add }"),
    "groups_even": ("must be of one size", "HloModule m, replica_count=3; " + X + "ROOT bad = f32[<<8||12>>] all-gather(x), dimensions={0}, replica_groups={{0,1<<},{||,>>2}} }"),
    "groups_all_replicas": ("must name all 4 replicas", _REPLICAS + ADD + X + "ROOT bad = f32[4] all-reduce(x), replica_groups={{0,1}<<||,{2,3}>>}, to_apply=add }"),
    "groups_all_partitions": ("must name all 4 partitions", _PARTITIONS + X + "ROOT bad = f32[4] all-to-all(x), channel_id=1, dimensions={0}, replica_groups={{0,1}<<||,{2,3}>>} }"),
    "groups_all_devices": ("must name all 4 devices", _PARTITIONS + ADD + X + "ROOT bad = f32[4] all-reduce(x), channel_id=1, use_global_device_ids=true, replica_groups={{0,1<<||,2,3>>}}, to_apply=add }"),
    "global_ids_channel": ("use_global_device_ids needs a channel_id", _PARTITIONS + ADD + X + "ROOT bad = f32[4] all-reduce(x), <<||channel_id=1, >>use_global_device_ids=true, replica_groups={{0,1,2,3}}, to_apply=add }"),
    "global_ids_groups": ("use_global_device_ids needs replica_groups", _PARTITIONS + ADD + X + "ROOT bad = f32[4] all-reduce(x), channel_id=1, use_global_device_ids=true, replica_groups={<<||{0,1,2,3}>>}, to_apply=add }"),
    "channel": ("channel_id must be greater than 0", ADD + X + "ROOT bad = f32[4] all-reduce(x), channel_id=<<0||1>>, replica_groups={}, to_apply=add }"),
    "gather_parts": ("over groups of 4 makes 4 parts", _REPLICAS + X + "ROOT bad = f32[<<8||16>>] all-gather(x), dimensions={0}, replica_groups={{0,1,2,3}} }"),
    "gather_dimension": ("out of range", _REPLICAS + X + "ROOT bad = f32[16] all-gather(x), dimensions={<<1||0>>}, replica_groups={{0,1,2,3}} }"),
    "gather_rest": ("may differ from .* in dimension 0 only", _REPLICAS + M + "ROOT bad = f32[16,<<7||6>>] all-gather(x), dimensions={0}, replica_groups={{0,1,2,3}} }"),
    "scatter_parts": ("over groups of 4 makes 4 parts", _REPLICAS + ADD + X + "ROOT bad = f32[<<2||1>>] reduce-scatter(x), dimensions={0}, replica_groups={{0,1,2,3}}, to_apply=add }"),
    "all_to_all_parts": ("cannot be split in 4 parts", _REPLICAS + M + "ROOT bad = f32[4,6] all-to-all(x), dimensions={<<1||0>>}, replica_groups={{0,1,2,3}} }"),
    "all_to_all_operands": ("over groups of 2 needs as many operands", "HloModule m, replica_count=2; " + X + "ROOT bad = (f32[4], f32[4]<<, f32[4]||>>) all-to-all(x, x<<, x||>>), replica_groups={{0,1}} }"),
    "all_to_all_shapes": ("operands must have one shape", "HloModule m, replica_count=2; " + X + "y = f32[<<5||4>>] parameter(1); ROOT bad = (f32[4], f32[<<5||4>>]) all-to-all(x, y), replica_groups={{0,1}} }"),
    "source_twice": ("is a source twice", _REPLICAS + X + "ROOT bad = f32[4] collective-permute(x), source_target_pairs={{0,1},{<<0||1>>,2}} }"),
    "target_twice": ("is a target twice", _REPLICAS + X + "ROOT bad = f32[4] collective-permute(x), source_target_pairs={{0,1},{2,<<1||3>>}} }"),
    "target_outside": ("target 7 in source_target_pairs must be from 0 to 3", _REPLICAS + X + "ROOT bad = f32[4] collective-permute(x), source_target_pairs={{0,<<7||1>>}} }"),
    "partition_outside": ("source 7 in source_target_pairs must be from 0 to 3", _PARTITIONS + X + "ROOT bad = f32[4] collective-permute(x), channel_id=1, source_target_pairs={{<<7||0>>,1}} }"),
    "permute_buffers": ("tuples of the same length", X + "t = (f32[4], f32[4]) tuple(x, x); i = s32[] constant(0); o = (s32[]) tuple(i); p = ((s32[]), (s32[])) tuple(o, o); ROOT bad = <<f32[4]||(f32[4], f32[4])>> collective-permute(t, <<x||t>>, p, <<o||p>>), source_target_pairs={{0,1}}, slice_sizes={{1},{1}} }"),
    "permute_offsets": ("must have an index for each dimension", M + "i = s32[] constant(0); o = (s32[]<<||, s32[]>>) tuple(i<<||, i>>); ROOT bad = f32[4,6] collective-permute(x, x, o, o), source_target_pairs={{0,1}}, slice_sizes={{1,1}} }"),
    "device_number": ("expected u32\\[\\]", "ENTRY e {; ROOT bad = <<s32||u32>>[] replica-id() }"),
    "constrained": ("must all constrain their layouts", "HloModule m, replica_count=2; " + ADD + X + "bad = f32[4] all-reduce(x), replica_groups={{0,1}}, constrain_layout=true, to_apply=add; ROOT s = f32[4] all-reduce(bad), replica_groups={{0,1}}, <<||constrain_layout=true, >>to_apply=add }"),
}  # fmt: skip

_TWO = "HloModule m, num_partitions=2; "
_CARRIED = {
    "sharding_rank": ("tiles in 2 dimensions, expected 1", _TWO + "ENTRY e {; bad = f32[4] parameter(0), sharding={devices=[2<<,1||>>]<=[2]}; ROOT y = f32[4] negate(bad) }"),
    "sharding_subgroup": ("tiles in 2 dimensions, expected 1", "HloModule m, num_partitions=4; ENTRY e {; bad = f32[4] parameter(0), sharding={devices=[2,2]<=[4]<<|| last_tile_dim_replicate>>}; ROOT y = f32[4] negate(bad) }"),
    "sharding_device": ("device 2, expected 0 to 1", _TWO + "ENTRY e {; bad = f32[4] parameter(0), sharding={devices=[2]0,<<2||1>>}; ROOT y = f32[4] negate(bad) }"),
    "sharding_negative": ("device -1", _TWO + "ENTRY e {; bad = f32[4] parameter(0), sharding={maximal device=<<-1||1>>}; ROOT y = f32[4] negate(bad) }"),
    "sharding_device_twice": ("holds two tiles", _TWO + "ENTRY e {; bad = f32[4] parameter(0), sharding={devices=[2]0,<<0||1>>}; ROOT y = f32[4] negate(bad) }"),
    "sharding_partitions": ("tiles on 2 devices, the module has 4", "HloModule m, num_partitions=4; ENTRY e {; bad = f32[4] parameter(0), sharding={devices=[<<2]<=[2]||4]<=[4]>>}; ROOT y = f32[4] negate(bad) }"),
    "sharding_tiles": ("\\[2, 2\\] are 4 tiles, on 2 devices", _TWO + "ENTRY e {; bad = f32[4,6] parameter(0), sharding={devices=[2,<<2||1>>]0,1}; ROOT y = f32[4,6] negate(bad) }"),
    "sharding_one_tile": ("tiles need two devices", "ENTRY e {; bad = f32[4] parameter(0), sharding={<<devices=[1]0||replicated>>}; ROOT y = f32[4] negate(bad) }"),
    "sharding_leaves": ("sharding has 1 parts", "ENTRY e {; bad = (f32[4], f32[4]) parameter(0), sharding={{replicated}<<||, {replicated}>>}; ROOT y = f32[4] get-tuple-element(bad), index=0 }"),
    "sharding_of_tuple": ("is for a tuple", "ENTRY e {; bad = f32[4] parameter(0), sharding={<<{replicated}||replicated>>}; ROOT y = f32[4] negate(bad) }"),
    "sharding_while": ("must be sharded like what it calls", _TWO + "c { s = f32[4] parameter(0), sharding={<<maximal device=0||replicated>>}; ROOT p = pred[] constant(1) }; b { s = f32[4] parameter(0), sharding={replicated}; ROOT r = f32[4] negate(s) }; " + X + "ROOT bad = f32[4] while(x), condition=c, body=b }"),
    "sharding_conditional": ("must be sharded like what it calls", _TWO + "g { p = f32[4] parameter(0); ROOT r = f32[4] negate(p), sharding={<<maximal device=0||replicated>>} }; ENTRY e {; p = pred[] parameter(0); x = f32[4] parameter(1); ROOT bad = f32[4] conditional(p, x, x), true_computation=g, false_computation=g, sharding={replicated} }"),
    "accuracy": ("result_accuracy must be", X + "ROOT bad = f32[4] tanh(x), result_accuracy={mode=<<high||highest>>} }"),
    "tolerance": ("result_accuracy must be", X + "ROOT bad = f32[4] tanh(x), result_accuracy={tolerance={<<foo||atol>>=0.1,ulps=2}} }"),
    "origin": ("origin has values at {0} {1}", 'ENTRY e {; ROOT bad = <<f32[4]||(f32[4], f32[4])>> parameter(0), origin={({"a"}, {"b"})} }'),
    "replication": ("parameter_replication has 2 entries", "ENTRY e {; bad = <<f32[4]||(f32[4], f32[4])>> parameter(0), parameter_replication={true,false}; ROOT y = <<f32[4]||(f32[4], f32[4])>> opt-barrier(bad) }"),
    "layout": ("not a permutation", "ENTRY e {; x = f32[4,6] parameter(0); ROOT bad = f32[4,6]{<<:S(1)||1,0:S(1)>>} copy(x) }"),
    "host_copy": ("must keep type and layout", "ENTRY e {; x = f32[4,6]{1,0:S(5)} parameter(0); ROOT bad = f32[4,6]{<<0,1||1,0>>} copy(x) }"),
    "host_bitcast": ("cannot move between memories", "ENTRY e {; x = f32[4]{0<<:S(5)||>>} parameter(0); ROOT bad = f32[4]{0} bitcast(x) }"),
    "host_slice": ("cannot be on the host", "ENTRY e {; x = f32[4]{0<<||:S(5)>>} parameter(0); i = s32[] constant(0); ROOT bad = f32[2]{0:S(5)} dynamic-slice(x, i), dynamic_slice_sizes={2} }"),
    "host_update": ("cannot be on the device", "ENTRY e {; x = f32[4]{0<<:S(5)||>>} parameter(0); u = f32[2] parameter(1); i = s32[] constant(0); ROOT bad = f32[4]{0} dynamic-update-slice(x, u, i) }"),
}  # fmt: skip

_PIN = 'custom_call_target="Pin", output_to_operand_aliasing={{}: (0, {})}'
_UNPIN = 'custom_call_target="Unpin", output_to_operand_aliasing={{}: (0, {})}'
_BUFFERS = {
    "buffer_argument": ("cannot take or yield buffers", "ENTRY e {; <<bad = b(f32[4]) parameter(0)||p = f32[4] parameter(0); bad = b(f32[4]) custom-call(p), " + _PIN + ">>; ROOT r = f32[4] custom-call(bad), " + _UNPIN + " }"),
    "buffer_op": ("cannot take or yield buffers", X + "a = b(f32[4]) custom-call(x), " + _PIN + "; <<bad = b(f32[4]) copy(a)||bad = b(f32[4]) custom-call(a), custom_call_target=\"t\", output_to_operand_aliasing={{}: (0, {})}>>; ROOT c = f32[4] custom-call(bad), " + _UNPIN + " }"),
    "pin_alias": ("Pin must alias its result", X + "bad = b(f32[4]) custom-call(x), custom_call_target=\"Pin\"<<||, output_to_operand_aliasing={{}: (0, {})}>>; ROOT c = f32[4] custom-call(bad), " + _UNPIN + " }"),
    "pin_operand": ("Pin takes one array", X + "bad = b(f32[4]) custom-call(x<<, x||>>), " + _PIN + "; ROOT c = f32[4] custom-call(bad), " + _UNPIN + " }"),
    "pin_shape": ("is between different shapes", X + "bad = b(f32[<<5||4>>]) custom-call(x), " + _PIN + "; ROOT c = f32[<<5||4>>] custom-call(bad), " + _UNPIN + " }"),
    "unpin_alias": ("Unpin must alias its result", X + "a = b(f32[4]) custom-call(x), " + _PIN + "; ROOT bad = f32[4] custom-call(a), custom_call_target=\"Unpin\"<<||, output_to_operand_aliasing={{}: (0, {})}>> }"),
    "unpin_operand": ("Unpin takes one buffer", X + "a = b(f32[4]) custom-call(x), " + _PIN + "; ROOT bad = f32[4] custom-call(<<x||a>>), " + _UNPIN + " }"),
    "created": ("takes no operands and yields one buffer", X + "bad = b(f32[4]) custom-call(<<x||>>), custom_call_target=\"CreateBuffer\"; ROOT c = f32[4] custom-call(bad), " + _UNPIN + " }"),
    "buffer_lost": ("is not aliased to any result", X + "a = b(f32[4]) custom-call(x), " + _PIN + "; bad = (<<f32[4]||b(f32[4])>>, token[]) custom-call(a), custom_call_target=\"t\", custom_call_has_side_effect=true<<||, output_to_operand_aliasing={{0}: (0, {})}>>; ROOT c = f32[4] negate(x) }"),
    "buffer_made": ("is not aliased to any operand", X + "a = b(f32[4]) custom-call(x), " + _PIN + "; bad = (<<b(f32[4])||f32[4]>>, b(f32[4])) custom-call(a), custom_call_target=\"t\", custom_call_has_side_effect=true, output_to_operand_aliasing={{1}: (0, {})}; ROOT c = f32[4] negate(x) }"),
    "buffer_doubled": ("is aliased to several results", X + "a = b(f32[4]) custom-call(x), " + _PIN + "; bad = (b(f32[4]), <<b(f32[4])||f32[4]>>) custom-call(a), custom_call_target=\"t\", custom_call_has_side_effect=true, output_to_operand_aliasing={{0}: (0, {})<<, {1}: (0, {})||>>}; ROOT c = f32[4] negate(x) }"),
    "buffer_array": ("is between different shapes", X + "a = b(f32[4]) custom-call(x), " + _PIN + "; ROOT bad = (<<f32[4]||b(f32[4])>>) custom-call(a), custom_call_target=\"t\", output_to_operand_aliasing={{0}: (0, {})} }"),
    "buffer_writers": ("has 2 writers", X + "bad = b(f32[4]) custom-call(x), " + _PIN + "; w = b(f32[4]) custom-call(bad), custom_call_target=\"t\", output_to_operand_aliasing={{}: (0, {})}; ROOT v = f32[4] custom-call(<<bad||w>>), " + _UNPIN + " }"),
    "buffer_loop": ("has 2 writers", "c { s = (s32[], b(f32[4])) parameter(0); ROOT p = pred[] constant(0) }; b {; s = (s32[], b(f32[4])) parameter(0); i = s32[] get-tuple-element(s), index=0; a = b(f32[4]) get-tuple-element(s), index=1; bad = b(f32[4]) custom-call(a), custom_call_target=\"t\", output_to_operand_aliasing={{}: (0, {})}; w = b(f32[4]) custom-call(bad), custom_call_target=\"u\", output_to_operand_aliasing={{}: (0, {})}; ROOT r = (s32[], b(f32[4])) tuple(i, <<bad||w>>) }; " + X + "z = s32[] constant(0); a = b(f32[4]) custom-call(x), " + _PIN + "; n = (s32[], b(f32[4])) tuple(z, a); l = (s32[], b(f32[4])) while(n), condition=c, body=b; o = b(f32[4]) get-tuple-element(l), index=1; ROOT v = f32[4] custom-call(o), " + _UNPIN + " }"),
    "buffer_update": ("operand 1 must be an array", X + "u = f32[2] parameter(1); a = b(f32[4]) custom-call(x), " + _PIN + "; <<k = b(f32[2]) custom-call(u), " + _PIN + "; ||>>i = s32[] constant(0); bad = b(f32[4]) dynamic-update-slice(a, <<k||u>>, i); ROOT v = f32[4] custom-call(bad), " + _UNPIN + " }"),
}  # fmt: skip

_HEADERS = {
    "entry_parameters": ("has 1 parameters, entry", "HloModule m, entry_computation_layout={(f32[4]<<||, f32[4]>>)->f32[4]}; " + Y + "ROOT z = f32[4] add(x, y) }"),
    "entry_parameter": ("has f32\\[5\\] for parameter 0", "HloModule m, entry_computation_layout={(f32[<<5||4>>])->f32[4]}; " + X + "ROOT z = f32[4] negate(x) }"),
    "entry_result": ("returns f32\\[4\\]", "HloModule m, entry_computation_layout={(f32[4])->f32[<<5||4>>]}; " + X + "ROOT z = f32[4] negate(x) }"),
    "alias_part": ("has no such part", "HloModule m, input_output_alias={ {<<1||>>}: (0, {}) }; " + X + "ROOT z = f32[4] negate(x) }"),
    "alias_parameter": ("the parameters have no such part", "HloModule m, input_output_alias={ {}: (<<1||0>>, {}) }; " + X + "ROOT z = f32[4] negate(x) }"),
    "alias_twice": ("that parameter is aliased twice", "HloModule m, input_output_alias={ {0}: (0, {}), {1}: (<<0||1>>, {}) }; " + Y + "ROOT z = (f32[4], f32[4]) tuple(x, y) }"),
    "alias_size": ("of different size", "HloModule m, input_output_alias={ {}: (0, {}) }; " + X + "ROOT z = f32[<<2||4>>] slice(x), slice={[0:<<2||4>>]} }"),
    "alias_shape": ("is between different shapes", "HloModule m, input_output_alias={ {}: (0, {}, must-alias) }; " + X + "ROOT z = <<s32[4] bitcast-convert(x)||f32[4] negate(x)>> }"),
    "donor_part": ("buffer_donor .* no such part", "HloModule m, buffer_donor={ (<<1||0>>, {}) }; " + X + "ROOT z = f32[4] negate(x) }"),
    "donor_aliased": ("aliased to a result already", "HloModule m, input_output_alias={ {}: (0, {}) }, buffer_donor={ (<<0||1>>, {}) }; " + Y + "ROOT z = f32[4] add(x, y) }"),
    "replicas": ("replica_count must be at least 1", "HloModule m, replica_count=<<0||1>>; ENTRY e { ROOT x = f32[4] parameter(0) }"),
}  # fmt: skip

RULES: dict[str, Rule] = {
    name: Rule(message, *_programs(text))
    for table in (_SHAPES, _CALLS, _CHAINS, _COLLECTIVES, _CARRIED, _BUFFERS, _HEADERS)
    for name, (message, text) in table.items()
}
"""Rules by name, ordered by subject."""
