"""CompilationPlan: the record of every decision taken for one module, as JSON, and the checks before it is replayed."""

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
class CompilationPlan:
    """Every decision for one module, in the order in which they are replayed.

    Attributes:
        fingerprint: of the module as it came in (`HloModule.fingerprint`).
        passes: the passes that changed something, in order, with their options.
        loops: loop id -> choice ("keep", "unroll-4", "full", "kernel"), in the order they were taken.
        loop_passes: passes that cleaned up after the loops.
        fusions: the fusion actions, in order.
        kernels: kernel choices by instruction name: what differs from the defaults of a schedule.
        backend: what it was made for; any backend can replay it.
    """

    fingerprint: str
    passes: tuple[str, ...] = ()
    loops: Mapping[str, str] = field(default_factory=dict)
    loop_passes: tuple[str, ...] = ()
    fusions: tuple[FusionAction, ...] = ()
    kernels: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    backend: str = "cpu"

    def check_module(self, module: HloModule) -> None:
        """PlanError unless the plan was made for this module."""
        found = module.fingerprint()
        if found != self.fingerprint:
            raise PlanError(
                f"the plan was made for another module: its fingerprint is {self.fingerprint[:16]}..., "
                f"{module.name} has {found[:16]}...; make a new plan for this module"
            )

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data."""
        return {
            "format": FORMAT,
            "fingerprint": self.fingerprint,
            "backend": self.backend,
            "passes": list(self.passes),
            "loops": dict(self.loops),
            "loop_passes": list(self.loop_passes),
            "fusions": [a.to_json() for a in self.fusions],
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
        fusions = data.get("fusions", [])
        if not isinstance(fusions, list):
            raise PlanError(f"{where}: fusions must be a list, got {type(fusions).__name__}")
        return CompilationPlan(
            fingerprint=_text(data.get("fingerprint"), f"{where}: fingerprint"),
            passes=_texts(data.get("passes", []), f"{where}: passes"),
            loops=_choices(data.get("loops", {}), f"{where}: loops"),
            loop_passes=_texts(data.get("loop_passes", []), f"{where}: loop_passes"),
            fusions=tuple(FusionAction.from_json(a, f"{where}: fusions[{n}]") for n, a in enumerate(fusions)),
            kernels=_kernels(data.get("kernels", {}), f"{where}: kernels"),
            backend=_text(data.get("backend", "cpu"), f"{where}: backend"),
        )


_KEYS = frozenset({"format", "fingerprint", "backend", "passes", "loops", "loop_passes", "fusions", "kernels"})


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


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise PlanError(f"{where} must be a text, got {value!r}")
    return value


def _texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise PlanError(f"{where} must be a list of texts, got {value!r}")
    return tuple(value)


def _choices(value: object, where: str) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(v, str) for v in value.values()):
        raise PlanError(f"{where} must map loops to choices, got {value!r}")
    return dict(value)


def _kernels(value: object, where: str) -> dict[str, dict[str, int]]:
    if not isinstance(value, Mapping):
        raise PlanError(f"{where} must map kernels to choices, got {value!r}")
    for name, choice in value.items():
        good = isinstance(choice, Mapping) and all(isinstance(v, int) for v in choice.values())
        if not good:
            raise PlanError(f"{where}: the choice for {name!r} must map options to whole numbers, got {choice!r}")
    return {name: dict(choice) for name, choice in value.items()}
