"""The folder of an exported policy: what it is, in JSON, and its weights. Read with numpy alone.

policy.json          format, feature version, and what else that kind of policy needs; provenance
policy.safetensors   weights, float32
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.errors import PolicyError
from compiler.weights import read_weights, write_weights

__all__ = ["describe_policy", "is_policy_folder", "read_policy_folder", "write_policy_folder"]

DESCRIPTION_FILE, WEIGHTS_FILE = "policy.json", "policy.safetensors"
Array = npt.NDArray[np.float32]


def is_policy_folder(folder: Path) -> bool:
    """Whether there is a policy, of whatever kind."""
    return (folder / DESCRIPTION_FILE).is_file()


def describe_policy(folder: Path) -> dict[str, Any]:
    """The description of a policy of any kind.

    Raises:
        PolicyError: there is none, or it cannot be read.
    """
    file = folder / DESCRIPTION_FILE
    if not folder.is_dir():
        raise PolicyError(f"there is no policy folder {folder}")
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise PolicyError(f"{folder} is no policy: cannot read {DESCRIPTION_FILE} ({error.strerror})") from error
    except ValueError as error:
        raise PolicyError(f"{file} is damaged: {error}") from error
    if not isinstance(told, dict):
        raise PolicyError(f"{file} does not describe a policy of hlogym")
    return told


def read_policy_folder(folder: Path, kind: str, feature_version: int) -> tuple[dict[str, Any], dict[str, Array]]:
    """Description and weights of a policy.

    Args:
        folder: of the policy.
        kind: its `format`.
        feature_version: of the features here; weights learned on others mean nothing.

    Raises:
        PolicyError: there is no policy, it is of another kind or version, or its weights cannot be read.
    """
    told = describe_policy(folder)
    if told.get("format") != kind:
        raise PolicyError(f"{folder / DESCRIPTION_FILE} describes {told.get('format')!r}, and {kind!r} is needed")
    version = told.get("feature_version")
    if version != feature_version:
        raise PolicyError(
            f"the policy in {folder} was learned on feature version {version}, and this compiler has "
            f"version {feature_version}; train it again, or use the hlogym that made it"
        )
    return told, read_weights(folder / WEIGHTS_FILE)


def write_policy_folder(folder: Path, description: Mapping[str, Any], weights: Mapping[str, Array]) -> None:
    """Write a policy's description and weights; a policy that is there is replaced when the new one is complete.

    Raises:
        PolicyError: the folder cannot be written, or holds something that is no policy.
    """
    if folder.exists() and not is_policy_folder(folder) and (folder.is_file() or any(folder.iterdir())):
        raise PolicyError(f"{folder} is there and is no policy folder; name another one")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as made:
            draft = Path(made) / "policy"
            draft.mkdir()
            write_weights(draft / WEIGHTS_FILE, dict(weights))
            (draft / DESCRIPTION_FILE).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
            if folder.exists():
                shutil.rmtree(folder)
            draft.replace(folder)
    except OSError as error:
        raise PolicyError(f"cannot write the policy to {folder}: {error.strerror}") from error
