# ruff: noqa: E501, SIM905  # programs in one line each read better in a table
from typing import Any

import numpy as np
import pytest

from compiler.errors import HloSyntaxError
from compiler.ir import Opcode
from compiler.ir.header import Alias, Donor
from compiler.ir.verifier import verify
from compiler.text import parse
from tests.text.reference import assert_round_trip

ADD = "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }\n"

# Programs in every form of the grammar; each round-trips through XLA's parser and printer.
PROGRAMS = {
    "short_form": "HloModule m\nENTRY e {\n x = f32[2] parameter(0)\n ROOT y = negate(x)\n}",
    "no_header": "ENTRY e {\n x = f32[2] parameter(0)\n ROOT y = f32[2] negate(x)\n}",
    "no_entry": "HloModule m\na { ROOT x = f32[] parameter(0) }\nb { y = f32[] parameter(0) ROOT z = f32[] call(y), to_apply=a }",
    "no_root": "HloModule m\nENTRY e {\n x = f32[2] parameter(0)\n y = f32[2] negate(x)\n}",
    "operand_shapes": "HloModule m\nENTRY e {\n %x = f32[2]{0} parameter(0)\n ROOT %y = f32[2]{0} add(f32[2]{0} %x, f32[2] x)\n}",
    "comments": "HloModule m // one\n/* two\n lines */ ENTRY e {\n x = f32[2] /*a*/ parameter(0) // end\n ROOT y = f32[2] negate(/*b*/x)\n}",
    "single_instruction": "ROOT r = f32[2,3] dot(f32[2,4] %x, f32[4,3] %y), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    "single_without_names": "f32[10] add(f32[10], f32[10])",
    "nested_operands": "HloModule m\nENTRY e {\n x = f32[2] parameter(0)\n ROOT y = add(multiply(x, negate(x)), f32[2] sine(x))\n}",
    "compact_elements": "HloModule m\nENTRY e {\n t = (f32[2], (s32[], f32[2])) parameter(0)\n ROOT y = f32[2] add(t#0, t#1#1)\n}",
    "inline_computation": "HloModule m\nENTRY e {\n x = f32[8] parameter(0)\n z = f32[] constant(0)\n ROOT r = f32[] reduce(x, z), dimensions={0}, to_apply={ a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }\n}",
    "literals": "HloModule m\nENTRY e {\n a = f32[2,2] constant({{1, -inf}, {nan, 2e-3}})\n b = c64[2] constant({(1, 2), (inf, -0.5)})\n c = pred[3] constant({1, 0, true})\n d = (s4[2], f8e4m3fn[]) constant(({-8, 7}, 0.5))\n ROOT t = tuple(a, b, c, d)\n}",
    "nan_payloads": "HloModule m\nENTRY e {\n ROOT a = f32[3] constant({nan(0x7f), -nan, -nan(0x400001)})\n}",
    "index_comments": "HloModule m\nENTRY e {\n ROOT a = f32[2,2] constant({ /*i0=0*/ {1, 2}, /*i0=1*/ {3, 4} })\n}",
    "empty_arrays": "HloModule m\nENTRY e {\n a = f32[0] constant({})\n b = s32[2,0] constant({ {}, {} })\n ROOT t = tuple(a, b)\n}",
    "element_types": "HloModule m\nENTRY e {\n ROOT t = (" + ", ".join(
        f"{t}[2]" for t in "pred s1 s2 s4 s8 s16 s32 s64 u1 u2 u4 u8 u16 u32 u64 f16 bf16 f32 f64 f8e5m2 f8e4m3 f8e4m3fn f8e4m3b11fnuz f8e3m4 f8e5m2fnuz f8e4m3fnuz f4e2m1fn f8e8m0fnu c64 c128".split()
    ) + ") parameter(0)\n}",
    "layouts": "HloModule m\nENTRY e {\n x = f32[4,128]{0,1:T(8,128)(2,1)S(1)} parameter(0)\n y = f32[4,128]{1,0:S(5)} copy(x)\n ROOT z = f32[4,128]{1,0:T(*,128)L(4)#(u32)*(u16)E(32)S(1)SC(0:2)(1:64)M(8)} copy(x)\n}",
    "dynamic_dimensions": "HloModule m\nENTRY e {\n x = f32[<=8,4] parameter(0)\n n = s32[] get-dimension-size(x), dimensions={0}\n ROOT y = f32[<=8,4] negate(x)\n}",
    "tokens_and_opaque": "HloModule m\nENTRY e {\n o = opaque[] parameter(0)\n k = token[] after-all()\n i = ((f32[2], s32[]), token[]) infeed(k), infeed_config=\"\\001x\"\n ROOT t = token[] outfeed(i#0, i#1), outfeed_shape=(f32[2], s32[]), outfeed_config=\"abc\"\n}",
    "async_short": "HloModule m\nENTRY e {\n x = f32[8] parameter(0)\n y = f32[8] parameter(1)\n s = ((f32[8], f32[8]), f32[8], u32[]) add-start(x, y)\n u = ((f32[8], f32[8]), f32[8], u32[]) add-update(s)\n ROOT d = f32[8] add-done(u)\n}",
    "async_long": "HloModule m\nw { p = f32[8] parameter(0) ROOT n = f32[8] negate(p) }\nENTRY e {\n x = f32[8] parameter(0)\n s = ((f32[8]), f32[8], u32[]) async-start(x), calls=w\n ROOT d = f32[8] async-done(s), calls=w\n}",
    "async_thread": "HloModule m\nENTRY e {\n x = f32[8] parameter(0)\n s = ((f32[8]), f32[8], u32[]) negate-start(x), async_execution_thread=\"side\"\n ROOT d = f32[8] negate-done(s)\n}",
    "copy_start": "HloModule m\nENTRY e {\n x = f32[8] parameter(0)\n s = (f32[8], f32[8], u32[]) copy-start(x), cross_program_prefetch_index=0\n ROOT d = f32[8] copy-done(s)\n}",
    "execution_thread": 'HloModule m\nw { p = f32[8] parameter(0) ROOT n = f32[8] negate(p) }, execution_thread="t"\nENTRY e {\n x = f32[8] parameter(0)\n s = ((f32[8]), f32[8], u32[]) async-start(x), async_execution_thread="t", calls=w\n ROOT d = f32[8] async-done(s)\n}',
    "carried_attributes": 'HloModule m, replica_count=2\nENTRY e {\n x = f32[8,4] parameter(0), sharding={devices=[2,1]<=[2]}, parameter_replication={true}\n ROOT y = f32[8,4] negate(x), sharding={replicated}, metadata={op_type="n" op_name="a/b\\"c" source_file="f.py" source_line=3}, frontend_attributes={a="1",b={"k": [1, 2]}}, statistics={visualizing_index=0,cost=12.5}, origin={{"v"}}\n}',
    "backend_config": 'HloModule m\nENTRY e {\n x = f32[8] parameter(0)\n y = f32[8] custom-call(x), custom_call_target="t", backend_config={"a": {"b": [1, "}"]}}\n ROOT z = f32[8] custom-call(y), custom_call_target="u\\\\v", backend_config="not json \\"q\\" \\377"\n}',
    "control_predecessors": "HloModule m\nENTRY e {\n x = f32[8] parameter(0)\n y = f32[8] sine(x)\n ROOT z = f32[8] cosine(x), control-predecessors={y}\n}",
    "result_accuracy": "HloModule m\nENTRY e {\n x = f32[8] parameter(0)\n y = f32[8] exponential(x), result_accuracy={mode=highest}\n ROOT z = f32[8] tanh(y), result_accuracy={tolerance={atol=0.1,rtol=0.2,ulps=3}}\n}",
    "groups": "HloModule m, replica_count=4\n" + ADD + "ENTRY e {\n x = f32[8] parameter(0)\n a = f32[8] all-reduce(x), replica_groups={{0, 1}, {2, 3}}, to_apply=add\n b = f32[8] all-reduce(a), replica_groups=[2,2]<=[2,2]T(1,0), to_apply=add\n ROOT c = f32[8] collective-permute(b), source_target_pairs={{0,1},{1,0}}, channel_id=1\n}",
    "output_aliasing": "HloModule m\nENTRY e {\n x = f32[8] parameter(0)\n ROOT y = (f32[8], s32[]) custom-call(x), custom_call_target=\"t\", output_to_operand_aliasing={{0}: (0, {})}, api_version=API_VERSION_TYPED_FFI, custom_call_has_side_effect=true, schedule=SCHEDULE_LATEST\n}",
    "layout_constraints": "HloModule m\nENTRY e {\n x = f32[2,8]{1,0} parameter(0)\n ROOT y = f32[2,8]{1,0} custom-call(x), custom_call_target=\"t\", operand_layout_constraints={f32[2,8]{0,1}}, literal=s32[2]{0} {1, 2}\n}",
    "convolution": "HloModule m\nENTRY e {\n x = f32[2,8,8,4] parameter(0)\n k = f32[3,3,2,6] parameter(1)\n ROOT y = f32[2,4,8,6] convolution(x, k), window={size=3x3 stride=2x1 pad=1_0x1_1 rhs_reversal=1x0}, dim_labels=b01f_01io->b01f, feature_group_count=2, operand_precision={highest,default}\n}",
    "batch_groups": "HloModule m\nENTRY e {\n x = f32[4,8,3] parameter(0)\n k = f32[3,3,6] parameter(1)\n ROOT y = f32[2,6,6] convolution(x, k), window={size=3}, dim_labels=b0f_0io->b0f, batch_group_count=2\n}",
    "windows": "HloModule m\n" + ADD + "ENTRY e {\n x = f32[8,8] parameter(0)\n z = f32[] constant(0)\n ROOT y = f32[4,15] reduce-window(x, z), window={size=2x1 stride=2x1 lhs_dilate=1x2 pad=0_0x0_0}, to_apply=add\n}",
    "gather": "HloModule m\nENTRY e {\n x = f32[3,5] parameter(0)\n i = s32[3,2,1] parameter(1)\n ROOT g = f32[3,2] gather(x, i), offset_dims={}, collapsed_slice_dims={1}, start_index_map={1}, operand_batching_dims={0}, start_indices_batching_dims={0}, index_vector_dim=2, slice_sizes={1,1}, indices_are_sorted=true\n}",
    "scatter": "HloModule m\n" + ADD + "ENTRY e {\n x = f32[3,5] parameter(0)\n i = s32[2,1] parameter(1)\n u = f32[2,5] parameter(2)\n ROOT g = f32[3,5] scatter(x, i, u), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add, unique_indices=true\n}",
    "conditionals": "HloModule m\nf { x = f32[] parameter(0) ROOT s = f32[] sine(x) }\ng { x = f32[] parameter(0) ROOT s = f32[] cosine(x) }\nENTRY e {\n p = pred[] parameter(0)\n i = s32[] parameter(1)\n x = f32[] parameter(2)\n a = f32[] conditional(p, x, x), true_computation=f, false_computation=g\n ROOT b = f32[] conditional(i, a, a), branch_computations={f, g}\n}",
    "slices_and_pads": "HloModule m\nENTRY e {\n x = f32[8,9] parameter(0)\n z = f32[] constant(1)\n s = f32[4,3] slice(x), slice={[0:8:2], [1:4]}\n ROOT p = f32[9,2] pad(s, z), padding=1_1_1x0_-1\n}",
    "fusion": "HloModule m\nf { x = f32[8] parameter(0) ROOT y = f32[8] negate(x) }\nENTRY e {\n x = f32[8] parameter(0)\n ROOT y = f32[8] fusion(x), kind=kLoop, calls=f, output_to_operand_aliasing={{}: (0, {})}\n}",
    "composite_call": "HloModule m\nf { x = f32[8] parameter(0) ROOT y = f32[8] negate(x) }\nENTRY e {\n x = f32[8] parameter(0)\n ROOT y = f32[8] call(x), to_apply=f, is_composite=true, frontend_attributes={composite.name=\"n\",composite.attributes={a = 1 : i32},composite.version=\"1\"}\n}",
    "compare_types": "HloModule m\nENTRY e {\n x = f32[8] parameter(0)\n a = pred[8] compare(x, x), direction=LT, type=TOTALORDER\n i = u8[8] parameter(1)\n b = pred[8] compare(i, i), direction=GE, type=UNSIGNED\n ROOT t = tuple(a, b)\n}",
    "algorithms": "HloModule m\nENTRY e {\n x = f32[2,2] parameter(0)\n s = u64[2] parameter(1)\n r = (u64[2], u32[4]) rng-bit-generator(s), algorithm=rng_philox\n d = f32[2,2] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}, algorithm=dot_bf16_bf16_f32_x3\n f = c64[2,2] fft(complex(x, d)), fft_type=IFFT, fft_length={2}\n ROOT t = tuple(r, f)\n}",
    "while_loop": "HloModule m\nb { s = (s32[], f32[2]) parameter(0) o = s32[] constant(1) n = s32[] add(s#0, o) ROOT t = tuple(n, s#1) }\nc { s = (s32[], f32[2]) parameter(0) k = s32[] constant(3) ROOT l = compare(s#0, k), direction=LT }\nENTRY e {\n s = (s32[], f32[2]) parameter(0)\n ROOT w = while(s), condition=c, body=b\n}",
    "called_below": "HloModule m\n\nENTRY e {\n x = f32[] parameter(0)\n ROOT y = f32[] call(x), to_apply=f\n}\n",
}  # fmt: skip


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n != "called_below"])
def test_xla_agrees(name: Any) -> None:
    verify(assert_round_trip(PROGRAMS[name]))


