"""Kernels that overwrite an input with an output, although branches read it or other arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from compiler.codegen.kernel_spec import KernelSpec
from compiler.codegen.schedules.schedule import Schedule
from compiler.errors import UnsupportedError
from compiler.ir import HloComputation, HloInstruction, Opcode
from tests.codegen import running
from tests.codegen.random_fusions import random_fusion
from tests.fuzz.schedules import random_schedule

ROLLED = """
    x = f32[{n},3] parameter(0)
    v = f32[{n},3] parameter(1)
    f = f32[{n},3] parameter(2)
    last = f32[1,3] slice(f), slice={{[{m}:{n}], [0:3]}}
    rest = f32[{m},3] slice(f), slice={{[0:{m}], [0:3]}}
    before = f32[{n},3] concatenate(last, rest), dimensions={{0}}
    d = f32[{n},3] subtract(f, before)
    w = f32[{n},3] add(v, d)
    y = f32[{n},3] add(x, w)
    ROOT r = (f32[{n},3], f32[{n},3]) tuple(y, w)
"""
"""A step of particles that pull at their neighbours: positions x and velocities v in, the same out."""
TRIALS = 40


def in_place(spec: KernelSpec) -> KernelSpec:
    """Return a kernel each of whose inputs shares the buffer of the first output of its shape that it may share."""
    chosen: dict[int, int] = {}
    arrays = (*spec.inputs, *spec.outputs)
    for read, written in spec.in_place:
        if read not in chosen and written not in chosen.values() and arrays[read] == arrays[written]:
            chosen[read] = written
    return replace(spec, must_alias=(*spec.must_alias, *chosen.items()))


def check(f: HloComputation, schedule: Schedule | None, rng: np.random.Generator) -> bool:
    """Check that a kernel whose outputs overwrite inputs is right; return whether any does."""
    case = running.case_of(f, running.random_args(f.parameter_shapes, rng), "c", schedule)
    case = replace(case, spec=in_place(case.spec))
    (found,) = running.run_c([case])
    assert running.problem(found, case) is None
    return bool(case.spec.must_alias)


@pytest.mark.parametrize("schedule", [None, Schedule(edges=0), Schedule(vector=0), Schedule(rare=64, stages=0)])
@pytest.mark.parametrize("n", [2, 5, 64, 333])
def test_an_input_with_one_place_for_each_element_is_overwritten(n: int, schedule: Schedule | None) -> None:
    f = running.fused(ROLLED.format(n=n, m=n - 1))
    # The input of which other elements are read as well has a buffer of its own.
    assert set(running.kernel_of(f, "c").in_place) == {(n, k) for n in (0, 1) for k in (3, 4)}
    assert check(f, schedule, np.random.default_rng(n))


@pytest.mark.parametrize("seed", range(TRIALS))
def test_random_movements_before_an_input_that_is_overwritten(seed: int) -> None:
    rng = np.random.default_rng(seed)
    f = random_fusion(rng)
    roots = f.root.operands if f.root.opcode is Opcode.TUPLE else (f.root,)
    count = len(f.parameters)
    outputs: list[HloInstruction] = []
    for r in roots:
        if not r.shape.element_type.is_float or r.shape.num_elements == 0:
            continue
        p = f.add_parameter(count + len(outputs), r.shape)
        here = f.add(Opcode.COMPARE, [p, r], direction="LT")
        outputs.append(f.add(Opcode.SELECT, [here, f.add(Opcode.TANH, [p]), f.add(Opcode.ADD, [p, r])]))
    if not outputs:
        return
    f.root = f.add(Opcode.TUPLE, outputs) if len(outputs) > 1 else outputs[0]
    try:
        check(f, None if seed % 2 else random_schedule(rng), rng)
    except UnsupportedError:
        return
