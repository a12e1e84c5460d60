"""The incremental verifier has the same findings as the full one, whatever changes between two calls."""

import random
from collections import UserString
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler.errors import HloVerificationError
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, PrimitiveType
from compiler.ir.attributes import Raw
from compiler.ir.literal import Literal
from compiler.ir.reverifier import recheck_module, reverify
from compiler.ir.shape import Layout, Shape, array_shape
from compiler.ir.verifier import check_module
from compiler.passes import PASSES, make_pass
from compiler.text import parse
from tests.fuzz.random_modules import random_module

AWKWARD = sorted((Path(__file__).parent.parent / "passes" / "awkward").glob("*.hlo"))
SHARDED = """HloModule m, num_partitions=2
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
step { p = (s32[], f32[4]) parameter(0) i = s32[] get-tuple-element(p), index=0 x = f32[4] get-tuple-element(p), index=1
  one = s32[] constant(1) j = s32[] add(i, one)
  y = f32[4] all-reduce(x), replica_groups={}, to_apply=add ROOT t = (s32[], f32[4]) tuple(j, y) }
more { p = (s32[], f32[4]) parameter(0) i = s32[] get-tuple-element(p), index=0 n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT }
fused { q = f32[4] parameter(0) ROOT n = f32[4] negate(q) }
ENTRY e { x = f32[4] parameter(0), sharding={devices=[2]0,1} zero = s32[] constant(0)
  t = (s32[], f32[4]) tuple(zero, x) w = (s32[], f32[4]) while(t), condition=more, body=step
  y = f32[4] get-tuple-element(w), index=1 s = f32[4] sine(y), control-predecessors={x}
  f = f32[4] fusion(s), kind=kLoop, calls=fused
  cs = (f32[4], f32[4], u32[]) copy-start(f) ROOT cd = f32[4] copy-done(cs) }
"""
"""Something for each rule that depends on neighbours or on the header."""


def outcome(check: Callable[[HloModule], list[str]], module: HloModule) -> Any:
    """Return the findings, or the type of the exception if the module is too broken to be checked."""
    try:
        return check(module)
    except (AttributeError, TypeError, ValueError, IndexError, KeyError) as e:
        return type(e)


def agree(module: HloModule, done: object) -> Any:
    """Return the findings of the incremental and of the full verifier."""
    quick, whole = outcome(recheck_module, module), outcome(check_module, module)
    assert quick == whole, done
    return whole


def modules(seed: int) -> list[HloModule]:
    """Yield a random module and two with rarer ops."""
    rng = random.Random(seed)
    programs = [SHARDED, *(p.read_text(encoding="utf-8") for p in rng.sample(AWKWARD, 2))]
    return [random_module(np.random.default_rng(seed), 30), *map(parse, programs)]


@pytest.mark.parametrize("seed", range(6))
def test_after_passes(seed: int) -> None:
    rng = random.Random(seed)
    for module in modules(seed):
        assert agree(module, "start") == []
        for name in rng.choices(list(PASSES), k=12):
            module = module.clone()
            make_pass(name).run(module)
            assert agree(module, name) == []


# ---- broken modules


def _any(rng: random.Random, module: HloModule) -> HloInstruction:
    return rng.choice(rng.choice([c for c in module.computations if len(c)]).instructions)


def _shape(rng: random.Random, module: HloModule) -> None:
    i = _any(rng, module)
    odd = Shape(i.shape.element_type, i.shape.dimensions, Layout((1,)))
    i.shape = rng.choice([array_shape(PrimitiveType.F32, 4), odd, _any(rng, module).shape])


def _operand(rng: random.Random, module: HloModule) -> None:
    i, other = _any(rng, module), _any(rng, module)
    if i.operands:
        i.replace_operand(rng.randrange(len(i.operands)), other)


def _neighbour(rng: random.Random, module: HloModule) -> None:
    i = _any(rng, module)
    if i.operands and i.parent is not None:
        i.replace_operand(rng.randrange(len(i.operands)), rng.choice(i.parent.instructions))


