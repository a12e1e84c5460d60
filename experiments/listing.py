"""`hlogym list`: what there is to give to the other commands, with the extensions of other distributions."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
from rich.box import SIMPLE_HEAD
from rich.table import Table

from compiler.backends.registry import BACKENDS, lacks_of_backend
from compiler.errors import HlogymError, UnknownNameError
from compiler.fusion.policies import POLICIES, lacks_of_policy
from compiler.passes.infrastructure.registry import PASSES, lacks_of_pass
from compiler.support.options import describe_options
from compiler.support.plugins import ExtensionError, list_extensions
from compiler.support.safe_names import one_line
from env import register_environments
from env.rewards import REWARDS, lacks_of_reward
from env.suites import SUITE_NAMES, load_suite
from env.suites.loading import BUNDLED, lacks_of_suite
from experiments.answer import give_answer
from experiments.config import TrainConfig
from experiments.console import stdout
from experiments.policies import listed_policies
from experiments.provenance import package_version
from experiments.results import check_output
from experiments.run_folder import all_runs, read_progress
from experiments.suites import suite_rows

__all__ = ["KINDS", "print_list", "version_text"]

Row: TypeAlias = dict[str, str]
_NAMESPACE = "hlogym/"


@dataclass(frozen=True)
class Place:
    """Where lists look.

    Attributes:
        suite: suites whose programs are listed; None: all that come with hlogym.
        runs: the folder of training runs.
    """

    suite: str | None
    runs: Path


def version_text() -> str:
    """Return the versions of hlogym, Python and the machine's kind, in one line."""
    return f"hlogym {package_version('hlogym')} (Python {platform.python_version()}, {platform.machine()})"


def print_list(kind: str | None, suite: str | None, runs: Path, output: Path | None, as_json: bool) -> None:
    """Run `hlogym list`; see its `--help`.

    Raises:
        UnknownNameError: there is no such kind or suite.
    """
    if kind is not None and kind not in KINDS:
        raise UnknownNameError("kind of list", kind, KINDS)
    if output is not None:
        check_output(output)
    place = Place(suite, runs)
    rows = _overview(place) if kind is None else KINDS[kind](place)
    give_answer(rows, lambda: _print(rows, kind, runs), as_json, output)


def _print(rows: Sequence[Row], kind: str | None, runs: Path) -> None:
    if not rows:
        stdout.print(f"there are no {kind}" + (f" in {runs}" if kind == "runs" else ""))
        return
    columns = list(dict.fromkeys(c for row in rows for c in row))
    shown = [c for c in columns if any(row.get(c) for row in rows)]
    table = Table(title=kind or "hlogym list KIND", title_justify="left", header_style="bold", box=SIMPLE_HEAD)
    for column in shown:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(one_line(row.get(c, "")) for c in shown))
    stdout.print(table)


def _overview(place: Place) -> list[Row]:
    return [{"kind": kind, "number": str(len(rows(place)))} for kind, rows in KINDS.items()]


# ---- the lists


def _suites(place: Place) -> list[Row]:
    del place
    head, *rows = suite_rows()
    made = [dict(zip(head, row, strict=True)) for row in rows]
    return made + _extensions("hlogym.suites", lacks_of_suite, _programs_in)


def _programs(place: Place) -> list[Row]:
    names = list(BUNDLED) if place.suite is None else [place.suite]
    return [
        {"program": p.name, "suite": p.suite, "split": p.split, "description": p.description}
        for name in names
        for p in load_suite(name).programs
    ]


def _passes(place: Place) -> list[Row]:
    del place
    made = [{"pass": name, **_of_pass(cls)} for name, cls in sorted(PASSES.items())]
    return made + _extensions("hlogym.passes", None, _of_pass)


def _policies(place: Place) -> list[Row]:
    del place
    made = [
        {"policy": p.name, "decides": ", ".join(p.decides), "description": p.about.removeprefix("Return ")}
        for p in listed_policies()
    ]
    return made + _extensions("hlogym.fusion_policies", lacks_of_policy, _described)


