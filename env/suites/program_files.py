"""Files with a program: HLO text with any ending, XLA's protos, and StableHLO as text or bytecode."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from compiler.errors import HlogymError
from compiler.frontends.hlo_proto import hlo_proto, looks_like_proto
from compiler.frontends.stablehlo import stablehlo
from compiler.support.files import read_up_to

__all__ = ["MOST_BYTES", "ProgramFileError", "hlo_text_of", "read_hlo_text"]

MOST_BYTES = 1 << 30
"""Longest program that is read; a device such as /dev/zero has no end."""

_BYTECODE = b"ML\xefR"
_MLIR = re.compile(
    r"^\s*(?:module\b(?!\s*=)|func\.func\b|#\w+\s*=|#loc\b|builtin\.module\b|\"builtin\.module\")", re.MULTILINE
)


class ProgramFileError(HlogymError, ValueError):
    """A file that holds no program in a format that is known."""


def read_hlo_text(path: Path) -> str:
    """Return the program in a file as HLO text; text is returned as it is.

    The contents decide the format, not the ending of the name.

    Raises:
        ProgramFileError: the file is neither HLO nor StableHLO; the message names the formats.
        HloSyntaxError: a file of XLA or MLIR is damaged.
        BackendError: JAX, which reads protos and StableHLO, is not installed.
        OSError: the file cannot be read, or is longer than MOST_BYTES.
    """
    status = path.stat()
    return _read(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=8)
def _read(path: Path, size: int, changed: int) -> str:
    del size, changed  # part of the key
    return hlo_text_of(read_up_to(path, MOST_BYTES), str(path))


def hlo_text_of(data: bytes, where: str) -> str:
    """Return a program as HLO text; see `read_hlo_text`.

    Args:
        data: the contents of a file.
        where: what messages call it.
    """
    if data.startswith(_BYTECODE):
        return str(stablehlo(data, where))
    try:
        text = data.decode("utf-8-sig")  # without the byte order mark with which some editors start a file
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        if looks_like_proto(data):
            return str(hlo_proto(data))
        raise ProgramFileError(
            f"{where} holds no program: it is not text, and neither an HloProto of XLA nor StableHLO bytecode"
        )
    if text.lstrip().startswith("HloModule") or not _MLIR.search(text):
        return text
    return str(stablehlo(text, where))
