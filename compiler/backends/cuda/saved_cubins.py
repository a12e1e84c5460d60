"""Cubins in saved programs: one file per architecture, with an array of bytes per kernel."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from compiler.backends.cuda.cubins import ARCHITECTURE, Cubin, read_cubin, stored_cubin
from compiler.runtime.saved_folder import SavedProgramError

__all__ = ["file_of", "read_cubins", "write_cubins"]


def file_of(architecture: str) -> str:
    """Return the name of the file with the cubins of an architecture; raise SavedProgramError if it is not one."""
    if not isinstance(architecture, str) or not ARCHITECTURE.fullmatch(architecture):
        raise SavedProgramError(f"the program was saved for an unknown architecture {architecture!r}; save it again")
    return f"kernels-{architecture}.npz"


def write_cubins(folder: Path, architecture: str, cubins: Mapping[str, Cubin]) -> Path:
    """Write cubins to a file in a folder and return its path."""
    path = folder / file_of(architecture)
    arrays = {symbol: np.frombuffer(stored_cubin(c), np.uint8) for symbol, c in cubins.items()}
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    return path


def read_cubins(architecture: str, data: bytes) -> dict[str, Cubin]:
    """Return the cubins in the data of a file, by symbol; raise SavedProgramError if one is damaged."""
    out = {}
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        for symbol in arrays.files:
            found = read_cubin(symbol, architecture, arrays[symbol].tobytes())
            if found is None:
                raise SavedProgramError(f"the compiled kernel {symbol} is damaged; save the program again")
            out[symbol] = found
    return out
