"""The worker process of measurements, which compiles, checks and times plans; JSON lines in, JSON lines out.

It runs kernels that may crash or hang, so it keeps nothing that matters: the other side may kill it at any time.
Requests and replies are documented at `Worker`.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import platform
import resource
import signal
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from compiler.api import compile as compile_hlo
from compiler.backends.registry import find_backend
from compiler.backends.xla.executable import XlaExecutable
from compiler.errors import BackendError, BuildKilledError, DeviceLostError, HlogymError, UnbuildableFusionError
from compiler.plan import CompilationPlan
from compiler.plan_replays import PlanReplays
from compiler.runtime.executable import Executable, parameter_leaves
from compiler.runtime.thunks import Thunk
from compiler.support.lru_dict import LruDict
from compiler.text import parse
from env.comparison import absolute_part, difference
from env.gate import Block, Gate
from env.program_json import program_from_json
from env.racing import Budget, ReferenceLoad, checksum, least_seconds, race, runners
from env.real_time import real_time
from env.reference import Reference, drawn_reference, fresh_outputs, on_host
from env.suites import Program, Tolerance, random_inputs

OTHER_SEED = 1_000_003  # distance of the seeds of inputs that show whether outputs depend on the inputs
HELD_EXECUTABLES = 4  # in addition to those that a request asks to keep
HELD_BYTES = 1 << 30
WANTED_BYTES = 1 << 29
LEAST_WORN_BYTES = 1 << 31  # resident memory below which a process is never worn, however small the machine
WEAR_INTERVAL = 32  # programs between two checks of the process's own memory
MOST_PROGRAMS = 5000  # after which a process is worn, whatever it seems to hold
SAMPLE_SECONDS = 2e-3  # length of one sample, which averages executions so that the clock's resolution does not matter
PROFILES, MOST_PROFILES, PROFILE_SECONDS = 3, 25, 0.003  # executions in which thunks are timed


@dataclass
class _Ready:
    """An executable whose outputs are right, with the reference they were checked against."""

    executable: Executable
    wanted: Reference
    tolerance: Tolerance | None
    build: str

    def finding(self, outputs: Sequence[Any]) -> str | None:
        """Return how outputs for the reference's inputs are wrong, or None."""
        return difference([on_host(o) for o in outputs], self.wanted.outputs, self.tolerance, self.wanted.spread)

    @property
    def size(self) -> float:
        """Memory as a share of what may be held."""
        return max(getattr(self.executable, "arena_bytes", 0) / HELD_BYTES, 1 / HELD_EXECUTABLES)


class _UnknownHandleError(Exception):
    """A handle of another process, or of an executable that is no longer held."""


