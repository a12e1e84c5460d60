"""The naive Cartpole simulator on one GPU: ours, XLA's, and a CUDA kernel written by hand; outputs compared."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.api import compile as compile_hlo
from env.reference import on_host
from env.suites import find_program
from experiments.cartpole.arguments import ENVS, disagreement, draw
from experiments.gpu.device import Device
from experiments.gpu.job import Job

__all__ = ["Handwritten", "cartpole", "run", "source"]

Array = npt.NDArray[Any]
Run = Callable[[], Sequence[Any]]

SIZES = ((2048, 10_000), (65_536, 10_000))
SMALL = ((64, 3),)
STEPS = 200
"""Steps of the program in the suite, which has ENVS environments."""
ROUNDS = 5
TASK_SECONDS = 60.0
KEY_THREADS = 32
MOST_ENVS_PER_BLOCK = 256


def run(job: Job) -> None:
    """Race the three programs at each size."""
    sizes = SMALL if job.settings.stand_in else SIZES
    requests = [
        {"op": "cartpole", "name": f"{envs} environments, {steps} steps", "envs": envs, "steps": steps,
         "seed": job.settings.seed} for envs, steps in sizes
    ]  # fmt: skip
    for request, reply in job.run([r for r in requests if r["name"] not in job.done()], TASK_SECONDS):
        job.record(request, reply)


def source() -> str:
    """Return the CUDA kernel that was written by hand."""
    return Path(__file__).with_name("cartpole.cu").read_text(encoding="utf-8")


class Handwritten:
    """The CUDA kernel written by hand, compiled for this GPU.

    Args:
        cupy: the CuPy module.
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._kernel = cupy.RawKernel(source(), "cartpole", options=("--std=c++17",))
        self._multiprocessors = int(cupy.cuda.Device().attributes["MultiProcessorCount"])

    def __call__(self, key: Any, state: Any, actions: Any) -> list[Any]:
        """Return state, rewards and numbers of episodes as CuPy arrays."""
        xp = self._cupy
        steps, envs = actions.shape
        per_block = envs_per_block(envs, self._multiprocessors)
        out = [xp.empty((envs, 4), xp.float32), xp.empty(envs, xp.float32), xp.empty(envs, xp.int32)]
        sizes = (np.int32(envs), np.int32(steps))
        self._kernel((-(-envs // per_block),), (per_block + KEY_THREADS,), (key, state, actions, *out, *sizes))
        return out


def envs_per_block(envs: int, multiprocessors: int) -> int:
    """Return how many environments a block simulates: whole warps, and fewer where multiprocessors would be idle."""
    share = -(-envs // multiprocessors)
    return max(32, min(MOST_ENVS_PER_BLOCK, share // 32 * 32))


def naive_program(envs: int, steps: int) -> str:
    """Return the program cartpole_naive of the quickstart suite as HLO text, for other sizes than its own."""
    text = find_program("cartpole_naive").text()
    for own, wanted in ((ENVS, envs), (STEPS, steps)):
        text = re.sub(rf"\b{own}\b", str(wanted), text)  # both are only sizes of arrays and the trip count
    return text


def cartpole(device: Device, request: Mapping[str, Any]) -> dict[str, Any]:
    """Race the programs at one size; return samples by contestant and the shares of environments that differ."""
    arrays = draw(request["steps"], request["seed"], request["envs"])
    start = time.perf_counter()
    executable = compile_hlo(naive_program(request["envs"], request["steps"]), device.backend)
    held = [device.hold(a) for a in arrays]
    executable(*held)
    device.wait()
    first = {"hlogym": time.perf_counter() - start}
    runs: dict[str, Run] = {"hlogym": lambda: executable(*held)}
    failures = add_peers(runs, first, device, arrays, held)
    outputs = {name: [on_host(o) for o in run()] for name, run in runs.items()}
    differing = {n: disagreement(o, outputs["hlogym"]) for n, o in outputs.items() if n != "hlogym"}
    samples: dict[str, dict[str, list[float]]] = {name: {"call": [], "device": []} for name in runs}
    for _ in range(1 if device.cupy is None else ROUNDS):
        for name, called in runs.items():
            seconds = timed(called, device)
            samples[name]["call"].append(seconds)
            samples[name]["device"].append(seconds)
    return {
        "samples": samples,
        "first_result": first,
        "failures": failures,
        "differing_environments": differing,
        "environment_steps": request["envs"] * request["steps"],
        "kernels": [k.to_json() for k in executable.kernels],
    }


def add_peers(
    runs: dict[str, Run], first: dict[str, float], device: Device, arrays: Sequence[Array], held: Sequence[Any]
) -> dict[str, str]:
    """Add the other programs to `runs` and their seconds to the first result to `first`; return why some are absent."""
    if device.cupy is None:
        return dict.fromkeys(("cuda", "xla"), "it needs a GPU")
    failures: dict[str, str] = {}
    makers: dict[str, Callable[[], Run]] = {
        "cuda": lambda: by_hand(device.cupy, held),
        "xla": lambda: by_xla(arrays),
    }
    for name, make in makers.items():
        start = time.perf_counter()
        try:
            found = make()
            found()
            device.wait()
        except Exception as error:  # the others are still timed
            failures[name] = f"{type(error).__name__}: {error}"[:300]
            continue
        runs[name], first[name] = found, time.perf_counter() - start
    return failures


def by_hand(cupy: Any, held: Sequence[Any]) -> Run:
    """Return a call of the kernel written by hand."""
    kernel = Handwritten(cupy)
    return lambda: kernel(*held)


def by_xla(arrays: Sequence[Array]) -> Run:
    """Return a call of the program that JAX jits for the GPU; it waits for the results."""
    import jax

    from env.suites.quickstart_programs import cartpole_naive

    gpu = jax.devices("gpu")[0]
    function = jax.jit(cartpole_naive)
    given = [jax.device_put(a, gpu) for a in arrays]

    def call() -> list[Array]:
        found: Sequence[Any] = jax.block_until_ready(function(*given))  # type: ignore[no-untyped-call]
        return list(found)

    return call


def timed(call: Run, device: Device) -> float:
    """Return the seconds of a call until its results are there; a simulation is far longer than a launch."""
    device.wait()
    start = time.perf_counter()
    call()
    device.wait()
    return time.perf_counter() - start
