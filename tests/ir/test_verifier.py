# ruff: noqa: E501  # programs in one line each read better in a table
from typing import Any

import numpy as np
import pytest

from compiler.errors import HloVerificationError
from compiler.ir import HloComputation, HloModule, Opcode, PrimitiveType, Shape
from compiler.ir.attributes import Raw
from compiler.ir.header import Alias, Aliases, Donor, Donors, EntryLayout
from compiler.ir.shape import Layout, array_shape, tuple_shape
from compiler.ir.verifier import check_module, verify
from compiler.text import parse

T = PrimitiveType
ADD = "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }\n"
F = "f { p = f32[4] parameter(0) ROOT r = f32[4] negate(p) }\n"

# Texts that parse and break one rule each, with what the finding must say.
BROKEN = {
    "expected f32\\[4\\]": "ENTRY e { x = f32[4] parameter(0) ROOT y = f32[5] negate(x) }",
    "operands must have one shape": "ENTRY e { x = f32[4] parameter(0) y = f32[5] parameter(1) ROOT z = f32[4] add(x, y) }",
    "takes integers or pred": "ENTRY e { x = f32[4] parameter(0) ROOT z = f32[4] and(x, x) }",
    "takes floating-point numbers": "ENTRY e { x = s32[4] parameter(0) ROOT z = s32[4] floor(x) }",
    "floating-point or complex": "ENTRY e { x = s32[4] parameter(0) ROOT z = s32[4] sine(x) }",
    "takes 2 operand\\(s\\), got 3": "ENTRY e { x = f32[4] parameter(0) ROOT z = f32[4] add(x, x, x) }",
    "comparison type must be SIGNED": "ENTRY e { x = s32[4] parameter(0) ROOT z = pred[4] compare(x, x), direction=LT, type=UNSIGNED }",
    "needs a pred operand": "ENTRY e { x = f32[4] parameter(0) ROOT z = f32[4] select(x, x, x) }",
    "cannot reshape": "ENTRY e { x = f32[4] parameter(0) ROOT z = f32[5] reshape(x) }",
    "no permutation": "ENTRY e { x = f32[4,2] parameter(0) ROOT z = f32[4,2] transpose(x), dimensions={0,0} }",
    "does not fit result dimension": "ENTRY e { x = f32[4] parameter(0) ROOT z = f32[5,2] broadcast(x), dimensions={0} }",
    "does not fit a dimension": "ENTRY e { x = f32[4] parameter(0) ROOT z = f32[5] slice(x), slice={[0:5]} }",
    "cannot concatenate": "ENTRY e { x = f32[4,2] parameter(0) y = f32[4,3] parameter(1) ROOT z = f32[8,2] concatenate(x, y), dimensions={0} }",
    "pad value must be a f32 scalar": "ENTRY e { x = f32[4] parameter(0) v = s32[] constant(0) ROOT z = f32[6] pad(x, v), padding=1_1 }",
    "start indices must be integer": "ENTRY e { x = f32[4] parameter(0) i = f32[] constant(0) ROOT z = f32[1] dynamic-slice(x, i), dynamic_slice_sizes={1} }",
    "must take 2 scalars": "g { a = f32[] parameter(0) ROOT r = f32[] negate(a) }\nENTRY e { x = f32[4] parameter(0) z = f32[] constant(0) ROOT r = f32[] reduce(x, z), dimensions={0}, to_apply=g }",
    "the operand's elements are f32": "g { a = s32[] parameter(0) b = s32[] parameter(1) ROOT r = s32[] add(a, b) }\nENTRY e { x = f32[4] parameter(0) z = s32[] constant(0) ROOT r = s32[] reduce(x, z), dimensions={0}, to_apply=g }",
    "does not fit the accumulator": ADD + "ENTRY e { x = f32[4] parameter(0) z = s32[] constant(0) ROOT r = f32[] reduce(x, z), dimensions={0}, to_apply=add }",
    "repeated dimensions": ADD + "ENTRY e { x = f32[4] parameter(0) z = f32[] constant(0) ROOT r = f32[] reduce(x, z), dimensions={0,0}, to_apply=add }",
    "same size": "ENTRY e { x = f32[4,2] parameter(0) ROOT z = f32[4,2] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0} }",
    "input features": "ENTRY e { x = f32[1,3,8] parameter(0) k = f32[4,2,3] parameter(1) ROOT z = f32[1,4,6] convolution(x, k), window={size=3}, dim_labels=bf0_oi0->bf0 }",
    "must return pred": F + "ENTRY e { x = f32[4] parameter(0) ROOT w = f32[4] while(x), condition=f, body=f }",
    "the loop carries": "c { s = f32[4] parameter(0) ROOT p = pred[] constant(1) }\nb { s = f32[4] parameter(0) ROOT r = f32[2] slice(s), slice={[0:2]} }\nENTRY e { x = f32[4] parameter(0) ROOT w = f32[4] while(x), condition=c, body=b }",
    "takes 1 arguments, got 2": F + "ENTRY e { x = f32[4] parameter(0) ROOT w = f32[4] call(x, x), to_apply=f }",
    "parameter 0 of f is": F + "ENTRY e { x = f32[5] parameter(0) ROOT w = f32[4] call(x), to_apply=f }",
    "branches need 3 operands": F + "ENTRY e { p = pred[] parameter(0) x = f32[4] parameter(1) ROOT w = f32[4] conditional(p, x), true_computation=f, false_computation=f }",
    "must be pred\\[\\] or s32": F + "ENTRY e { p = f32[] parameter(0) x = f32[4] parameter(1) ROOT w = f32[4] conditional(p, x, x), branch_computations={f, f} }",
    "is not used": "g { p = f32[4] parameter(0) d = f32[4] sine(p) ROOT r = f32[4] negate(p) }\nENTRY e { x = f32[4] parameter(0) ROOT w = f32[4] fusion(x), kind=kLoop, calls=g }",
    "belongs to %w alone": F + "ENTRY e { x = f32[4] parameter(0) w = f32[4] fusion(x), kind=kLoop, calls=f ROOT v = f32[4] call(w), to_apply=f }",
    "names operand 3 of 1": F + "ENTRY e { x = f32[4] parameter(0) ROOT w = f32[4] fusion(x), kind=kLoop, calls=f, output_to_operand_aliasing={{}: (3, {})} }",
    "no element 2": "ENTRY e { x = (f32[4]) parameter(0) ROOT w = f32[4] get-tuple-element(x), index=2 }",
    "must be used by one copy-done": "ENTRY e { x = f32[4] parameter(0) s = (f32[4], f32[4], u32[]) copy-start(x) ROOT w = f32[4] get-tuple-element(s), index=0 }",
    "goes with a copy-start": "ENTRY e { x = (f32[4], f32[4], u32[]) parameter(0) ROOT w = f32[4] copy-done(x) }",
    "must be used by one async-update": F + "ENTRY e { x = f32[4] parameter(0) s = ((f32[4]), f32[4], u32[]) async-start(x), calls=f ROOT y = f32[4] negate(x) }",
    "may hold parameters and one": "g { p = f32[4] parameter(0) d = f32[4] sine(p) ROOT r = f32[4] negate(d) }\nENTRY e { x = f32[4] parameter(0) s = ((f32[4]), f32[4], u32[]) async-start(x), calls=g ROOT y = f32[4] async-done(s) }",
    "must name each of 0 to 1 once": ADD + "ENTRY e { x = f32[4] parameter(0) ROOT r = f32[4] all-reduce(x), replica_groups={{0,0}}, to_apply=add }",
    "channel_id must be greater": ADD + "ENTRY e { x = f32[4] parameter(0) ROOT r = f32[4] all-reduce(x), channel_id=0, to_apply=add }",
    "is a source twice": "ENTRY e { x = f32[4] parameter(0) ROOT r = f32[4] collective-permute(x), source_target_pairs={{0,1},{0,2}} }",
    "has channel_id 2": "ENTRY e { x = f32[4] parameter(0) k = token[] after-all() s = (f32[4], u32[], token[]) send(x, k), channel_id=1 ROOT d = token[] send-done(s), channel_id=2 }",
    "operand 1 must be a token": "ENTRY e { x = f32[4] parameter(0) ROOT o = token[] outfeed(x, x) }",
    "square matrices": "ENTRY e { x = f32[4,3] parameter(0) ROOT o = f32[4,3] cholesky(x) }",
    "shared dimension": "ENTRY e { a = f32[4,4] parameter(0) x = f32[4,3] parameter(1) ROOT o = f32[4,3] triangular-solve(a, x) }",
    "RFFT takes f32 or f64": "ENTRY e { x = c64[4] parameter(0) ROOT o = c64[3] fft(x), fft_type=RFFT, fft_length={4} }",
    "comparator g must return pred": "g { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }\nENTRY e { x = f32[4] parameter(0) ROOT s = f32[4] sort(x), dimensions={0}, to_apply=g }",
    "slice size of collapsed": "ENTRY e { x = f32[4,3] parameter(0) i = s32[2,1] parameter(1) ROOT g = f32[2,3] gather(x, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={2,3} }",
    "does not have the batch dimensions": ADD + "ENTRY e { x = f32[4] parameter(0) i = s32[2,1] parameter(1) u = f32[3] parameter(2) ROOT g = f32[4] scatter(x, i, u), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add }",
    "scan has 2 carries": "g { a = f32[] parameter(0) b = f32[] parameter(1) ROOT t = (f32[], f32[]) tuple(a, b) }\nENTRY e { x = f32[4] parameter(0) ROOT s = (f32[4], f32[]) scan(x), dimensions={0}, num_carries=2, to_apply=g }",
    "exponent_bits must be": "ENTRY e { x = f32[4] parameter(0) ROOT s = f32[4] reduce-precision(x), exponent_bits=0, mantissa_bits=2 }",
    "numbered \\[0, 2\\], expected 0 to 1": "ENTRY e { x = f32[4] parameter(0) y = f32[4] parameter(2) ROOT s = f32[4] add(x, y) }",
    "without bound": "ENTRY e { ROOT x = f32[?] parameter(0) }",
    "calls the entry": "HloModule m\nENTRY e { ROOT x = f32[4] parameter(0) }\ng { x = f32[4] parameter(0) ROOT c = f32[4] call(x), to_apply=e }",
    "runs on thread main, %g, which it calls, on side": 'g { p = f32[4] parameter(0) ROOT r = f32[4] negate(p) }, execution_thread="side"\nENTRY e { x = f32[4] parameter(0) ROOT c = f32[4] call(x), to_apply=g }',
    "composite.name": F + "ENTRY e { x = f32[4] parameter(0) ROOT w = f32[4] call(x), to_apply=f, is_composite=true }",
    "has 1 shapes for 2 operands": 'ENTRY e { x = f32[4] parameter(0) ROOT w = f32[4] custom-call(x, x), custom_call_target="t", operand_layout_constraints={f32[4]{0}} }',
    "has 1 parameters, entry": "HloModule m, entry_computation_layout={(f32[4])->f32[4]}\nENTRY e { x = f32[4] parameter(0) y = f32[4] parameter(1) ROOT z = f32[4] add(x, y) }",
    "says f32\\[5\\] for parameter 0": "HloModule m, entry_computation_layout={(f32[5])->f32[4]}\nENTRY e { x = f32[4] parameter(0) ROOT z = f32[4] negate(x) }",
    "it returns f32\\[4\\]": "HloModule m, entry_computation_layout={(f32[4])->f32[5]}\nENTRY e { x = f32[4] parameter(0) ROOT z = f32[4] negate(x) }",
    "has no such part": "HloModule m, input_output_alias={ {1}: (0, {}) }\nENTRY e { x = f32[4] parameter(0) ROOT z = f32[4] negate(x) }",
    "that parameter is aliased twice": "HloModule m, input_output_alias={ {0}: (0, {}), {1}: (0, {}) }\nENTRY e { x = f32[4] parameter(0) ROOT z = tuple(x, x) }",
    "aliased to a result already": "HloModule m, input_output_alias={ {}: (0, {}) }, buffer_donor={ (0, {}) }\nENTRY e { x = f32[4] parameter(0) ROOT z = f32[4] negate(x) }",
    "different size": "HloModule m, input_output_alias={ {}: (0, {}) }\nENTRY e { x = f32[4] parameter(0) ROOT z = f32[2] slice(x), slice={[0:2]} }",
    "replica_count must be at least 1": "HloModule m, replica_count=0\nENTRY e { ROOT x = f32[4] parameter(0) }",
}  # fmt: skip


