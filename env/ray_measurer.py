"""Measuring on a Ray cluster: stateless actors that measure, and one actor that owns the store of times.

A measuring actor keeps nothing but caches. If its process or its node is lost, another actor takes its place on any
node with free cores, and repeats the request; no plan is charged with the loss. The owner of the store runs on the node
of the process that connects. If it is killed, Ray starts it again, and the call is repeated.

Times are stored by machine and host, as everywhere: a plan that was measured on one host is measured again on another.

Ray is optional (`pip install 'hlogym[ray]'`). Ray serialises what it sends with pickle, so only connect to clusters
that you trust.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

from compiler.errors import HlogymError
from compiler.plan import CompilationPlan
from env.measurement import Comparison, Measurement, MeasurementError, Measurer, MeasurerOptions
from env.store import PlanStore, PlanTime, StoreError
from env.suites import Program

__all__ = ["RayError", "RayMeasurer", "RayStore", "connect"]

NAMESPACE = "hlogym"
ANSWER_SECONDS = 10.0
"""Time limit for the first answer of a cluster."""
START_SECONDS = 180.0
"""Time limit for the start of an actor, which waits for a node with free cores."""
SHARED_SECONDS = 5.0
"""Time limit for the start of an actor that replaces a lost one, after which it shares a node with others."""
TRIES = 5
"""Number of actors that may be lost in a row during one request."""

_COLOURS = re.compile(r"(\x1b|\\x1b)\[[0-9;]*m")
_CONNECTING = threading.Lock()


class RayError(HlogymError, RuntimeError):
    """A Ray cluster that cannot be used, and why."""


def connect(address: str = "auto") -> None:
    """Connect this process to a Ray cluster, unless it is connected already.

    Args:
        address: "auto" for the cluster that runs on this machine, or `ray://HOST:PORT` for a Ray client.

    Raises:
        RayError: Ray is not installed, or there is no cluster at the address.
    """
    ray = _ray()
    with _CONNECTING:
        if ray.is_initialized():
            return
        try:
            _check_answers(address)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the error says it
                ray.init(address=address, namespace=NAMESPACE, logging_level="WARNING", log_to_driver=False)
        except (OSError, RuntimeError, ValueError, TimeoutError) as error:
            where = "on this machine" if address == "auto" else "there; its port for clients is 10001"
            reason = str(error).splitlines()[0].partition(". ")[0]
            raise RayError(
                f"cannot connect to the Ray cluster at {address}: {reason}; `ray start --head` starts one {where}"
            ) from error


def _check_answers(address: str) -> None:
    """Check that something listens at an address; Ray would try for minutes and print its warnings.

    Raises:
        OSError: there is no cluster, or it does not answer.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or _started_here()
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
    except OSError as error:
        raise ConnectionError(f"{host}:{port} does not answer ({error.strerror or error})") from error


def _started_here() -> str:
    """Return the address of the cluster that was last started on this machine; it is empty if there is none."""
    folder = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / "ray"
    try:
        return (folder / "ray_current_cluster").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise RayError("Ray is not installed; run `pip install 'hlogym[ray]'`") from error
    return ray


def _lost() -> tuple[type[Exception], ...]:
    """Return the errors that say that the process or the node of an actor is gone, through no fault of a plan."""
    from ray import exceptions as e

    return e.RayActorError, e.NodeDiedError, e.WorkerCrashedError, e.ObjectLostError, e.OutOfMemoryError


