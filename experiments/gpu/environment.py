"""The device: versions, copy bandwidth, launch overhead, and the rates of cuBLAS."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from experiments.gpu.device import Device
from experiments.gpu.job import Job
from experiments.provenance import package_version

__all__ = ["describe", "run"]

PACKAGES = ("numpy", "scipy", "ml_dtypes", "cupy-cuda13x", "cupy-cuda12x", "jax", "jaxlib", "torch", "triton")
COPY_BYTES = 1 << 30
LAUNCHES = 1000
SIDE = 8192
SAMPLES = 9
EMPTY_KERNEL = 'extern "C" __global__ void empty() {}'


def run(job: Job) -> None:
    """Fill the part with what one worker finds out about the device."""
    for request, reply in job.run([{"op": "describe", "name": "device"}], 120.0):
        if "error" in reply:
            job.fail(request["name"], reply["error"])
        else:
            job.facts = reply


def describe(device: Device, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the device, its versions, and its rates; a rate that cannot be measured has its reason instead."""
    del request
    facts: dict[str, Any] = {"python": platform.python_version()}
    facts |= {name: found for name in PACKAGES if (found := package_version(name)) != "not installed"}
    if device.cupy is None:
        return {**facts, "device": "stand-in: kernels run in the emulator, and nothing is timed"}
    xp = device.cupy
    properties = xp.cuda.runtime.getDeviceProperties(xp.cuda.Device().id)
    facts |= {
        "device": properties["name"].decode(),
        "compute_capability": str(xp.cuda.Device().compute_capability),
        "multiprocessors": int(properties["multiProcessorCount"]),
        "memory_bytes": int(properties["totalGlobalMem"]),
        "l2_bytes": int(properties["l2CacheSize"]),
        "clock_khz": int(properties.get("clockRate", 0)),
        "memory_clock_khz": int(properties.get("memoryClockRate", 0)),
        "driver": int(xp.cuda.runtime.driverGetVersion()),
        "runtime": int(xp.cuda.runtime.runtimeGetVersion()),
    }
    measures: dict[str, Callable[[Any], float]] = {
        "copy_bytes_per_second": copy_bandwidth,
        "launch_seconds": launch_overhead,
        "graph_kernel_seconds": graph_overhead,
        "float32_flops_per_second": lambda xp: product_rate(xp, "float32"),
        "bfloat16_flops_per_second": torch_product_rate,
    }
    for name, measure in measures.items():
        try:
            facts[name] = measure(xp)
        except Exception as error:  # one rate that cannot be measured does not hide the others
            facts[f"{name}_failed"] = f"{type(error).__name__}: {error}"[:300]
    return facts


def seconds_on_device(xp: Any, work: Callable[[], object], samples: int = SAMPLES) -> float:
    """Return the median seconds of some work between two CUDA events, after it ran twice."""
    work()
    work()
    found = []
    for _ in range(samples):
        start, stop = xp.cuda.Event(), xp.cuda.Event()
        start.record()
        work()
        stop.record()
        stop.synchronize()
        found.append(xp.cuda.get_elapsed_time(start, stop) / 1e3)
    return float(median(found))


def copy_bandwidth(xp: Any) -> float:
    """Return the bytes per second, read and written, of a copy of one GiB."""
    source = xp.zeros(COPY_BYTES, xp.uint8)
    target = xp.empty_like(source)
    return 2 * COPY_BYTES / seconds_on_device(xp, lambda: target.data.copy_from_device_async(source.data, COPY_BYTES))


def launch_overhead(xp: Any) -> float:
    """Return the seconds per launch of an empty kernel from Python."""
    kernel = xp.RawKernel(EMPTY_KERNEL, "empty")

    def launches() -> None:
        for _ in range(LAUNCHES):
            kernel((1,), (32,), ())

    return seconds_on_device(xp, launches) / LAUNCHES


def graph_overhead(xp: Any) -> float:
    """Return the seconds per empty kernel of a CUDA graph."""
    kernel = xp.RawKernel(EMPTY_KERNEL, "empty")
    kernel((1,), (32,), ())
    stream = xp.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        for _ in range(LAUNCHES):
            kernel((1,), (32,), ())
        graph = stream.end_capture()
    return seconds_on_device(xp, lambda: graph.launch(xp.cuda.get_current_stream())) / LAUNCHES


def product_rate(xp: Any, dtype: str) -> float:
    """Return the operations per second of a large matrix product of random numbers through CuPy's cuBLAS."""
    a, b = (xp.random.standard_normal((SIDE, SIDE), dtype=dtype) for _ in range(2))
    out = xp.empty((SIDE, SIDE), dtype)
    return 2.0 * SIDE**3 / seconds_on_device(xp, lambda: xp.matmul(a, b, out=out), 3)


def torch_product_rate(xp: Any) -> float:
    """Return the operations per second of a large bfloat16 product of random numbers through PyTorch's cuBLAS."""
    del xp
    import torch

    a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    found = []
    for number in range(2 + SAMPLES):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        torch.mm(a, b, out=out)
        stop.record()
        stop.synchronize()
        if number >= 2:
            found.append(start.elapsed_time(stop) / 1e3)
    return 2.0 * SIDE**3 / float(median(found))
