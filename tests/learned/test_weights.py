"""Weights files: what safetensors writes is read, and what is damaged is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from compiler.errors import PolicyError
from compiler.learned.weights import parse_weights, read_weights_file, weights_to_bytes

ARRAYS = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a": np.full((4,), -0.5, np.float32),
    "empty": np.zeros((0, 3), np.float32),
}


def read_weights(path: Path) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return parse_weights(read_weights_file(path), str(path))


def test_reads_what_safetensors_wrote(tmp_path: Path) -> None:
    save_file(ARRAYS, tmp_path / "w")
    found = read_weights(tmp_path / "w")
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)


def test_safetensors_reads_what_we_wrote(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(weights_to_bytes(ARRAYS))
    found = load_file(tmp_path / "w")
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    data = weights_to_bytes(ARRAYS)
    for size in range(len(data)):
        (tmp_path / "cut").write_bytes(data[:size])
        with pytest.raises(PolicyError):
            read_weights(tmp_path / "cut")


def _with_header(path: Path, header: object, body: bytes = b"\0" * 8) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


@pytest.mark.parametrize(
    "header",
    [
        [],
        {"a": 3},
        {"a": {"dtype": "F32", "shape": [2]}},
        {"a": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": ["0", "8"]}},
        {
            "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
            "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
        },
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, header: object) -> None:
    with pytest.raises(PolicyError, match="not a usable weights file"):
        read_weights(_with_header(tmp_path / "w", header))


def test_nan_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(weights_to_bytes({"a": np.array([1, np.nan], np.float32)}))
    with pytest.raises(PolicyError, match="'a' holds NaN"):
        read_weights(tmp_path / "w")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="nowhere"):
        read_weights(tmp_path / "nowhere")
