"""CompilationPlan: the record of every decision taken for one module, as JSON, and its checks.

Names of instructions are for readers. An instruction is identified by its place (its sequence, and its position in post
order when fusion began) or by the fusion that made it, so that a plan fits every module with the same fingerprint,
whatever the names of its instructions are.

Plans are untrusted input. What can be checked without a module is checked when a plan is made, from JSON or otherwise;
the rest (positions, names, legality, limits of kernels) is checked when it is replayed. Both raise PlanError and
nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.errors import FusionError, PlanError
from compiler.fusion.actions import FusionAction
from compiler.fusion.rules import FusionRule
from compiler.ir import HloModule
from compiler.plan_text import plan_html, plan_line, plan_text
from compiler.support.files import write_file
from compiler.support.json_reading import parse_object, read_object
from compiler.support.paths import given_path
from compiler.support.untrusted import as_integer, is_name, short_repr

Phase: TypeAlias = Literal["passes", "expansions", "loops", "fusion", "kernels", "done"]
PHASES: tuple[Phase, ...] = get_args(Phase)
"""The kinds of decisions in the order in which a compilation takes them, and its end."""

FORMAT = 2
"""Version of the JSON format; a plan of another version is refused."""
MAX_PASSES = 10_000
"""Greatest number of passes in a plan; the default pipeline records about a hundred at most."""
_BACKEND = re.compile(r"[a-z][a-z0-9_]{0,39}")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_T = TypeVar("_T")


@dataclass(frozen=True)
class PositionChoice:
    """The choice for a site: its id, for readers, its position among the sites of its kind, and the choice.

    PlanError when a field is of another type.
    """

    id: str
    position: int
    choice: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "position", _position(self.position, "position"))
        _name(self.id, "id")
        _name(self.choice, "choice")


class ExpansionChoice(PositionChoice):
    """The choice of an expansion."""


class LoopChoice(PositionChoice):
    """The choice for a loop."""


@dataclass(frozen=True)
class FusionStep:
    """A fusion action and the names of the fusion instructions it made, in order.

    PlanError when these do not fit together.
    """

    action: FusionAction
    made: tuple[str, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.action, FusionAction):
            raise PlanError(f"expected a fusion action, got {short_repr(self.action)}")
        self.action.check()
        object.__setattr__(self, "made", _names(self.made, "made"))
        expected = len(self.action.consumers)
        if len(self.made) != expected:
            raise PlanError(f"made must name {expected} fusion(s), one per consumer, but names {len(self.made)}")


@dataclass(frozen=True)
class CompilationPlan:
    """Every decision for one module, in the order in which they are replayed.

    PlanError when the fields are not those of a plan.

    Attributes:
        fingerprint: of the module before compilation (`HloModule.fingerprint`).
        passes: the passes that changed something, in order, with their options.
        expansions: the choices of expansions, in the order in which they were applied.
        loop_choices: the choices for loops, in the order in which they were applied.
        loop_passes: passes that cleaned up after the loops.
        base: fingerprint of the module when fusion began; empty before fusion.
        places: sequence -> instruction -> position in post order when fusion began, for the instructions that fusions
            and kernel choices name.
        sequences: names of the sequences when fusion began, callees first.
        steps: the fusions.
        kernels: sequence -> instruction -> the choice of a kernel, for kernels that do not have their default.
        decided_by: phase -> the name of who decided it, such as a policy; for readers, and not compared.
        rules: rules of the user that the fusions obey (see `compiler.fusion.rules`); for readers, and not compared.
        backend: the backend it was made for. Other backends can replay it if it has no kernel choices; one that
            compiles no kernels ignores these.
    """

    fingerprint: str
    passes: tuple[str, ...] = ()
    expansions: tuple[ExpansionChoice, ...] = ()
    loop_choices: tuple[LoopChoice, ...] = ()
    loop_passes: tuple[str, ...] = ()
    base: str = ""
    places: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    sequences: tuple[str, ...] = ()
    steps: tuple[FusionStep, ...] = ()
    kernels: Mapping[str, Mapping[str, KernelChoice]] = field(default_factory=dict)
    backend: str = "cpu"
    decided_by: Mapping[str, str] = field(default_factory=dict, compare=False)
    rules: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        _fingerprint(self.fingerprint, "fingerprint")
        if self.base != "":
            _fingerprint(self.base, "base")
        if not isinstance(self.backend, str) or not _BACKEND.fullmatch(self.backend):
            raise PlanError(f"backend must be a name such as cpu or cuda, got {short_repr(self.backend)}")
        checked: dict[str, object] = {
            "passes": _passes(self.passes, "passes"),
            "expansions": _all_of(ExpansionChoice, self.expansions, "expansions"),
            "loop_choices": _all_of(LoopChoice, self.loop_choices, "loops"),
            "loop_passes": _passes(self.loop_passes, "loop_passes"),
            "sequences": _names(self.sequences, "sequences"),
            "steps": _all_of(FusionStep, self.steps, "fusions"),
            "places": _rows(self.places, "places", _positions),
            "kernels": _kernels(self.kernels, "kernels"),
            "decided_by": _deciders(self.decided_by, "decided_by"),
            "rules": _rules(self.rules, "rules"),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        self._check_together()

    def _check_together(self) -> None:
        if len(set(self.sequences)) < len(self.sequences):
            raise PlanError("sequences has one name twice")
        if not self.base and (self.sequences or self.places or self.steps or self.kernels):
            raise PlanError("base is empty although the plan contains fusions or kernel choices; make a new plan")
        unknown = sorted(self.places.keys() - set(self.sequences))
        unknown_kernels = sorted(self.kernels.keys() - set(self.sequences))
        if unknown_kernels:
            raise PlanError(f"kernels contains {short_repr(unknown_kernels[0])}, which is not in sequences")
        if unknown:
            raise PlanError(f"places contains {short_repr(unknown[0])}, which is not in sequences")

    @property
    def loops(self) -> dict[str, str]:
        """The choice for each loop, by id."""
        return {c.id: c.choice for c in self.loop_choices}

    @property
    def fusions(self) -> tuple[FusionAction, ...]:
        """The fusion actions, by the names of the module they were taken on."""
        return tuple(s.action for s in self.steps)

    def __repr__(self) -> str:
        return plan_line(self)

    def __str__(self) -> str:
        return plan_text(self)

    def _repr_html_(self) -> str:
        return plan_html(self)

    @property
    def made(self) -> frozenset[tuple[str, str]]:
        """The sequence and the name of every fusion that a step made, by the names of the module they were taken on."""
        return frozenset((s.action.computation, name) for s in self.steps for name in s.made)

    def without_kernels(self) -> CompilationPlan:
        """Return the plan without its kernel choices, which any backend can replay."""
        return replace(self, kernels={})

    def check_module(self, module: HloModule) -> None:
        """Raise PlanError unless the plan was made for this module."""
        found = module.fingerprint()
        if found != self.fingerprint:
            raise PlanError(
                f"the plan was made for another module: its fingerprint is {self.fingerprint[:16]}..., "
                f"that of {module.name} is {found[:16]}...; make a new plan for this module"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {
            "format": FORMAT,
            "fingerprint": self.fingerprint,
            "backend": self.backend,
            **({"decided_by": dict(self.decided_by)} if self.decided_by else {}),
            **({"rules": list(self.rules)} if self.rules else {}),
            "passes": list(self.passes),
            "expansions": [{"id": c.id, "position": c.position, "choice": c.choice} for c in self.expansions],
            "loops": [{"id": c.id, "position": c.position, "choice": c.choice} for c in self.loop_choices],
            "loop_passes": list(self.loop_passes),
            "base": self.base,
            "sequences": list(self.sequences),
            "places": {name: dict(row) for name, row in self.places.items()},
            "fusions": [{**s.action.to_json(), "made": list(s.made)} for s in self.steps],
            "kernels": {
                name: {kernel: choice.to_json() for kernel, choice in row.items()} for name, row in self.kernels.items()
            },
        }

    def to_json(self, indent: int | None = 1) -> str:
        """Return the plan as JSON."""
        return json.dumps(self.to_dict(), indent=indent) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the JSON to a file atomically; raise PlanError when it cannot be written."""
        try:
            write_file(given_path(path, "a plan", PlanError), self.to_json(), durable=True)
        except OSError as e:
            raise PlanError(f"cannot write the plan to {path}: {e.strerror}; choose another file") from None

    @staticmethod
    def load(path: str | Path) -> CompilationPlan:
        """Read a plan from a file; a PlanError names the file and the problem."""
        return CompilationPlan.from_json(read_object(given_path(path, "a plan", PlanError), PlanError), str(path))

    @staticmethod
    def from_json(text: str | Mapping[str, Any], where: str = "plan") -> CompilationPlan:
        """Read a plan from JSON or plain data; a PlanError begins with `where`."""
        data: object = parse_object(text, where, PlanError) if isinstance(text, str) else text
        with _within(where):
            if not isinstance(data, Mapping):
                raise PlanError(f"expected an object, got {short_repr(data)}")
            version = data.get("format")
            if as_integer(version) != FORMAT:
                raise PlanError(f"format {short_repr(version)} cannot be read; this version reads format {FORMAT}")
            unknown = [name for name in data if name not in _KEYS]
            if unknown:
                raise PlanError(f"unknown entries {', '.join(map(_bare, unknown[:5]))}")
            return CompilationPlan(
                fingerprint=data.get("fingerprint", ""),
                passes=_list(data.get("passes", []), "passes", "strings"),
                expansions=_each(data.get("expansions", []), "expansions", _choice_of(ExpansionChoice)),
                loop_choices=_each(data.get("loops", []), "loops", _choice_of(LoopChoice)),
                loop_passes=_list(data.get("loop_passes", []), "loop_passes", "strings"),
                base=data.get("base", ""),
                places=data.get("places", {}),
                sequences=_list(data.get("sequences", []), "sequences", "strings"),
                steps=_each(data.get("fusions", []), "fusions", _step),
                kernels=_read_kernels(data.get("kernels", {}), "kernels"),
                backend=data.get("backend", "cpu"),
                decided_by=data.get("decided_by", {}),
                rules=_list(data.get("rules", []), "rules", "strings"),
            )


