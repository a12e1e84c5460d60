"""Programs for the tests of fusion: the shrunk quickstart suite after the default passes, and small random graphs."""

from __future__ import annotations

from functools import cache

import numpy as np

from compiler.fusion.state import FusionState
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode
from compiler.passes.pipelines.default import default_pipeline
from compiler.text import parse
from tests.passes.programs import program_text


@cache
def _optimized_text(name: str) -> str:
    module = parse(program_text(name))
    default_pipeline().run(module)
    return str(module)


def optimized(name: str) -> HloModule:
    """A quickstart program, made smaller, after the default passes."""
    return parse(_optimized_text(name))


def entry(text: str) -> FusionState:
    """A state over an entry computation given by its lines."""
    return FusionState(parse("HloModule test\n\n" + text))


_UNARY = (Opcode.NEGATE, Opcode.ABS, Opcode.SINE)
_BINARY = (Opcode.ADD, Opcode.MULTIPLY, Opcode.MAXIMUM)


def random_graph(seed: int, size: int = 9) -> HloModule:
    """Elementwise ops, transposes, slices and reductions over f32[4,20], connected at random."""
    rng = np.random.default_rng(seed)
    module = parse(
        "HloModule random\n\n%sum (a: f32[], b: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n"
        "  %b = f32[] parameter(1)\n"
        "  ROOT %s = f32[] add(%a, %b)\n}\n\nENTRY %main (x: f32[4,20], y: f32[4,20]) -> (f32[4,20]) {\n"
        "  %x = f32[4,20] parameter(0)\n  %y = f32[4,20] parameter(1)\n  ROOT %t = (f32[4,20]) tuple(%x)\n}\n"
    )
    c = module.entry
    reducer = module.find("sum") or HloComputation("sum")
    zero = c.add_constant(np.float32(0))
    values: list[HloInstruction] = c.parameters
    for _ in range(size):
        values.append(_random_op(c, rng, values, zero, reducer))
    ends = [v for v in values if not v.users or rng.random() < 0.15]
    old = c.root
    c.root = c.add(Opcode.TUPLE, ends)
    c.remove(old)
    return module


def _random_op(
    c: HloComputation,
    rng: np.random.Generator,
    values: list[HloInstruction],
    zero: HloInstruction,
    reducer: HloComputation,
) -> HloInstruction:
    v = values[-1 - int(rng.integers(min(4, len(values))))]
    match int(rng.integers(7)):
        case 0 | 1:
            return c.add(_UNARY[int(rng.integers(len(_UNARY)))], [v])
        case 2 if v.shape.dimensions == (4, 20):
            row = c.add(Opcode.REDUCE, [v, zero], dimensions=(1,), to_apply=reducer)
            values.append(row)
            return c.add(Opcode.BROADCAST, [row], values[0].shape, dimensions=(0,))
        case 3 if v.shape.rank == 2:
            return c.add(Opcode.TRANSPOSE, [v], dimensions=(1, 0))
        case _:
            same = [w for w in values if w.shape.dimensions == v.shape.dimensions]
            other = same[int(rng.integers(len(same)))]
            return c.add(_BINARY[int(rng.integers(len(_BINARY)))], [v, other])
