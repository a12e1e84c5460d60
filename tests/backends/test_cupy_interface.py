"""The part of CuPy's interface that the cuda backend uses: the stand-in has it, and CuPy where it is installed.

CuPy can be imported without a GPU, so that a name or parameter which is missing is found before the first launch:
`pip install cupy-cuda13x`, then run this file.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import compiler.backends.cuda as cuda_backend
from compiler.backends.cuda import blas
from compiler.backends.cuda.emulation import stand_in

INTERFACE = {
    "__version__": None,
    "ndarray": ("shape", "dtype", "memptr"),
    "ndarray.view": ("dtype",),
    "argsort": ("a",),
    "asarray": ("a",),
    "ascontiguousarray": ("a",),
    "from_dlpack": ("array",),
    "get_default_memory_pool": (),
    "cuda.Device": ("device",),
    "cuda.Event": None,
    "cuda.Event.record": ("stream",),
    "cuda.Event.synchronize": (),
    "cuda.Event.done": None,
    "cuda.Memory": ("size",),
    "cuda.MemoryPointer": ("mem", "offset"),
    "cuda.Stream": None,
    "cuda.Stream.begin_capture": (),
    "cuda.Stream.end_capture": (),
    "cuda.Stream.launch_host_func": ("callback", "arg"),
    "cuda.Stream.synchronize": (),
    "cuda.Stream.wait_event": ("event",),
    "cuda.Graph.launch": ("stream",),
    "cuda.UnownedMemory": ("ptr", "size", "owner", "device_id"),
    "cuda.alloc": ("size",),
    "cuda.alloc_pinned_memory": ("size",),
    "cuda.get_current_stream": (),
    "cuda.get_elapsed_time": ("start", "stop"),
    "cuda.memory.OutOfMemoryError": None,
    "cuda.runtime.CUDARuntimeError": None,
    "cuda.runtime.getDevice": (),
    "cuda.runtime.getDeviceCount": (),
    "cuda.runtime.memGetInfo": (),
    "cuda.runtime.memcpyAsync": ("dst", "src", "size", "kind", "stream"),
    "cuda.runtime.memcpyDeviceToDevice": None,
    "cuda.runtime.memcpyDeviceToHost": None,
    "cuda.runtime.memcpyHostToDevice": None,
    "cuda.runtime.runtimeGetVersion": (),
    "cuda.runtime.setDevice": ("device",),
    "cuda.driver.CUDADriverError": None,
    "cuda.driver.launchKernel": (
        "f", "grid_dim_x", "grid_dim_y", "grid_dim_z", "block_dim_x", "block_dim_y", "block_dim_z",
        "shared_mem_bytes", "stream", "kernel_params", "extra",
    ),
    "cuda.driver.funcSetAttribute": ("f", "attribute", "value"),
    "cuda.driver.moduleGetFunction": ("module", "funcname"),
    "cuda.driver.moduleLoadData": ("image",),
    "cuda.driver.moduleUnload": ("module",),
    "cuda.nvrtc.NVRTCError": None,
    "cuda.nvrtc.compileProgram": ("prog", "options"),
    "cuda.nvrtc.createProgram": ("src", "name", "headers", "include_names"),
    "cuda.nvrtc.destroyProgram": ("prog",),
    "cuda.nvrtc.getCUBIN": ("prog",),
    "cuda.nvrtc.getProgramLog": ("prog",),
    "cuda.nvrtc.getVersion": (),
}  # fmt: skip
"""Names below `cupy`, with the parameters that are passed by position; None for what is not called so."""
OTHERS = {"cublas_functions", "pathfinder"}
"""What only the stand-in has, and a module of another package."""
BOUND = {
    "xp": "", "cuda": "cuda.", "runtime": "cuda.runtime.", "driver": "cuda.driver.", "_nvrtc": "cuda.nvrtc.",
    "stream": "cuda.Stream.", "event": "cuda.Event.", "graph": "cuda.Graph.",
}  # fmt: skip
"""Names of variables and attributes that hold parts of CuPy."""
ATTRIBUTES = {"cuda.Stream.ptr"}
"""Attributes that only objects have."""
MODULES = {"cuda", "cuda.runtime", "cuda.driver", "cuda.nvrtc", "cuda.memory"}


def _find(module: Any, name: str) -> Any:
    found = module
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _parameters(function: Any) -> list[str]:
    """Return the parameters of a function, of compiled code by the first line of its documentation."""
    try:
        found = list(inspect.signature(function).parameters.values())
        known = all(p.kind is not p.VAR_POSITIONAL for p in found)
    except (TypeError, ValueError):
        found, known = [], False
    if known:
        return [p.name for p in found]
    first = (function.__doc__ or "").strip().splitlines()[0]
    inside = first[first.index("(") + 1 : first.rindex(")")]
    return [re.split(r"[\s=]", p.strip().split("=")[0].strip())[-1] for p in inside.split(",") if p.strip()]


@pytest.mark.parametrize("name", INTERFACE)
def test_the_stand_in_has_it(name: str) -> None:
    with stand_in.installed():
        _check(importlib.import_module("cupy"), name)


@pytest.mark.parametrize("name", INTERFACE)
def test_cupy_has_it(name: str) -> None:
    _check(pytest.importorskip("cupy"), name)


def _check(cupy: Any, name: str) -> None:
    found, wanted = _find(cupy, name), INTERFACE[name]
    if wanted is None:
        return
    parameters = [p for p in _parameters(found) if p not in ("self", "args")]
    if parameters or not inspect.isclass(found):
        assert len(parameters) >= len(wanted)


def test_constants_of_cublas_are_those_of_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    try:
        bound = cupy.cuda.cublas
    except ImportError as e:
        pytest.skip(f"cuBLAS is not installed: {e}")
    ours = {
        "CUBLAS_OP_N": blas.OP_N, "CUBLAS_OP_T": blas.OP_T, "CUBLAS_DEFAULT_MATH": blas.DEFAULT_MATH,
        "CUBLAS_GEMM_DEFAULT": blas.GEMM_DEFAULT, "CUBLAS_COMPUTE_32F": blas.COMPUTE_32F,
        "CUBLAS_COMPUTE_32F_FAST_TF32": blas.COMPUTE_32F_FAST_TF32, "CUBLAS_COMPUTE_64F": blas.COMPUTE_64F,
    }  # fmt: skip
    assert ours == {name: getattr(bound, name) for name in ours}


def test_the_list_has_what_the_backend_uses() -> None:
    """Names in the source that follow a variable which holds a part of CuPy are in INTERFACE."""
    pattern = re.compile(rf"(?<![\w.])(?:self\.)?_?({'|'.join(BOUND)})\.([A-Za-z_][\w.]*)")
    unknown = set()
    for file in Path(cuda_backend.__path__[0]).glob("*.py"):
        for line in file.read_text(encoding="utf-8").splitlines():
            if line.startswith(("from ", "import ")):
                continue
            for holder, rest in pattern.findall(line):
                name = BOUND[holder] + rest.rstrip(".")
                known = name in INTERFACE or name in MODULES or name in ATTRIBUTES
                if not known and rest not in OTHERS and not any(k.startswith(f"{name}.") for k in INTERFACE):
                    unknown.add(f"{file.name}: {name}")
    assert unknown == set()
