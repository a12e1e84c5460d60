"""The folder of an exported policy: a description in JSON and the weights, read with NumPy only.

policy.json          format, feature version, other fields of that kind of policy, provenance, checksum of the weights
policy.safetensors   weights, float32

Other files in the folder are never touched.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.errors import PolicyError
from compiler.learned.weights import parse_weights, read_weights_file, weights_to_bytes
from compiler.support.files import DRAFT_PREFIX, check_folder, folder_lock, made_folder, write_draft
from compiler.support.json_reading import read_object
from compiler.support.paths import is_folder

__all__ = [
    "check_policy_target",
    "copy_policy_folder",
    "describe_policy",
    "is_policy_folder",
    "policy_files",
    "read_number",
    "read_policy_folder",
    "write_policy_folder",
]

DESCRIPTION_FILE, WEIGHTS_FILE = "policy.json", "policy.safetensors"
_FORMATS = "hlogym-"
"""Prefix of the `format` of every policy of hlogym: other programs write files called policy.json too."""
_CHECKSUM, _UNFINISHED = "weights_sha256", ""
Array = npt.NDArray[np.float32]


def read_number(description: Mapping[str, Any], name: str) -> float:
    """Return a number of a description that must not be negative.

    Raises:
        PolicyError: it is missing, negative, not finite or no number.
    """
    value = description.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise PolicyError(f"its {name} must be a number that is not negative, not {value!r:.80}")
    return float(value)


def is_policy_folder(folder: Path) -> bool:
    """Check whether a folder holds a policy of hlogym of any kind."""
    try:
        describe_policy(folder)
    except PolicyError:
        return False
    return True


def describe_policy(folder: Path) -> dict[str, Any]:
    """Return the description of a policy of any kind.

    Raises:
        PolicyError: there is none, or it cannot be read.
    """
    file = folder / DESCRIPTION_FILE
    if not is_folder(folder):
        raise PolicyError(f"there is no policy folder {folder}")
    if not file.exists():
        inner = folder / "policy"
        hint = f"; did you mean {inner}?" if (inner / DESCRIPTION_FILE).exists() else ""
        raise PolicyError(f"{folder} is not a policy: it has no {DESCRIPTION_FILE}{hint}")
    description = read_object(file, PolicyError)
    if not str(description.get("format")).startswith(_FORMATS):
        raise PolicyError(
            f"{file} does not describe a policy of hlogym: its format is {description.get('format')!r:.80}"
        )
    return description


def read_policy_folder(folder: Path, kind: str, feature_version: int) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the description and the weights of a policy.

    Args:
        folder: of the policy.
        kind: its `format`.
        feature_version: of the features in this version of hlogym; weights learned on others are refused.

    Raises:
        PolicyError: there is no policy, it is of another kind or version, or its weights cannot be read or do not
            belong to the description.
    """
    found = describe_policy(folder)["format"]
    if found != kind:  # before the weights, which a policy for a whole compilation does not have
        raise PolicyError(f"{folder / DESCRIPTION_FILE} describes {found!r:.80} instead of {kind!r}")
    description, data = _read_both(folder)
    if description.get(_CHECKSUM) == _UNFINISHED:
        _check_whole(folder, description, data)
    version = description.get("feature_version")
    if type(version) is not int or version != feature_version:
        raise PolicyError(
            f"the policy in {folder} was learned on feature version {version!r:.80}, but this compiler has "
            f"version {feature_version}; train it again, or use the version of hlogym that made it"
        )
    _check_provenance(folder, description.setdefault("provenance", {}))
    weights = parse_weights(data, str(folder / WEIGHTS_FILE))
    _check_whole(folder, description, data)
    return description, weights