@pytest.mark.parametrize("message", BROKEN)
def test_each_rule_fires_and_says_what_was_expected(message: Any) -> None:
    module = parse(BROKEN[message])
    with pytest.raises(HloVerificationError, match=message) as e:
        verify(module)
    assert e.value.findings


def graph() -> Any:
    """A small module made in memory, to be broken in ways that no text can be."""
    module = HloModule("m")
    c = HloComputation("e")
    x = c.add_parameter(0, array_shape(T.F32, 4))
    y = c.add(Opcode.NEGATE, [x])
    c.root = c.add(Opcode.ADD, [x, y])
    module.add(c, entry=True)
    return module, c, x, y


def broken(change: Any) -> Any:
    module, c, x, y = graph()
    assert check_module(module) == []
    change(module, c, x, y)
    return "\n".join(check_module(module))


def test_graphs_that_do_not_hold_together() -> None:
    other = HloComputation("other")
    stranger = other.add_parameter(0, array_shape(T.F32, 4))
    assert "cycle" in broken(lambda m, c, x, y: y.replace_operand(0, c.root))
    assert "does not stand there" in broken(lambda m, c, x, y: y.replace_operand(0, stranger))
    assert "does not list it as a user" in broken(lambda m, c, x, y: x.users.pop(y))
    assert "lists %add as a user" in broken(lambda m, c, x, y: setattr(c.root, "operands", (x, x)))
    assert "same name" in broken(lambda m, c, x, y: setattr(y, "name", "add"))
    assert "no root" in broken(lambda m, c, x, y: setattr(c, "_root", None))
    assert "not in the module" in broken(lambda m, c, x, y: y.attributes.update(to_apply=other))


