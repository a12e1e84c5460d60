"""Cuts: subgraphs of modules compute what they compute inside the module, and depend on their seed alone."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.interpreter import evaluate
from compiler.ir import HloModule, Opcode
from compiler.ir.verifier import check_module
from compiler.text import parse
from env.suites import QUICKSTART, Normal, Randint, Uniform, find_program, random_inputs
from env.suites.programs.cutter import cut, cut_inputs

PROGRAMS = ("softmax", "layer_norm_backward", "adam_step", "mlp_train_step")
SMALL = (("2048", "16"), ("1024", "8"), ("1048576", "32"))


def small_module(name: str) -> HloModule:
    """Return a quickstart program with smaller dimensions, which the interpreter evaluates at once."""
    text = (QUICKSTART / f"{name}.hlo").read_text()
    for large, small in SMALL:
        text = text.replace(large, small)
    return parse(text)


def inside(module: HloModule, names: tuple[str, ...], arguments: list[np.ndarray]) -> list[np.ndarray]:
    """Return the values that instructions of the entry have when the whole module is evaluated."""
    whole = module.clone()
    whole.header.clear()
    wanted = [whole.entry.find(name) for name in names]
    whole.entry.root = whole.entry.add(Opcode.TUPLE, [i for i in wanted if i is not None])
    return evaluate(whole, arguments)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_cut_computes_what_it_computes_inside_the_module(name: str) -> None:
    module, program = small_module(name), find_program(name)
    arguments = random_inputs(program, [(s.dtype, s.dimensions) for s in module.parameter_shapes], seed=0)
    checked = 0
    for seed in range(12):
        found = cut(module, seed, 3 + seed)
        if found is None or found.computation != module.entry.name:
            continue
        assert not check_module(found.module)
        assert len(found.inputs) == len(found.module.entry.parameters)
        both = inside(module, (*found.inputs, *found.outputs), arguments)
        given, wanted = both[: len(found.inputs)], both[len(found.inputs) :]
        for got, want in zip(evaluate(found.module, given), wanted, strict=True):
            np.testing.assert_array_equal(got, want)
        checked += 1
    assert checked >= 6


def test_a_cut_is_connected_and_of_the_size_asked_for() -> None:
    module = small_module("layer_norm_backward")
    for seed in range(10):
        found = cut(module, seed, 6)
        assert found is not None
        entry = found.module.entry
        inner = [i for i in entry.instructions if i.opcode not in (Opcode.PARAMETER, Opcode.CONSTANT, Opcode.TUPLE)]
        reached, work = set(), [inner[-1]]
        while work:
            i = work.pop()
            if i not in reached:
                reached.add(i)
                work += [n for n in (*i.operands, *i.users) if n in inner]
        copied = [i for i in inner if i.opcode is Opcode.BROADCAST and i.operand(0).opcode is Opcode.CONSTANT]
        assert len(inner) - len(copied) <= 6
        assert set(inner) - set(copied) <= reached


def test_a_cut_depends_on_its_seed_alone() -> None:
    module = small_module("mlp_train_step")
    before = str(module)
    first, again, other = (cut(module, seed, 8) for seed in (5, 5, 6))
    assert first is not None
    assert again is not None
    assert other is not None
    assert str(first.module) == str(again.module)
    assert str(first.module) != str(other.module)
    assert str(module) == before


def test_there_is_no_cut_of_a_module_without_arithmetic() -> None:
    assert cut(parse("HloModule m\nENTRY e {\n  ROOT x = f32[4] parameter(0)\n}\n"), 0, 4) is None


def test_inputs_of_cuts_keep_logarithms_and_quotients_finite() -> None:
    module = parse(
        "HloModule m\nENTRY e {\n  x = f32[4] parameter(0)\n  y = f32[4] parameter(1)\n  n = s32[4] parameter(2)\n"
        "  c = f32[4] convert(n)\n  one = f32[4] add(y, c)\n  l = f32[4] log(one)\n"
        "  ROOT r = f32[4] multiply(x, l)\n}\n"
    )
    assert cut_inputs(module) == (Normal(), Uniform(0.5, 1.5), Randint(0, 16))