def _read_both(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Return the description and the bytes of the weights, if possible of one policy."""
    for _ in range(3):  # another process may be replacing one file after the other
        description, data = describe_policy(folder), read_weights_file(folder / WEIGHTS_FILE)
        if _belong_together(description, data):
            break
    return description, data


def _check_whole(folder: Path, description: Mapping[str, Any], data: bytes) -> None:
    if not _belong_together(description, data):
        raise PolicyError(
            f"{folder / WEIGHTS_FILE} does not hold the weights that {DESCRIPTION_FILE} was written for: writing the "
            "policy was interrupted, or a file was changed; export it again"
        )


def _belong_together(description: Mapping[str, Any], data: bytes) -> bool:
    """Check whether weights belong to a description; descriptions of earlier versions have no checksum."""
    return bool(description.get(_CHECKSUM, _digest(data)) == _digest(data))


def _check_provenance(folder: Path, provenance: Any) -> None:
    if not isinstance(provenance, dict):
        raise PolicyError(f"{folder / DESCRIPTION_FILE}: provenance must be an object")
    programs = provenance.get("programs", [])
    if not isinstance(programs, list) or not all(isinstance(p, str) for p in programs):
        raise PolicyError(f"{folder / DESCRIPTION_FILE}: the programs of its provenance must be a list of names")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def check_policy_target(folder: Path) -> None:
    """Check before a policy is made that it can be written to a folder.

    Raises:
        PolicyError: the folder holds something else than a policy of hlogym, or cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise PolicyError(f"{folder} exists and is no folder; name another one")
    try:
        used = folder.is_dir() and any(not p.name.startswith(DRAFT_PREFIX) for p in folder.iterdir())
    except OSError as error:
        raise PolicyError(f"cannot write the policy to {folder}: {error.strerror}") from error
    if used and not is_policy_folder(folder):
        raise PolicyError(f"{folder} exists and is no policy folder of hlogym; name another one")
    try:
        check_folder(folder)
    except OSError as error:
        raise PolicyError(f"cannot write the policy to {folder}: {error.strerror}") from error


def write_policy_folder(folder: Path, description: Mapping[str, Any], weights: Mapping[str, Array]) -> None:
    """Write a policy's description and weights; a policy that is there is replaced, other files are left.

    A kill at any moment leaves the old policy, or the new one, or one that is refused because its weights do not
    belong to its description.

    Raises:
        PolicyError: the folder cannot be written, or holds something else than a policy of hlogym.
    """
    check_policy_target(folder)
    data = weights_to_bytes(weights)
    _replace(folder, {**description, _CHECKSUM: _digest(data)}, data)


def copy_policy_folder(source: Path, target: Path) -> None:
    """Copy the policy of one folder, without other files, into another.

    Raises:
        PolicyError: there is no complete policy, or the target cannot be written.
    """
    check_policy_target(target)
    description, data = _read_whole(source)
    if source.resolve() != target.resolve():
        _replace(target, description, data)


def policy_files(folder: Path) -> dict[str, bytes]:
    """Return the contents of the files of the policy in a folder, by name, as `copy_policy_folder` copies them.

    Raises:
        PolicyError: there is no complete policy.
    """
    description, data = _read_whole(folder)
    return {DESCRIPTION_FILE: _to_bytes(description), WEIGHTS_FILE: data}


def _read_whole(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Return the description, with the checksum of the weights, and the bytes of the weights."""
    description, data = _read_both(folder)
    _check_whole(folder, description, data)
    return {**description, _CHECKSUM: _digest(data)}, data


def _replace(folder: Path, description: Mapping[str, Any], weights: bytes) -> None:
    try:
        with made_folder(folder), _drafts(folder) as draft:
            # A full disk is an error here, before anything is replaced.
            new_weights, new_description = draft(weights), draft(_to_bytes(description))
            with folder_lock(folder):
                meanwhile = _meanwhile(folder, description)
                if meanwhile is not None:
                    draft(_to_bytes(meanwhile)).replace(folder / DESCRIPTION_FILE)
                new_weights.replace(folder / WEIGHTS_FILE)
                new_description.replace(folder / DESCRIPTION_FILE)
    except OSError as error:
        raise PolicyError(f"cannot write the policy to {folder}: {error.strerror}") from error


@contextlib.contextmanager
def _drafts(folder: Path) -> Iterator[Callable[[bytes], Path]]:
    """Return a function that writes a draft into a folder; those that are left at the end of the block are removed."""
    drafts: list[Path] = []

    def draft(contents: bytes) -> Path:
        drafts.append(write_draft(folder, contents, durable=True))
        return drafts[-1]

    try:
        yield draft
    finally:
        for left in drafts:
            with contextlib.suppress(OSError):
                left.unlink()


def _meanwhile(folder: Path, description: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the description of the folder while it has new weights and no new description; None: the present one."""
    if not (folder / DESCRIPTION_FILE).exists():
        # Without a description the weights would look like a file of another program.
        return {"format": description["format"], _CHECKSUM: _UNFINISHED}
    old = describe_policy(folder)
    if _CHECKSUM in old:
        return None
    # A description without a checksum would accept the new weights.
    weights = folder / WEIGHTS_FILE
    return {**old, _CHECKSUM: _digest(read_weights_file(weights)) if weights.is_file() else _UNFINISHED}


def _to_bytes(description: Mapping[str, Any]) -> bytes:
    return (json.dumps(description, indent=2) + "\n").encode()
