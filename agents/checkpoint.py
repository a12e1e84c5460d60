"""Checkpoints of a training run, complete before they become visible.

Tensors are safetensors, counters are JSON, and the replay buffer of an off-policy agent is an .npz file of arrays.

SB3's own zip files unpickle what they load; these cannot run code.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from agents.replay import load_replay, save_replay
from compiler.errors import HlogymError
from compiler.support.json_reading import read_object

__all__ = ["CheckpointError", "InputFeatures", "latest_checkpoint", "load_checkpoint", "save_checkpoint"]

KEPT = 2
ABANDONED_SECONDS = 3600.0
_TENSORS, _STATE, _REPLAY, _DRAFT = "tensors.safetensors", "state.json", "replay.npz", ".draft-"
_NAME = re.compile(r"step-(\d{10,})(?:-(\d+))?")
_DAMAGES = (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RuntimeError)
"""What reading a damaged checkpoint may raise; CheckpointError is among them."""


class CheckpointError(HlogymError, RuntimeError):
    """A checkpoint that cannot be written or read, and why."""


@dataclass(frozen=True)
class InputFeatures:
    """The meaning of a model's inputs; a checkpoint fits only models with the same.

    Attributes:
        version: of the features.
        passes: names of the passes in the order in which the inputs have them.
    """

    version: int
    passes: tuple[str, ...]

    def difference(self, stored: Any) -> str | None:
        """Return how features that a checkpoint has stored differ from these, or None when they do not."""
        if not isinstance(stored, dict) or not isinstance(stored.get("passes"), list):
            return "it was written by an earlier version, which did not store what its features mean"
        if stored.get("version") != self.version:
            return f"it was written for feature version {stored.get('version')!r:.80}, this is version {self.version}"
        then = [str(p) for p in stored["passes"]]
        if then == list(self.passes):
            return None
        added, removed = sorted({*self.passes} - {*then}), sorted({*then} - {*self.passes})
        return (
            "it was written for other passes, or another order of them "
            f"(new: {', '.join(added) or 'none'}; gone: {', '.join(removed) or 'none'})"
        )


def save_checkpoint(model: BaseAlgorithm, folder: Path, features: InputFeatures, extra: Mapping[str, Any]) -> Path:
    """Write weights, optimizer, counters and random state, and remove all older checkpoints but one.

    The files are written into a folder of another name, which is renamed when they are on the disk, so a kill at any
    moment leaves complete checkpoints only. Other files in the folder are left.

    Args:
        model: what to save.
        folder: where all checkpoints of the run are.
        features: the meaning of the model's inputs.
        extra: JSON that `load_checkpoint` returns.

    Returns:
        The folder of the checkpoint.

    Raises:
        CheckpointError: it cannot be written.
    """
    name = f"step-{model.num_timesteps:010d}"
    draft: Path | None = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f"{_DRAFT}{secrets.token_hex(8)}"
        draft.mkdir()
        save_file(_tensors(model), draft / _TENSORS)
        if isinstance(model, OffPolicyAlgorithm) and model.replay_buffer is not None:
            save_replay(model.replay_buffer, draft / _REPLAY)
        _, _, position, has_gauss, cached = _numpy_state()
        state = {
            "timesteps": model.num_timesteps,
            "updates": model._n_updates,
            "calls": getattr(model, "_n_calls", 0),
            "numpy": {"position": position, "has_gauss": has_gauss, "cached": cached},
            "features": asdict(features),
            "extra": dict(extra),
        }
        (draft / _STATE).write_text(json.dumps(state), encoding="utf-8")
        for file in draft.iterdir():
            _flush(file)
        final = _free_name(folder, name)
        draft.replace(final)
    except (OSError, SafetensorError) as error:  # safetensors has its own error for a full disk
        if draft is not None:
            _remove(draft)
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(f"cannot write the checkpoint {folder / name}: {reason}") from error
    for old in [*_checkpoints(folder)[:-KEPT], *_abandoned(folder)]:
        _remove(old)
    return final


def _free_name(folder: Path, name: str) -> Path:
    """Return a path that is not in use: a later checkpoint of the same step gets a number.

    The earlier one must not be removed before the later one is complete.
    """
    names = itertools.chain([name], (f"{name}-{n}" for n in itertools.count(2)))
    return next(folder / n for n in names if not (folder / n).exists())


def _abandoned(folder: Path) -> list[Path]:
    """Return the drafts that a kill left; a younger draft may belong to a process that is writing it."""
    long_ago = time.time() - ABANDONED_SECONDS
    return [p for p in folder.glob(f"{_DRAFT}*") if p.is_dir() and p.stat().st_mtime < long_ago]


def _remove(checkpoint: Path) -> None:
    """Remove what `save_checkpoint` wrote; a folder that holds anything else stays, with its other files."""
    with contextlib.suppress(OSError):
        # The description first: without it the folder is no checkpoint any more.
        for name in (_STATE, _TENSORS, _REPLAY):
            (checkpoint / name).unlink(missing_ok=True)
        checkpoint.rmdir()


def _flush(file: Path) -> None:
    with file.open("rb") as f:
        os.fsync(f.fileno())


def _tensors(model: BaseAlgorithm) -> dict[str, torch.Tensor]:
    tensors = {f"policy.{k}": v.detach().clone().contiguous() for k, v in model.policy.state_dict().items()}
    for i, slots in model.policy.optimizer.state_dict()["state"].items():
        for slot, value in slots.items():
            tensors[f"optimizer.{i}.{slot}"] = torch.as_tensor(value).detach().clone().contiguous()
    tensors["torch_rng"] = torch.get_rng_state()
    tensors["numpy_rng"] = torch.from_numpy(_numpy_state()[1].astype(np.int64))
    return tensors


def _numpy_state() -> tuple[str, npt.NDArray[np.uint32], int, int, float]:
    """Return the state of NumPy's global generator, from which SB3 draws the order of its batches."""
    return cast("tuple[str, npt.NDArray[np.uint32], int, int, float]", np.random.get_state(legacy=True))


