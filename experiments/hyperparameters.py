"""Files of hyperparameters: YAML with settings by environment id, as in RL Zoo."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from compiler.errors import UnknownNameError
from experiments.config import FORMER_NAMES, ConfigError, TrainConfig
from experiments.results import write_text

__all__ = ["read_hyperparameters", "write_hyperparameters"]

_EVERY = "default"
"""The section whose settings hold for all environments."""
_SCHEDULED = ("learning_rate", "clip_range")
_LINEAR = "lin_"


def read_hyperparameters(file: Path, config: TrainConfig) -> TrainConfig:
    """Return settings changed by those that a file has for their environment.

    The file maps ids of environments, with or without the namespace, to settings. Names are those of `TrainConfig` or
    of RL Zoo (`n_timesteps`, `n_envs`); `lin_3e-4` is a linear schedule for `learning_rate` and `clip_range`. Settings
    of the section `default` hold for all environments; those of an environment's own section override them.

    Raises:
        ConfigError: the file cannot be read, has no section for the environment, has a setting twice, or a value has
            another type.
        UnknownNameError: there is no setting of that name.
    """
    sections = _read(file)
    wanted = _short(config.env)
    found: dict[str, Mapping[str, Any]] = {}
    for name, settings in sections.items():
        if _short(name) in found:
            raise ConfigError(f"{file} has settings for {_short(name)} twice, with and without its namespace")
        found[_short(name)] = settings
    if wanted not in found and _EVERY not in found:
        raise ConfigError(f"{file} has no settings for {config.env}, only for {', '.join(sections) or 'nothing'}")
    for name in (_EVERY, wanted):
        config = _changed(config, found.get(name, {}), f"{file}: {name}")
    return config


def write_hyperparameters(file: Path, env: str, settings: Mapping[str, Any]) -> None:
    """Write a file with settings for one environment.

    Raises:
        ResultError: the file cannot be written.
    """
    write_text(file, yaml.safe_dump({env: dict(settings)}, sort_keys=False))


def _read(file: Path) -> dict[str, Mapping[str, Any]]:
    try:
        text = file.read_text(encoding="utf-8")
        data = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        raise ConfigError(f"{file} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict) or not all(isinstance(k, str) and isinstance(v, dict) for k, v in data.items()):
        raise ConfigError(f"{file} must map ids of environments to settings")
    if (repeated := _repeated_key(yaml.compose(text, yaml.SafeLoader))) is not None:
        raise ConfigError(f"{file} has {repeated!r:.80} twice")
    return data


def _repeated_key(file: Any) -> str | None:
    """Return a key that the node of a file, or of a section in it, has twice; YAML takes the last of its values."""
    for mapping in (file, *(section for _, section in file.value)):
        keys = [key.value for key, _ in mapping.value]
        for n, key in enumerate(keys):
            if key in keys[:n]:
                return str(key)
    return None


def _short(env: str) -> str:
    return env.removeprefix("env:").removeprefix("hlogym/")


def _changed(config: TrainConfig, settings: Mapping[str, Any], where: str) -> TrainConfig:
    given: dict[str, str] = {}
    for key, value in settings.items():
        name = FORMER_NAMES.get(str(key), str(key))
        if name in given:
            raise ConfigError(f"{where}: {name} is set twice, under two names")
        if name == "env":
            raise ConfigError(f"{where}: the environment is the name of the section, so it cannot be a setting")
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise ConfigError(f"{where}: {name} must be a number or a string, not {value!r:.80}")
        given[name] = str(value)
    for name in _SCHEDULED:
        if name in given:
            kind = "linear" if given[name].startswith(_LINEAR) else "constant"
            asked = given.setdefault(f"{name}_schedule", kind)
            if kind == "linear" and asked != kind:
                raise ConfigError(f"{where}: {name}={given[name]} and {name}_schedule={asked} contradict each other")
            given[name] = given[name].removeprefix(_LINEAR)
    try:
        return config.changed([f"{name}={_plain(text)}" for name, text in given.items()])
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    except UnknownNameError as error:
        error.add_note(f"It is in {where}.")
        raise


def _plain(text: str) -> str:
    """Return a number such as 1e5 as an integer if it is one; other strings as they are."""
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if math.isfinite(number) and number.is_integer() else text
