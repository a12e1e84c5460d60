"""The folder of one training run: settings, state, checkpoints, progress, plans, policy."""

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
from compiler.support.json_reading import parse_object, read_object
from compiler.support.safe_names import file_name, why_no_file_name
from experiments.config import TrainConfig
from experiments.results import ResultError, check_writable, write_text

__all__ = ["RunFolder", "all_runs", "find_run", "finished_run", "new_run", "read_progress", "unfinished_run"]

CONFIG_FILE = "config.json"
_SETTINGS_OF_A_RUN = frozenset({"suite", "env", "agent", "checkpoint_every"})
"""Other programs have a config.json too; these settings identify that of a run."""


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run, and what its small files hold."""

    path: Path

    @property
    def name(self) -> str:
        """Of the run."""
        return self.path.name

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def policy(self) -> Path:
        """Folder of the exported policy."""
        return self.path / "policy"

    @property
    def plans(self) -> Path:
        """Folder of the best plan found for each program."""
        return self.path / "plans"

    def plan_file(self, program: str) -> Path:
        """The file of the best plan found for a program, whatever the program is called."""
        return self.plans / file_name(program, ".json")

    @property
    def progress(self) -> Path:
        """The learning curve: one JSON object a line."""
        return self.path / "progress.jsonl"

    def config(self) -> TrainConfig:
        """The settings it was started with.

        Raises:
            ResultError, ConfigError: they cannot be read.
        """
        file = self.path / CONFIG_FILE
        return TrainConfig.from_json(read_object(file, ResultError), str(file))

    def state(self) -> dict[str, Any]:
        """`run_id` in MLflow and `finished`.

        Raises:
            ResultError: it cannot be read.
        """
        file = self.path / "state.json"
        return read_object(file, ResultError) if file.is_file() else {}

    def write_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state."""
        write_text(self.path / "state.json", json.dumps(dict(state)))

    def add_progress(self, point: Mapping[str, Any]) -> None:
        """Append a point to the learning curve.

        Raises:
            ResultError: the disk does not take it.
        """
        try:
            with self.progress.open("a", encoding="utf-8") as file:
                file.write(json.dumps(dict(point)) + "\n")
        except OSError as error:
            raise ResultError(f"cannot write {self.progress}: {error.strerror}") from error

    def cut_progress(self, timesteps: int) -> None:
        """Drop the points after a checkpoint: those steps are about to be done again."""
        kept = [p for p in read_progress(self.progress) if p["timesteps"] <= timesteps]
        write_text(self.progress, "".join(json.dumps(p) + "\n" for p in kept))


def read_progress(file: Path) -> list[dict[str, Any]]:
    """The points of a learning curve; what a kill cut short, or is no point, is left out."""
    try:
        lines = file.read_bytes().split(b"\n") if file.is_file() else []
    except OSError as error:
        raise ResultError(f"cannot read {file}: {error.strerror}") from error
    points: list[dict[str, Any]] = []
    for line in filter(None, lines):
        with contextlib.suppress(ResultError):
            point = parse_object(line, str(file), ResultError)
            if type(point.get("timesteps")) is int and isinstance(point.get("speedup"), int | float | None):
                points.append(point)
    return points


def new_run(runs: Path, name: str | None, config: TrainConfig) -> RunFolder:
    """A run that begins.

    Raises:
        ResultError: the name cannot be that of a folder, there is a folder of that name, or it cannot be written.
    """
    check_run_name(name)
    check_writable(runs)
    kind = config.env.rpartition("/")[2].removesuffix("-v0").lower()
    run = RunFolder(runs / _claim(runs, time.strftime(f"{kind}-%Y%m%d-%H%M%S") if name is None else name, name is None))
    write_text(run.path / CONFIG_FILE, json.dumps(config.to_json(), indent=2) + "\n")
    return run


def _claim(runs: Path, name: str, may_be_numbered: bool) -> str:
    """Make the folder of a new run, so that no other run that begins now takes it too; its name."""
    names = itertools.chain([name], (f"{name}-{n}" for n in itertools.count(2)))
    for found in names:
        folder = runs / found
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if may_be_numbered:
                continue
            if (folder / CONFIG_FILE).exists():
                finished = RunFolder(folder).state().get("finished", False)
                advice = "it is finished, so give" if finished else "give --resume to continue it, or"
                raise ResultError(f"there is a run {name!r} in {runs}; {advice} another --name") from None
            if not folder.is_dir() or any(folder.iterdir()):
                raise ResultError(f"{folder} is there and is no run; give another --name") from None
        except OSError as error:
            raise ResultError(f"cannot write to the folder {folder}: {error.strerror}; name another one") from error
        break
    return found


def check_run_name(name: str | None) -> None:
    """Whether a run can have this name; None leaves the choice to hlogym.

    Raises:
        ResultError: it cannot be that of a folder.
    """
    if name is not None and (reason := why_no_file_name(name)) is not None:
        raise ResultError(f"no run can be called so, because a folder is named after it: {reason}; give another --name")


def all_runs(runs: Path) -> list[RunFolder]:
    """The runs in a folder, oldest first; folders of other programs are left out."""
    found = []
    for config in runs.glob(f"*/{CONFIG_FILE}") if runs.is_dir() else ():
        with contextlib.suppress(OSError, HlogymError):
            if is_run(config.parent):
                found.append((config.stat().st_mtime, config.parent))
    return [RunFolder(path) for _, path in sorted(found)]


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a training run."""
    try:
        return read_object(folder / CONFIG_FILE, ResultError).keys() >= _SETTINGS_OF_A_RUN
    except ResultError:
        return False


def unfinished_run(runs: Path, name: str | None) -> RunFolder | None:
    """The newest run that was cut short, or the one of that name; None when there is none to continue.

    Raises:
        ResultError: the state of the run of that name cannot be read.
    """
    found = [r for r in all_runs(runs) if name is None or r.name == name]
    for run in reversed(found):
        try:
            finished = run.state().get("finished", False)
        except ResultError:
            if name is not None:
                raise
            continue  # one damaged run is no reason to leave the others
        if not finished:
            return run
    return None


def finished_run(runs: Path, name: str) -> RunFolder | None:
    """The run of that name, if it has come to its end."""
    return next((r for r in all_runs(runs) if r.name == name and r.state().get("finished", False)), None)


def find_run(runs: Path, name: str) -> RunFolder:
    """A run by its name, its folder, or its MLflow id.

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
