"""The process in which one peer runs the native programs of a suite; JSON lines in, JSON lines out.

Each peer has a process of its own, because the idle threads of PyTorch's OpenMP pool spin for a while and would take
time from the others in the same process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from env.suites import Normal, load_suite, random_inputs
from env.worker import die_with_parent, private_stdout
from experiments.natives.native import Input, Native
from experiments.peak_memory import peak_memory
from experiments.sampling import warm_sample

__all__ = ["main"]

Run = Callable[[], Any]


class NativeWorker:
    """Answers requests of one peer, one at a time.

    - `{"op": "load", "suite": str, "program": str, "seed": int}` draws the inputs, compiles the native program and runs
      it; reply `{"seconds": s, "bytes": b, "rtol": r}`: the time from the function to its first result, the peak memory
      of a call with its arguments (null if it is not known), and how far the outputs of two compilers may differ.
    - `{"op": "outputs", "file": path}` runs it and writes its outputs as an .npz file: arrays of bytes.
    - `{"op": "sample", "repeats": n}` runs it untimed for some milliseconds and then n times; reply
      `{"seconds": s}`, the mean time per call.
    - `{"op": "ping"}`: reply `{}`.

    The reply to a request that fails is `{"error": message}`.
    """

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._run: Run = lambda: None
        self._warm = False

    def handle(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the reply to one request."""
        try:
            match request["op"]:
                case "load":
                    return self._load(request)
                case "outputs":
                    found = [_host(o) for o in _leaves(self._run())]
                    np.savez(request["file"], **{f"out{n}": o for n, o in enumerate(found)})  # type: ignore[arg-type]
                case "sample":
                    return {"seconds": warm_sample(self._run, request["repeats"])}
        except Exception as error:  # another compiler may raise anything; the comparison continues without it
            return {"error": f"{type(error).__name__}: {error}"}
        return {}

    def _load(self, request: Mapping[str, Any]) -> dict[str, Any]:
        from experiments.natives.tables import find_native

        native = find_native(request["suite"], request["program"])
        program = load_suite(request["suite"]).find(request["program"])
        arrays = random_inputs(program, [(np.dtype(i.dtype), i.dims) for i in native.inputs], request["seed"])
        self._run = lambda: None  # frees the arrays of the last program
        if not self._warm:  # the first compilation imports much, which is not the program's time
            self._started(Native(_double, _double, (Input((4,), "float32", Normal()),)), [np.ones(4, np.float32)])
            self._warm = True
        seconds = self._started(native, arrays)
        peak = peak_memory(self._run)
        size = None if peak is None else peak + sum(a.nbytes for a in arrays)
        return {"seconds": seconds, "bytes": size, "rtol": native.rtol}

    def _started(self, native: Native, arrays: Sequence[npt.NDArray[Any]]) -> float:
        """Set the program that is run, and return the seconds until its first result."""
        self._run = jax_run(native, arrays) if self._peer == "xla" else torch_run(native, arrays, self._peer)
        start = time.perf_counter()
        self._run()
        return time.perf_counter() - start


def _double(x: Any) -> Any:
    return x + x


def jax_run(native: Native, arrays: Sequence[npt.NDArray[Any]]) -> Run:
    """Return a call of the jitted JAX function on device arrays that waits for its results."""
    import jax

    function = jax.jit(native.jax)
    held = [jax.device_put(a) for a in arrays]
    return lambda: jax.block_until_ready(function(*held))  # type: ignore[no-untyped-call]


def torch_run(native: Native, arrays: Sequence[npt.NDArray[Any]], peer: str) -> Run:
    """Return a call of the PyTorch function, compiled by Inductor unless the peer is "eager"."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch._dynamo.reset()
    is_eager = peer == "eager" or not native.compiled
    function = native.torch if is_eager else torch.compile(native.torch, dynamic=False)
    held = [_tensor(a, i.index) for a, i in zip(arrays, native.inputs, strict=True)]

    def run() -> Any:
        with torch.no_grad():
            return function(*held)

    return run


def _tensor(array: npt.NDArray[Any], index: bool) -> Any:
    import torch

    if array.dtype == np.dtype("bfloat16"):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array).long() if index else torch.from_numpy(array)


def _leaves(found: Any) -> list[Any]:
    return [leaf for item in found for leaf in _leaves(item)] if isinstance(found, tuple | list) else [found]


def _host(output: Any) -> npt.NDArray[Any]:
    """Return an output as a NumPy array; bfloat16, which .npz files do not have, as float32."""
    import torch

    if isinstance(output, torch.Tensor):
        return np.asarray((output.float() if output.dtype == torch.bfloat16 else output).contiguous().numpy())
    found = np.asarray(output)
    return found.astype(np.float32) if found.dtype == np.dtype("bfloat16") else found


def main() -> None:
    """Serve until stdin ends."""
    import ml_dtypes  # noqa: F401  # NumPy then knows bfloat16 by its name

    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = private_stdout()
    peer, cache = sys.argv[1:]
    if cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    worker = NativeWorker(peer)
    for line in sys.stdin.buffer:
        replies.write(json.dumps(worker.handle(json.loads(line))) + "\n")
        replies.flush()
