"""The model of device times: its constants fitted to the measured kernels, and how far its predictions are off.

It needs no GPU: what kernels do is counted by the emulator, so it may run where the times were copied to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from compiler.backends.cuda.device_fit import Errors, MeasuredKernel, errors_of, fit
from compiler.backends.cuda.device_times import KernelWork, kernel_seconds
from compiler.backends.cuda.gpu_models import GPUS, GpuModel, gpu_model
from compiler.backends.cuda.program_times import PredictedTimes
from compiler.errors import BackendError, CodegenError
from compiler.support.json_reading import read_object
from experiments.gpu.device import Device
from experiments.gpu.job import GpuResultError, Job, result_file
from experiments.gpu.kernel_times import default_kernels

__all__ = ["fitted", "kernel_work", "model_of", "run"]

TIMES, DEVICE = "kernel_times", "environment"
"""The parts whose results are read."""
TASK_SECONDS = 100.0
USUAL_GPU = "h100"


def run(job: Job) -> None:
    """Count what the measured kernels do on all cores, and fit the model; skipped where no kernels were measured."""
    path = result_file(job.settings.out, TIMES)
    measured = read_object(path, GpuResultError)["rows"] if path.exists() else []
    if not measured:
        job.skipped = "no kernels were timed"
        return
    requests = [{"op": "kernel_work", "name": r["name"], "measured": r["kernels"]} for r in measured]
    todo = [r for r in requests if r["name"] not in job.done()]
    for request, reply in job.run(todo, TASK_SECONDS, job.settings.processes, stand_in=True):
        job.record(request, reply)
    job.facts = fitted(job.rows, model_of(job))


def fitted(rows: Sequence[Mapping[str, Any]], gpu: GpuModel) -> dict[str, Any]:
    """Fit a model to the kernels of rows, add the predictions before and after to each, and return the facts.

    Errors are also given on kernels that had no part in the fit: each half is predicted by the fit to the other.
    """
    entries = [k for r in rows for k in r["kernels"]]
    kernels = [MeasuredKernel(KernelWork(**k["work"]), k["seconds"]) for k in entries]
    if not kernels:
        return {"model": gpu.name, "kernels": 0}
    found = fit(kernels, gpu)
    for k, measured in zip(entries, kernels, strict=True):
        k["predicted"], k["fitted"] = (kernel_seconds(measured.work, g) for g in (gpu, found.gpu))
    facts: dict[str, Any] = {"model": gpu.name, "kernels": len(kernels), "before the fit": _shown(found.before),
                             "after the fit": _shown(found.after)}  # fmt: skip
    halves = [kernels[0::2], kernels[1::2]]
    if all(halves):
        unseen = [errors_of(other, fit(half, gpu).gpu) for half, other in (halves, halves[::-1])]
        facts["on the other half of the kernels"] = "; ".join(map(_shown, unseen))
    facts["factors of the constants"] = {name: round(v, 3) for name, v in found.changes.items()}
    facts["constants"] = asdict(found.gpu)
    return facts


def model_of(job: Job) -> GpuModel:
    """Return the model of the GPU on which the kernels were timed, by the device's name; else the usual one."""
    path = result_file(job.settings.out, DEVICE)
    facts = read_object(path, GpuResultError)["facts"] if path.exists() else {}
    device = str(facts.get("device", "")).lower()
    return gpu_model(next((name for name in GPUS if name in device), USUAL_GPU))


def _shown(errors: Errors) -> str:
    return (
        f"typically off by {errors.typical:.2f}x, 90% within {errors.ninth:.2f}x, worst {errors.worst:.2f}x "
        f"({errors.worst_kernel})"
    )


# ---- in a worker


def kernel_work(device: Device, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measured kernels of a program with what they do; those that the emulator cannot run have the reason.

    Kernels are found by their symbols, so those of another version of the code generator are left out.
    """
    suite, _, program = request["name"].partition("/")
    specs = {spec.symbol: spec for _, spec in default_kernels(suite, program, device.backend)}
    times = PredictedTimes(USUAL_GPU)  # counts depend on no constant of the model
    found, left_out = [], {}
    for k in request["measured"]:
        spec = specs.get(k["symbol"])
        if spec is None:
            left_out[k["name"]] = "this version of the compiler makes another kernel"
            continue
        try:
            work = times.work([spec])[spec.symbol]
        except (BackendError, CodegenError) as error:
            left_out[k["name"]] = str(error)[:300]
            continue
        found.append({**k, "work": asdict(work)})
    return {"kernels": found, "left_out": left_out}
