"""The programs of a race on one GPU: ours, XLA's, Inductor's and PyTorch's own kernels, timed in the same way.

Two times are taken. *Call*: one call from Python until its result is there. *Device*: the time per execution where the
device need not wait for the host. For ours it is measured by CUDA events, for PyTorch by replays of a CUDA graph, for
XLA by a loop inside one program, whose iterations read copies of the arguments in turns. Where calls that follow each
other without waiting take less time than that, their time counts, so that the way of measuring is no disadvantage.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.runtime.executable import Executable
from env.reference import on_host
from experiments.gpu.device import Device
from experiments.natives.native import Native

__all__ = ["Contestant", "jax_contestant", "our_contestant", "torch_contestant"]

Array = npt.NDArray[Any]

LOOPED = 32
"""Executions inside one XLA program."""
COPIES = 2
"""Copies of the arguments that its iterations read in turns."""
WARM_CALLS = 3
MOVES = frozenset({"parameter", "get-tuple-element", "tuple", "copy", "constant", "bitcast"})
"""Opcodes of the body of a loop that computes nothing."""


@dataclass(frozen=True)
class Contestant:
    """A compiled program with its arguments on the device.

    Attributes:
        name: the compiler.
        outputs: runs the program and returns its outputs.
        call: runs it once and waits.
        enqueue: runs it once without waiting.
        wait: waits for what was enqueued.
        device_seconds: returns the seconds per execution on the device from so many executions; None if only calls
            that follow each other can be timed.
    """

    name: str
    outputs: Callable[[], list[Array]]
    enqueue: Callable[[], Any]
    wait: Callable[[], None]
    device_seconds: Callable[[int], float] | None = None

    def call(self) -> None:
        """Run the program once and wait."""
        self.enqueue()
        self.wait()

    def sample(self, repeats: int) -> tuple[float, float]:
        """Return the mean seconds per call and per execution on the device."""
        self.call()
        start = time.perf_counter()
        for _ in range(repeats):
            self.call()
        called = time.perf_counter()
        for _ in range(repeats):
            self.enqueue()
        self.wait()
        steady = (time.perf_counter() - called) / repeats
        found = steady if self.device_seconds is None else min(steady, self.device_seconds(repeats))
        return (called - start) / repeats, found


def our_contestant(executable: Executable, arrays: Sequence[Array], device: Device) -> Contestant:
    """Return our program; with the stand-in its times mean nothing."""
    held = [device.hold(a) for a in arrays]
    executable(*held)
    return Contestant(
        "hlogym",
        lambda: [on_host(o) for o in executable(*held)],
        lambda: executable(*held),
        device.wait,
        lambda n: float(median(executable.benchmark(held, max(n, 3)))),
    )


def jax_contestant(native: Native, arrays: Sequence[Array], platform: str = "gpu") -> Contestant:
    """Return the program jitted by JAX, with products of full precision.

    Raises:
        ImportError: JAX is not installed.
        RuntimeError: it has no such platform.
    """
    import jax

    target = jax.devices(platform)[0]
    held = [jax.device_put(a, target) for a in arrays]
    with jax.default_matmul_precision("highest"):
        function = jax.jit(native.jax).lower(*held).compile()
    latest: list[Any] = []

    def enqueue() -> None:
        latest[:] = [function(*held)]

    def outputs() -> list[Array]:
        enqueue()
        return [wide(np.asarray(leaf)) for leaf in jax.tree.leaves(latest[0])]

    def wait() -> None:
        jax.block_until_ready(latest)  # type: ignore[no-untyped-call]

    return Contestant("xla", outputs, enqueue, wait, looped_seconds(native, held))


def looped_seconds(native: Native, held: Sequence[Any]) -> Callable[[int], float] | None:
    """Return a function that times LOOPED executions in one program of XLA.

    None if XLA does not take that program, or has moved the work out of the loop.
    """
    import jax

    def many(*copies: Any) -> Any:
        def step(number: Any, _: Any) -> Any:
            # Which copy is read depends on the iteration; XLA would move what does not out of the loop.
            return native.jax(*(jax.lax.dynamic_index_in_dim(c, number % COPIES, keepdims=False) for c in copies))

        first = jax.tree.map(lambda s: jax.numpy.zeros(s.shape, s.dtype), jax.eval_shape(native.jax, *held))
        return jax.lax.fori_loop(0, LOOPED, step, first)

    try:
        copies = [jax.numpy.stack([a] * COPIES) for a in held]
        with jax.default_matmul_precision("highest"):
            function = jax.jit(many).lower(*copies).compile()
        jax.block_until_ready(function(*copies))  # type: ignore[no-untyped-call]
        if not works_in_a_loop(function.as_text() or ""):
            return None
    except Exception:  # XLA may refuse it for many reasons; calls that follow each other are timed then
        return None

    def seconds(repeats: int) -> float:
        times = []
        for _ in range(max(1, min(3, repeats // LOOPED))):
            start = time.perf_counter()
            jax.block_until_ready(function(*copies))  # type: ignore[no-untyped-call]
            times.append((time.perf_counter() - start) / LOOPED)
        return min(times)

    return seconds


def works_in_a_loop(text: str) -> bool:
    """Return whether the body of a loop in optimized HLO computes anything but its counter."""
    bodies = re.findall(r"\bwhile\(.*?\bbody=%?([\w.\-]+)", text)
    for body in bodies:
        found = re.search(rf"^%?{re.escape(body)} .*?\{{\n(.*?)^\}}", text, re.MULTILINE | re.DOTALL)
        for line in found[1].splitlines() if found is not None else ():
            made = re.match(r"\s*(?:ROOT )?%?[\w.\-]+ = (\S+?)(?:\{\S*)? ([\w\-]+)\(", line)
            if made is not None and made[1] != "s32[]" and made[2] not in MOVES:
                return True
    return False


def torch_contestant(native: Native, arrays: Sequence[Array], name: str, device: str = "cuda") -> Contestant:
    """Return the PyTorch function: compiled by Inductor, or with PyTorch's own kernels if the name is "eager".

    Raises:
        ImportError: PyTorch is not installed.
        RuntimeError: it has no such device.
    """
    import torch

    torch._dynamo.reset()
    torch.set_default_device(device)
    torch.backends.cudnn.allow_tf32 = False  # products of full precision, as for the others
    compiled = name != "eager" and native.compiled
    function = torch.compile(native.torch, dynamic=False) if compiled else native.torch
    held = [tensor(a, i.index, device) for a, i in zip(arrays, native.inputs, strict=True)]

    def enqueue() -> Any:
        with torch.no_grad():
            return function(*held)

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize()

    for _ in range(WARM_CALLS):
        enqueue()
    wait()
    replayed = None if device == "cpu" else replay_seconds(enqueue)
    return Contestant(name, lambda: [torch_host(o) for o in leaves(enqueue())], enqueue, wait, replayed)


def replay_seconds(enqueue: Callable[[], Any]) -> Callable[[int], float] | None:
    """Return a function that times replays of a CUDA graph of a call by events; None if it cannot be captured."""
    import torch

    kept: list[Any] = []  # results, to whose memory the graph writes
    try:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_CALLS):
                enqueue()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept.append(enqueue())
    except Exception:  # what reads values on the host cannot be captured; calls are timed then
        torch.cuda.synchronize()
        return None

    def seconds(repeats: int) -> float:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        graph.replay()
        start.record()
        for _ in range(repeats):
            graph.replay()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1e3 / repeats if kept else 0.0

    return seconds


def tensor(array: Array, index: bool, device: str) -> Any:
    """Return a tensor on a device; PyTorch takes indices as int64."""
    import torch

    if array.dtype == np.dtype("bfloat16"):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)
    found = torch.from_numpy(array).to(device)
    return found.long() if index else found


def leaves(found: Any) -> list[Any]:
    """Return the arrays of nested tuples in order."""
    return [leaf for item in found for leaf in leaves(item)] if isinstance(found, tuple | list) else [found]


def torch_host(output: Any) -> Array:
    """Return a tensor as a NumPy array, of bfloat16 as float32."""
    import torch

    return np.asarray((output.float() if output.dtype == torch.bfloat16 else output).contiguous().cpu().numpy())


def wide(array: Array) -> Array:
    """Return an array with bfloat16 widened to float32."""
    return array.astype(np.float32) if array.dtype == np.dtype("bfloat16") else array
