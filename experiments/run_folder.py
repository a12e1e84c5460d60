"""The folder of a training run: settings, state, checkpoints, learning curve, plans and policy."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compiler.errors import HlogymError, UnknownNameError
from compiler.learned.policy_folder import is_policy_folder
from compiler.support.json_reading import parse_object, read_object
from compiler.support.safe_names import file_name, why_no_file_name
from experiments.config import TrainConfig
from experiments.results import ResultError, check_writable, write_text

__all__ = [
    "RunFolder", "all_runs", "check_free", "find_run", "finished_run", "is_run", "new_run", "read_progress",
    "unfinished_run",
]  # fmt: skip

CONFIG_FILE = "config.json"
_SETTINGS_OF_A_RUN = frozenset({"suite", "env", "agent", "checkpoint_every"})
"""Settings that identify a config.json as that of a run; other programs also write files of this name."""
_NUMBERS_OF_A_POINT = ("speedup", "episodes", "seconds")
"""What a point of a learning curve may have, besides its `timesteps`."""


@dataclass(frozen=True)
class RunFolder:
    """The paths in a run's folder, with methods that read and write its small files.

    Attributes:
        path: the folder.
    """

    path: Path

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.path.name

    @property
    def runs_option(self) -> list[str]:
        """The option with which a command finds the run by its name; empty if it is in the default folder."""
        return [] if self.path.parent == Path("runs") else ["--runs", str(self.path.parent)]

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def policy(self) -> Path:
        """The folder of the exported policy."""
        return self.path / "policy"

    @property
    def best(self) -> Path:
        """The folder of the policy with the best mean return on the validation programs."""
        return self.path / "best"

    @property
    def plans(self) -> Path:
        """The folder of the best plan found for each program."""
        return self.path / "plans"

    def plan_file(self, program: str) -> Path:
        """Return the file of the best plan found for a program; any program name gives a valid file name."""
        return self.plans / file_name(program, ".json")

    @property
    def progress(self) -> Path:
        """The file of the learning curve, with one JSON object per line."""
        return self.path / "progress.jsonl"

    @property
    def validation(self) -> Path:
        """The file with the best and the latest result on the validation programs."""
        return self.path / "validation.json"

    @property
    def recommended(self) -> Path:
        """The folder of the policy to use: the best by validation if there is one, else the last."""
        return self.best if is_policy_folder(self.best) else self.policy

    def config(self) -> TrainConfig:
        """Return the settings that the run was started with.

        Raises:
            ResultError: the file cannot be read.
            ConfigError: a setting has the wrong type.
        """
        file = self.path / CONFIG_FILE
        return TrainConfig.from_json(read_object(file, ResultError), str(file))

    def state(self) -> dict[str, Any]:
        """Return the state: the MLflow `run_id`, whether the run is `finished`, and the model it is `registered` as.

        It is empty before training.

        Raises:
            ResultError: the file cannot be read.
        """
        file = self.path / "state.json"
        try:
            return read_object(file, ResultError) if file.is_file() else {}
        except ResultError as error:
            raise ResultError(f"{error}; without this file, the training continues as a new run in MLflow") from None

    def write_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state.

        Raises:
            ResultError: the file cannot be written.
        """
        write_text(self.path / "state.json", json.dumps(dict(state)))

    def add_progress(self, point: Mapping[str, Any]) -> None:
        """Append a point to the learning curve.

        Raises:
            ResultError: the file cannot be written.
        """
        try:
            with self.progress.open("a", encoding="utf-8") as file:
                file.write(json.dumps(dict(point)) + "\n")
        except OSError as error:
            raise ResultError(f"cannot write {self.progress}: {error.strerror}") from error

    def cut_progress(self, timesteps: int) -> None:
        """Remove the points after a checkpoint from the learning curve, because those steps will be repeated."""
        kept = [p for p in read_progress(self.progress) if p["timesteps"] <= timesteps]
        write_text(self.progress, "".join(json.dumps(p) + "\n" for p in kept))


def read_progress(file: Path) -> list[dict[str, Any]]:
    """Read the points of a learning curve, without lines that are truncated or malformed.

    Raises:
        ResultError: the file exists and cannot be read.
    """
    try:
        lines = file.read_bytes().split(b"\n") if file.is_file() else []
    except OSError as error:
        raise ResultError(f"cannot read {file}: {error.strerror}") from error
    points: list[dict[str, Any]] = []
    for line in filter(None, lines):
        with contextlib.suppress(ResultError):
            point = parse_object(line, str(file), ResultError)
            if type(point.get("timesteps")) is int and all(
                isinstance(point.setdefault(name, None), int | float | None) for name in _NUMBERS_OF_A_POINT
            ):
                points.append(point)
    return points


