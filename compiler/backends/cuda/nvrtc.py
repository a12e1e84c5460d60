"""Compilation of CUDA C++ by NVRTC through CuPy, which is imported when it is first needed."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from compiler.codegen.kernel_spec import KernelSpec
from compiler.codegen.printing import print_cuda
from compiler.errors import BackendError, CodegenError

OPTIONS = ("--std=c++17", "-default-device")


def why_unavailable() -> str | None:
    """Return why the cuda backend does not work on this machine, or None if it works."""
    try:
        cupy()
    except BackendError as e:
        return str(e)
    return None


def cupy() -> Any:
    """Return the CuPy module; raise BackendError if CuPy or a GPU is missing."""
    try:
        module = importlib.import_module("cupy")
    except ImportError as e:
        raise BackendError(
            "the cuda backend needs CuPy: install hlogym[cuda12] or hlogym[cuda13] to match the driver "
            f"(import failed: {e}), or use backend='cpu'"
        ) from e
    problem = _no_device(module)
    if problem is not None:
        raise BackendError(f"CuPy finds no GPU here ({problem}); use backend='cpu'")
    return module


def _no_device(module: Any) -> str | None:
    try:
        count = module.cuda.runtime.getDeviceCount()
    except Exception as e:  # the types that CuPy raises cannot be named without CuPy
        return str(e).splitlines()[0]
    return None if count else "no device"


def source_of(kernels: Sequence[KernelSpec]) -> str:
    """Return the source of a file with the distinct kernels."""
    distinct = {k.symbol: k.source for k in kernels}
    return print_cuda.preamble() + "\n" + "\n".join(distinct.values())


def functions(kernels: Sequence[KernelSpec]) -> dict[str, Any]:
    """Compile kernels and return their functions by symbol; raise CodegenError with NVRTC's message if that fails."""
    if not kernels:
        return {}
    xp = cupy()
    module = xp.RawModule(code=source_of(kernels), options=OPTIONS, backend="nvrtc")
    try:
        module.compile()
    except xp.cuda.compiler.CompileException as e:
        raise CodegenError(f"NVRTC rejected the kernels:\n{str(e)[:4000]}") from e
    return {k.symbol: module.get_function(k.symbol) for k in kernels}
