"""Options written as text: `name{option=value,...}`, where the options are the fields of a dataclass."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Hashable
from functools import cache
from typing import Any, cast, get_args, get_type_hints

from compiler.errors import OptionError
from compiler.support.untrusted import short_repr

_INT = re.compile(r"[+-]?[0-9]{1,18}")
_FLOAT = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{0,18})?(e[+-]?[0-9]{1,3})?", re.IGNORECASE)


_KINDS = (bool, int, float, str)


def option_fields(cls: type[Any]) -> dict[dataclasses.Field[Any], type]:
    """Return the fields of a dataclass that can be given as text, with their types; None beside a type is dropped."""
    return _option_fields(cast("Hashable", cls)) if dataclasses.is_dataclass(cls) else {}


@cache
def _option_fields(cls: Any) -> dict[dataclasses.Field[Any], type]:
    hints = get_type_hints(cls)
    found: dict[dataclasses.Field[Any], type] = {}
    for f in dataclasses.fields(cls):
        kinds = [k for k in get_args(hints[f.name]) or (hints[f.name],) if k is not type(None)]
        if f.init and len(kinds) == 1 and kinds[0] in _KINDS:
            found[f] = kinds[0]
    return found


def describe_options(cls: type[Any], without: Collection[str] = ()) -> str:
    """Return the options of a class with their defaults, such as `factor=4, full=false`; empty if it has none.

    Args:
        cls: the class.
        without: names of fields that it does not take.
    """
    return ", ".join(f"{f.name}={_value_text(f.default)}" for f in option_fields(cls) if f.name not in without)


def options_text(made: Any) -> str:
    """Return the options of an object that are not defaults, as `{option=value,...}`; empty if there are none."""
    shown = [
        f"{f.name}={_value_text(getattr(made, f.name))}"
        for f in option_fields(type(made))
        if getattr(made, f.name) != f.default
    ]
    return f"{{{','.join(shown)}}}" if shown else ""


def read_options(cls: type[Any], text: str, what: str) -> dict[str, Any]:
    """Return the arguments of a constructor that a string such as `factor=4,full=true` gives.

    Args:
        cls: a dataclass, whose fields are bool, int, float or str.
        text: comma-separated options.
        what: what is made, for messages: "pass 'dce'".

    Raises:
        OptionError: there is no such option, it is given twice, or its value has another type.
    """
    known = {f.name: kind for f, kind in option_fields(cls).items()}
    found: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, equals, value = (s.strip() for s in part.partition("="))
        if not equals or key not in known:
            raise OptionError(f"{what} has no option {short_repr(key)}; options: {describe_options(cls) or 'none'}")
        if key in found:
            raise OptionError(f"option {key} of {what} is given twice")
        found[key] = _parse(f"option {key} of {what}", known[key], value)
    return found


def split_specs(text: str) -> list[str]:
    """Return the parts of a comma-separated list; commas within braces separate options. An empty text has no parts.

    Raises:
        OptionError: a part is empty.
    """
    parts = [p.strip() for p in re.split(r",(?![^{}]*\})", text)] if text.strip() else []
    if not all(parts):
        raise OptionError(f"the list {short_repr(text)} has an empty part; write names with one comma between them")
    return parts


def _value_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse(what: str, kind: Any, text: str) -> Any:
    if kind is bool:
        if text not in ("true", "false"):
            raise OptionError(f"{what} takes true or false, got {short_repr(text)}")
        return text == "true"
    if kind is str:
        return text
    if kind is float:
        if not _FLOAT.fullmatch(text) or not math.isfinite(float(text)):
            raise OptionError(f"{what} takes a number, got {short_repr(text)}")
        return float(text)
    if re.fullmatch(r"[+-]?[0-9]{19,}", text):
        raise OptionError(f"{what} is out of range: {short_repr(text)}")
    if not _INT.fullmatch(text):
        raise OptionError(f"{what} takes a number (int), got {short_repr(text)}")
    return int(text)
