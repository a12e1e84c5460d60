"""HloInstruction: one operation, its operands and its users."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compiler.errors import ShapeError
from compiler.ir.attributes import ATTRIBUTE_KINDS, AttrKind
from compiler.ir.literal import Literal
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape
from compiler.ir.shape_rules import ShapeQuery

if TYPE_CHECKING:
    from compiler.ir.computation import HloComputation

CALLEE_ATTRIBUTES = tuple(n for n, k in ATTRIBUTE_KINDS.items() if k in (AttrKind.COMPUTATION, AttrKind.COMPUTATIONS))
CALLEE_NAMES = frozenset(CALLEE_ATTRIBUTES)
_WIDE = 64
"""Instructions with more operands than this build an index of them when one is replaced."""


class _OperandIndex:
    """The positions of each operand of an instruction with many; valid while `operands` is the instruction's tuple."""

    __slots__ = ("operands", "positions")

    def __init__(self, operands: tuple[HloInstruction, ...]) -> None:
        self.operands = operands
        self.positions: dict[HloInstruction, list[int]] = {}
        for n, o in enumerate(operands):
            self.positions.setdefault(o, []).append(n)


class HloInstruction:
    """A node of the dataflow graph.

    Made by `HloComputation.add` or the parser, which keep operands and users consistent. Compared by identity.

    Attributes:
        name: unique within its computation.
        opcode: the operation.
        shape: the shape of its result; to change it once it is in a computation, call `set_shape`.
        operands: a tuple; to change it, call `replace_operand` or `set_operands`.
        users: the distinct users, in the order in which they were added.
        attributes: values by attribute name in HLO text; their types are those of `ir.attributes`. To change one, call
            `set_attribute`.
        literal: the value of a constant, else None.
        parameter_number: the position of a parameter, else None.
        parent: the computation it is in; None after removal.
        line: line number in the parsed source, copied by clones; 0 for instructions made by passes.
        described: its canonical text as `ir.printing` keeps it, copied by clones; None after a change.
        verified_facts: what `ir.reverifier` last verified it with, copied by clones; no need to update it.
    """

    __slots__ = (
        "_index", "attributes", "described", "line", "literal", "name", "opcode", "operands", "parameter_number",
        "parent", "shape", "users", "verified_facts",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        opcode: Opcode,
        shape: Shape,
        operands: Sequence[HloInstruction] = (),
        attributes: dict[str, Any] | None = None,
        literal: Literal | None = None,
        parameter_number: int | None = None,
    ) -> None:
        self.name = name
        self.opcode = opcode
        self.shape = shape
        self.operands: tuple[HloInstruction, ...] = tuple(operands)
        self.users: dict[HloInstruction, None] = {}
        self.attributes: dict[str, Any] = {} if attributes is None else attributes
        self.literal = literal
        self.parameter_number = parameter_number
        self.parent: HloComputation | None = None
        self.line = 0
        self.verified_facts: tuple[Any, ...] | None = None
        self.described: str | None = None
        self._index: _OperandIndex | None = None
        for o in self.operands:
            o.users[self] = None

    def __repr__(self) -> str:
        return f"<{self.shape} %{self.name} = {self.opcode.text}>"

    def operand(self, i: int) -> HloInstruction:
        """Return the i-th operand."""
        return self.operands[i]

    def attr(self, name: str, default: Any = None) -> Any:
        """Return the attribute of this name, or `default`."""
        return self.attributes.get(name, default)

    @property
    def dimensions(self) -> tuple[int, ...]:
        """The `dimensions={...}` attribute; empty if absent."""
        dims: tuple[int, ...] = self.attributes.get("dimensions", ())
        return dims

    @property
    def value(self) -> Literal:
        """The literal of a constant; TypeError for any other opcode."""
        if self.literal is None:
            raise TypeError(f"%{self.name} is a {self.opcode.text}, not a constant")
        return self.literal

    @property
    def control_predecessors(self) -> tuple[HloInstruction, ...]:
        """Instructions that must run before this one without being operands."""
        found: tuple[HloInstruction, ...] = self.attributes.get("control-predecessors", ())
        return found

    def called_computations(self) -> tuple[HloComputation, ...]:
        """Return the computations that this instruction calls, in the order of `CALLEE_ATTRIBUTES`."""
        if not self.attributes:
            return ()
        names = CALLEE_NAMES.intersection(self.attributes)
        if not names:
            return ()
        found: list[HloComputation] = []
        for name in CALLEE_ATTRIBUTES if len(names) > 1 else names:
            value = self.attributes.get(name)
            if value is not None:
                found.extend(value if isinstance(value, tuple) else (value,))
        return tuple(found)

    def replace_called_computations(self, mapping: Mapping[HloComputation, HloComputation]) -> None:
        """Replace each called computation that is a key of `mapping` by its value."""
        for name in CALLEE_ATTRIBUTES:
            value = self.attributes.get(name)
            if isinstance(value, tuple):
                self.attributes[name] = tuple(mapping.get(c, c) for c in value)
            elif value is not None:
                self.attributes[name] = mapping.get(value, value)
        self._note_change()

    def replace_operand(self, i: int, new: HloInstruction) -> None:
        """Make `new` the i-th operand; shapes are checked by the verifier only."""
        old = self.operands[i]
        if old is new:
            return
        if len(self.operands) > _WIDE:
            still_used = self._replace_indexed(old, new, (i,))
        else:
            self.operands = (*self.operands[:i], new, *self.operands[i + 1 :])
            still_used = old in self.operands
        self._forget_order()
        if not still_used:
            old.users.pop(self, None)
        new.users[self] = None

    def replace_operands(self, old: HloInstruction, new: HloInstruction) -> None:
        """Replace every use of `old` among the operands by `new`."""
        if old is new:
            return
        if len(self.operands) > _WIDE:
            self._replace_indexed(old, new, None)
        else:
            self.operands = tuple(new if o is old else o for o in self.operands)
        self._forget_order()
        old.users.pop(self, None)
        new.users[self] = None

    def _replace_indexed(self, old: HloInstruction, new: HloInstruction, at: tuple[int, ...] | None) -> bool:
        """Put `new` at these positions of `old`, or at all of them; return whether `old` is still an operand.

        Without an index, replacing every operand of a tuple one by one would take quadratic time.
        """
        index = self._index
        if index is None or index.operands is not self.operands:
            index = self._index = _OperandIndex(self.operands)
        positions = index.positions.pop(old, [])
        kept = [] if at is None else [p for p in positions if p not in at]
        moved = positions if at is None else list(at)
        changed = list(self.operands)
        for p in moved:
            changed[p] = new
        if kept:
            index.positions[old] = kept
        index.positions.setdefault(new, []).extend(moved)
        self.operands = index.operands = tuple(changed)
        return bool(kept)

    def operand_indices(self, operand: HloInstruction) -> Iterator[int]:
        """Yield the positions at which `operand` is used."""
        return (i for i, o in enumerate(self.operands) if o is operand)

    def set_operands(self, operands: Sequence[HloInstruction]) -> None:
        """Replace all operands, by any number of them; shapes are checked by the verifier only."""
        for old in self.operands:
            old.users.pop(self, None)
        self.operands = tuple(operands)
        self._forget_order()
        for new in self.operands:
            new.users[self] = None

    def set_control_predecessors(self, predecessors: Sequence[HloInstruction]) -> None:
        """Set the instructions that must run before this one; do not set the attribute directly."""
        if predecessors:
            self.attributes["control-predecessors"] = tuple(predecessors)
        else:
            self.attributes.pop("control-predecessors", None)
        if self.parent is not None and (predecessors or self.parent.may_have_control_edges):
            self.parent.control_edges_changed()

    def set_attribute(self, name: str, value: Any) -> None:
        """Set an attribute other than control predecessors."""
        self.attributes[name] = value
        self._note_change()

    def set_attributes(self, attributes: dict[str, Any]) -> None:
        """Set all attributes; control predecessors stay the same."""
        self.attributes = attributes
        self._note_change()

    def set_shape(self, shape: Shape) -> None:
        """Set the shape of the result, which the verifier checks."""
        self.shape = shape
        self._note_change()

    def set_parameter_number(self, number: int) -> None:
        """Give a parameter another position."""
        self.parameter_number = number
        self._note_change()

    def _note_change(self) -> None:
        self.described = None
        if self.parent is not None:
            self.parent.note_change()

    def _forget_order(self) -> None:
        if self.parent is not None:
            self.parent.order_is_known = False
            self.parent.note_change()

    @property
    def is_root(self) -> bool:
        """Whether this is the root of its computation."""
        return self.parent is not None and self.parent.root is self

    @property
    def is_dead(self) -> bool:
        """Whether it has no users and is not the root."""
        return not self.users and not self.is_root


def infer_shape(
    opcode: Opcode, operands: Sequence[Shape], attributes: Mapping[str, Any], declared: Shape | None = None
) -> Shape:
    """Return the result shape of an op; raise ShapeError, which names the opcode, if it has none."""
    row = opcode.row
    least, most = row.arity
    count = len(operands)
    if count < least or (most is not None and count > most):
        want = str(least) if least == most else f"at least {least}" if most is None else f"{least} to {most}"
        raise ShapeError(f"{row.text} takes {want} operand(s), got {count}")
    try:
        return row.rule(ShapeQuery(operands, attributes, declared))
    except ShapeError as e:
        raise ShapeError(f"{row.text}: {e}") from None
    except (TypeError, ValueError, IndexError, AttributeError) as e:
        raise ShapeError(f"{row.text}: malformed attributes or operands ({e})") from e
