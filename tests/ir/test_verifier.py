"""Rules that only graphs built in memory can violate, because the parser would refuse the text."""

from typing import Any

import numpy as np

from compiler.ir import HloComputation, HloModule, Opcode, PrimitiveType, Shape
from compiler.ir.attributes import Raw
from compiler.ir.header import Alias, Aliases, Donor, Donors, EntryLayout
from compiler.ir.shape import Layout, array_shape, tuple_shape
from compiler.ir.verifier import check_module
from compiler.text import parse

T = PrimitiveType


def graph() -> Any:
    """Build a small module, to be broken in ways that no text can be."""
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
    assert "which is not in it" in broken(lambda m, c, x, y: y.replace_operand(0, stranger))
    assert "does not list it as a user" in broken(lambda m, c, x, y: x.users.pop(y))
    assert "lists %add as a user" in broken(lambda m, c, x, y: setattr(c.root, "operands", (x, x)))
    assert "same name" in broken(lambda m, c, x, y: setattr(y, "name", "add"))
    assert "no root" in broken(lambda m, c, x, y: setattr(c, "_root", None))
    assert "not in the module" in broken(lambda m, c, x, y: y.attributes.update(to_apply=other))


def test_attributes_of_the_wrong_kind() -> None:
    assert "has no attribute dimensions" in broken(lambda m, c, x, y: y.attributes.update(dimensions=(1,)))
    stranger = HloComputation("z").add_parameter(0, array_shape(T.F32, 4))
    assert "runs after %param_0" in broken(
        lambda m, c, x, y: y.attributes.update({"control-predecessors": (stranger,)})
    )


def test_shapes_and_literals_that_contradict_themselves() -> None:
    def layout(m: Any, c: Any, x: Any, y: Any) -> Any:
        y.shape = Shape(T.F32, (4,), Layout((1,)))

    def literal(m: Any, c: Any, x: Any, y: Any) -> Any:
        constant = c.add_constant(np.float32(1))
        constant.shape = array_shape(T.F32, 2)

    assert "not a permutation" in broken(layout)
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
        "HloModule m, is_scheduled=true\n"
        "ENTRY e { x = f32[4] parameter(0) y = f32[4] sine(x) ROOT z = f32[4] negate(x) }"
    )
    assert check_module(module) == []
    entry: Any = module.entry
    y, z = entry.find("y"), entry.find("z")
    z.attributes["control-predecessors"] = (y,)
    assert check_module(module) == []
    del z.attributes["control-predecessors"]
    y.attributes["control-predecessors"] = (z,)
    assert "comes before %z" in "\n".join(check_module(module))


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