def new_run(runs: Path, name: str | None, config: TrainConfig) -> RunFolder:
    """Create the folder of a new run with its settings.

    Args:
        runs: the folder of training runs.
        name: the name of the run; None: the environment's name and the time.
        config: the settings of the run.

    Raises:
        ResultError: the name is not a valid folder name, the folder exists, or it cannot be written.
    """
    check_run_name(name)
    check_writable(runs)
    kind = config.env.rpartition("/")[2].removesuffix("-v0").lower()
    run = RunFolder(runs / _claim(runs, time.strftime(f"{kind}-%Y%m%d-%H%M%S") if name is None else name, name is None))
    write_text(run.path / CONFIG_FILE, json.dumps(config.to_json(), indent=2) + "\n")
    return run


def _claim(runs: Path, name: str, may_be_numbered: bool) -> str:
    """Create the folder of a new run, which reserves it against other processes; return its name."""
    names = itertools.chain([name], (f"{name}-{n}" for n in itertools.count(2)))
    for found in names:
        folder = runs / found
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if may_be_numbered:
                continue
            check_free(runs, name)
        except OSError as error:
            raise ResultError(f"cannot write to the folder {folder}: {error.strerror}; name another one") from error
        break
    return found


def check_free(runs: Path, name: str) -> None:
    """Raise an error if there is a run of this name already, or something else in its place.

    Raises:
        ResultError: there is; the message says how to continue.
    """
    folder = runs / name
    if is_run(folder):
        finished = RunFolder(folder).state().get("finished", False)
        advice = "it is finished; choose" if finished else "continue it with --resume, or choose"
        raise ResultError(f"there is already a run {name!r} in {runs}; {advice} another --name")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        why = f": its {CONFIG_FILE} has no settings of one" if (folder / CONFIG_FILE).exists() else ""
        raise ResultError(f"{folder} exists and is not a run{why}; choose another --name")


def check_run_name(name: str | None) -> None:
    """Raise an error unless a run can have this name; None is accepted.

    Raises:
        ResultError: the name is not a valid folder name.
    """
    if name is not None and (reason := why_no_file_name(name)) is not None:
        raise ResultError(f"a run is stored in a folder of its name: {reason}; choose another --name")


def all_runs(runs: Path) -> list[RunFolder]:
    """Return the runs in a folder, oldest first."""
    found = []
    for config in runs.glob(f"*/{CONFIG_FILE}") if runs.is_dir() else ():
        with contextlib.suppress(OSError, HlogymError):
            if is_run(config.parent):
                found.append((config.stat().st_mtime, config.parent))
    return [RunFolder(path) for _, path in sorted(found)]


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a training run."""
    try:
        return read_object(folder / CONFIG_FILE, ResultError).keys() >= _SETTINGS_OF_A_RUN
    except ResultError:
        return False


def unfinished_run(runs: Path, name: str | None) -> RunFolder | None:
    """Return the newest unfinished run, or the run of that name if it is unfinished; None if there is none.

    Raises:
        ResultError: the state of the named run cannot be read.
    """
    found = [r for r in all_runs(runs) if name is None or r.name == name]
    for run in reversed(found):
        try:
            finished = run.state().get("finished", False)
        except ResultError:
            if name is not None:
                raise
            continue  # skip a damaged run
        if not finished:
            return run
    return None


def finished_run(runs: Path, name: str) -> RunFolder | None:
    """Return the run of that name if it is finished, otherwise None."""
    return next((r for r in all_runs(runs) if r.name == name and r.state().get("finished", False)), None)


def find_run(runs: Path, name: str) -> RunFolder:
    """Return the run with this name, folder or MLflow run id.

    Raises:
        UnknownNameError: there is no such run.
    """
    if is_run(Path(name)):
        return RunFolder(Path(name))
    found = all_runs(runs)
    for run in found:
        if run.name == name:
            return run
    for run in found:
        with contextlib.suppress(ResultError):
            if run.state().get("run_id") == name:
                return run
    raise UnknownNameError("run", name, (r.name for r in found))
