"""Ours beside XLA, Inductor and PyTorch's own kernels (cuBLAS, cuDNN, flash attention): interleaved, and compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from compiler.api import compile as compile_hlo
from compiler.backends.cpu.toolchain import object_cache
from compiler.runtime.executable import parameter_leaves
from compiler.text import parse
from env.suites import Program
from experiments.gpu.contestants import Contestant, jax_contestant, our_contestant, torch_contestant, wide
from experiments.gpu.device import Device
from experiments.gpu.job import Job
from experiments.gpu.pool import Request
from experiments.gpu.programs import chosen_programs, find, inputs_of
from experiments.natives.native import Native, normal
from experiments.natives.peers import NATIVE_SUITES, native_difference

__all__ = ["PEERS", "build_peer", "product", "race", "run"]

PEERS = ("xla", "inductor", "eager")
ROUNDS = 7
SAMPLE_SECONDS = 4e-3
MOST_REPEATS = 200
BUILD_SHARE = 0.35
"""Share of the time in which the peers compile, on all cores, before anything is timed."""
BUILD_SECONDS = 100.0
TIMED_BY_XLA = ("dot", "convolution")
RACE_SECONDS = 60.0
PRODUCTS = ((512, 512, 512), (1024, 1024, 1024), (4096, 4096, 4096), (8192, 8192, 8192), (128, 4096, 4096),
            (4096, 128, 4096), (16384, 512, 512))  # fmt: skip
DTYPES = {"f32": "float32", "bf16": "bfloat16"}


def run(job: Job) -> None:
    """Compile for the peers on all cores, then race the programs and the products one at a time.

    Programs that the peers have not compiled come last, because they take the time of many others.
    """
    programs = chosen_programs(job.settings, NATIVE_SUITES)
    done = job.done()
    cache = str(object_cache().folder / "peers")  # not beside the results, which are copied
    environment = {
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "JAX_COMPILATION_CACHE_DIR": f"{cache}/xla",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    requests = [_request(job, p) for p in programs if f"{p.suite}/{p.name}" not in done]
    ready: set[str] = set()
    if not job.settings.stand_in:
        alone = {**environment, "TORCHINDUCTOR_COMPILE_THREADS": "1"}  # Inductor's own threads would add to ours
        building = [{**r, "op": "build_peer"} for r in requests]
        ready = {
            request["name"]
            for request, reply in job.run(
                building, BUILD_SECONDS, job.settings.processes, alone, job.left() * BUILD_SHARE, optional=True
            )
            if "error" not in reply
        }
        job.say(f"the peers have compiled {len(ready)} of {len(building)} programs")
    products = [r for r in _products(job) if r["name"] not in done]
    todo = sorted([*requests, *products], key=lambda r: r["op"] == "race" and r["name"] not in ready)
    for number, (request, reply) in enumerate(job.run(todo, RACE_SECONDS, 1, environment), start=1):
        job.record(request, reply)
        if number % 10 == 0 or number == len(todo):
            job.say(f"{number} of {len(todo)} programs timed")


def _request(job: Job, program: Program) -> Request:
    return {"op": "race", "name": f"{program.suite}/{program.name}", "suite": program.suite, "program": program.name,
            "seed": job.settings.seed}  # fmt: skip


def _products(job: Job) -> Iterator[Request]:
    if job.settings.programs:
        return
    sizes = ((32, 32, 32),) if job.settings.stand_in else PRODUCTS
    for m, n, k in sizes:
        for dtype in DTYPES:
            yield {"op": "product", "name": f"product {dtype} {m}x{n}x{k}", "m": m, "n": n, "k": k, "dtype": dtype,
                   "seed": job.settings.seed}  # fmt: skip


# ---- in a worker


def build_peer(device: Device, request: Mapping[str, Any]) -> dict[str, Any]:
    """Compile a program with Inductor and XLA, so that their code is in the caches when the program is raced.

    XLA chooses the algorithms of products and convolutions by timing them, so it compiles those when nothing else runs.
    """
    del device
    from experiments.natives.tables import find_native

    native = find_native(request["suite"], request["program"])
    program = find(request["suite"], request["program"])
    arrays = inputs_of(program, parse(program.text()), request["seed"])
    start = time.perf_counter()
    if not any(f" {name}(" in program.text() for name in TIMED_BY_XLA):
        jax_contestant(native, arrays)
    torch_contestant(native, arrays, "inductor")
    return {"seconds": time.perf_counter() - start}


def race(device: Device, request: Mapping[str, Any]) -> dict[str, Any]:
    """Race a native program; return samples and failures by contestant, and the bytes that it must move at least."""
    program = find(request["suite"], request["program"])
    module = parse(program.text())
    arrays = inputs_of(program, module, request["seed"])
    native, rtol, missing = None, 1e-3, {}
    if device.cupy is None:
        missing = dict.fromkeys(PEERS, "no peer runs on the stand-in")
    else:
        from experiments.natives.tables import find_native

        native = find_native(request["suite"], request["program"])
        rtol = native.rtol
    found = raced(device, program.text(), arrays, native, PEERS, rtol)
    outputs = [s for s in module.entry.root.shape.leaves() if s.is_array]
    moved = sum(s.byte_size for s in (*parameter_leaves(module), *outputs))
    return {**found, "failures": {**missing, **found["failures"]}, "bytes": moved}


def product(device: Device, request: Mapping[str, Any]) -> dict[str, Any]:
    """Race a matrix product against cuBLAS, through PyTorch; return as `race` does, with the operations."""
    m, n, k, dtype = (request[name] for name in ("m", "n", "k", "dtype"))
    text = (
        f"HloModule product\n\nENTRY e {{\n  x = {dtype}[{m},{k}] parameter(0)\n  y = {dtype}[{k},{n}] parameter(1)\n"
        f"  ROOT z = {dtype}[{m},{n}] dot(x, y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n}}\n"
    )
    rng = np.random.default_rng(request["seed"])
    size = DTYPES[dtype]
    arrays = [(rng.standard_normal(dims, np.float32) / k**0.25).astype(size) for dims in ((m, k), (k, n))]
    native, failures = None, dict.fromkeys(PEERS, "no peer runs on the stand-in")
    if device.cupy is not None:
        inputs = (normal(m, k, dtype=size), normal(k, n, dtype=size))
        native, failures = Native(lambda x, y: x @ y, lambda x, y: x @ y, inputs), {}
    found = raced(device, text, arrays, native, ("eager",), 2e-2 if dtype == "bf16" else 1e-3)
    moved = (m * k + k * n + m * n) * np.dtype(size).itemsize
    return {**found, "failures": {**failures, **found["failures"]}, "bytes": moved, "flops": 2 * m * n * k}


def raced(
    device: Device,
    text: str,
    arrays: Sequence[Any],
    native: Native | None,
    peers: Sequence[str],
    rtol: float,
) -> dict[str, Any]:
    """Return the samples of our program and of the peers, and how long each took to its first result.

    Raises:
        HlogymError: our program cannot be built.
        ValueError: our outputs differ from those of the first peer.
    """
    start = time.perf_counter()
    executable = compile_hlo(text, device.backend)
    ours = our_contestant(executable, arrays, device)
    first = {ours.name: time.perf_counter() - start}
    results = [wide(o) for o in ours.outputs()]
    ready, failures = [ours], {}
    for peer in peers if native is not None else ():
        assert native is not None  # noqa: S101 - said by the loop
        start = time.perf_counter()
        try:
            contestant = _peer(peer, native, arrays)
            first[peer] = time.perf_counter() - start
            difference = native_difference(results, contestant.outputs(), rtol)
        except Exception as error:  # another compiler may raise anything; the race continues without it
            failures[peer] = f"{type(error).__name__}: {error}"[:300]
            continue
        if difference is None:
            ready.append(contestant)
        else:
            failures[peer] = f"its outputs differ from ours: {difference}"
    samples = in_turns(ready, 1 if device.cupy is None else ROUNDS)
    kernels = [k.to_json() for k in executable.kernels]
    return {"samples": samples, "first_result": first, "failures": failures, "kernels": kernels}


def _peer(name: str, native: Native, arrays: Sequence[Any]) -> Contestant:
    return jax_contestant(native, arrays) if name == "xla" else torch_contestant(native, arrays, name)


def in_turns(contestants: Sequence[Contestant], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the seconds per call and on the device of each contestant by round; every other round is reversed."""
    repeats = {c.name: repeats_for(c.call) for c in contestants}
    samples: dict[str, dict[str, list[float]]] = {c.name: {"call": [], "device": []} for c in contestants}
    order = list(contestants)
    for _ in range(rounds):
        for c in order:
            called, on_device = c.sample(repeats[c.name])
            samples[c.name]["call"].append(called)
            samples[c.name]["device"].append(on_device)
        order.reverse()
    return samples


def repeats_for(call: Callable[[], object]) -> int:
    """Return how many calls make a sample of some milliseconds."""
    start = time.perf_counter()
    call()
    once = max(time.perf_counter() - start, 1e-9)
    return max(1, min(MOST_REPEATS, round(SAMPLE_SECONDS / once)))
