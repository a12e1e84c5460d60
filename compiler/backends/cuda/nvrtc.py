"""Compilation of CUDA C++ to cubins by NVRTC, which needs no GPU.

NVRTC is reached through CuPy where that is installed, else as a shared library: that of NVIDIA's wheels or of a CUDA
toolkit.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from compiler.backends.cuda.nvrtc_process import ProcessNvrtc
from compiler.codegen.kernel_spec import KernelSpec
from compiler.codegen.printing import print_cuda
from compiler.errors import BackendError, CodegenError

__all__ = ["OPTIONS", "Compiler", "compiler", "header_options", "source_of"]

OPTIONS = ("--std=c++17", "-default-device")
"""Options of all kernels, without the architecture."""
HEADER = "cuda_fp16.h"
_LOG_CHARACTERS = 4000


class Compiler(Protocol):
    """NVRTC, however it is reached."""

    def version(self) -> str:
        """Return the version, such as "13.0"."""
        ...

    def architectures(self) -> tuple[int, ...]:
        """Return the numbers of the architectures that it compiles for, such as 90; none if it does not tell."""
        ...

    def compile(self, source: str, options: Sequence[str]) -> tuple[bytes, str]:
        """Return the cubin of a source and NVRTC's log; raise CodegenError with the log if it is rejected."""
        ...


def source_of(kernels: Sequence[KernelSpec]) -> str:
    """Return the source of a file with the distinct kernels."""
    distinct = {k.symbol: k.source for k in kernels}
    return print_cuda.preamble() + "\n" + "\n".join(distinct.values())


def compiler() -> Compiler:
    """Return NVRTC; raise BackendError if it is not installed."""
    try:
        bound = importlib.import_module("cupy.cuda").nvrtc
        bound.getVersion()
    except Exception:  # CuPy is missing, or its binding finds no library; the types cannot be named without CuPy
        bound = None
    return _library() if bound is None else _CupyNvrtc(bound)


class _CupyNvrtc:
    """NVRTC through CuPy's binding."""

    def __init__(self, bound: Any) -> None:
        self._nvrtc = bound

    def version(self) -> str:
        return ".".join(map(str, self._nvrtc.getVersion()))

    def architectures(self) -> tuple[int, ...]:
        listed = getattr(self._nvrtc, "getSupportedArchs", None)
        return () if listed is None else tuple(map(int, listed()))

    def compile(self, source: str, options: Sequence[str]) -> tuple[bytes, str]:
        program = self._nvrtc.createProgram(source, "kernels.cu", (), ())
        try:
            try:
                self._nvrtc.compileProgram(program, tuple(options))
            except self._nvrtc.NVRTCError as e:
                raise _rejected(self._nvrtc.getProgramLog(program) or str(e)) from None
            return self._nvrtc.getCUBIN(program), self._nvrtc.getProgramLog(program)
        finally:
            self._nvrtc.destroyProgram(program)


class _LibraryNvrtc:
    """NVRTC as a shared library, which processes of their own load."""

    def __init__(self, path: str) -> None:
        self._library = ProcessNvrtc(path)
        self._library.version()

    def version(self) -> str:
        return self._library.version()

    def architectures(self) -> tuple[int, ...]:
        return self._library.architectures()

    def compile(self, source: str, options: Sequence[str]) -> tuple[bytes, str]:
        image, log = self._library.compile(source, options)
        if image is None:
            raise _rejected(log)
        return image, log


def _rejected(log: str) -> CodegenError:
    return CodegenError(f"NVRTC rejected a kernel:\n{log.strip()[:_LOG_CHARACTERS]}")


@functools.lru_cache(maxsize=1)
def _library() -> _LibraryNvrtc:
    """Find NVRTC's shared library; raise BackendError if there is none."""
    tried = []
    for path in (_beside_headers, lambda: "libnvrtc.so", _found_by_pathfinder):
        try:
            return _LibraryNvrtc(path())
        except Exception as e:  # the pathfinder's errors have types of their own
            tried.append(str(e).splitlines()[0] if str(e) else type(e).__name__)
    raise BackendError(
        f"CUDA kernels are compiled by NVRTC, which is not installed ({tried[-1]}): install nvidia-cuda-nvrtc or CuPy"
    )


def _beside_headers() -> str:
    folder = header_folder().parent
    found = sorted([*folder.glob("lib*/libnvrtc.so*"), *folder.parent.glob("cuda_nvrtc/lib/libnvrtc.so*")])
    if not found:
        raise BackendError(f"{folder} has no libnvrtc.so")
    return str(found[0])


def _found_by_pathfinder() -> str:
    pathfinder: Any = importlib.import_module("cuda.pathfinder")
    return str(pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path)  # loads it here, too


# ---- headers


def header_options(source: str) -> tuple[str, ...]:
    """Return the options by which NVRTC finds the headers that a source includes; none if it includes none."""
    return (f"-I{header_folder()}",) if re.search(r"^\s*#\s*include\s*<", source, re.MULTILINE) else ()


@functools.lru_cache(maxsize=1)
def header_folder() -> Path:
    """Return the folder of CUDA's headers; raise BackendError if they are not installed."""
    for folder in _header_folders():
        if (folder / HEADER).is_file():
            return folder
    raise BackendError(
        f"CUDA's header {HEADER} is not found: install nvidia-cuda-runtime (for CUDA 12: nvidia-cuda-runtime-cu12), "
        "or set CUDA_PATH to the folder of a CUDA toolkit"
    )


def _header_folders() -> list[Path]:
    out = [Path(os.environ[v]) / "include" for v in ("CUDA_PATH", "CUDA_HOME") if os.environ.get(v)]
    try:
        pathfinder: Any = importlib.import_module("cuda.pathfinder")
        found = pathfinder.find_nvidia_header_directory("cudart")
        out += [Path(found)] if found else []
    except Exception:  # not installed, or an older version without this function
        out += []
    try:
        packages = importlib.import_module("nvidia").__path__  # a namespace package, of NVIDIA's wheels
    except ImportError:
        packages = []
    for package in packages:
        out += [p / "include" for p in sorted(Path(package).glob("cu[0-9]*"))]
        out.append(Path(package) / "cuda_runtime" / "include")
    return [
        *out,
        Path("/usr/local/cuda/include"),
        *sorted(Path("/usr/local").glob("cuda-*/include")),
        Path("/usr/include"),
    ]
