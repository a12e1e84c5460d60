"""The folder of an entry: who made it, what it decides, for which suite, and its plans or its policy.

entry.json   {"format": "hlogym-leaderboard-entry", "format_version": 1, "name": ..., "author": ..., "about": ...,
             "decides": ["fusion", ...], "suite": "validation", "backend": "cpu", and one of
             "plans": {"program": "plans/program.json", ...}   a plan for each program of the suite
             "policy": "policy"                                the folder of an exported policy, in the entry
             "builtin": "heuristic"                            a policy of the compiler by name}
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compiler.backends.registry import BACKENDS
from compiler.errors import PlanError, PolicyError
from compiler.plan import PHASES, CompilationPlan
from compiler.policy import HEURISTIC, Policy, load_whole, policy_names, resolve_policy
from compiler.support.json_reading import parse_object
from compiler.support.safe_names import why_no_file_name, why_no_name
from compiler.support.untrusted import is_name, short_repr
from experiments.leaderboard.snapshot import EntryError, checksum, read_snapshot

__all__ = ["DESCRIPTION", "FORMAT", "FORMAT_VERSION", "SOURCES", "Entry", "EntryError", "read_entry"]

FORMAT, FORMAT_VERSION = "hlogym-leaderboard-entry", 1
DESCRIPTION = "entry.json"
SOURCES = ("plans", "policy", "builtin")
"""The keys of which an entry has one: what its decisions come from."""
_KEYS = ("format", "format_version", "name", "author", "about", "decides", "suite", "backend")
MOST_NAME, MOST_AUTHOR, MOST_ABOUT = 60, 60, 300


@dataclass(frozen=True)
class Entry:
    """An entry whose files were checked.

    Attributes:
        folder: where it was read, for messages.
        name: shown on the page; also the name of the file of its result.
        author: who made it.
        about: one or two sentences.
        decides: the phases that it decides.
        suite: name of the suite.
        backend: name of the backend.
        source: "plans", "policy" or "builtin".
        plans: plans by name of the program; empty for policies.
        policy: what decides; None for plans.
        checksum: of all files.
    """

    folder: Path
    name: str
    author: str
    about: str
    decides: tuple[str, ...]
    suite: str
    backend: str
    source: str
    plans: Mapping[str, CompilationPlan]
    policy: Policy | None
    checksum: str

    def facts(self) -> dict[str, Any]:
        """Return what a result records of the entry."""
        return {
            "name": self.name, "author": self.author, "about": self.about, "decides": list(self.decides),
            "suite": self.suite, "backend": self.backend, "source": self.source, "checksum": self.checksum,
        }  # fmt: skip


def read_entry(folder: Path) -> Entry:
    """Return the entry in a folder.

    Raises:
        EntryError: it is refused; the message says why.
    """
    files = read_snapshot(folder)
    where = f"{folder}/{DESCRIPTION}"
    if DESCRIPTION not in files:
        raise EntryError(f"{folder} is no entry: it has no {DESCRIPTION}")
    data = parse_object(files[DESCRIPTION], where, EntryError)
    _check_format(data, where)
    given = [s for s in SOURCES if s in data]
    unknown = [k for k in data if k not in (*_KEYS, *SOURCES)]
    if unknown:
        raise EntryError(
            f"{where}: unknown entry {short_repr(unknown[0])}; entries are {', '.join((*_KEYS, *SOURCES))}"
        )
    if len(given) != 1:
        raise EntryError(f"{where} must have exactly one of {', '.join(SOURCES)}, and has {len(given)}")
    source = given[0]
    backend = _text(data, "backend", where)
    if backend not in BACKENDS:
        raise EntryError(f"{where}: there is no backend {short_repr(backend)}; there are {', '.join(BACKENDS)}")
    name = _text(data, "name", where, MOST_NAME)
    if (reason := why_no_file_name(name)) is not None:
        raise EntryError(f"{where}: {reason}")
    plans: dict[str, CompilationPlan] = {}
    policy, used = None, {DESCRIPTION}
    if source == "plans":
        plans, named = _plans(data["plans"], files, folder)
        used |= named
    elif source == "policy":
        policy, named = _policy(data["policy"], files, folder, backend)
        used |= named
    else:
        policy = _builtin(data["builtin"], where, backend)
    if idle := sorted(files.keys() - used):
        raise EntryError(f"{folder} contains {short_repr(idle[0])}, which {DESCRIPTION} does not use; remove it")
    decides = _decides(data.get("decides"), where)
    if policy is not None and policy.parts and set(decides) != set(policy.parts):
        raise EntryError(f"{where}: decides is {', '.join(decides)}, but the policy decides {', '.join(policy.parts)}")
    about, author = _text(data, "about", where, MOST_ABOUT, empty=True), _text(data, "author", where, MOST_AUTHOR)
    suite = _text(data, "suite", where)
    return Entry(folder, name, author, about, decides, suite, backend, source, plans, policy, checksum(files))


def _check_format(data: Mapping[str, Any], where: str) -> None:
    if data.get("format") != FORMAT:
        raise EntryError(f"{where} does not describe an entry: its format is {short_repr(data.get('format'))}")
    version = data.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        raise EntryError(
            f"{where} has format version {short_repr(version)}, and this version of hlogym reads {FORMAT_VERSION}"
        )


def _text(data: Mapping[str, Any], key: str, where: str, most: int = 200, empty: bool = False) -> str:
    value = data.get(key, "" if empty else None)
    if isinstance(value, str) and len(value) <= most and (is_name(value) or (empty and not value)):
        return value
    raise EntryError(f"{where}: {key} must be a line of at most {most} characters, got {short_repr(value)}")


def _decides(value: object, where: str) -> tuple[str, ...]:
    phases = PHASES[:-1]
    if not isinstance(value, list) or not value or any(v not in phases for v in value) or len({*value}) < len(value):
        raise EntryError(f"{where}: decides must be a list of phases, of {', '.join(phases)}, got {short_repr(value)}")
    return tuple(p for p in phases if p in value)


def _plans(value: object, files: Mapping[str, bytes], folder: Path) -> tuple[dict[str, CompilationPlan], set[str]]:
    """Return the plans by program, and the files they are in."""
    where = f"{folder}/{DESCRIPTION}"
    if not isinstance(value, dict) or not value:
        raise EntryError(f"{where}: plans must map programs to files, got {short_repr(value)}")
    plans = {}
    for program, file in value.items():
        if (reason := why_no_name(program)) is not None:
            raise EntryError(f"{where}: plans: {reason}")
        if not isinstance(file, str) or file not in files or file == DESCRIPTION:
            raise EntryError(f"{where}: the plan of {program!r} must be a file of the entry, got {short_repr(file)}")
        shown = f"{folder}/{file}"
        try:
            plans[program] = CompilationPlan.from_json(parse_object(files[file], shown, PlanError), shown)
        except PlanError as error:
            raise EntryError(str(error)) from error
    return plans, set(value.values())


def _policy(value: object, files: Mapping[str, bytes], folder: Path, backend: str) -> tuple[Policy, set[str]]:
    """Return the policy in a folder of the entry, and its files."""
    inside = {name for name in files if isinstance(value, str) and name.startswith(f"{value}/")}
    if not isinstance(value, str) or not inside:
        raise EntryError(f"{folder}/{DESCRIPTION}: policy must be a folder of the entry, got {short_repr(value)}")
    with tempfile.TemporaryDirectory(prefix="hlogym-entry-") as copy:
        for name in inside:
            path = Path(copy, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files[name])
        try:
            policy = load_whole(Path(copy, value))
        except PolicyError as error:
            raise EntryError(str(error).replace(copy, str(folder))) from error
    return _made_for(policy, backend, f"{folder}/{value}"), inside


def _builtin(value: object, where: str, backend: str) -> Policy:
    """Return a policy that is a part of the compiler; names that other distributions declare would be code."""
    if not isinstance(value, str) or value not in policy_names():
        raise EntryError(f"{where}: builtin must be one of {', '.join(policy_names())}, got {short_repr(value)}")
    policy = resolve_policy(value, backend)
    if value != HEURISTIC.name and not policy.parts:
        raise EntryError(f"{where}: the policy {value} was not made for the backend {backend}")
    return policy


def _made_for(policy: Policy, backend: str, where: str) -> Policy:
    if policy.backends and backend not in policy.backends:
        raise EntryError(
            f"{where}: the policy was made for {', '.join(policy.backends)}, and the entry is for {backend}"
        )
    return policy
