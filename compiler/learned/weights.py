"""Named float32 arrays in the safetensors format, read and written with NumPy only and without pickle.

Format: https://github.com/huggingface/safetensors#format. Eight bytes of little-endian length, that many bytes of JSON
(name -> dtype, shape, data_offsets), then the raw data. The reader accepts dense float32 tensors only and checks every
number before it is used, because policy files are untrusted input.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.errors import PolicyError
from compiler.support.files import read_up_to
from compiler.support.json_reading import parse_object

__all__ = ["parse_weights", "read_weights_file", "weights_to_bytes"]

MAX_HEADER_BYTES = 1 << 20
MAX_FILE_BYTES = 1 << 30
Array = npt.NDArray[np.float32]


def read_weights_file(path: Path) -> bytes:
    """Return the bytes of a weights file, which `parse_weights` checks.

    Raises:
        PolicyError: the file is missing, cannot be read, or is larger than MAX_FILE_BYTES.
    """
    try:
        return read_up_to(path, MAX_FILE_BYTES)
    except OSError as error:
        raise PolicyError(f"cannot read the weights: {error.strerror}: {path}") from error


def parse_weights(data: bytes, where: str) -> dict[str, Array]:
    """Return arrays by name from the bytes of a file.

    Args:
        data: the bytes.
        where: the file, for messages.

    Raises:
        PolicyError: the data is incomplete, not of this format, or holds NaN or infinite weights.
    """
    try:
        return _parse(data)
    except ValueError as error:
        raise PolicyError(f"{where} is not a usable weights file: {error}") from error


def _parse(data: bytes) -> dict[str, Array]:
    if len(data) < 8:
        raise ValueError("it is incomplete")
    size = int.from_bytes(data[:8], "little")
    if size > min(MAX_HEADER_BYTES, len(data) - 8):
        raise ValueError("its header is longer than the file")
    header = parse_object(data[8 : 8 + size], "its header", ValueError)
    header.pop("__metadata__", None)
    body = memoryview(data)[8 + size :]
    arrays: dict[str, Array] = {}
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: _offsets(item[1])):
        start, stop = _offsets(entry)
        if start != end:
            raise ValueError(f"tensor {name!r} overlaps another one or leaves a gap")
        arrays[name] = _tensor(name, entry, body[start:stop], stop - start)
        end = stop
    if end != len(body):
        raise ValueError("there is data after the last tensor")
    return arrays


def _offsets(entry: Any) -> tuple[int, int]:
    try:
        start, stop = entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise ValueError("a tensor has no data_offsets") from None
    if not (type(start) is type(stop) is int and 0 <= start <= stop):
        raise ValueError("a tensor has impossible data_offsets")
    return start, stop


def _tensor(name: str, entry: Mapping[str, Any], raw: memoryview, size: int) -> Array:
    shape = entry.get("shape")
    if entry.get("dtype") != "F32":
        raise ValueError(f"tensor {name!r} is {entry.get('dtype')!r:.40}, and only F32 is read")
    if not isinstance(shape, list) or not all(type(d) is int and d >= 0 for d in shape):
        raise ValueError(f"tensor {name!r} has no proper shape")
    if len(raw) != size or size != 4 * math.prod(shape):
        raise ValueError(f"tensor {name!r} is incomplete or of another size than its shape")
    array = np.frombuffer(raw, "<f4").reshape(shape).astype(np.float32)
    if not np.isfinite(array).all():
        raise ValueError(f"tensor {name!r} holds NaN or infinite weights")
    return array


def weights_to_bytes(arrays: Mapping[str, Array]) -> bytes:
    """Return arrays as the bytes of a float32 safetensors file; equal arrays give equal bytes."""
    header: dict[str, Any] = {}
    parts: list[bytes] = []
    at = 0
    for name in sorted(arrays):
        raw = np.ascontiguousarray(arrays[name], dtype="<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(arrays[name].shape), "data_offsets": [at, at + len(raw)]}
        parts.append(raw)
        at += len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(parts)