def _operands(rng: random.Random, module: HloModule) -> None:
    i = _any(rng, module)
    i.set_operands(rng.choice([i.operands[1:], (*i.operands, *i.operands), i.operands[::-1]]))


def _value(rng: random.Random, module: HloModule) -> None:
    with_some = [i for c in module.computations for i in c.instructions if i.attributes]
    if not with_some:
        return
    i = rng.choice(with_some)
    name = rng.choice(list(i.attributes))
    old = i.attributes[name]
    i.attributes[name] = rng.choice([Raw("{7,7}"), 1, True, False, "GT", (0,), (1, 0), (0, 0), None, old, [old]])


def _missing(rng: random.Random, module: HloModule) -> None:
    i = _any(rng, module)
    if i.attributes:
        del i.attributes[rng.choice(list(i.attributes))]


def _all_attributes(rng: random.Random, module: HloModule) -> None:
    i, j = _any(rng, module), _any(rng, module)
    i.attributes = dict(j.attributes)


def _unknown(rng: random.Random, module: HloModule) -> None:
    _any(rng, module).attributes[rng.choice(["dimensions", "index", "sharding", "result_accuracy"])] = Raw(
        "{devices=[3]0,1,2}"
    )


def _literal(rng: random.Random, module: HloModule) -> None:
    _any(rng, module).literal = rng.choice([None, Literal.from_array(np.float32(1)), Literal.from_array(np.zeros(3))])


def _number(rng: random.Random, module: HloModule) -> None:
    parameters = [p for c in module.computations for p in c.parameters]
    if parameters:
        rng.choice(parameters).parameter_number = rng.choice([None, 0, 1, 5])


def _opcode(rng: random.Random, module: HloModule) -> None:
    _any(rng, module).opcode = rng.choice([Opcode.NEGATE, Opcode.ADD, Opcode.AND, Opcode.CONSTANT, Opcode.COPY_DONE])


def _users(rng: random.Random, module: HloModule) -> None:
    i, j = _any(rng, module), _any(rng, module)
    if i.users and rng.random() < 0.5:
        i.users.pop(next(iter(i.users)))
    else:
        i.users[j] = None


def _name(rng: random.Random, module: HloModule) -> None:
    _any(rng, module).name = _any(rng, module).name


def _control(rng: random.Random, module: HloModule) -> None:
    i = _any(rng, module)
    assert i.parent is not None
    i.set_control_predecessors([rng.choice([_any(rng, module), i.parent.root])])


def _root(rng: random.Random, module: HloModule) -> None:
    c = rng.choice(module.computations)
    c.root = rng.choice(c.instructions)


def _strange_root(rng: random.Random, module: HloModule) -> None:
    rng.choice(module.computations)._root = rng.choice([None, _any(rng, module)])


def _second_user(rng: random.Random, module: HloModule) -> None:
    c = rng.choice(module.computations)
    c.add(Opcode.TUPLE, [rng.choice(c.instructions)])


def _entry(rng: random.Random, module: HloModule) -> None:
    module.entry = rng.choice(module.computations)


def _callee(rng: random.Random, module: HloModule) -> None:
    calling = [i for c in module.computations for i in c.notable if i.called_computations()]
    if calling:
        old = rng.choice(rng.choice(calling).called_computations())
        new = rng.choice([*module.computations, HloComputation("strange")])
        rng.choice(calling).replace_called_computations({old: new})


def _called_shape(rng: random.Random, module: HloModule) -> None:
    others = [c for c in module.computations if c is not module.entry] or module.computations
    c = rng.choice(others)
    i = rng.choice([c.root, *c.parameters])
    i.shape = array_shape(PrimitiveType.S64, 9)


def _lost(rng: random.Random, module: HloModule) -> None:
    if module.computations:
        module.remove(rng.choice(module.computations))


def _thread(rng: random.Random, module: HloModule) -> None:
    rng.choice(module.computations).attributes["execution_thread"] = "other"


