"""Checkpoints of a training run: tensors as safetensors, counters as JSON, made whole before they are seen.

SB3's own zip files unpickle what they load; these cannot run code.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from stable_baselines3.common.base_class import BaseAlgorithm

from compiler.errors import HlogymError

__all__ = ["CheckpointError", "latest_checkpoint", "load_checkpoint", "save_checkpoint"]

KEPT = 2
_TENSORS, _STATE = "tensors.safetensors", "state.json"


class CheckpointError(HlogymError, RuntimeError):
    """A checkpoint that cannot be written or read, and why."""


def save_checkpoint(model: BaseAlgorithm, folder: Path, extra: dict[str, Any]) -> Path:
    """Write weights, optimizer, counters and random state; older checkpoints but one are removed.

    The files are written into a folder of another name which is renamed when they are on the disk, so a kill at any
    moment leaves whole checkpoints only.

    Args:
        model: what to save.
        folder: where all checkpoints of the run stand.
        extra: JSON to give back by `load_checkpoint`.
    """
    final = folder / f"step-{model.num_timesteps:010d}"
    draft = folder / f".draft-{os.getpid()}"
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
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
        shutil.rmtree(final, ignore_errors=True)
        draft.replace(final)
    except OSError as error:
        raise CheckpointError(f"cannot write the checkpoint {final}: {error.strerror}") from error
    for old in _checkpoints(folder)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return final


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
    return sorted(folder.glob("step-*")) if folder.is_dir() else []


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
        state: dict[str, Any] = json.loads((checkpoint / _STATE).read_text(encoding="utf-8"))
        policy = {k.removeprefix("policy."): v for k, v in tensors.items() if k.startswith("policy.")}
        model.policy.load_state_dict(policy)
        _load_optimizer(model, tensors)
        torch.set_rng_state(tensors["torch_rng"])
        n = state["numpy"]
        keys = tensors["numpy_rng"].numpy().astype(np.uint32)
        np.random.set_state(("MT19937", keys, n["position"], n["has_gauss"], n["cached"]))
        model.num_timesteps, model._n_updates = state["timesteps"], state["updates"]
        extra: dict[str, Any] = state["extra"]
    except (OSError, SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise CheckpointError(f"cannot resume from {checkpoint}: {error}") from error
    return extra


def _load_optimizer(model: BaseAlgorithm, tensors: dict[str, torch.Tensor]) -> None:
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, slot = name.split(".")
            state.setdefault(int(index), {})[slot] = value
    groups = model.policy.optimizer.state_dict()["param_groups"]
    model.policy.optimizer.load_state_dict({"state": state, "param_groups": groups})
