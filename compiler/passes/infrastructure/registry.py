"""The registry of passes: each registers itself by name, and text such as `while-loop-unroller{factor=4}` makes one."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from compiler.errors import ArgumentError, OptionError, UnknownNameError
from compiler.passes.infrastructure.base import HloPass, Swept
from compiler.support.options import options_text, read_options, split_specs
from compiler.support.plugins import extension_names, find_extension, missing
from compiler.support.untrusted import short_repr

PASSES: dict[str, type[HloPass]] = {}
"""All passes by name, in the order of their module names."""

P = TypeVar("P", bound=HloPass)
_SPEC = re.compile(r"([A-Za-z0-9_.-]+)\s*(?:\{([^{}]*)\}\s*)?(?:@\s*([1-9][0-9]{0,8}))?")
GROUP = "hlogym.passes"
"""The group of entry points with passes of other distributions."""
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
        OptionError: the pass does not have these options, or they are malformed.
        ExtensionError: the pass of another distribution cannot be used.
    """
    match = _SPEC.fullmatch(text.strip()) if len(text) <= MAX_TEXT else None
    if match is None:
        raise OptionError(
            f"cannot parse {short_repr(text)} as a pass; write name or name{{option=value,...}}, then @sweeps"
        )
    name, options, sweeps = match.groups()
    cls = find_pass(name)
    made = cls(**read_options(cls, options or "", f"pass {name!r}"))
    return made if sweeps is None else Swept(made, int(sweeps))


def find_pass(name: str) -> type[HloPass]:
    """Return the class of a pass: one of PASSES, or one that another distribution declares in the group hlogym.passes.

    Raises:
        UnknownNameError: there is no pass of that name.
        ExtensionError: the pass of another distribution cannot be used.
    """
    if name in PASSES:
        return PASSES[name]
    cls: type[HloPass] | None = find_extension(GROUP, name, lacks_of_pass(name))
    if cls is None:
        raise UnknownNameError("pass", name, [*PASSES, *extension_names(GROUP)])
    return cls


def lacks_of_pass(name: str) -> Callable[[Any], str | None]:
    """Return a function that checks a class of a pass: it returns what keeps it from being the pass of that name."""

    def lacks(cls: Any) -> str | None:
        if not inspect.isclass(cls):
            return f"{short_repr(cls)} is no class; a pass is a frozen dataclass with `name` and `run(module)`"
        if (reason := missing(cls, ("name", "run"), "HloPass")) is not None:
            return reason
        params = getattr(cls, "__dataclass_params__", None)
        if params is None or not params.frozen:
            return f"{cls.__name__} is no frozen dataclass, whose fields would be the options of the pass"
        called: Any = getattr(cls, "name", None)
        if called != name:
            return f"its `name` is {short_repr(called)}, so plans could not name it; declare it by that name"
        return None

    return lacks


def make_passes(text: str) -> tuple[HloPass, ...]:
    """Make passes from a comma-separated list; commas within braces separate options. An empty text has no passes.

    Raises:
        UnknownNameError, OptionError: there is no such pass or option, or a name in the list is empty.
    """
    return tuple(map(make_pass, split_specs(text)))


def pass_text(hlo_pass: HloPass) -> str:
    """Return the text from which `make_pass` makes an equal pass: the name, and the options that are not defaults."""
    if isinstance(hlo_pass, Swept):
        return f"{pass_text(hlo_pass.within)}@{hlo_pass.sweeps}"
    return hlo_pass.name + options_text(hlo_pass)


def pass_texts(passes: str | Iterable[str]) -> tuple[str, ...]:
    """Return passes given in a list or separated by commas, each as `pass_text` writes it.

    Raises:
        UnknownNameError, OptionError: there is no such pass or option.
        ArgumentError: neither a string nor a list of strings.
    """
    if isinstance(passes, str):
        return tuple(map(pass_text, make_passes(passes)))
    listed = list(passes) if isinstance(passes, Iterable) else [passes]
    for given in listed:
        if not isinstance(given, str):
            raise ArgumentError(f"passes are named in a list, or in text separated by commas, not {short_repr(given)}")
    return tuple(pass_text(make_pass(p)) for p in listed)
