"""Marks of decisions on instructions: they are frontend attributes, so they are part of the HLO text."""

from __future__ import annotations

from compiler.ir.attributes import Raw
from compiler.ir.instruction import HloInstruction

_ATTRIBUTE = "frontend_attributes"


def mark(i: HloInstruction, name: str, value: str) -> None:
    """Give an instruction a mark; both are identifiers of this project, not names from programs."""
    present = str(i.attr(_ATTRIBUTE, "{}"))[1:-1].strip()
    i.set_attribute(_ATTRIBUTE, Raw("{" + ",".join(filter(None, [present, _text(name, value)])) + "}"))


def is_marked(i: HloInstruction, name: str, value: str) -> bool:
    """Check whether an instruction has a mark."""
    return _text(name, value) in str(i.attr(_ATTRIBUTE, "")).replace(" ", "")


def _text(name: str, value: str) -> str:
    return f'{name}="{value}"'
