"""NVRTC without a GPU: whether it compiles CUDA C++, and its messages."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import Any

from compiler.backends.cuda.nvrtc import OPTIONS


def has_nvrtc() -> bool:
    """Check whether NVRTC is installed."""
    return all(importlib.util.find_spec(m) for m in ("cuda", "cuda.bindings", "cuda.pathfinder"))


def nvrtc_errors(source: str, architecture: str) -> str:
    """Return the errors of NVRTC for a source and an architecture such as "sm_90", "" if there are none."""
    nvrtc, headers = _nvrtc()
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", 0, [], [])
    options = [*OPTIONS, f"--gpu-architecture={architecture}", f"-I{headers}"]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    # NVRTC writes into this object. It needs at least two bytes, because Python caches the objects of single bytes.
    log = bytes(size + 1)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(program)
    return "" if result == nvrtc.nvrtcResult.NVRTC_SUCCESS else log.decode().strip("\0 ")


@cache
def _nvrtc() -> tuple[Any, str]:
    """Return the module and the folder with the headers of the CUDA runtime."""
    pathfinder: Any = importlib.import_module("cuda.pathfinder")
    return importlib.import_module("cuda.bindings.nvrtc"), pathfinder.find_nvidia_header_directory("cudart")
