"""CompilationPlan: the record of every decision taken for one module, as JSON, and the checks before it is replayed.

Names of instructions are there for people. What identifies an instruction is its place (which sequence, which position
in post order when fusion began) or the fusion it came out of, so that a plan fits every module with the same
fingerprint, whatever its instructions are called.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compiler.errors import PlanError
from compiler.fusion.actions import FusionAction
from compiler.ir import HloModule

FORMAT = 1
"""Version of the JSON; a plan of another version is refused."""


@dataclass(frozen=True)
class LoopChoice:
    """What was chosen for a loop: its id for people, its place among the loops there were, the choice."""

    id: str
    position: int
    choice: str


@dataclass(frozen=True)
class FusionStep:
    """A fusion action, and the names of the fusion instructions it made, in order."""

    action: FusionAction
    made: tuple[str, ...]


@dataclass(frozen=True)
class CompilationPlan:
    """Every decision for one module, in the order in which they are replayed.

    Attributes:
        fingerprint: of the module as it came in (`HloModule.fingerprint`).
        passes: the passes that changed something, in order, with their options.
        loop_choices: what was done with loops, in the order it was done.
        loop_passes: passes that cleaned up after the loops.
        base: fingerprint of the module when fusion began; empty when it has not.
        places: sequence -> instruction -> position in post order when fusion began, of what the fusions name.
        sequences: names of the sequences then, callees first.
        steps: the fusions.
        kernels: kernel choices by instruction name: what differs from the defaults of a schedule.
        backend: what it was made for; any backend can replay it.
    """

    fingerprint: str
    passes: tuple[str, ...] = ()
    loop_choices: tuple[LoopChoice, ...] = ()
    loop_passes: tuple[str, ...] = ()
    base: str = ""
    places: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    sequences: tuple[str, ...] = ()
    steps: tuple[FusionStep, ...] = ()
    kernels: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    backend: str = "cpu"

    @property
    def loops(self) -> dict[str, str]:
        """The choice for each loop, by id."""
        return {c.id: c.choice for c in self.loop_choices}

    @property
    def fusions(self) -> tuple[FusionAction, ...]:
        """The fusion actions, by the names of the module they were taken on."""
        return tuple(s.action for s in self.steps)

    def check_module(self, module: HloModule) -> None:
        """PlanError unless the plan was made for this module."""
        found = module.fingerprint()
        if found != self.fingerprint:
            raise PlanError(
                f"the plan was made for another module: its fingerprint is {self.fingerprint[:16]}..., "
                f"that of {module.name} is {found[:16]}...; make a new plan for this module"
            )

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data."""
        return {
            "format": FORMAT,
            "fingerprint": self.fingerprint,
            "backend": self.backend,
            "passes": list(self.passes),
            "loops": [{"id": c.id, "position": c.position, "choice": c.choice} for c in self.loop_choices],
            "loop_passes": list(self.loop_passes),
            "base": self.base,
            "sequences": list(self.sequences),
            "places": {name: dict(row) for name, row in self.places.items()},
            "fusions": [{**s.action.to_json(), "made": list(s.made)} for s in self.steps],
            "kernels": {name: dict(choice) for name, choice in self.kernels.items()},
        }

    def to_json(self, indent: int | None = 1) -> str:
        """The plan as JSON text."""
        return json.dumps(self.to_dict(), indent=indent) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the JSON to a file."""
        Path(path).write_text(self.to_json())

    @staticmethod
    def load(path: str | Path) -> CompilationPlan:
        """Read one from a file; PlanError names the file and what is wrong."""
        try:
            text = Path(path).read_text()
        except OSError as e:
            raise PlanError(f"cannot read plan {path}: {e.strerror}") from None
        return CompilationPlan.from_json(text, str(path))

    @staticmethod
    def from_json(text: str | Mapping[str, Any], where: str = "plan") -> CompilationPlan:
        """Read one back from text or plain data; PlanError says what is wrong and where."""
        data = _parsed(text, where)
        version = data.get("format")
        if version != FORMAT:
            raise PlanError(f"{where}: format {version!r} cannot be read, this version reads {FORMAT}")
        unknown = sorted(set(data) - _KEYS)
        if unknown:
            raise PlanError(f"{where}: unknown entries {', '.join(unknown)}")
        return CompilationPlan(
            fingerprint=_text(data.get("fingerprint"), f"{where}: fingerprint"),
            passes=_texts(data.get("passes", []), f"{where}: passes"),
            loop_choices=tuple(
                _loop_choice(c, f"{where}: loops[{n}]")
                for n, c in enumerate(_list(data.get("loops", []), f"{where}: loops"))
            ),
            loop_passes=_texts(data.get("loop_passes", []), f"{where}: loop_passes"),
            base=_text(data.get("base", ""), f"{where}: base", may_be_empty=True),
            places=_numbers(data.get("places", {}), f"{where}: places"),
            sequences=_texts(data.get("sequences", []), f"{where}: sequences"),
            steps=tuple(
                _step(s, f"{where}: fusions[{n}]")
                for n, s in enumerate(_list(data.get("fusions", []), f"{where}: fusions"))
            ),
            kernels=_numbers(data.get("kernels", {}), f"{where}: kernels"),
            backend=_text(data.get("backend", "cpu"), f"{where}: backend"),
        )


_KEYS = frozenset(
    {"format", "fingerprint", "backend", "passes", "loops", "loop_passes", "base", "sequences", "places", "fusions",
     "kernels"}
)  # fmt: skip


def _parsed(text: str | Mapping[str, Any], where: str) -> Mapping[str, Any]:
    data: object = text
    if isinstance(text, str):
        try:
            data = json.loads(text)
        except json.JSONDecodeError as e:
            raise PlanError(f"{where}: not JSON, line {e.lineno} column {e.colno}: {e.msg}") from None
    if not isinstance(data, Mapping):
        raise PlanError(f"{where}: expected an object, got {type(data).__name__}")
    return data


def _text(value: object, where: str, may_be_empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or may_be_empty):
        raise PlanError(f"{where} must be a text, got {value!r}")
    return value


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise PlanError(f"{where} must be a list, got {value!r}")
    return value


def _texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise PlanError(f"{where} must be a list of texts, got {value!r}")
    return tuple(value)


def _loop_choice(value: object, where: str) -> LoopChoice:
    if not isinstance(value, Mapping):
        raise PlanError(f"{where}: expected an object, got {value!r}")
    position = value.get("position")
    if not isinstance(position, int) or position < 0:
        raise PlanError(f"{where}: position must be a number from 0, got {position!r}")
    return LoopChoice(_text(value.get("id"), f"{where}: id"), position, _text(value.get("choice"), f"{where}: choice"))


def _step(value: object, where: str) -> FusionStep:
    action = FusionAction.from_json(value, where)
    made = value.get("made") if isinstance(value, Mapping) else None
    return FusionStep(action, _texts(made, f"{where}: made"))


def _numbers(value: object, where: str) -> dict[str, dict[str, int]]:
    if not isinstance(value, Mapping):
        raise PlanError(f"{where} must be an object, got {value!r}")
    for name, row in value.items():
        if not isinstance(row, Mapping) or not all(isinstance(v, int) for v in row.values()):
            raise PlanError(f"{where}: {name!r} must map names to whole numbers, got {row!r}")
    return {name: dict(row) for name, row in value.items()}
