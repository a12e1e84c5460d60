"""The device model: its constants fitted to measured kernels, and how far its predictions are off."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

from compiler.api import compile as compile_hlo
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.runtime.kernel_sites import KernelSite
from experiments.gpu.choices import in_rounds
from experiments.gpu.correctness import built_alone, kernel_inputs
from experiments.gpu.device import Device
from experiments.gpu.job import Job
from experiments.gpu.programs import chosen_programs, find

__all__ = ["run", "time_kernels"]

MODEL = "compiler.backends.cuda.device_times"
SUITES = ("kernels",)
TASK_SECONDS = 30.0


def run(job: Job) -> None:
    """Time the default kernels of the suite; fit the device model to them where there is one."""
    requests = [
        {"op": "time_kernels", "name": f"{p.suite}/{p.name}", "suite": p.suite, "program": p.name,
         "seed": job.settings.seed} for p in chosen_programs(job.settings, SUITES)
    ]  # fmt: skip
    for request, reply in job.run([r for r in requests if r["name"] not in job.done()], TASK_SECONDS):
        if "error" in reply:
            job.fail(request["name"], reply["error"], place=reply.get("where", ""))
        else:
            job.add(request["name"], reply)
    if importlib.util.find_spec(MODEL) is None:
        job.facts = {"fit": "this version of hlogym has no model of device times"}


def time_kernels(device: Device, request: Mapping[str, Any]) -> dict[str, Any]:
    """Time each kernel of a program alone with its default choice; return `{"kernels": [...]}`."""
    found: list[dict[str, Any]] = []

    def measure(site: KernelSite) -> KernelChoice:
        spec = site.spec
        if spec is None or any(f["symbol"] == spec.symbol for f in found):
            return site.default
        module = site.module()
        held = [device.hold(a) for a in kernel_inputs(module, request["seed"])]
        executable = built_alone(site, module, site.default)
        executable(*held)
        seconds = in_rounds({site.default: executable}, held, 1 if device.cupy is None else 3)[site.default]
        found.append({**spec.to_json(), "seconds": min(seconds)})
        return site.default

    compile_hlo(find(request["suite"], request["program"]).text(), device.backend, kernel_selector=measure)
    return {"kernels": found}