def _summary(error: Exception) -> str:
    """Return the first line of an error of Ray and, if it has a traceback, the last one, which names the cause."""
    lines = [line.strip() for line in _COLOURS.sub("", str(error)).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[0] if len(lines) == 1 or "Error" not in lines[-1] else f"{lines[0]}: {lines[-1]}"


# ---- the store


class _StoreOwner:
    """The actor that owns the store; replies are pairs of a value and an error message."""

    def __init__(self, path: str, keep_seconds: float) -> None:
        self._path, self._keep = path, keep_seconds
        self._store: PlanStore | None = None

    def get(self, key: str) -> tuple[PlanTime | None, str]:
        return self._replied(lambda store: store.get(key))

    def put(self, found: tuple[PlanTime, ...]) -> tuple[None, str]:
        return self._replied(lambda store: store.put(*found))

    def pid(self) -> tuple[int, str]:
        return os.getpid(), ""

    def _replied(self, action: Callable[[PlanStore], Any]) -> tuple[Any, str]:
        try:
            if self._store is None:  # opened here, because an actor whose constructor fails has no error message
                self._store = PlanStore(self._path, self._keep)
            return action(self._store), ""
        except StoreError as error:
            return None, str(error)


class RayStore:
    """The store of times of a Ray cluster, which one actor owns; may be sent to other processes of the cluster.

    Args:
        path: the file, on the node of the owner; ":memory:" keeps times in the memory of the owner.
        keep_seconds: age at which times expire.
        node: id of the node of the owner; None: the node that this process runs on, or is connected to.
    """

    def __init__(self, path: str | Path, keep_seconds: float, node: str | None = None) -> None:
        self.path, self._keep = str(path), keep_seconds
        self.node = node if node is not None else _ray().get_runtime_context().get_node_id()
        self._owner: Any = None

    def get(self, key: str) -> PlanTime | None:
        """Return what is known under a key, or None.

        Raises:
            StoreError: the file cannot be read, or the node of the owner is gone.
        """
        found: PlanTime | None = self.call("get", key)
        return found

    def put(self, *found: PlanTime) -> None:
        """Store measurements, all or none of them.

        Raises:
            StoreError: the file cannot be written, or the node of the owner is gone.
        """
        self.call("put", found)

    def call(self, method: str, *arguments: Any) -> Any:
        """Return the owner's reply. A call that is lost is repeated, which is harmless: all of them are idempotent.

        Raises:
            StoreError: the owner replied with an error, or cannot be started again.
        """
        ray = _ray()
        lost, reason = _lost(), ""
        for _ in range(TRIES):
            try:
                if self._owner is None:
                    self._owner = self._find_owner(ray)
                value, error = ray.get(getattr(self._owner, method).remote(*arguments))
            except lost as gone:
                self._owner, reason = None, _summary(gone)
            except ValueError as gone:  # it ended while it was looked up by its name
                self._owner, reason = None, _summary(gone)
            else:
                if error:
                    raise StoreError(error)
                return value
        raise StoreError(f"the owner of {self.path}, the store of measured plans, is gone: {reason}")

    def _find_owner(self, ray: Any) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        name = hashlib.sha256(f"{self.node} {self.path}".encode()).hexdigest()[:16]
        options = {
            "name": f"store-{name}", "namespace": NAMESPACE, "get_if_exists": True, "num_cpus": 0,
            "max_restarts": -1, "max_task_retries": -1,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(self.node, soft=False),
        }  # fmt: skip
        return ray.remote(_StoreOwner).options(**options).remote(self.path, self._keep)

    def close(self) -> None:
        """Forget the owner, which ends with the process that started it."""
        self._owner = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RayStore, (self.path, self._keep, self.node)


# ---- measuring


@dataclass(frozen=True)
class _SentProgram(Program):
    """A program with its text, because the nodes of a cluster do not share its file."""

    content: str = ""

    def text(self) -> str:
        return self.content

    @staticmethod
    def of(program: Program) -> _SentProgram:
        values = {f.name: getattr(program, f.name) for f in fields(Program)}
        return _SentProgram(**values, content=program.text())


_Reply: TypeAlias = tuple[Any, tuple[str, str] | None, int]


class _MeasuringActor:
    """Measures on its node; replies are triples of a result, an error, and the number of workers replaced."""

    def __init__(self, store: RayStore, options: MeasurerOptions, threads: str | None) -> None:
        # Ray sets it to the number of reserved cores, which would change how the programs run.
        os.environ.pop("OMP_NUM_THREADS", None)
        if threads is not None:
            os.environ["OMP_NUM_THREADS"] = threads
        self._measurer = Measurer(store, options)

    def pid(self) -> _Reply:
        return os.getpid(), None, self._measurer.restarts

    def measure(self, program: Program, plan: str | None, remeasure: bool) -> _Reply:
        return self._replied(lambda m: m.measure(program, _plan(plan), remeasure))

    def compare(self, program: Program, plans: Mapping[str, str | None], rounds: int | None) -> _Reply:
        return self._replied(lambda m: m.compare(program, {n: _plan(p) for n, p in plans.items()}, rounds))

    def check(self, program: Program, plan: str | None, text: str | None) -> _Reply:
        return self._replied(lambda m: m.check(program, _plan(plan), text))

    def build(self, program: Program, plan: str | None) -> _Reply:
        return self._replied(lambda m: m.build(program, _plan(plan)))

    def restart(self) -> _Reply:
        return self._replied(lambda m: m.restart())

    def _replied(self, action: Callable[[Measurer], Any]) -> _Reply:
        result, error = None, None
        try:
            result = action(self._measurer)
        except HlogymError as raised:
            error = ("store" if isinstance(raised, StoreError) else "machine", str(raised))
        return result, error, self._measurer.restarts


def _plan(text: str | None) -> CompilationPlan | None:
    return None if text is None else CompilationPlan.from_json(text)


def _text(plan: CompilationPlan | None) -> str | None:
    return None if plan is None else plan.to_json()


class RayMeasurer(Measurer):
    """Measures plans on a Ray cluster, one at a time, by an actor of its own; use it as a context manager.

    Several of them, in threads or processes, measure at once. The actor reserves `options.cores` cores of its node (one
    if that is None), and a GPU for "cuda". Actors on one node take turns at timing.

    Args:
        store: file of times on the node that this process runs on, or is connected to.
        options: how to measure.
        address: as for `connect`.
        reserve: whether the actor reserves its cores; not so if it measures only while the actors of others are idle.

    Raises:
        RayError: Ray is not installed, or there is no cluster at the address.
    """

    def __init__(
        self,
        store: str | Path = ":memory:",
        options: MeasurerOptions | None = None,
        address: str = "auto",
        reserve: bool = True,
    ) -> None:
        connect(address)
        self._reserve = reserve
        options = options or MeasurerOptions()
        self._times = RayStore(store, options.keep_seconds)
        super().__init__(self._times, options)
        self._actor: Any = None
        self._actor_pid: int | None = None
        self._lost_actors = self._replaced = 0

    @property
    def restarts(self) -> int:
        """Number of actors that were lost, and of workers that the present one has replaced."""
        return self._lost_actors + self._replaced

    def restart(self) -> None:
        """End the worker of the actor, so that the next measurement runs in a fresh process."""
        if self._actor is not None:
            self._call("restart")

    @property
    def actor_pid(self) -> int | None:
        """Process id of the actor on its node; None if there is none now."""
        return self._actor_pid

    def _measure_anew(self, program: Program, plan: CompilationPlan | None, remeasure: bool = False) -> Measurement:
        found: Measurement = self._call("measure", _SentProgram.of(program), _text(plan), remeasure)
        return found

    def compare(
        self, program: Program, plans: Mapping[str, CompilationPlan | None], rounds: int | None = None
    ) -> Comparison:
        """Time whole calls of several plans of a program, interleaved in one process, after checking their outputs."""
        sent = {name: _text(plan) for name, plan in plans.items()}
        found: Comparison = self._call("compare", _SentProgram.of(program), sent, rounds)
        return found

    def check(self, program: Program, plan: CompilationPlan | None, text: str | None = None) -> str | None:
        """Compile and compare with the interpreter, without timing; return what is wrong, or None."""
        found: str | None = self._call("check", _SentProgram.of(program), _text(plan), text)
        return found

    def build(self, program: Program, plan: CompilationPlan | None) -> str | None:
        """Compile and check, without timing; return a key of the compiled code, or None if it fails."""
        found: str | None = self._call("build", _SentProgram.of(program), _text(plan))
        return found

    def _call(self, method: str, *arguments: Any) -> Any:
        """Return the result of a method of the actor; another actor repeats a request that is lost with its node.

        Raises:
            MeasurementError: nothing can be measured on the nodes that were tried, or no node has free cores.
            StoreError: the file of times cannot be used.
        """
        ray = _ray()
        reason = ""
        for _ in range(TRIES):
            try:
                if self._actor is None:
                    self._actor = self._start(ray)
                result, error, self._replaced = ray.get(getattr(self._actor, method).remote(*arguments))
            except _lost() as gone:
                reason = _summary(gone)
                self._drop(ray)
                continue
            if error is None:
                return result
            kind, reason = error
            if kind == "store":
                raise StoreError(reason)
            self._drop(ray)  # the machine is at fault; another node may do
        raise MeasurementError(
            f"measuring failed {TRIES} times in a row on the Ray cluster, whose nodes need gcc and the same "
            f"version of hlogym: {reason}"
        )

    def _start(self, ray: Any) -> Any:
        """Start an actor on a node with free cores. One that replaces another shares a node if no core is free."""
        cores = (self.options.cores or 1) if self._reserve else 0
        gpus = int(self.options.backend == "cuda")
        tries = [(cores, SHARED_SECONDS), (0, START_SECONDS)] if self._lost_actors else [(cores, START_SECONDS)]
        for reserved, seconds in tries:
            made = ray.remote(_MeasuringActor).options(
                num_cpus=reserved, num_gpus=gpus, scheduling_strategy="SPREAD", max_restarts=0
            )
            actor = made.remote(self._times, self.options, os.environ.get("OMP_NUM_THREADS"))
            try:
                self._actor_pid, *_ = ray.get(actor.pid.remote(), timeout=seconds)
            except ray.exceptions.GetTimeoutError:
                ray.kill(actor)
            else:
                return actor
        raise MeasurementError(
            f"no node of the Ray cluster has {cores} free cores{' and a GPU' if gpus else ''}: none within "
            f"{START_SECONDS:g} s; use fewer workers, or add nodes"
        )

    def _drop(self, ray: Any) -> None:
        actor, self._actor, self._actor_pid = self._actor, None, None
        self._lost_actors += 1
        if actor is not None:
            ray.kill(actor)

    def close(self) -> None:
        """End the actor."""
        actor, self._actor = self._actor, None
        if actor is not None:
            _ray().kill(actor)
        super().close()
