"""An incremental verifier: instructions that are unchanged since they were last verified are not checked again.

The checks of a single instruction depend on a few immutable values, called facts here: its opcode, shape, literal,
parameter number and attributes, the shapes of its operands, and the signatures of the computations it calls. They are
stored with the instruction once it has passed (`HloInstruction.verified_facts`) and copied to its clones. If all of
them are still the same objects, the instruction is still valid. No pass has to report its changes, and no change goes
unnoticed. Checks that depend on more (users, neighbours, headers, the whole graph) run every time.
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
"""Rules that depend on an instruction's facts only (`memory` of a bitcast depends on more)."""
_BEYOND = {
    op: beyond
    for op, rules in RULES.items()
    if (beyond := tuple(r for r in rules if r not in _OWN or (r is memory and op is Opcode.BITCAST)))
}
"""The other rules, by opcode."""
_FIXED = frozenset(
    {int, float, bool, str, Raw, SliceDim, PadDim, Window, ConvDimLabels, Aliases, Literal, Shape, HloComputation}
)
"""Types of attribute values, or of the elements of tuple values, that are immutable or covered by the facts."""
_PREDECESSORS = "control-predecessors"


def reverify(module: HloModule) -> None:
    """Verify a module with the same findings as `verify`, but faster if most instructions were verified before."""
    findings = recheck_module(module)
    if findings:
        raise HloVerificationError(findings)


def recheck_module(module: HloModule) -> list[str]:
    """Return the findings of `check_module`."""
    return [] if _is_sound(module) else check_module(module)


def _is_sound(module: HloModule) -> bool:
    """Check whether the verifier would find nothing; also False if that cannot be decided cheaply."""
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
    """Check one computation as `_is_sound` does; add instructions with module-wide checks to `watched`."""
    if c.root not in c or [p.parameter_number for p in c.parameters] != list(range(len(c.parameters))):
        return False
    if not _is_graph(c):
        watched += filter(is_watched, c.instructions)
        return not check_computation(c)
    for i in c.instructions:
        known, facts = i.verified_facts, _facts(i, signatures)
        # Compare by identity: equality of literals and shapes would cost as much as checking again.
        if known is None or len(facts) != len(known) or not all(map(is_, facts, known)):
            if check_instruction(i):
                return False
            if is_watched(i):
                watched.append(i)
            # Watched instructions keep no facts, so that each call adds them to `watched` again.
            i.verified_facts = facts if _is_fixed(i) and not is_watched(i) else None
        elif (i.attributes or i.opcode in _BEYOND) and not _is_sound_beyond(i):
            return False
    return True


def _is_graph(c: HloComputation) -> bool:
    """Check that operands and users agree and that each instruction comes after its dependencies."""
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
    return uses == users  # all uses are listed as users; equal counts mean that no other users are


def _is_sound_beyond(i: HloInstruction) -> bool:
    """Run the checks of an instruction that depend on more than its facts."""
    if "sharding" in i.attributes and sharding(i):
        return False
    return not any(rule(i) for rule in _BEYOND.get(i.opcode, ()))


def _facts(i: HloInstruction, signatures: Signatures) -> Facts:
    """Return the values that the checks of a single instruction depend on."""
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
    """Check whether none of the facts can be changed in place."""
    return all(_is_fixed_value(v) for name, v in i.attributes.items() if name != _PREDECESSORS)


def _is_fixed_value(value: Any) -> bool:
    return type(value) in _FIXED or (type(value) is tuple and all(type(v) in _FIXED for v in value))