class Worker:
    """Answers requests one at a time.

    - `{"op": "interpret", "program": ..., "seed": int}` draws the seed's inputs and computes the reference's outputs
      with the interpreter, which are kept for later requests; reply `{}`.
    - `{"op": "prepare", "program": ..., "plan": str | None, "backend": str, "seed": int, "keep": [handles]}` compiles,
      runs on the seed's inputs and compares with the interpreter; reply `{"handle": h, "build": key, "thunks": n,
      "idle": bool, "worn": bool}`. Build: equal for plans that lead to the same compiled code on the same machine.
      Thunks: number of those that take time. Idle: the program only copies. Worn: this process has used so much memory,
      or so many memory mappings, that it should be replaced. What is still held is not compiled again.
    - `{"op": "race", "default": h, "candidate": h, "blocks": n, "seconds": limit, "patience": k, "gate": {...}, "cpus":
      [...], "real_time": bool}` times two programs in ABBA blocks on the given cores, up to k times as many while the
      gate leaves it undecided, and checks the outputs of the last block; reply `{"looks": m, "blocks": [[four times,
      load], ...], "floor": seconds, "kernels": [[name, key, executions, seconds], ...]}`. Floor: no machine could run
      the candidate faster. Kernels: the thunks of the candidate, timed inside the program.
    - `{"op": "compare", "handles": [...], "rounds": n, "cpus": [...], "real_time": bool}` times whole programs in
      turns, and checks their outputs afterwards; reply `{"times": [[...], ...]}`.
    - `{"op": "ping"}`: reply `{}`.

    The reply to a request that fails is `{"error": kind, "message": string}`; after a kernel that makes the GPU
    unusable, the process ends without a reply. The kinds:

    - "program": its inputs or its tolerance do not fit, the interpreter cannot compute it, or its outputs do not
      distinguish right from wrong;
    - "compile", "run", "wrong" (outputs differ from the interpreter's): failures of the plan; if the reply has
      `"handle"`, of the plan with that handle;
    - "unavailable": the backend does not work on this machine, in no process;
    - "machine" (no disk, no process, no compiler...), "memory": may not happen in a fresh process;
    - "unknown handle": a handle of another process.
    """

    def __init__(self) -> None:
        self._ready: LruDict[str, _Ready] = LruDict(1.0, lambda _, ready: ready.size)
        self._wanted: LruDict[tuple[str, int], Reference] = LruDict(WANTED_BYTES, lambda _, reference: reference.nbytes)
        self._replays = PlanReplays()
        self._machines: dict[str, str] = {}
        self._handles: LruDict[tuple[str, str | None, int, str], str] = LruDict(4 * HELD_EXECUTABLES)
        self._count = 0
        self._load = ReferenceLoad()

    def handle(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the reply to one request."""
        try:
            match request["op"]:
                case "ping":
                    return {}
                case "interpret":
                    return self._interpret(request)
                case "prepare":
                    return self._prepare(request)
                case "race":
                    return self._race(request)
                case "compare":
                    return self._compare(request)
                case op:
                    return {"error": "run", "message": f"unknown request {op!r}"}
        except _UnknownHandleError as error:
            return {"error": "unknown handle", "message": str(error)}
        except Exception as error:  # a worker reports every error, so that training continues
            return _failure("run", error)

    def _interpret(self, request: Mapping[str, Any]) -> dict[str, Any]:
        found = self._wanted_outputs(request)
        return {} if isinstance(found, Reference) else found

    def _prepare(self, request: Mapping[str, Any]) -> dict[str, Any]:
        wanted = self._wanted_outputs(request)
        if not isinstance(wanted, Reference):
            return wanted
        if not self._ready and (reason := find_backend(request["backend"]).why_unavailable()) is not None:
            return {"error": "unavailable", "message": reason}
        asked = (request["program"]["text"], request["plan"], request["seed"], request["backend"])
        handle = self._handles.get(asked)
        if handle is not None and handle in self._ready:
            return self._described(handle)
        try:
            executable = self._compiled(request["program"]["text"], request["backend"], request["plan"])
        except Exception as error:  # as in `handle`
            return _failure("compile", error)
        tolerance = program_from_json(request["program"]).tolerance
        before = checksum(wanted.inputs)
        got = fresh_outputs(executable, wanted)
        if checksum(wanted.inputs) != before:
            self._wanted.pop((request["program"]["text"], request["seed"]))
            return {"error": "wrong", "message": "it changes arguments that are not donated"}
        if (finding := difference(got, wanted.outputs, tolerance, wanted.spread)) is not None:
            return {"error": "wrong", "message": finding}
        self._count += 1
        handle = f"{os.getpid()}#{self._count}"
        build = self._build(executable, request["backend"])
        self._ready.put(handle, _Ready(executable, wanted, tolerance, build), kept=request.get("keep", ()))
        self._handles[asked] = handle
        return self._described(handle)

    def _compiled(self, text: str, backend: str, plan: str | None) -> Executable:
        if plan is not None:
            return self._replays.compile(text, backend, CompilationPlan.from_json(plan))
        # The reference stays what the rules decide, so that speedups mean the same whatever policy is the default.
        return compile_hlo(text, backend=backend, policy="heuristic")

    def _described(self, handle: str) -> dict[str, Any]:
        ready = self._held(handle)
        found = timed(ready.executable)
        handed_on = bool(_handed_on(ready.executable))  # runs at least one kernel, which nothing here can time alone
        idle = not handed_on and all(t.kind == "copy" for _, t in found)
        worn = self._count >= MOST_PROGRAMS or (self._count % WEAR_INTERVAL == 0 and _worn())
        return {"handle": handle, "build": ready.build, "thunks": len(found) + handed_on, "idle": idle, "worn": worn}

    def _held(self, handle: str) -> _Ready:
        ready = self._ready.get(handle)
        if ready is None:
            raise _UnknownHandleError(f"there is no executable {handle}")
        return ready

    def _build(self, executable: Executable, backend: str) -> str:
        """Return a key of the compiled code together with the machine and the compiler."""
        if backend not in self._machines:
            self._machines[backend] = machine_key(backend)
        thunks = ",".join(f"{t.kind} {t.key}" for t in executable.thunks)
        code = f"{self._machines[backend]} {thunks}{_handed_on(executable)}"
        return hashlib.sha256(code.encode()).hexdigest()[:24]

    def _wanted_outputs(self, request: Mapping[str, Any]) -> Reference | dict[str, Any]:
        """Return the reference of a request's program, or the reply that says why there is none."""
        text, seed = request["program"]["text"], request["seed"]
        found = self._wanted.get((text, seed))
        try:
            if found is None:
                found = _reference(program_from_json(request["program"]), text, seed)
                self._wanted.put((text, seed), found)
        except Exception as error:  # whatever the interpreter raises, no plan is at fault
            return _failure("program", error)
        return found if found.unchecked is None else {"error": "program", "message": found.unchecked}

    def _race(self, request: Mapping[str, Any]) -> dict[str, Any]:
        handles = request["default"], request["candidate"]
        default, candidate = map(self._held, handles)
        inputs = [_views(candidate.wanted.inputs)]
        if candidate.wanted.others:
            inputs.append(_views(candidate.wanted.others))
        before = checksum(inputs[0])
        budget = Budget(request["blocks"], request["seconds"], Gate(**request["gate"]), request["patience"])
        first, second = runners(default.executable, candidate.executable)
        with _undisturbed(request):
            blocks, looks, outputs = race(first, second, inputs, budget, self._load)
            samples = candidate.executable.time_thunks(inputs[0], _profiles(blocks)) if blocks[0].times[1] < 1 else []
        found = timed(candidate.executable)
        for handle, ready, found_outputs in zip(handles, (default, candidate), outputs, strict=True):
            findings = (ready.finding(o) for o in found_outputs)
            if (finding := next((f for f in findings if f is not None), None)) is not None:
                return {"error": "wrong", "message": f"after it was timed, {finding}", "handle": handle}
        if checksum(inputs[0]) != before:
            self._wanted = LruDict(WANTED_BYTES, lambda _, reference: reference.nbytes)
            return {"error": "wrong", "message": "it changes arguments that are not donated"}
        executions = [s.executions for s in samples]
        floor = least_seconds(candidate.executable, candidate.wanted.outputs, executions, os.cpu_count() or 1)
        kernels = [[t.name, t.key, samples[i].executions, median(samples[i].seconds)] for i, t in found if samples]
        return {"blocks": [[*b.times, b.load] for b in blocks], "looks": looks, "floor": floor, "kernels": kernels}

    def _compare(self, request: Mapping[str, Any]) -> dict[str, Any]:
        ready = [self._held(h) for h in request["handles"]]
        with _undisturbed(request):
            times, outputs = _in_turns(ready, request["rounds"])
        for handle, one, results in zip(request["handles"], ready, outputs, strict=True):
            if (finding := one.finding(results)) is not None:
                return {"error": "wrong", "message": f"after it was timed, {finding}", "handle": handle}
        return {"times": times}


def _profiles(blocks: Sequence[Block]) -> int:
    """Return how often a program runs while its thunks are timed: longer in total for short ones, which vary more."""
    return max(PROFILES, min(MOST_PROFILES, int(PROFILE_SECONDS / max(1e-9, min(blocks[0].times)))))


def _in_turns(ready: Sequence[_Ready], rounds: int) -> tuple[list[list[float]], list[list[npt.NDArray[Any]]]]:
    """Time whole programs in turns; return the samples of each, and the outputs of an execution afterwards."""
    runs = runners(*(r.executable for r in ready))
    inputs = [_views(r.wanted.inputs) for r in ready]
    repeats = [_repeats(min(run(x, 2)[0])) for run, x in zip(runs, inputs, strict=True)]
    times: list[list[float]] = [[] for _ in ready]
    order = list(range(len(ready)))
    for _ in range(rounds):
        for i in order:
            # At least three, so that the median of a sample ignores one interruption.
            times[i].append(median(runs[i](inputs[i], max(3, repeats[i]))[0]))
        order.reverse()  # the order affects the caches; alternating it cancels the effect
    # Copies, because the programs run in the same memory.
    outputs = [[np.array(on_host(o)) for o in run(x, 1)[1]] for run, x in zip(runs, inputs, strict=True)]
    return times, outputs


def _reference(program: Program, text: str, seed: int) -> Reference:
    module = parse(text)
    shapes = [(s.dtype, s.dimensions) for s in parameter_leaves(module)]
    reference = drawn_reference(module, lambda number: random_inputs(program, shapes, seed + number * OTHER_SEED))
    absolute_part(program.tolerance, 0, len(reference.outputs))
    return reference


def timed(executable: Executable) -> list[tuple[int, Thunk]]:
    """Return the thunks that take time themselves, with their indices; loops and branches only contain others."""
    return [(i, t) for i, t in enumerate(executable.thunks) if t.reads() or t.writes()]


def _handed_on(executable: Executable) -> str:
    """Return the program that another compiler got, which generated its code; empty if we did."""
    return executable.given if isinstance(executable, XlaExecutable) else ""


def machine_key(backend: str) -> str:
    """Return a hash of what times depend on besides the program: backend, device, cores, threads, compiler and host."""
    threads = os.environ.get("HLOGYM_NUM_THREADS", "")
    text = f"{backend}\n{find_backend(backend).machine_key()}\n{threads}\n{platform.node()}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _views(arrays: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    """Return views of arrays, which a program cannot take over, even if it takes donated arguments."""
    return [np.asarray(a)[...] for a in arrays]


@contextlib.contextmanager
def _undisturbed(request: Mapping[str, Any]) -> Iterator[None]:
    """Time a request: on its cores only, and at real-time priority if it says so."""
    with _on_cores(request["cpus"]), real_time() if request["real_time"] else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _on_cores(cpus: Sequence[int]) -> Iterator[None]:
    """Let every thread of this process run on these cores only, for a while."""
    before = os.sched_getaffinity(0)
    _pin(cpus)
    try:
        yield
    finally:
        _pin(before)


def _pin(cpus: Collection[int]) -> None:
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208 - plain names are wanted
        with contextlib.suppress(OSError, ValueError):  # it has ended, or the core is not ours
            os.sched_setaffinity(int(thread), cpus)


def _repeats(seconds: float) -> int:
    return max(1, min(100, round(SAMPLE_SECONDS / max(seconds, 1e-9))))


def _failure(kind: str, error: Exception) -> dict[str, str]:
    """Return the reply to a request that raised; failures of the machine have kinds of their own.

    Raises:
        DeviceLostError: the request raised it. This process is of no use any more, and its end counts as a crash of the
            plan, as on a CPU.
    """
    match error:
        case DeviceLostError():
            raise error
        case MemoryError() | BuildKilledError():
            return {"error": "memory", "message": str(error) or "out of memory"}
        case BackendError():
            return {"error": "machine", "message": str(error)}
        case OSError():
            return {"error": "machine", "message": f"{error.strerror or error}: {error.filename or kind}"}
        case UnbuildableFusionError():
            return {"error": "unbuildable", "message": str(error)}
        case HlogymError():
            return {"error": kind, "message": str(error)}
        case _:
            return {"error": kind, "message": f"{type(error).__name__}: {error}"}


def _worn() -> bool:
    """Check whether this process has used up much of its memory mappings, or of the machine's memory."""
    try:
        most = int(Path("/proc/sys/vm/max_map_count").read_text())
        mappings = Path("/proc/self/maps").read_bytes().count(b"\n")
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError):
        return False
    whole = os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()
    return 2 * mappings > most or resident > max(LEAST_WORN_BYTES, whole // 4)


def die_with_parent() -> None:
    """Ask Linux to end this process when its parent ends, even in the middle of a kernel that hangs."""
    if not sys.platform.startswith("linux"):
        return
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def private_stdout() -> TextIO:
    """Return the pipe for replies; descriptor 1 becomes stderr, so that output of kernels does not disturb them."""
    pipe = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(pipe, "w", encoding="utf-8")


def _expect_to_die() -> None:
    """Disable core files, and let the system end this process before the training process if memory runs out."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError):  # other systems than Linux
        Path("/proc/self/oom_score_adj").write_text("1000")


def main() -> None:
    """Serve until stdin ends."""
    die_with_parent()
    _expect_to_die()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the training process handles Ctrl-C, and then closes this stdin
    replies = private_stdout()
    worker = Worker()
    for line in sys.stdin.buffer:
        replies.write(json.dumps(worker.handle(json.loads(line))) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
