"""The folder of an exported policy: what it is, in JSON, and its weights. Read with numpy alone.

policy.json          format, feature version, and what else that kind of policy needs; provenance; the weights' checksum
policy.safetensors   weights, float32

The folder may hold other files too; nothing here touches them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.errors import PolicyError
from compiler.learned.weights import parse_weights, read_weights_file, weights_to_bytes
from compiler.support.files import DRAFT_PREFIX, check_folder, folder_lock, write_draft
from compiler.support.json_reading import read_object

__all__ = [
    "check_policy_target",
    "copy_policy_folder",
    "describe_policy",
    "is_policy_folder",
    "read_policy_folder",
    "write_policy_folder",
]

DESCRIPTION_FILE, WEIGHTS_FILE = "policy.json", "policy.safetensors"
_FORMATS = "hlogym-"
"""How the `format` of every policy here begins: other programs write files called policy.json too."""
_CHECKSUM, _UNFINISHED = "weights_sha256", ""
Array = npt.NDArray[np.float32]


def is_policy_folder(folder: Path) -> bool:
    """Whether there is a policy of hlogym, of whatever kind."""
    try:
        describe_policy(folder)
    except PolicyError:
        return False
    return True


def describe_policy(folder: Path) -> dict[str, Any]:
    """The description of a policy of any kind.

    Raises:
        PolicyError: there is none, or it cannot be read.
    """
    file = folder / DESCRIPTION_FILE
    if not folder.is_dir():
        raise PolicyError(f"there is no policy folder {folder}")
    if not file.exists():
        raise PolicyError(f"{folder} is no policy: it has no {DESCRIPTION_FILE}")
    told = read_object(file, PolicyError)
    if not str(told.get("format")).startswith(_FORMATS):
        raise PolicyError(f"{file} does not describe a policy of hlogym: its format is {told.get('format')!r:.80}")
    return told


def read_policy_folder(folder: Path, kind: str, feature_version: int) -> tuple[dict[str, Any], dict[str, Array]]:
    """Description and weights of a policy.

    Args:
        folder: of the policy.
        kind: its `format`.
        feature_version: of the features here; weights learned on others mean nothing.

    Raises:
        PolicyError: there is no policy, it is of another kind or version, or its weights cannot be read or are not
            those it was written with.
    """
    told, data = _read_both(folder)
    if told.get(_CHECKSUM) == _UNFINISHED:
        _check_whole(folder, told, data)
    if told["format"] != kind:
        raise PolicyError(f"{folder / DESCRIPTION_FILE} describes {told['format']!r:.80}, and {kind!r} is needed")
    version = told.get("feature_version")
    if type(version) is not int or version != feature_version:
        raise PolicyError(
            f"the policy in {folder} was learned on feature version {version!r:.80}, and this compiler has "
            f"version {feature_version}; train it again, or use the hlogym that made it"
        )
    _check_provenance(folder, told.setdefault("provenance", {}))
    weights = parse_weights(data, str(folder / WEIGHTS_FILE))
    _check_whole(folder, told, data)
    return told, weights


def _read_both(folder: Path) -> tuple[dict[str, Any], bytes]:
    """The description and the bytes of the weights, of one policy where that can be had."""
    for _ in range(3):  # another process may be about to replace one after the other
        told, data = describe_policy(folder), read_weights_file(folder / WEIGHTS_FILE)
        if _belong_together(told, data):
            break
    return told, data


def _check_whole(folder: Path, told: Mapping[str, Any], data: bytes) -> None:
    if not _belong_together(told, data):
        raise PolicyError(
            f"{folder / WEIGHTS_FILE} does not hold the weights that {DESCRIPTION_FILE} was written for: the policy "
            "was not written to its end, or a file was changed; export it again"
        )


def _belong_together(told: Mapping[str, Any], data: bytes) -> bool:
    """Whether weights are those of a description; those of earlier versions do not say."""
    return bool(told.get(_CHECKSUM, _digest(data)) == _digest(data))


def _check_provenance(folder: Path, provenance: Any) -> None:
    if not isinstance(provenance, dict):
        raise PolicyError(f"{folder / DESCRIPTION_FILE}: provenance must be an object")
    programs = provenance.get("programs", [])
    if not isinstance(programs, list) or not all(isinstance(p, str) for p in programs):
        raise PolicyError(f"{folder / DESCRIPTION_FILE}: the programs of its provenance must be a list of names")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def check_policy_target(folder: Path) -> None:
    """Whether a policy could be written there, as far as can be told before there is one.

    Raises:
        PolicyError: the folder holds something else and no policy of hlogym, or cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise PolicyError(f"{folder} is there and is no folder; name another one")
    try:
        used = folder.is_dir() and any(not p.name.startswith(DRAFT_PREFIX) for p in folder.iterdir())
    except OSError as error:
        raise PolicyError(f"cannot write the policy to {folder}: {error.strerror}") from error
    if used and not is_policy_folder(folder):
        raise PolicyError(f"{folder} is there and is no policy folder of hlogym; name another one")
    try:
        check_folder(folder)
    except OSError as error:
        raise PolicyError(f"cannot write the policy to {folder}: {error.strerror}") from error


