"""Time the naive Cartpole simulator: hlogym, XLA and a C program written by hand, interleaved, outputs compared.

    python -m experiments.cartpole.measure [--steps 10000] [--rounds 5] [--json FILE]

The program is cartpole_naive of the quickstart suite with more steps. Needs JAX, and gcc with OpenMP.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler import compile as compile_hlo
from env.statistics import median_interval, ratio_interval
from experiments.cartpole.arguments import ENVS, disagreement, draw
from experiments.console import duration, factor, stdout, timing
from experiments.module_command import plain_errors
from experiments.provenance import provenance
from experiments.results import check_output, write_text

__all__ = ["build", "c_program", "measure"]

Array = npt.NDArray[Any]
Run = Callable[[], Sequence[Array]]

SOURCE = Path(__file__).with_name("cartpole.c")


def build(folder: Path) -> Any:
    """Compile the C program into a folder and return it as a library."""
    library = folder / "cartpole.so"
    flags = ["-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-Wall", "-Wextra"]
    subprocess.run(["gcc", *flags, str(SOURCE), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def c_program(library: Any, key: Array, state: Array, actions: Array) -> Run:
    """Return a call of the C program on as many threads as there are cores."""
    steps, envs = actions.shape
    threads = len(os.sched_getaffinity(0))

    def run() -> list[Array]:
        found = [np.empty((envs, 4), np.float32), np.empty(envs, np.float32), np.empty(envs, np.int32)]
        given = [a.ctypes.data_as(ctypes.c_void_p) for a in (key, state, actions)]
        pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in found]
        if library.cartpole(*given, ctypes.c_long(envs), ctypes.c_long(steps), ctypes.c_int(threads), *pointers):
            raise RuntimeError("the number of environments is no multiple of a vector, or there is no memory")
        return found

    return run


def measure(steps: int, rounds: int) -> dict[str, Any]:
    """Return the times per call, the ratios to the C program and to XLA, and the shares of environments that differ."""
    import jax

    from env.suites.lowering import lower_to_text
    from env.suites.quickstart_programs import cartpole_naive

    arrays = draw(steps)
    executable = compile_hlo(lower_to_text(cartpole_naive, *arrays))
    jitted = jax.jit(cartpole_naive)
    held = [jax.device_put(a) for a in arrays]
    with TemporaryDirectory() as folder:
        runs: dict[str, Run] = {
            "hlogym": lambda: executable(*arrays),
            "xla": lambda: jax.block_until_ready(jitted(*held)),  # type: ignore[no-untyped-call]
            "c": c_program(build(Path(folder)), *arrays),
        }
        found = {name: [np.asarray(o) for o in run()] for name, run in runs.items()}
        samples: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(rounds):
            for name, run in runs.items():
                start = time.perf_counter()
                run()
                samples[name].append(time.perf_counter() - start)
    return {
        "kind": "cartpole",
        "provenance": {**provenance(), "command": f"python -m experiments.cartpole.measure --steps {steps}"},
        "environment_steps": steps * ENVS,
        "seconds": {name: median_interval(s).to_json() for name, s in samples.items()},
        "fastest": {name: min(s) for name, s in samples.items()},
        "differing_environments": {n: disagreement(o, found["xla"]) for n, o in found.items() if n != "xla"},
        "speedup_over_xla": ratio_interval(samples["xla"], samples["hlogym"]).to_json(),
        "time_relative_to_c": ratio_interval(samples["hlogym"], samples["c"]).to_json(),
    }


def main() -> None:
    """Run the command line."""
    from env.statistics import Interval

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    if options.json is not None:
        check_output(options.json)
    result = measure(options.steps, options.rounds)
    for name, values in result["seconds"].items():
        interval = Interval.from_json(values)
        fastest = result["fastest"][name]
        rate = result["environment_steps"] / fastest / 1e6
        differing = result["differing_environments"].get(name, 0.0)
        best = f"fastest {duration(fastest)}, {rate:.0f} M steps/s"
        stdout.print(f"{name:8} {timing(interval):24} {best:32} {differing:.2%} of environments differ")
    stdout.print(f"speedup of hlogym over xla: {factor(Interval.from_json(result['speedup_over_xla']))}")
    stdout.print(f"time of hlogym relative to c: {factor(Interval.from_json(result['time_relative_to_c']))}")
    if options.json is not None:
        write_text(options.json, json.dumps(result, indent=1))


if __name__ == "__main__":
    with plain_errors():
        main()
