"""The verifier for modules verified before: an instruction that is as it was found sound is not checked again.

What an instruction is checked for by itself hangs on a few values that nobody can change in place: its opcode, shape,
literal, number and attributes, the shapes of its operands, and what the computations it calls take and return. They
are kept with the instruction once it has been found sound (`HloInstruction.sound_with`) and handed to its clones; as
long as each is still the same object, the verdict stands. So nobody has to tell the verifier of a change, and no way
of changing an instruction escapes it. What hangs on more (users, neighbours, headers, the graph as a whole) is
checked each time.
"""

from __future__ import annotations

from operator import is_
from typing import Any

from compiler.errors import HloVerificationError
from compiler.ir.attributes import ConvDimLabels, PadDim, Raw, SliceDim, Window
from compiler.ir.computation import HloComputation
from compiler.ir.header import Aliases
from compiler.ir.instruction import CALLEE_NAMES, HloInstruction
from compiler.ir.literal import Literal
from compiler.ir.module import HloModule
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape
from compiler.ir.verifier import check_computation, check_instruction, check_module
from compiler.ir.verifier_instructions import RULES, Rule, aliases, call, constant, custom_call, memory, parameter
from compiler.ir.verifier_module import check_header, check_structure, check_whole, is_watched
from compiler.ir.verifier_sharding import sharding

Facts = tuple[Any, ...]
Signatures = dict[HloComputation, Facts]

_OWN: frozenset[Rule] = frozenset({constant, parameter, aliases, custom_call, call, memory})
"""Rules that look at nothing beyond the values named above, but for the memory of a bitcast."""
_BEYOND = {
    op: beyond
    for op, rules in RULES.items()
    if (beyond := tuple(r for r in rules if r not in _OWN or (r is memory and op is Opcode.BITCAST)))
}
"""The other rules, by opcode."""
_FIXED = frozenset(
    {int, float, bool, str, Raw, SliceDim, PadDim, Window, ConvDimLabels, Aliases, Literal, Shape, HloComputation}
)
"""Types of attributes, and of what stands in tuples of them, that cannot change in place or are looked into here."""
_PREDECESSORS = "control-predecessors"


def reverify(module: HloModule) -> None:
    """As `verify`, with the same findings; faster where instructions, or what they were cloned from, have been here."""
    findings = recheck_module(module)
    if findings:
        raise HloVerificationError(findings)


def recheck_module(module: HloModule) -> list[str]:
    """What `check_module` finds."""
    return [] if _is_sound(module) else check_module(module)


def _is_sound(module: HloModule) -> bool:
    """Whether the verifier would find nothing; False too where that could not be told."""
    callers: dict[HloComputation, list[HloInstruction]] = {}
    if check_structure(module, callers) or not all(c.has_root for c in module.computations):
        return False
    signatures: Signatures = {c: _signature(c) for c in callers}
    watched: list[HloInstruction] = []
    if not all(_is_sound_computation(c, signatures, watched) for c in module.computations):
        return False
    return not (check_whole(module, callers) if watched else check_header(module))


def _signature(c: HloComputation) -> Facts:
    shapes = c.parameter_shapes
    return (len(shapes), *shapes, c.result_shape)


def _is_sound_computation(c: HloComputation, signatures: Signatures, watched: list[HloInstruction]) -> bool:
    """The same of one computation; notes what the module as a whole is checked for, which gets no verdict to keep."""
    if c.root not in c or [p.parameter_number for p in c.parameters] != list(range(len(c.parameters))):
        return False
    if not _is_graph(c):
        watched += filter(is_watched, c.instructions)
        return not check_computation(c)
    for i in c.instructions:
        known, facts = i.sound_with, _facts(i, signatures)
        if known is None or len(facts) != len(known) or not all(map(is_, facts, known)):
            if check_instruction(i):
                return False
            if is_watched(i):
                watched.append(i)
            i.sound_with = facts if _is_fixed(i) and not is_watched(i) else None
        elif (i.attributes or i.opcode in _BEYOND) and not _is_sound_beyond(i):
            return False
    return True


def _is_graph(c: HloComputation) -> bool:
    """Whether the instructions belong together, and each stands behind all that it needs."""
    seen: set[HloInstruction] = set()
    uses = users = 0
    for i in c.instructions:
        operands = i.operands
        if i.parent is not c or c.find(i.name) is not i or not seen.issuperset(operands):
            return False
        for o in operands:
            if i not in o.users:
                return False
        if i.attributes and not seen.issuperset(i.control_predecessors):
            return False
        uses += len(operands) if len(operands) < 2 else len(set(operands))
        users += len(i.users)
        seen.add(i)
    c.order_is_known = True
    return uses == users  # every use is listed, so that there are more users where others are listed


def _is_sound_beyond(i: HloInstruction) -> bool:
    """What an instruction is checked for that hangs on more than its facts."""
    if "sharding" in i.attributes and sharding(i):
        return False
    return not any(rule(i) for rule in _BEYOND.get(i.opcode, ()))


def _facts(i: HloInstruction, signatures: Signatures) -> Facts:
    """What the verdict on an instruction by itself hangs on."""
    attributes = i.attributes
    shapes = [o.shape for o in i.operands]
    if not attributes:
        return (i.opcode, i.shape, i.literal, i.parameter_number, *shapes)
    values: list[Any] = [i.opcode, i.shape, i.literal, i.parameter_number, len(attributes), *attributes]
    for name, value in attributes.items():
        if name in CALLEE_NAMES:
            values += _called(value, signatures)
        else:
            values.append(type(value) if name == _PREDECESSORS else value)
    return (*values, *shapes)


def _called(value: Any, signatures: Signatures) -> Facts:
    called = value if type(value) is tuple else (value,)
    return (type(value), len(called), *(fact for c in called for fact in signatures.get(c, (object(),))))


def _is_fixed(i: HloInstruction) -> bool:
    """Whether nothing that `_facts` names could change in place."""
    return all(_is_fixed_value(v) for name, v in i.attributes.items() if name != _PREDECESSORS)


def _is_fixed_value(value: Any) -> bool:
    return type(value) in _FIXED or (type(value) is tuple and all(type(v) in _FIXED for v in value))
