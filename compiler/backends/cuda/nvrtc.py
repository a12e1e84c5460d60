"""The GPU: CUDA C++ built by NVRTC and launched through CuPy; imported only when asked for."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from compiler.codegen import print_cuda
from compiler.codegen.kernel_spec import KernelSpec
from compiler.errors import BackendError, CodegenError

OPTIONS = ("--std=c++17", "-default-device")


def why_unavailable() -> str | None:
    """Why the cuda backend does not work here, or None."""
    try:
        cupy()
    except BackendError as e:
        return str(e)
    return None


def cupy() -> Any:
    """The CuPy module, with a GPU behind it; BackendError says what is missing."""
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
    except Exception as e:  # CuPy raises its own types, which need CuPy to name
        return str(e).splitlines()[0]
    return None if count else "no device"


def source_of(kernels: Sequence[KernelSpec]) -> str:
    """One source file with these kernels, each once."""
    distinct = {k.symbol: k.source for k in kernels}
    return print_cuda.preamble() + "\n" + "\n".join(distinct.values())


def functions(kernels: Sequence[KernelSpec]) -> dict[str, Any]:
    """Launchable functions by symbol; CodegenError with NVRTC's own words when the build fails."""
    if not kernels:
        return {}
    xp = cupy()
    module = xp.RawModule(code=source_of(kernels), options=OPTIONS, backend="nvrtc")
    try:
        module.compile()
    except xp.cuda.compiler.CompileException as e:
        raise CodegenError(f"NVRTC refused the kernels:\n{str(e)[:4000]}") from e
    return {k.symbol: module.get_function(k.symbol) for k in kernels}