_KEYS = frozenset(
    {"format", "fingerprint", "backend", "passes", "expansions", "loops", "loop_passes", "base", "sequences", "places",
     "fusions", "kernels", "decided_by", "rules"}
)  # fmt: skip


# ---- reading


@contextmanager
def _within(where: str) -> Iterator[None]:
    """Put the location in front of a PlanError."""
    try:
        yield
    except PlanError as e:
        raise PlanError(f"{where}: {e}") from None


def _list(value: object, where: str, of: str = "objects") -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise PlanError(f"{where} must be a list of {of}, got {short_repr(value)}")
    return tuple(value)


def _each(value: object, where: str, read: Callable[[Mapping[str, Any]], _T]) -> tuple[_T, ...]:
    found = []
    for n, entry in enumerate(_list(value, where)):
        with _within(f"{where}[{n}]"):
            if not isinstance(entry, Mapping):
                raise PlanError(f"expected an object, got {short_repr(entry)}")
            found.append(read(entry))
    return tuple(found)


def _choice_of(kind: Callable[[Any, Any, Any], _T]) -> Callable[[Mapping[str, Any]], _T]:
    """Return a function that reads a `PositionChoice` of some kind."""

    def read(entry: Mapping[str, Any]) -> _T:
        _only(entry, ("id", "position", "choice"))
        return kind(entry.get("id", ""), entry.get("position", -1), entry.get("choice", ""))

    return read