def write_policy_folder(folder: Path, description: Mapping[str, Any], weights: Mapping[str, Array]) -> None:
    """Write a policy's description and weights; a policy that is there is replaced, other files are left.

    A kill at any moment leaves the old policy, or the new one, or one that is refused because its weights are not
    those of its description.

    Raises:
        PolicyError: the folder cannot be written, or holds something else and no policy of hlogym.
    """
    check_policy_target(folder)
    data = weights_to_bytes(weights)
    _replace(folder, {**description, _CHECKSUM: _digest(data)}, data)


def copy_policy_folder(source: Path, target: Path) -> None:
    """Write the policy of one folder, and nothing else of it, into another.

    Raises:
        PolicyError: there is no whole policy, or the target cannot be written.
    """
    check_policy_target(target)
    told, data = _read_both(source)
    _check_whole(source, told, data)
    if source.resolve() != target.resolve():
        _replace(target, {**told, _CHECKSUM: _digest(data)}, data)


def _replace(folder: Path, description: Mapping[str, Any], weights: bytes) -> None:
    drafts: list[Path] = []

    def draft(contents: bytes) -> Path:
        drafts.append(write_draft(folder, contents, durable=True))
        return drafts[-1]

    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A disk that has no room left shows here, before anything is replaced.
        new_weights, new_description = draft(weights), draft(_to_bytes(description))
        with folder_lock(folder):
            meanwhile = _meanwhile(folder, description)
            if meanwhile is not None:
                draft(_to_bytes(meanwhile)).replace(folder / DESCRIPTION_FILE)
            new_weights.replace(folder / WEIGHTS_FILE)
            new_description.replace(folder / DESCRIPTION_FILE)
    except OSError as error:
        raise PolicyError(f"cannot write the policy to {folder}: {error.strerror}") from error
    finally:
        for left in drafts:
            with contextlib.suppress(OSError):
                left.unlink()


def _meanwhile(folder: Path, description: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What has to describe the folder between its new weights and their description; None: what stands there does."""
    if not (folder / DESCRIPTION_FILE).exists():
        # Weights alone would pass for somebody's file; this says whose they are.
        return {"format": description["format"], _CHECKSUM: _UNFINISHED}
    old = describe_policy(folder)
    if _CHECKSUM in old:
        return None
    # One of an earlier version would take the new weights for its own.
    weights = folder / WEIGHTS_FILE
    return {**old, _CHECKSUM: _digest(read_weights_file(weights)) if weights.is_file() else _UNFINISHED}


def _to_bytes(description: Mapping[str, Any]) -> bytes:
    return (json.dumps(description, indent=2) + "\n").encode()
