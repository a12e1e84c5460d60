"""Cut connected subgraphs out of modules, each as a module of its own."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, Shape, Trait
from env.suites.input_specs import InputSpec, Normal, Randint, Uniform

__all__ = ["Cut", "cut", "cut_inputs"]

_OUTSIDE = frozenset(
    {Opcode.PARAMETER, Opcode.CONSTANT, Opcode.TUPLE, Opcode.GET_TUPLE_ELEMENT, Opcode.AFTER_ALL, Opcode.CUSTOM_CALL,
     Opcode.OPTIMIZATION_BARRIER}
)  # fmt: skip
_FREE = frozenset({Opcode.CONSTANT, Opcode.IOTA})
_POSITIVE = {Opcode.LOG: 0, Opcode.SQRT: 0, Opcode.RSQRT: 0, Opcode.CBRT: 0, Opcode.DIVIDE: 1, Opcode.POWER: 0}
"""Ops that need positive operands to have finite results, and which operand it is."""
_CARRIES = frozenset({Opcode.BROADCAST, Opcode.RESHAPE, Opcode.TRANSPOSE, Opcode.CONVERT, Opcode.SLICE, Opcode.COPY})


@dataclass(frozen=True)
class Cut:
    """A subgraph as a module of its own.

    Attributes:
        module: the module.
        computation: name of the computation that it was cut out of.
        inputs: names of the instructions there whose values the parameters stand for.
        outputs: names of the instructions there whose values are the results.
    """

    module: HloModule
    computation: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def cut(module: HloModule, seed: int, size: int) -> Cut | None:
    """Return a connected subgraph of about `size` instructions as a module, or None if there is none.

    The subgraph grows from a random instruction of a random computation that is not a reducer, one neighbour at a time.
    Arrays that it reads from outside become parameters in order of first use; constants are copied. Values that are
    used outside, or by nothing, become the result: one array, or a tuple of arrays.

    Args:
        module: the module; it is not changed.
        seed: seed of all choices.
        size: number of instructions to grow to, without constants.
    """
    rng = random.Random(seed)
    whole = module.clone()
    computations = [whole.entry, *whole.control_flow_computations()]
    pools = [(c, pool) for c in dict.fromkeys(computations) if len(pool := _candidates(c)) >= 2]
    if not pools:
        return None
    computation, pool = rng.choices(pools, weights=[len(p) for _, p in pools])[0]
    region = _grow(pool, rng, size)
    if len(region) < 2:
        return None
    order = [i for i in computation.post_order() if i in region]
    live = [i for i in order if i.is_root or not i.users or any(u not in region for u in i.users)]
    extracted, inputs = _extract(order, live)
    names = tuple(i.name for i in inputs), tuple(i.name for i in live)
    whole.add(extracted, entry=True)
    whole.remove_unreachable()
    whole.header.clear()  # it describes the parameters of the whole module
    return Cut(whole, computation.name, *names)


def _candidates(computation: HloComputation) -> dict[HloInstruction, None]:
    """Return the instructions that may be in a subgraph: arrays computed from arrays."""
    return {
        i: None
        for i in computation.post_order()
        if i.opcode not in _OUTSIDE
        and i.shape.is_array
        and i.operands
        and all(o.shape.is_array for o in i.operands)
        and not (i.opcode.has(Trait.HOST) or i.opcode.has(Trait.COLLECTIVE))
    }


def _grow(pool: Mapping[HloInstruction, None], rng: random.Random, size: int) -> dict[HloInstruction, None]:
    start = rng.choice(list(pool))
    region: dict[HloInstruction, None] = {start: None}
    frontier: dict[HloInstruction, None] = {}
    newest = start
    while len(region) < size:
        for neighbour in (*newest.operands, *newest.users):
            if neighbour in pool and neighbour not in region:
                frontier[neighbour] = None
        if not frontier:
            break
        newest = rng.choice(list(frontier))
        del frontier[newest]
        region[newest] = None
    return region


def _extract(order: list[HloInstruction], live: list[HloInstruction]) -> tuple[HloComputation, list[HloInstruction]]:
    """Return a computation of instructions with some of them as results, and what its parameters stand for."""
    made = HloComputation("cut")
    copies: dict[HloInstruction, HloInstruction] = {}
    inputs: list[HloInstruction] = []

    def input_of(value: HloInstruction) -> HloInstruction:
        if value not in copies:
            if value.opcode in _FREE:
                copies[value] = made.clone_instruction(value, ())
            elif value.opcode is Opcode.BROADCAST and value.operand(0).opcode is Opcode.CONSTANT:
                copies[value] = made.clone_instruction(value, (input_of(value.operand(0)),))
            else:
                copies[value] = made.add_parameter(len(inputs), value.shape)
                inputs.append(value)
        return copies[value]

    for i in order:
        copies[i] = made.clone_instruction(i, [input_of(o) for o in i.operands])
    results = [copies[i] for i in live]
    made.root = results[0] if len(results) == 1 else made.add(Opcode.TUPLE, results)
    made.reorder()
    return made, inputs


def cut_inputs(module: HloModule) -> tuple[InputSpec, ...]:
    """Return specs for the parameters of a cut, such that square roots, logarithms and quotients stay finite."""
    return tuple(_spec(p, p.shape) for p in module.entry.parameters)


def _spec(parameter: HloInstruction, shape: Shape) -> InputSpec:
    dtype = shape.dtype
    if dtype == np.bool_:
        return Randint(0, 2)
    if dtype in (np.uint32, np.uint64):
        return Randint(0, 2**32)
    if dtype.kind in "iu" or "int" in dtype.name:
        return Randint(0, 4) if dtype.itemsize < 2 else Randint(0, 16)
    return Uniform(0.5, 1.5) if _needs_positive(parameter, 4) else Normal()


def _needs_positive(value: HloInstruction, depth: int) -> bool:
    for user in value.users:
        position = _POSITIVE.get(user.opcode)
        if position is not None and user.operand(position) is value:
            return True
        carried = user.opcode in _CARRIES or (user.opcode is Opcode.ADD and depth > 0)
        if carried and depth > 0 and _needs_positive(user, depth - 1):
            return True
    return False