def _step(entry: Mapping[str, Any]) -> FusionStep:
    _only(entry, ("kind", "computation", "producer", "consumers", "made"))
    return FusionStep(FusionAction.from_json(entry), _list(entry.get("made"), "made", "strings"))


def _bare(name: object) -> str:
    """Return a short and harmless name unquoted, and any other value as `short_repr` does."""
    return str(name) if is_name(name) and len(str(name)) < 60 else short_repr(name)


def _only(entry: Mapping[str, Any], known: tuple[str, ...]) -> None:
    unknown = [name for name in entry if name not in known]
    if unknown:
        raise PlanError(f"unknown entry {_bare(unknown[0])}; the entries are {', '.join(known)}")


# ---- checks of values


def _name(value: object, where: str) -> str:
    if not isinstance(value, str) or not is_name(value):
        raise PlanError(f"{where} must be a string without control characters, got {short_repr(value)}")
    return value


def _names(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, tuple | list):
        raise PlanError(f"{where} must be a list of strings, got {short_repr(value)}")
    return tuple(_name(v, f"{where}[{n}]") for n, v in enumerate(value))


def _rules(value: object, where: str) -> tuple[str, ...]:
    """Return rules about fusions, as strings."""
    if not isinstance(value, tuple | list):
        raise PlanError(f"{where} must be a list of strings, got {short_repr(value)}")
    for n, rule in enumerate(value):
        try:
            FusionRule.parse(rule if isinstance(rule, str) else "")
        except FusionError as e:
            raise PlanError(f"{where}[{n}]: {e}") from None
    return tuple(value)


