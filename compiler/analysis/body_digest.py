"""Digests of computations: equal only for those from which the code generator makes the same kernel."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from compiler.ir.callgraph import callees_first
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.literal import Literal
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape

IGNORED = frozenset({"metadata", "statistics", "origin"})
"""Attributes that no kernel depends on; the frontend attributes have the marks of loops."""
PRINTED_BYTES = 64
"""Size of a constant up to which its bytes are a part of the text; a larger one is represented by their hash."""


def body_digest(computation: HloComputation) -> bytes:
    """Return a hash of everything in a computation and in those it calls, except for names and metadata.

    Unlike `StructuralIds`, it distinguishes the order of instructions and operands, on which generated source depends.
    """
    numbers: dict[HloComputation, int] = {}
    found = hashlib.sha256()
    for c in callees_first([computation]):
        found.update(_Body(c, numbers).text().encode("utf-8", "surrogateescape"))
        numbers[c] = len(numbers)
    return found.digest()


def sequence_digest(sequence: HloComputation, sequences: Collection[HloComputation]) -> bytes:
    """Return a hash of everything in an instruction sequence on which its fusions depend, with the names in it.

    The other sequences that it runs, and how often, do not matter: nothing is fused with a loop.

    Args:
        sequence: the computation.
        sequences: all instruction sequences of the module.
    """
    numbers = dict.fromkeys(sequences, -1)
    work, called = [sequence], list[HloComputation]()
    while work:
        new = [c for c in work.pop().called_computations() if c not in numbers and c not in called]
        called += new
        work += new
    found = hashlib.sha256()
    for c in [c for c in callees_first(called) if c not in numbers] if called else ():
        found.update(_Body(c, numbers).text().encode("utf-8", "surrogateescape"))
        numbers[c] = len(numbers)
    names = [i.name for i in sequence.instructions]
    text = "\n".join([sequence.name, _Body(sequence, numbers, set(sequence_loops(sequence, sequences))).text(), *names])
    found.update(text.encode("utf-8", "surrogateescape"))
    return found.digest()


def sequence_loops(sequence: HloComputation, sequences: Collection[HloComputation]) -> list[HloInstruction]:
    """Return the loops of a sequence whose bodies are sequences, too."""
    loops = (i for i in sequence.notable if i.opcode is Opcode.WHILE)
    return [i for i in loops if i.attributes["body"] in sequences]


class _Body:
    """The text of one computation, whose callees have numbers; the attributes of some instructions are left out."""

    def __init__(
        self, computation: HloComputation, numbers: dict[HloComputation, int], bare: Collection[HloInstruction] = ()
    ) -> None:
        self._listed = computation.instructions
        self._root = computation.root
        self._numbers, self._bare = numbers, bare
        self._positions = {i: n for n, i in enumerate(self._listed)}
        self._shapes: dict[int, str] = {}  # by id, because many instructions share a shape

    def text(self) -> str:
        """Return one line per instruction, in which operands are positions of lines."""
        lines = [self._line(i) for i in self._listed]
        return "\n".join([*lines, f"root {self._positions[self._root]}", ""])

    def _line(self, i: HloInstruction) -> str:
        operands = [self._positions[o] for o in i.operands]
        shown = () if i in self._bare else sorted(i.attributes)
        attributes = [f"{n}={self._value(i.attributes[n])}" for n in shown if n not in IGNORED]
        literal = "" if i.literal is None else _literal(i.literal)
        return f"{i.opcode.text} {self._shape(i.shape)} {operands} {attributes} {literal} {i.parameter_number}"

    def _shape(self, shape: Shape) -> str:
        found = self._shapes.get(id(shape))
        if found is None:
            found = self._shapes[id(shape)] = shape.to_text(layout=True)
        return found

    def _value(self, value: object) -> str:
        if isinstance(value, HloComputation):
            return f"computation {self._numbers[value]}"
        if isinstance(value, HloInstruction):  # a control predecessor
            return f"instruction {self._positions[value]}"
        if isinstance(value, Literal):
            return _literal(value)
        if isinstance(value, tuple):
            return f"({','.join(map(self._value, value))})"
        return repr(value)


def _literal(literal: Literal) -> str:
    if literal.array is None:
        return f"({','.join(map(_literal, literal.elements))})"
    data = literal.array.tobytes()
    return data.hex() if len(data) <= PRINTED_BYTES else hashlib.sha256(data).hexdigest()