def _header(rng: random.Random, module: HloModule) -> None:
    module.header[rng.choice(["num_partitions", "replica_count"])] = Raw(rng.choice(["0", "3", "8"]))


def _homeless(rng: random.Random, module: HloModule) -> None:
    _any(rng, module).parent = None


def _new(rng: random.Random, module: HloModule) -> None:
    c = rng.choice(module.computations)
    operand = rng.choice(c.instructions)
    c.insert(HloInstruction("made", Opcode.NEGATE, array_shape(PrimitiveType.F32, 4), [operand]))


BREAKS = [
    _shape, _operand, _neighbour, _operands, _value, _missing, _all_attributes, _unknown, _literal, _number, _opcode,
    _users, _name, _control, _root, _strange_root, _second_user, _entry, _callee, _called_shape, _lost, _thread,
    _header, _homeless, _new,
]  # fmt: skip


@pytest.mark.parametrize("broken", BREAKS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 30), marks=pytest.mark.slow)], ids=["few", "many"])
def test_broken_modules(broken: Callable[[random.Random, HloModule], None], seeds: range) -> None:
    found = 0
    for seed in seeds:
        for n, module in enumerate(modules(seed)):
            assert agree(module, "start") == []
            rng = random.Random(f"{seed} {n}")
            for _ in range(8):
                worse = module.clone()
                for _ in range(rng.choice([1, 1, 1, 2])):
                    broken(rng, worse)
                found += agree(worse, (broken.__name__, seed, n)) != []
            assert agree(module, "still sound") == []
    assert found


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(n, marks=pytest.mark.slow) for n in range(6, 60))])
def test_broken_between_passes(seed: int) -> None:
    rng = random.Random(seed)
    for module in modules(seed):
        for _ in range(20):
            module = module.clone()
            make_pass(rng.choice(list(PASSES))).run(module)
            assert agree(module, "pass") == []
            worse = module.clone()
            for change in rng.choices(BREAKS, k=rng.choice([1, 1, 2])):
                if outcome(check_module, worse) == []:
                    change(rng, worse)
            agree(worse, "broken")


def test_it_raises_what_verify_raises() -> None:
    module = parse("HloModule m\nENTRY e { x = f32[4] parameter(0) ROOT y = f32[4] sine(x) }")
    reverify(module)
    module.entry.root.shape = array_shape(PrimitiveType.F32, 5)
    with pytest.raises(HloVerificationError, match="%y = sine: shape is"):
        reverify(module)


def test_values_that_change_in_place() -> None:
    module = parse("HloModule m\nENTRY e { x = f32[4] parameter(0) ROOT y = f32[4] sine(x) }")
    text = UserString("{mode=highest}")
    module.entry.root.attributes["result_accuracy"] = text
    assert agree(module, "before") == []
    text.data = "{mode=odd}"
    assert agree(module, "after") != []


def test_chains_are_checked_where_none_of_their_own_changed() -> None:
    module = parse("""HloModule m
        a { x = f32[4] parameter(0) ROOT y = f32[4] sine(x) }
        b { x = f32[4] parameter(0) ROOT y = f32[4] sine(x) }
        ENTRY e { x = f32[4] parameter(0)
          s = ((f32[4]), f32[4], u32[]) async-start(x), calls=a
          ROOT d = f32[4] async-done(s), calls=a }""")
    other = module.find("b")
    assert other is not None
    module.entry.root.attributes["calls"] = other
    assert agree(module, "before") == []
    other.root.opcode = Opcode.COSINE
    assert agree(module, "after") != []


def test_what_was_found_sound_is_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    module = parse(SHARDED)
    assert recheck_module(module) == []
    checked: list[str] = []

    def check(i: HloInstruction) -> list[str]:
        checked.append(i.name)
        return []

    monkeypatch.setattr("compiler.ir.reverifier.check_instruction", check)
    copy = module.clone()
    assert recheck_module(copy) == [] and checked == []
    copy.entry.root = copy.entry.add(Opcode.NEGATE, [copy.entry.root])
    assert recheck_module(copy) == [] and checked == ["negate"]
