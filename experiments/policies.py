"""`hlogym policies`: the policies that can be named, with their parts and versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from compiler.backends.registry import BACKENDS
from compiler.fusion.policies import describe_policies
from compiler.policy import HEURISTIC, LEARNED, PARTS, RULES_SUFFIX, default_policy, resolve_policy, shipped_description
from experiments.answer import give_answer
from experiments.console import stdout
from experiments.results import check_output

__all__ = ["list_policies", "listed_policies"]


@dataclass(frozen=True)
class Listed:
    """A policy in the list.

    Attributes:
        name: what `--policy` and `compile` take.
        version: recorded in plans; empty for rules.
        decides: the phases that it decides itself.
        default_for: the backends for which it is used when no policy is named.
        about: what it does.
    """

    name: str
    version: str
    decides: tuple[str, ...]
    default_for: tuple[str, ...]
    about: str


def listed_policies() -> list[Listed]:
    """Return every policy that has a name."""
    shipped = shipped_description()
    by_rules = tuple(b for b in BACKENDS if default_policy(b) is HEURISTIC)
    found = [Listed(HEURISTIC.name, "", PARTS, by_rules, "the hand-written rules of the compiler in every phase")]
    if shipped is not None:
        about = f"the policy that ships, learned for {', '.join(shipped.backends)}; the rules decide the rest"
        found.append(Listed(LEARNED, shipped.version, tuple(shipped.parts), shipped.default_for, about))
        name = f"{LEARNED}{RULES_SUFFIX}"
        parts = tuple(resolve_policy(name, shipped.backends[0] if shipped.backends else "cpu").parts)
        found.append(Listed(name, shipped.version, parts, (), "its readable form: rules with units"))
    for name, (about, options) in describe_policies().items():
        shown = f"{about} Options: {options}" if options else about
        found.append(Listed(name, "", ("fusion",), (), shown))
    return found


def list_policies(as_json: bool, output: Path | None = None) -> None:
    """Print the policies, and write them to a file if one is named."""
    if output is not None:
        check_output(output)
    found = listed_policies()
    give_answer([asdict(p) for p in found], lambda: _print(found), as_json, output)


def _print(found: Sequence[Listed]) -> None:
    table = Table("policy", "version", "decides", "default for", "description", box=None, header_style="bold")
    for p in found:
        decides = "all phases" if p.decides == PARTS else ", ".join(p.decides)
        table.add_row(p.name, p.version, decides, ", ".join(p.default_for), p.about)
    stdout.print(table)
