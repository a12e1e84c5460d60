"""Configuration files of experiments, YAML with the fields of a dataclass, and the command line that takes them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import yaml

from compiler.errors import UnknownNameError
from compiler.support.safe_names import shell_command
from experiments.config import ConfigError

__all__ = ["Experiment", "read_experiment", "read_settings"]

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Experiment(Generic[T]):
    """One run of an experiment.

    Attributes:
        settings: the settings of its configuration file.
        out: the page to write; other files have the same name with another ending.
        command: the command, as the page names it.
    """

    settings: T
    out: Path
    command: str

    @property
    def rows_file(self) -> Path:
        """The file with the rows, from which an interrupted run continues."""
        return self.out.with_suffix(".jsonl")

    @property
    def stored_settings(self) -> dict[str, Any]:
        """The settings as they are read back from a file of rows."""
        stored = asdict(self.settings)  # type: ignore[call-overload]
        return {k: list(v) if isinstance(v, tuple) else v for k, v in stored.items()}


def read_experiment(
    name: str, doc: str, cls: type[T], out: Callable[[T], Path], arguments: Sequence[str] | None
) -> Experiment[T]:
    """Return what to run according to a command line with `--config FILE` and `--out PAGE`.

    Args:
        name: of the module in `experiments`; its default configuration is `experiments/configs/NAME.yaml`.
        doc: the help.
        cls: a dataclass, see `read_settings`.
        out: returns the default page for the settings.
        arguments: of the command; None: those of the process.

    Raises:
        ConfigError, UnknownNameError: see `read_settings`.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = ROOT / "experiments" / "configs" / f"{name}.yaml"
    parser.add_argument("--config", type=Path, default=default, help="settings in YAML (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=None, help="page to write")
    o = parser.parse_args(arguments)
    settings = read_settings(o.config, cls)
    written = [] if o.out is None else ["--out", _shown(o.out)]
    command = shell_command("python", "-m", f"experiments.{name}", "--config", _shown(o.config), *written)
    return Experiment(settings, o.out or out(settings), command)


def _shown(path: Path) -> str:
    """Return a path as a page names it: from the root of the repository, or the name of the file."""
    resolved = path.resolve()
    return str(resolved.relative_to(ROOT)) if resolved.is_relative_to(ROOT) else path.name


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
