"""The registry of passes: each registers itself by name, and text such as `while-loop-unroller{factor=4}` makes one."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, TypeVar, get_type_hints

from compiler.errors import UnknownNameError
from compiler.passes.infrastructure.base import HloPass, Swept
from compiler.passes.infrastructure.base import PassOptionError as PassOptionError
from compiler.support.untrusted import short_repr

PASSES: dict[str, type[HloPass]] = {}
"""All passes by name, in the order of their module names."""

P = TypeVar("P", bound=HloPass)
_SPEC = re.compile(r"([A-Za-z0-9_.-]+)\s*(?:\{([^{}]*)\}\s*)?(?:@\s*([1-9][0-9]{0,8}))?")
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
MAX_TEXT = 1000
"""Longest text that is parsed as a pass."""


def register(cls: type[P]) -> type[P]:
    """Register a pass class by its `name` (a class decorator)."""
    name: Any = cls.name
    if not isinstance(name, str):
        raise TypeError(f"{cls.__name__} has no name")
    if PASSES.get(name, cls).__qualname__ != cls.__qualname__:
        raise ValueError(f"two passes are called {name!r}")
    PASSES[name] = cls
    return cls


def make_pass(text: str) -> HloPass:
    """Make a pass from its name and options: `dce`, `while-loop-unroller{factor=4,full=true}`.

    A suffix `@1` limits it to one sweep over the module per application (see `Swept`).

    Raises:
        UnknownNameError: there is no pass of that name.
        PassOptionError: the pass does not have these options, or they are malformed.
    """
    match = _SPEC.fullmatch(text.strip()) if len(text) <= MAX_TEXT else None
    if match is None:
        raise PassOptionError(
            f"cannot parse {short_repr(text)} as a pass; write name or name{{option=value,...}}, then @sweeps"
        )
    name, options, sweeps = match.groups()
    if name not in PASSES:
        raise UnknownNameError("pass", name, PASSES)
    cls = PASSES[name]
    made = cls(**_options(cls, options or ""))
    return made if sweeps is None else Swept(made, int(sweeps))


def make_passes(text: str) -> tuple[HloPass, ...]:
    """Make passes from a comma-separated list; commas within braces separate options."""
    parts = re.split(r",(?![^{}]*\})", text)
    return tuple(make_pass(p) for p in parts if p.strip())


def pass_text(hlo_pass: HloPass) -> str:
    """Return the text from which `make_pass` makes an equal pass: the name, and the options that are not defaults."""
    if isinstance(hlo_pass, Swept):
        return f"{pass_text(hlo_pass.within)}@{hlo_pass.sweeps}"
    shown = [
        f"{f.name}={_value_text(getattr(hlo_pass, f.name))}"
        for f in _fields(type(hlo_pass))
        if getattr(hlo_pass, f.name) != f.default
    ]
    return hlo_pass.name + (f"{{{','.join(shown)}}}" if shown else "")


def describe_options(cls: type[HloPass]) -> str:
    """Return the options of a pass with their defaults, such as `factor=4, full=false`; empty if it has none."""
    return ", ".join(f"{f.name}={_value_text(f.default)}" for f in _fields(cls))


def _fields(cls: type[Any]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()


def _value_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _options(cls: type[HloPass], text: str) -> dict[str, Any]:
    hints = get_type_hints(cls)
    known = {f.name: hints[f.name] for f in _fields(cls)}
    found: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, equals, value = (s.strip() for s in part.partition("="))
        if not equals or key not in known:
            there = describe_options(cls) or "none"
            raise PassOptionError(f"pass {cls.name!r} has no option {short_repr(key)}; options: {there}")
        if key in found:
            raise PassOptionError(f"option {key} of pass {cls.name!r} is given twice")
        found[key] = _parse(f"option {key} of pass {cls.name!r}", known[key], value)
    return found


def _parse(what: str, kind: Any, text: str) -> Any:
    if kind is bool:
        if text not in ("true", "false"):
            raise PassOptionError(f"{what} takes true or false, got {short_repr(text)}")
        return text == "true"
    if kind is str:
        return text
    if not _NUMBER.fullmatch(text):
        raise PassOptionError(f"{what} takes a number (int), got {short_repr(text)}")
    return int(text)
