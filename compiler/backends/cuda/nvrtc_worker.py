"""A process that compiles CUDA C++ by NVRTC's shared library for another one, and ends when it is idle.

The library and what it allocates take some 100 MB, which it never gives back. This file imports the standard library
alone, so that such a process starts quickly: `python -I -S nvrtc_worker.py LIBRARY`. Each request is a line of JSON,
`{"source": ..., "options": [...]}` or `{}`; each reply is one, too, and then as many bytes as its `size` says.
"""

from __future__ import annotations

import ctypes
import json
import select
import sys
from collections.abc import Sequence
from typing import Any

IDLE_SECONDS = 3.0
"""Time without a request after which the process ends."""


class NvrtcError(Exception):
    """A call of NVRTC failed other than by rejecting a source."""


class Library:
    """NVRTC's shared library.

    Args:
        path: of the library, or its name if the loader finds it.

    Raises:
        OSError: there is no such library.
    """

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)

    def version(self) -> str:
        """Return the version, such as "13.0"."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def architectures(self) -> tuple[int, ...]:
        """Return the numbers of the architectures that it compiles for."""
        count = ctypes.c_int()
        self._check("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._check("nvrtcGetSupportedArchs", numbers)
        return tuple(numbers)

    def compile(self, source: str, options: Sequence[str]) -> tuple[bytes | None, str]:
        """Return the cubin of a source, None if it is rejected, and the log."""
        program = ctypes.c_void_p()
        self._check("nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
        try:
            arguments = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
            failed = self._library.nvrtcCompileProgram(program, len(options), arguments)
            log = self._bytes(program, "nvrtcGetProgramLog").rstrip(b"\0").decode(errors="replace")
            return (None if failed else self._bytes(program, "nvrtcGetCUBIN")), log
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _bytes(self, program: ctypes.c_void_p, function: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(f"{function}Size", program, ctypes.byref(size))
        data = ctypes.create_string_buffer(max(1, size.value))
        self._check(function, program, data)
        return data.raw[: size.value]

    def _check(self, function: str, *arguments: Any) -> None:
        status = getattr(self._library, function)(*arguments)
        if status:
            raise NvrtcError(f"NVRTC failed: {function} returned {status}")


def _answer(path: str, request: dict[str, Any], loaded: list[Library]) -> tuple[dict[str, Any], bytes]:
    try:
        if not loaded:
            loaded.append(Library(path))
        library = loaded[0]
        if not request:
            return {"version": library.version(), "architectures": library.architectures(), "size": 0}, b""
        image, log = library.compile(request["source"], request["options"])
    except (OSError, AttributeError, NvrtcError) as error:
        return {"error": str(error), "size": 0}, b""
    return {"rejected": image is None, "log": log, "size": len(image or b"")}, image or b""


def main() -> None:
    """Answer requests until there are none for some time."""
    given, taken, loaded = sys.stdin.buffer, sys.stdout.buffer, list[Library]()
    while select.select([given], [], [], IDLE_SECONDS)[0] and (line := given.readline()):
        reply, image = _answer(sys.argv[1], json.loads(line), loaded)
        taken.write(json.dumps(reply).encode() + b"\n" + image)
        taken.flush()


if __name__ == "__main__":
    main()