def _checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints, oldest first; other folders and files are left out."""
    found = []
    for path in folder.glob("step-*") if folder.is_dir() else ():
        name = _NAME.fullmatch(path.name)
        if name is not None and all((path / file).is_file() for file in (_STATE, _TENSORS)):
            found.append((int(name[1]), int(name[2] or 1), path))
    return [path for *_, path in sorted(found)]


def latest_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint, or None when there is none."""
    found = _checkpoints(folder)
    return found[-1] if found else None


def load_checkpoint(model: BaseAlgorithm, checkpoint: Path, features: InputFeatures) -> dict[str, Any]:
    """Put a checkpoint's state into a model of the same configuration and return its `extra`.

    Args:
        model: where the state goes.
        checkpoint: folder of the checkpoint.
        features: the meaning of the model's inputs.

    Raises:
        CheckpointError: the checkpoint cannot be read, or belongs to a model of another shape or with other features.
    """
    with _damage_in(checkpoint):
        tensors = load_file(checkpoint / _TENSORS)
        state = read_object(checkpoint / _STATE, CheckpointError)
    difference = features.difference(state.get("features"))
    if difference is not None:
        raise CheckpointError(
            f"cannot resume from {checkpoint}: {difference}; start a new run, or resume with the version that wrote it"
        )
    with _damage_in(checkpoint):
        policy = {k.removeprefix("policy."): v for k, v in tensors.items() if k.startswith("policy.")}
        model.policy.load_state_dict(policy)
        _load_optimizer(model, tensors)
        torch.set_rng_state(tensors["torch_rng"])
        n = state["numpy"]
        keys = tensors["numpy_rng"].numpy().astype(np.uint32)
        np.random.set_state(("MT19937", keys, n["position"], n["has_gauss"], n["cached"]))
        extra: Any = state["extra"]
        if not (type(state["timesteps"]) is type(state["updates"]) is int and isinstance(extra, dict)):
            raise ValueError(f"{_STATE} has a value of another type")
        model.num_timesteps, model._n_updates = state["timesteps"], state["updates"]
        if isinstance(model, OffPolicyAlgorithm) and model.replay_buffer is not None:
            load_replay(model.replay_buffer, checkpoint / _REPLAY)
            model._n_calls = int(state["calls"])  # type: ignore[attr-defined]  # DQN's steps until the next target
    return extra


@contextlib.contextmanager
def _damage_in(checkpoint: Path) -> Iterator[None]:
    """Raise CheckpointError instead of the errors of a damaged checkpoint."""
    try:
        yield
    except _DAMAGES as error:
        raise CheckpointError(
            f"cannot resume from {checkpoint}: {error}; move it away to resume from the one before"
        ) from error


def _load_optimizer(model: BaseAlgorithm, tensors: dict[str, torch.Tensor]) -> None:
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, slot = name.split(".")
            state.setdefault(int(index), {})[slot] = value
    groups = model.policy.optimizer.state_dict()["param_groups"]
    model.policy.optimizer.load_state_dict({"state": state, "param_groups": groups})