def test_a_computation_may_stand_below_its_call() -> None:
    text = PROGRAMS["called_below"] + "\nf {\n x = f32[] parameter(0)\n ROOT y = f32[] negate(x)\n}\n"
    module = parse(text)
    verify(module)
    assert module.entry.name == "e" and len(module.computations) == 2


def test_the_header_is_typed() -> None:
    text = (
        "HloModule m, is_scheduled=true, entry_computation_layout={(f32[2]{0}, f32[3])->(f32[2], f32[3])}, "
        "input_output_alias={ {0}: (0, {}, must-alias) }, buffer_donor={ (1, {}) }, num_partitions=1\n"
        "ENTRY e {\n x = f32[2] parameter(0)\n y = f32[3] parameter(1)\n ROOT t = tuple(x, y)\n}"
    )
    header: Any = assert_round_trip(text).header
    assert [str(s) for s in header["entry_computation_layout"].parameters] == ["f32[2]", "f32[3]"]
    assert header["input_output_alias"].entries == (Alias((0,), 0, (), "must-alias"),)
    assert header["buffer_donor"].entries == (Donor(1, ()),)


def test_tables_of_source_locations_are_kept() -> None:
    tables = (
        'FileNames\n1 "a.py"\n\nFunctionNames\n1 "f"\n\nFileLocations\n1 {file_name_id=1 function_name_id=1 line=1 '
        "end_line=2 column=3 end_column=4}\n\nStackFrames\n1 {file_location_id=1 parent_frame_id=1}\n"
    )
    text = f"HloModule m\n\n{tables}\nENTRY e {{\n ROOT x = f32[] parameter(0), metadata={{stack_frame_id=1}}\n}}"
    module = assert_round_trip(text)
    assert [t.split()[0] for t in module.tables] == ["FileNames", "FunctionNames", "FileLocations", "StackFrames"]
    assert "stack_frame_id=1" in str(module)