def test_attributes_of_the_wrong_kind() -> None:
    assert "has no attribute dimensions" in broken(lambda m, c, x, y: y.attributes.update(dimensions=(1,)))
    assert "runs after %param_0" in broken(lambda m, c, x, y: y.attributes.update({"control-predecessors": (HloComputation("z").add_parameter(0, x.shape),)}))  # fmt: skip


def test_shapes_and_literals_that_contradict_themselves() -> None:
    def layout(m: Any, c: Any, x: Any, y: Any) -> Any:
        y.shape = Shape(T.F32, (4,), Layout((1,)))

    def literal(m: Any, c: Any, x: Any, y: Any) -> Any:
        constant = c.add_constant(np.float32(1))
        constant.shape = array_shape(T.F32, 2)

    assert "no permutation" in broken(layout)
    assert "literal of shape f32[]" in broken(literal)


def test_a_computation_that_calls_itself() -> None:
    module, c, x, _ = graph()
    f = module.add(HloComputation("f"))
    p = f.add_parameter(0, x.shape)
    f.root = p
    f.root = f.add(Opcode.CALL, [p], to_apply=f)
    c.root = c.add(Opcode.CALL, [x], to_apply=f)
    assert "calls itself" in "\n".join(check_module(module))


def test_a_schedule_is_an_order_that_runs() -> None:
    module = parse(
        "HloModule m, is_scheduled=true\nENTRY e { x = f32[4] parameter(0) y = f32[4] sine(x) ROOT z = f32[4] negate(x) }"
    )
    assert check_module(module) == []
    entry: Any = module.entry
    y, z = entry.find("y"), entry.find("z")
    z.attributes["control-predecessors"] = (y,)
    assert check_module(module) == []
    del z.attributes["control-predecessors"]
    y.attributes["control-predecessors"] = (z,)
    assert "stands before %z" in "\n".join(check_module(module))


def test_typed_headers_are_checked() -> None:
    module, *_ = graph()
    module.header["entry_computation_layout"] = EntryLayout((array_shape(T.F32, 4),), array_shape(T.F32, 4))
    module.header["input_output_alias"] = Aliases((Alias((), 0, (), "must-alias"),))
    module.header["replica_count"] = Raw("1")
    assert check_module(module) == []
    module.header["buffer_donor"] = Donors((Donor(3, ()),))
    assert "no such part" in "\n".join(check_module(module))
    module.header["entry_computation_layout"] = EntryLayout((tuple_shape(),), array_shape(T.F32, 4))
    assert "for parameter 0" in "\n".join(check_module(module))
