"""The folder of one training run: settings, state, checkpoints, progress, plans, policy."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compiler.errors import UnknownNameError
from experiments.config import TrainConfig
from experiments.results import ResultError, check_writable, write_text

__all__ = ["RunFolder", "find_run", "new_run", "unfinished_run"]


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

    @property
    def progress(self) -> Path:
        """The learning curve: one JSON object a line."""
        return self.path / "progress.jsonl"

    def config(self) -> TrainConfig:
        """The settings it was started with."""
        return TrainConfig.from_json(_read(self.path / "config.json"))

    def state(self) -> dict[str, Any]:
        """`run_id` in MLflow and `finished`."""
        file = self.path / "state.json"
        return _read(file) if file.is_file() else {}

    def write_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state."""
        write_text(self.path / "state.json", json.dumps(dict(state)))

    def add_progress(self, point: Mapping[str, Any]) -> None:
        """Append a point to the learning curve."""
        with self.progress.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dict(point)) + "\n")

    def cut_progress(self, timesteps: int) -> None:
        """Drop the points after a checkpoint: those steps are about to be done again."""
        from experiments.report import read_progress

        kept = [p for p in read_progress(self.progress) if p["timesteps"] <= timesteps]
        write_text(self.progress, "".join(json.dumps(p) + "\n" for p in kept))


def _read(file: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ResultError(f"cannot read {file}: {error}") from error
    return data


def new_run(runs: Path, name: str | None, config: TrainConfig) -> RunFolder:
    """A run that begins.

    Raises:
        ResultError: the folder cannot be written, or there is a run of that name.
    """
    check_writable(runs)
    kind = config.env.rpartition("/")[2].removesuffix("-v0").lower()
    run = RunFolder(runs / (name or time.strftime(f"{kind}-%Y%m%d-%H%M%S")))
    if (run.path / "config.json").exists():
        raise ResultError(f"there is a run {run.name!r} in {runs}; give --resume to continue it, or another --name")
    write_text(run.path / "config.json", json.dumps(config.to_json(), indent=2) + "\n")
    return run


def _all_runs(runs: Path) -> list[RunFolder]:
    found = [f.parent for f in runs.glob("*/config.json")] if runs.is_dir() else []
    return [RunFolder(p) for p in sorted(found, key=lambda p: (p / "config.json").stat().st_mtime)]


def unfinished_run(runs: Path, name: str | None) -> RunFolder | None:
    """The newest run that was cut short, or the one of that name; None when there is none to continue."""
    found = [r for r in _all_runs(runs) if name is None or r.name == name]
    open_runs = [r for r in found if not r.state().get("finished", False)]
    return open_runs[-1] if open_runs else None


def find_run(runs: Path, name: str) -> RunFolder:
    """A run by its name, its folder, or its MLflow id.

    Raises:
        UnknownNameError: there is no such run.
    """
    if (Path(name) / "config.json").is_file():
        return RunFolder(Path(name))
    found = _all_runs(runs)
    for run in found:
        if name in (run.name, run.state().get("run_id")):
            return run
    raise UnknownNameError("run", name, (r.name for r in found))