def test_minus_zero_survives_xla() -> None:
    module = parse("HloModule m\nENTRY e { ROOT x = f32[2] constant({-0, -0.0}) }")
    value = module.entry.root.value.value
    assert np.signbit(value).all() and str(module).count("-0.0") == 2


def test_elided_constants_are_an_error_or_filled_on_request() -> None:
    text = "HloModule m\nENTRY e { ROOT x = f32[3,5] constant({...}) }"
    with pytest.raises(HloSyntaxError, match="print_large_constants"):
        parse(text)
    one, two = (parse(text, fill_elided=True).entry.root.value.value for _ in range(2))
    assert one.shape == (3, 5) and np.array_equal(one, two) and len(np.unique(one)) > 1


def test_a_bare_value_for_an_array_sets_its_first_element() -> None:
    module = assert_round_trip("HloModule m\nENTRY e { ROOT x = f32[2,2] constant(3) }")
    assert module.entry.root.value.value.tolist() == [[3, 0], [0, 0]]


def test_an_async_short_form_is_a_start_with_a_computation() -> None:
    module = parse(PROGRAMS["async_short"])
    start: Any = module.entry.find("s")
    assert start.opcode is Opcode.ASYNC_START and start.attr("calls").root.opcode is Opcode.ADD
    assert [i.opcode.text for i in module.entry.instructions][2:] == ["async-start", "async-update", "async-done"]