def _deciders(value: object, where: str) -> dict[str, str]:
    """Return the names of those who decided, by phase."""
    if not isinstance(value, Mapping):
        raise PlanError(f"{where} must be an object, got {short_repr(value)}")
    for phase in value:
        if phase not in PHASES:
            raise PlanError(f"{where} names the phase {short_repr(phase)}; there are {', '.join(PHASES)}")
    return {str(phase): _name(by, f"{where}: {phase}") for phase, by in value.items()}


def _passes(value: object, where: str) -> tuple[str, ...]:
    passes = _names(value, where)
    if len(passes) > MAX_PASSES:
        raise PlanError(f"{where} lists {len(passes)} passes, more than {MAX_PASSES}")
    return passes


def _fingerprint(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise PlanError(f"{where} must be a string, got {short_repr(value)}")
    if not _FINGERPRINT.fullmatch(value):
        raise PlanError(f"{where} must have 64 hexadecimal digits, got {short_repr(value)}")
    return value


def _position(value: object, where: str) -> int:
    number = as_integer(value)
    if number is None or number < 0:
        raise PlanError(f"{where} must be an integer of at least 0, got {short_repr(value)}")
    return number


def _positions(row: Mapping[str, object]) -> dict[str, int]:
    found = {name: _position(value, short_repr(name)) for name, value in row.items()}
    if len(set(found.values())) < len(found):
        raise PlanError("two names have the same position")
    return found


def _rows(
    value: object, where: str, read: Callable[[Mapping[str, object]], dict[str, int]]
) -> dict[str, dict[str, int]]:
    """Return rows of numbers by name."""
    if not isinstance(value, Mapping):
        raise PlanError(f"{where} must be an object, got {short_repr(value)}")
    found = {}
    for name, row in value.items():
        with _within(f"{where}: {short_repr(name)}"):
            if not isinstance(row, Mapping) or None in map(as_integer, row.values()):
                raise PlanError(f"must map names to integers, got {short_repr(row)}")
            for inner in row:
                _name(inner, "a name in it")
            found[_name(name, "the name")] = read(row)
    return found


def _read_kernels(value: object, where: str) -> Mapping[str, Any]:
    """Return the kernel choices of a plan in JSON."""
    if not isinstance(value, Mapping):
        raise PlanError(f"{where} must be an object, got {short_repr(value)}")
    found: dict[str, dict[str, KernelChoice]] = {}
    for sequence, row in value.items():
        with _within(f"{where}: {short_repr(sequence)}"):
            if not isinstance(row, Mapping):
                raise PlanError(f"must map names to kernel choices, got {short_repr(row)}")
            found[sequence] = {}
            for name, choice in row.items():
                with _within(short_repr(name)):
                    found[sequence][name] = KernelChoice.from_json(choice)
    return found


def _kernels(value: object, where: str) -> dict[str, dict[str, KernelChoice]]:
    """Return kernel choices by sequence and instruction; a sequence without any is left out."""
    if not isinstance(value, Mapping):
        raise PlanError(f"{where} must be an object, got {short_repr(value)}")
    found: dict[str, dict[str, KernelChoice]] = {}
    for sequence, row in value.items():
        with _within(f"{where}: {short_repr(sequence)}"):
            if not isinstance(row, Mapping) or not all(isinstance(c, KernelChoice) for c in row.values()):
                raise PlanError(f"must map names to kernel choices, got {short_repr(row)}")
            if row:
                found[_name(sequence, "the name")] = {_name(k, "a name in it"): c for k, c in row.items()}
    return found


def _all_of(kind: type[_T], value: object, where: str) -> tuple[_T, ...]:
    if not isinstance(value, tuple | list) or not all(isinstance(v, kind) for v in value):
        raise PlanError(f"{where} must be a list of {kind.__name__}, got {short_repr(value)}")
    return tuple(value)
