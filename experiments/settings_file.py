"""Configuration files of experiments: YAML with the fields of a dataclass."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import yaml

from compiler.errors import UnknownNameError
from experiments.config import ConfigError

__all__ = ["read_settings"]

T = TypeVar("T")


def read_settings(file: Path, cls: type[T]) -> T:
    """Return the settings that a file has; those it leaves out take their defaults.

    Args:
        file: a mapping in YAML from names of fields to values.
        cls: a dataclass whose fields are numbers, strings, booleans, and tuples of one of these (lists in YAML).

    Raises:
        ConfigError: the file cannot be read, is no mapping, or a value has another type than its field.
        UnknownNameError: there is no such field.
    """
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        raise ConfigError(f"{file} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{file} must map names of settings to values")
    kinds, known = get_type_hints(cls), [f.name for f in fields(cls)]  # type: ignore[arg-type]
    for name in data:
        if name not in known:
            raise UnknownNameError("setting", str(name), known)
    return cls(**{name: _checked(f"{file}: {name}", value, kinds[name]) for name, value in data.items()})


def _checked(where: str, value: Any, kind: Any) -> Any:
    if get_origin(kind) is tuple:
        (each, _) = get_args(kind)
        if not isinstance(value, list):
            raise ConfigError(f"{where} must be a list of {each.__name__}, not {value!r:.80}")
        return tuple(_checked(where, v, each) for v in value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ConfigError(f"{where} must be of type {kind.__name__}, not {value!r:.80}")
    return value