BROKEN = {
    "unknown opcode 'multipy'; did you mean 'multiply'": "ENTRY e {\n x = f32[2] parameter(0)\n ROOT y = f32[2] multipy(x, x)\n}",
    "no instruction named 'xx' above; did you mean 'x'": "ENTRY e {\n x = f32[2] parameter(0)\n ROOT y = f32[2] negate(xx)\n}",
    "reduce needs attribute 'to_apply'": "ENTRY e {\n x = f32[2] parameter(0)\n z = f32[] constant(0)\n ROOT y = f32[] reduce(x, z), dimensions={0}\n}",
    "reduce has no attribute 'dimension'; did you mean 'dimensions'": "ENTRY e {\n x = f32[2] parameter(0)\n z = f32[] constant(0)\n ROOT y = f32[] reduce(x, z), dimension={0}\n}",
    "no computation named 'ad'; did you mean 'add'": ADD + "ENTRY e {\n x = f32[2] parameter(0)\n z = f32[] constant(0)\n ROOT y = f32[] reduce(x, z), dimensions={0}, to_apply=ad\n}",
    "attribute 'index' is given twice": "ENTRY e {\n x = (f32[2]) parameter(0)\n ROOT y = f32[2] get-tuple-element(x), index=0, index=0\n}",
    "a second instruction named 'x'": "ENTRY e {\n x = f32[2] parameter(0)\n x = f32[2] negate(x)\n}",
    "a second ROOT": "ENTRY e {\n ROOT x = f32[2] parameter(0)\n ROOT y = f32[2] negate(x)\n}",
    "a second ENTRY": "HloModule m\nENTRY e { x = f32[2] parameter(0) }\nENTRY f { x = f32[2] parameter(0) }",
    "parameter 0 is 'x' already": "ENTRY e {\n x = f32[2] parameter(0)\n ROOT y = f32[2] parameter(0)\n}",
    "unknown element type 'f33'": "ENTRY e {\n ROOT x = f33[] parameter(0)\n}",
    "unknown element type 'f31'": "ENTRY e {\n ROOT x = (f32[2], f31[2]) parameter(0)\n}",
    "300 does not fit s8: it holds -128 to 127": "ENTRY e {\n ROOT x = s8[] constant(300)\n}",
    "1e39 is out of range for f32": "ENTRY e {\n ROOT x = f32[] constant(1e39)\n}",
    "a layout takes D, T, .* not 'T\\(8\\)'": "ENTRY e {\n ROOT x = f32[2]{0:S(1)T(8)} parameter(0)\n}",
    "in that order, not 'Q\\(3\\)'": "ENTRY e {\n ROOT x = f32[2]{0:Q(3)} parameter(0)\n}",
    "has 1 elements, not 2": "ENTRY e {\n ROOT x = f32[2] constant({1})\n}",
    "direction cannot be 'LS'": "ENTRY e {\n x = f32[2] parameter(0)\n ROOT y = pred[2] compare(x, x), direction=LS\n}",
    "the body of 'e' is never closed": "HloModule m\nENTRY e {\n x = f32[2] parameter(0)\n",
    "comment is never closed": "HloModule m /* forever",
    "cannot infer the result shape": "ENTRY e {\n x = f32[2] parameter(0)\n ROOT y = convert(x)\n}",
    "is declared with shape f32\\[3\\], but has f32\\[2\\]": "ENTRY e {\n x = f32[2] parameter(0)\n ROOT y = f32[2] negate(f32[3] x)\n}",
    "is declared to return f32\\[3\\]": "HloModule m\nENTRY e (x: f32[2]) -> f32[3] {\n ROOT x = f32[2] parameter(0)\n}",
    "computation cannot call itself": "HloModule m\nf { x = f32[] parameter(0) ROOT y = f32[] call(x), to_apply=f }",
    "no header attribute 'is_schedule'; did you mean 'is_scheduled'": "HloModule m, is_schedule=true\nENTRY e { x = f32[] parameter(0) }",
    "nest deeper than": "ENTRY e {\n x = f32[] parameter(0)\n ROOT y = f32[] " + "abs(" * 500 + "x" + ")" * 500 + "\n}",
    "the text is empty": " // nothing\n",
}  # fmt: skip


@pytest.mark.parametrize("message", BROKEN)
def test_errors_say_what_and_where(message: Any) -> None:
    with pytest.raises(HloSyntaxError, match=message) as e:
        parse(BROKEN[message], filename="prog.hlo")
    where, shown, caret = str(e.value).split("\n")[0], *str(e.value).split("\n")[-2:]
    assert where.startswith(f"prog.hlo:{e.value.line}:{e.value.column}: ")
    assert caret.strip() == "^" and len(caret) <= len(shown) + 1


def test_the_caret_stands_under_the_mistake() -> None:
    with pytest.raises(HloSyntaxError) as e:
        parse("ENTRY e {\n  x = f32[2] parameter(0)\n  ROOT y = f32[2] negat(x)\n}")
    assert (e.value.line, e.value.column) == (3, 19)
    _, shown, caret = str(e.value).split("\n")
    assert shown[caret.index("^") :].startswith("negat(")
