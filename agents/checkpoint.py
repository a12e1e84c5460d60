"""Checkpoints of a training run: tensors as safetensors, counters as JSON, made whole before they are seen.

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
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from stable_baselines3.common.base_class import BaseAlgorithm

from compiler.errors import HlogymError
from compiler.support.json_reading import read_object

__all__ = ["CheckpointError", "latest_checkpoint", "load_checkpoint", "save_checkpoint"]

KEPT = 2
ABANDONED_SECONDS = 3600.0
_TENSORS, _STATE, _DRAFT = "tensors.safetensors", "state.json", ".draft-"
_NAME = re.compile(r"step-(\d{10,})(?:-(\d+))?")
_DAMAGES = (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RuntimeError)
"""What reading a checkpoint that was changed may raise; CheckpointError is among them."""


class CheckpointError(HlogymError, RuntimeError):
    """A checkpoint that cannot be written or read, and why."""


def save_checkpoint(model: BaseAlgorithm, folder: Path, extra: dict[str, Any]) -> Path:
    """Write weights, optimizer, counters and random state; older checkpoints but one are removed.

    The files are written into a folder of another name which is renamed when they are on the disk, so a kill at any
    moment leaves whole checkpoints only. Whatever else stands in the folder is left.

    Args:
        model: what to save.
        folder: where all checkpoints of the run stand.
        extra: JSON to give back by `load_checkpoint`.

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
        _, _, position, has_gauss, cached = _numpy_state()
        state = {
            "timesteps": model.num_timesteps,
            "updates": model._n_updates,
            "numpy": {"position": position, "has_gauss": has_gauss, "cached": cached},
            "extra": extra,
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
    """A later checkpoint of the same step gets a number: the earlier one must not be gone before it is there."""
    names = itertools.chain([name], (f"{name}-{n}" for n in itertools.count(2)))
    return next(folder / n for n in names if not (folder / n).exists())


def _abandoned(folder: Path) -> list[Path]:
    """Drafts that a kill left; a younger one may belong to a process that is at work."""
    long_ago = time.time() - ABANDONED_SECONDS
    return [p for p in folder.glob(f"{_DRAFT}*") if p.is_dir() and p.stat().st_mtime < long_ago]


def _remove(checkpoint: Path) -> None:
    """Remove what `save_checkpoint` wrote; a folder that holds anything else stays, with what else it holds."""
    with contextlib.suppress(OSError):
        # The description first: without it the folder is no checkpoint any more.
        for name in (_STATE, _TENSORS):
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
    """NumPy's global generator, from which SB3 draws the order of its batches."""
    return cast("tuple[str, npt.NDArray[np.uint32], int, int, float]", np.random.get_state(legacy=True))


def _checkpoints(folder: Path) -> list[Path]:
    """The whole ones, oldest first; folders and files of others are none."""
    found = []
    for path in folder.glob("step-*") if folder.is_dir() else ():
        name = _NAME.fullmatch(path.name)
        if name is not None and all((path / file).is_file() for file in (_STATE, _TENSORS)):
            found.append((int(name[1]), int(name[2] or 1), path))
    return [path for *_, path in sorted(found)]


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest one, if there is any."""
    found = _checkpoints(folder)
    return found[-1] if found else None


def load_checkpoint(model: BaseAlgorithm, checkpoint: Path) -> dict[str, Any]:
    """Put a checkpoint's state into a model of the same configuration; gives back `extra`.

    Raises:
        CheckpointError: it cannot be read, or belongs to a model of another shape.
    """
    try:
        tensors = load_file(checkpoint / _TENSORS)
        state = read_object(checkpoint / _STATE, CheckpointError)
        policy = {k.removeprefix("policy."): v for k, v in tensors.items() if k.startswith("policy.")}
        model.policy.load_state_dict(policy)
        _load_optimizer(model, tensors)
        torch.set_rng_state(tensors["torch_rng"])
        n = state["numpy"]
        keys = tensors["numpy_rng"].numpy().astype(np.uint32)
        np.random.set_state(("MT19937", keys, n["position"], n["has_gauss"], n["cached"]))
        extra = state["extra"]
        if not (type(state["timesteps"]) is type(state["updates"]) is int and isinstance(extra, dict)):
            raise ValueError(f"{_STATE} has a value of another type")
        model.num_timesteps, model._n_updates = state["timesteps"], state["updates"]
    except _DAMAGES as error:
        raise CheckpointError(
            f"cannot resume from {checkpoint}: {error}; move it away to resume from the one before"
        ) from error
    return extra


def _load_optimizer(model: BaseAlgorithm, tensors: dict[str, torch.Tensor]) -> None:
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, slot = name.split(".")
            state.setdefault(int(index), {})[slot] = value
    groups = model.policy.optimizer.state_dict()["param_groups"]
    model.policy.optimizer.load_state_dict({"state": state, "param_groups": groups})