def _environments(place: Place) -> list[Row]:
    del place
    register_environments()
    found = {i: spec for i, spec in gymnasium.registry.items() if i.startswith(_NAMESPACE)}
    default = {True: "measured-time", False: "estimated-time"}
    return [
        {"environment": i, "reward": spec.kwargs.get("reward", default[spec.nondeterministic])}
        for i, spec in sorted(found.items())
    ]


def _rewards(place: Place) -> list[Row]:
    del place
    made = [{"reward": name, **_described(cls)} for name, cls in REWARDS.items()]
    return made + _extensions("hlogym.rewards", lacks_of_reward, _described)


def _searches(place: Place) -> list[Row]:
    del place
    from agents.searches import describe_searches

    found = describe_searches().items()
    return [{"search": name, "description": about, "options": options} for name, (about, options) in found]


def _runs(place: Place) -> list[Row]:
    found = []
    for run in all_runs(place.runs):
        try:
            points, finished = read_progress(run.progress), run.state().get("finished", False)
            row = {
                "environment": run.config().env,
                "steps": str(points[-1]["timesteps"] if points else 0),
                "finished": "yes" if finished else "no",
                "policy": str(run.recommended) if run.recommended.is_dir() else "",
            }
        except HlogymError as error:
            row = {"note": str(error).splitlines()[0]}
        found.append({"run": run.name, **row})
    return found


def _settings(place: Place) -> list[Row]:
    del place
    default, order = TrainConfig(), TrainConfig.defaults_for("hlogym/PassOrder-v0")
    rows = []
    for f in fields(TrainConfig):
        values = str(getattr(default, f.name)), str(getattr(order, f.name))
        other = values[1] if values[1] != values[0] else ""
        kind = type(getattr(default, f.name)).__name__
        rows.append({"setting": f.name, "type": kind, "default": values[0], "default of PassOrder": other})
    return rows


def _backends(place: Place) -> list[Row]:
    del place
    made = [{"backend": name, **_of_backend(backend)} for name, backend in BACKENDS.items()]
    return made + _extensions("hlogym.backends", None, _of_backend)


KINDS: Mapping[str, Callable[[Place], list[Row]]] = {
    "suites": _suites,
    "programs": _programs,
    "passes": _passes,
    "policies": _policies,
    "environments": _environments,
    "rewards": _rewards,
    "searches": _searches,
    "runs": _runs,
    "settings": _settings,
    "backends": _backends,
}
"""The lists by name."""


# ---- descriptions


def _described(thing: Any) -> Row:
    return {"description": (thing.__doc__ or "").strip().partition("\n")[0]}


def _of_pass(cls: Any) -> Row:
    return {**_described(cls), "options": describe_options(cls)}


def _of_backend(backend: Any) -> Row:
    why = backend.why_unavailable()
    return {"works": "yes" if why is None else "no", "note": (why or "").partition("\n")[0]}


def _programs_in(found: Any) -> Row:
    programs = load_suite(Path(found() if callable(found) else found)).programs
    counts = Counter(p.split for p in programs)
    return {split: str(counts.get(split, 0)) for split in ("train", "validation", "test", "extra")}


_OURS = {
    "hlogym.passes": ("pass", PASSES),
    "hlogym.fusion_policies": ("policy", POLICIES),
    "hlogym.rewards": ("reward", REWARDS),
    "hlogym.backends": ("backend", BACKENDS),
    "hlogym.suites": ("suite", SUITE_NAMES),
}
_NAMED_CHECKS = {"hlogym.passes": lacks_of_pass, "hlogym.backends": lacks_of_backend}


def _extensions(group: str, check: Callable[[Any], str | None] | None, describe: Callable[[Any], Row]) -> list[Row]:
    """Return rows of the extensions of a group; one that cannot be used has the reason as its note."""
    column, ours = _OURS[group]
    rows = []
    for extension in list_extensions(group):
        row = {column: extension.name, "from": extension.distribution}
        if extension.name in ours:
            row["note"] = "not used: hlogym has one of this name"
        else:
            try:
                row |= describe(extension.load(check or _NAMED_CHECKS[group](extension.name)))
            except ExtensionError as error:
                row["note"] = str(error)
            except Exception as error:  # describing it runs code of another package, which may raise anything
                row["note"] = f"{type(error).__name__}: {error}".partition("\n")[0]
        rows.append(row)
    return rows
