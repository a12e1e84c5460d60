"""Extensions that other distributions declare as entry points; each is loaded when its name is first used.

```toml
[project.entry-points."hlogym.passes"]
my-pass = "my_package.passes:MyPass"
```

A name that comes with hlogym always means what comes with hlogym.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any

from compiler.errors import HlogymError
from compiler.support.untrusted import short_repr

__all__ = ["GROUPS", "Extension", "ExtensionError", "extension_names", "find_extension", "list_extensions", "missing"]

GROUPS: Mapping[str, str] = MappingProxyType(
    {
        "hlogym.passes": "pass",
        "hlogym.fusion_policies": "fusion policy",
        "hlogym.rewards": "reward",
        "hlogym.backends": "backend",
        "hlogym.suites": "suite",
    }
)
"""The groups of entry points, and what each of them holds."""

Check = Callable[[Any], str | None]
"""Returns what an object lacks to be used, or None."""

_LOADED: dict[tuple[str, str, str], Any] = {}
"""Objects that were loaded and checked, by group, name and where they are defined."""


class ExtensionError(HlogymError, RuntimeError):
    """An extension that cannot be used: names its distribution, what was expected, and what is missing."""


@dataclass(frozen=True)
class Extension:
    """An extension as its distribution declares it; nothing of it has been imported.

    Attributes:
        group: its group in `GROUPS`.
        name: the name by which users know it.
        entry: the entry point.
    """

    group: str
    name: str
    entry: EntryPoint

    @property
    def distribution(self) -> str:
        """The name and version of the distribution that declares it."""
        found = self.entry.dist
        return "an unknown distribution" if found is None else f"{found.name} {found.version}"

    @property
    def label(self) -> str:
        """What error messages call the extension."""
        return f"the {GROUPS[self.group]} {short_repr(self.name)} of {self.distribution} ({self.entry.value})"

    def load(self, check: Check) -> Any:
        """Import the object, check it, and return it.

        Raises:
            ExtensionError: it cannot be imported, or lacks something.
        """
        key = (self.group, self.name, self.entry.value)
        if key in _LOADED:
            return _LOADED[key]
        try:
            found = self.entry.load()
            lacking = check(found)
        except (Exception, SystemExit) as error:  # code of another package may raise anything
            why = (str(error).splitlines() or [""])[0]
            raise ExtensionError(f"{self.label} cannot be loaded: {type(error).__name__}: {why}") from error
        if lacking is not None:
            raise ExtensionError(f"{self.label} cannot be used: {lacking}")
        _LOADED[key] = found
        return found


def list_extensions(group: str) -> list[Extension]:
    """Return the extensions of a group by name, without importing them; a damaged declaration is left out."""
    try:
        found = entry_points(group=group)
    except Exception:  # the metadata of another package may be unreadable
        return []
    unique = {(e.name, e.value): Extension(group, e.name, e) for e in found}  # a folder may be on the path twice
    return [unique[key] for key in sorted(unique)]


def extension_names(group: str) -> list[str]:
    """Return the names of the extensions of a group."""
    return list(dict.fromkeys(e.name for e in list_extensions(group)))


def find_extension(group: str, name: str, check: Check) -> Any:
    """Return the extension of a group with this name, checked; None if there is none.

    Args:
        group: a group in `GROUPS`.
        name: what the user asks for.
        check: returns what the object lacks to be used, or None.

    Raises:
        ExtensionError: it cannot be imported, lacks something, or several distributions declare the name.
    """
    found = [e for e in list_extensions(group) if e.name == name]
    if not found:
        return None
    if len(found) > 1:
        several = " and ".join(sorted(e.distribution for e in found))
        raise ExtensionError(f"{several} both declare the {GROUPS[group]} {short_repr(name)}; uninstall one of them")
    return found[0].load(check)


def missing(value: object, members: Iterable[str], protocol: str) -> str | None:
    """Return which of the members of a protocol an object lacks, as a message; None if it has them all."""
    lacking = [m for m in members if not hasattr(value, m)]
    if not lacking:
        return None
    return f"{short_repr(value)} is no {protocol}, because it has no {', '.join(lacking)}"
