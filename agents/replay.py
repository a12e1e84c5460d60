"""The replay buffer of an off-policy agent as a file of plain arrays, so that resuming loses no experience.

SB3's own file of a buffer is a pickle; this one cannot run code.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer

__all__ = ["load_replay", "save_replay"]

_ARRAYS = ("observations", "actions", "rewards", "dones", "timeouts")
_NEXT, _ROWS, _POSITION = "next_observations", "next_rows", "position"


def save_replay(buffer: ReplayBuffer, file: Path) -> None:
    """Write the filled part of a buffer to an .npz file.

    Of the next observations only those are kept that are not the observation of the row after.

    Raises:
        OSError: the file cannot be written.
    """
    size = buffer.size()
    arrays: dict[str, Any] = {name: getattr(buffer, name)[:size] for name in _ARRAYS}
    following = np.roll(arrays["observations"], -1, axis=0)
    same = (buffer.next_observations[:size] == following).reshape(size, -1).all(axis=1)
    arrays[_ROWS] = np.flatnonzero(~same)
    arrays[_NEXT] = buffer.next_observations[:size][arrays[_ROWS]]
    arrays[_POSITION] = np.array([buffer.pos, int(buffer.full)], np.int64)
    # np.savez_compressed takes ten times as long for a file that is a tenth smaller.
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)


def load_replay(buffer: ReplayBuffer, file: Path) -> None:
    """Fill a buffer from a file of `save_replay`.

    The episodes that were running when it was written count as truncated there: the environments start others.

    Raises:
        OSError, KeyError, ValueError: the file cannot be read, or belongs to a buffer of another shape.
    """
    try:
        with np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in (*_ARRAYS, _ROWS, _NEXT, _POSITION)}
    except (EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{file.name} is damaged: {error}") from error
    position, full = (int(n) for n in arrays[_POSITION])
    size = len(arrays["rewards"])
    if (not 0 <= position < size == buffer.buffer_size) if full else (position != size or size >= buffer.buffer_size):
        most = buffer.buffer_size
        raise ValueError(f"{file.name} has {size} rows and position {position}; the agent's buffer has {most} rows")
    for name in _ARRAYS:
        target = getattr(buffer, name)
        if arrays[name].shape[1:] != target.shape[1:] or arrays[name].dtype != target.dtype:
            raise ValueError(f"{file.name}: {name} has another shape or type than the agent's")
        target[:size] = arrays[name]
    buffer.next_observations[:size] = np.roll(arrays["observations"], -1, axis=0)
    buffer.next_observations[arrays[_ROWS]] = arrays[_NEXT]
    buffer.pos, buffer.full = position, bool(full)
    if size:
        last = (position - 1) % buffer.buffer_size
        buffer.timeouts[last] = np.where(buffer.dones[last] == 0, 1, buffer.timeouts[last])
