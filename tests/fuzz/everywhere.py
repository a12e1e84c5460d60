"""Run programs with native code, XLA:CPU and the interpreter, and compare the results, in processes that may crash.

A program is given by a source and a number (`SOURCES`); the result is an `Outcome`.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from compiler.api import CompileOptions, decide
from compiler.api import compile as compile_program
from compiler.errors import HlogymError
from compiler.fusion.policies import RandomFusion, make_policy
from compiler.interpreter import evaluate
from compiler.ir import HloModule
from compiler.ir.verifier import verify
from compiler.loops import KeepLoops, KernelLoops, LoopPolicy, UnrollLoops
from compiler.session import CompilationSession
from compiler.text import parse
from tests.fuzz.uncertainty import Array, Judge
from tests.oracle import XlaError, compile_xla, run_xla

XLA_FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
SECONDS = 180.0
"""Time limit of a program, which usually takes a second or two."""
BATCH = 150
"""Programs per worker process; XLA never frees the memory of compiled programs."""
XLA_LEEWAY = 4.0
"""Factor on tolerances for XLA, whose approximations of functions and order of sums are unknown."""

AGREE = "all agree"
NO_XLA = "XLA does not run it, the others agree"
NEARER = "native code is nearer than the interpreter to the result without rounding"
INFINITE = "an infinite or NaN intermediate that native code and XLA simplify alike"
XLA = "XLA differs from interpreter and native code"
REFUSED = "rejected with an hlogym error"
NOT_MADE = "JAX does not lower it"
TIMEOUT = "not done in time"
NATIVE = "native code differs"
INTERPRETER = "native code and XLA agree, the interpreter differs"
FOREIGN = "a foreign exception"
CRASH = "a crash"
FAULTS = (NATIVE, INTERPRETER, FOREIGN, CRASH, TIMEOUT)
"""Outcomes that need an explanation."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one program.

    Attributes:
        number: number of the program in its source.
        result: one of the strings above.
        stage: the stage in which it ended.
        detail: a description of the difference or error.
        used: the pieces or opcodes of the program.
        seconds: duration.
    """

    number: int
    result: str
    stage: str = ""
    detail: str = ""
    used: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Given:
    """A program to run: HLO text, arguments, and its pieces or opcodes."""

    text: str
    args: tuple[Array, ...]
    used: tuple[str, ...] = ()


class NotMadeError(Exception):
    """JAX cannot lower the function."""


def jax_program(number: int) -> Given:
    """Return a random JAX program; see `jax_functions`."""
    from tests.fuzz.jax_functions import random_program

    program = random_program(number)
    try:
        text = program.text()
    except Exception as e:  # JAX raises exceptions of many classes
        raise NotMadeError(f"{type(e).__name__}: {str(e)[:300]}") from e
    return Given(text, program.leaves(), tuple(program.used))


def random_module_program(number: int) -> Given:
    """Return a random module; see `random_modules`."""
    from tests.fuzz.random_modules import random_inputs, random_module

    rng = np.random.default_rng((3, number))
    module = random_module(rng, 40)
    used = tuple(i.opcode.text for c in module.computations for i in c.instructions)
    return Given(str(module), tuple(random_inputs(module, rng)), used)


def conformance_case(number: int) -> Given:
    """Return a conformance case of `tests.sweeps`."""
    from tests.sweeps.registry import all_cases

    if not _CASES:
        _CASES.extend(Given(c.text, tuple(np.asarray(a) for a in c.args), (c.opcode,)) for c in all_cases())
    return _CASES[number]


_CASES: list[Given] = []
SOURCES: dict[str, Callable[[int], Given]] = {
    "jax": jax_program, "modules": random_module_program, "cases": conformance_case,
}  # fmt: skip


# ---- one program


def compiled(module: HloModule, number: int) -> Any:
    """Compile a module; about half of the programs with random decisions instead of the default ones."""
    rng = np.random.default_rng((5, number))
    kind = rng.random()
    if kind < 0.55:
        return compile_program(module)
    if kind < 0.7:
        return compile_program(module, options=CompileOptions(optimize=False))
    loops: tuple[LoopPolicy, ...] = (KeepLoops(), KernelLoops(), UnrollLoops(2))
    stop = float(rng.choice([0.0, 0.02]))
    policy = RandomFusion(int(rng.integers(1 << 30)), stop, max_actions=60) if kind < 0.95 else make_policy("none")
    session = CompilationSession(module, "cpu", [] if rng.random() < 0.25 else None)
    decide(session, policy, loops[int(rng.integers(3))])
    return session.finish()


def check(source: str, number: int, say: Callable[[str], None] = lambda stage: None, xla: bool = True) -> Outcome:
    """Run one program with native code, the interpreter and, if `xla` is True, XLA:CPU, and compare the results.

    Args:
        source: a key of SOURCES.
        number: number of the program in the source.
        say: called with the name of each stage before it begins.
        xla: whether to run XLA:CPU.
    """
    stage = ""
    used: tuple[str, ...] = ()

    def enter(name: str) -> None:
        nonlocal stage
        stage = name
        say(name)

    def outcome(result: str, detail: str = "") -> Outcome:
        return Outcome(number, result, stage, detail[:2000], used)

    enter("making")
    try:
        given = SOURCES[source](number)
    except NotMadeError as e:
        return outcome(NOT_MADE, str(e))
    used, args = given.used, given.args
    before = [a.copy() for a in args]
    results = []
    try:
        enter("parsing")
        module = parse(given.text)
        verify(module)
        enter("interpreting")
        wanted = evaluate(module, args)
        enter("compiling")
        executable = compiled(module, number)
        enter("running")
        for pattern in (0xFF, 0x5A):  # reads of uninitialised memory give different results
            _fill_memory(executable, pattern)
            results.append(executable(*(np.asarray(a)[...] for a in args)))
    except HlogymError as e:
        return outcome(REFUSED, f"{type(e).__name__}: {e}")
    except Exception:  # any other exception is a finding
        return outcome(FOREIGN, traceback.format_exc()[-1800:])
    if any(a.tobytes() != b.tobytes() for a, b in zip(args, before, strict=True)):
        return outcome(NATIVE, "an argument was written to")
    enter("running XLA")
    reference, refusal = _by_xla(given) if xla else (None, "not requested")
    enter("comparing")
    judge = Judge(module, args, wanted, number)
    for found in results:
        finding = judge.difference(found)
        if finding is not None:
            return _native_differs(judge, found, reference, str(finding), outcome)
    if reference is None:
        return outcome(NO_XLA, refusal)
    against = judge.difference(reference, XLA_LEEWAY)
    return outcome(AGREE) if against is None else outcome(XLA, str(against))


def _fill_memory(executable: Any, pattern: int) -> None:
    """Fill the memory of the next run with a byte pattern."""
    frame = executable._frames.take()
    frame.arena[:] = pattern
    executable._frames.give(frame)


def _by_xla(given: Given) -> tuple[list[Array] | None, str]:
    try:
        return run_xla(given.text, given.args), ""
    except XlaError as e:
        return None, str(e).partition("\n")[0][:300]
    finally:
        compile_xla.cache_clear()


def _native_differs(
    judge: Judge,
    found: list[Array],
    reference: list[Array] | None,
    finding: str,
    outcome: Callable[[str, str], Outcome],
) -> Outcome:
    """Classify a difference by comparing with XLA and with results computed in float64."""
    exact = judge.exact()
    if exact is not None and judge.difference(found, XLA_LEEWAY, wanted=exact) is None:
        return outcome(NEARER, finding)
    if reference is None:
        return outcome(NATIVE, f"{finding}; XLA does not run it")
    if exact is not None and not judge.unexplained(found, [exact, reference], XLA_LEEWAY):
        return outcome(NEARER, f"{finding}, where XLA is not")
    if judge.difference(found, XLA_LEEWAY, wanted=reference) is not None:
        agrees = judge.difference(reference, XLA_LEEWAY) is None
        return outcome(NATIVE, f"{finding}; XLA agrees with {'the interpreter' if agrees else 'neither'}")
    infinite = all(_only_where_infinite(a, b) for a, b in zip(found, judge.wanted, strict=True))
    return outcome(INFINITE if infinite else INTERPRETER, finding)


def _only_where_infinite(found: Array, wanted: Array) -> bool:
    """Return whether all larger differences are in elements that are infinite or NaN on either side."""
    if found.dtype.kind in "biu":
        return bool(np.array_equal(found, wanted))
    with np.errstate(all="ignore"):
        wide = np.complex128 if found.dtype.kind == "c" else np.float64
        a, b = found.astype(wide), wanted.astype(wide)
        finite = np.isfinite(a) & np.isfinite(b)
        return bool(np.all(~finite | (np.abs(a - b) <= 0.05 * np.abs(b) + 1e-6)))


# ---- processes


def _work(pipe: Connection, source: str, xla: bool) -> None:
    # Suppress XLA's messages; its errors are part of the outcome.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for number in iter(pipe.recv, None):
        start = time.perf_counter()
        found = check(source, number, pipe.send, xla)
        pipe.send(replace(found, seconds=round(time.perf_counter() - start, 2)))


class Worker:
    """A process that checks programs one at a time; it must be replaced when `left` is 0."""

    def __init__(self, source: str, xla: bool = True) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, source, xla), daemon=True)
        self.process.start()
        theirs.close()
        self.left = BATCH

    def check(self, number: int, seconds: float = SECONDS) -> Outcome:
        """Return the outcome; a crash or timeout is an outcome, too, and ends the worker."""
        self.left -= 1
        stage, end = "starting", time.monotonic() + seconds
        try:
            self.pipe.send(number)
            while self.pipe.poll(max(0.0, end - time.monotonic())):
                found = self.pipe.recv()
                if isinstance(found, Outcome):
                    return found
                stage = found
        except (EOFError, OSError):
            self.process.join()
            self.left = 0
            result = {"making": NOT_MADE, "running XLA": NO_XLA}.get(stage, CRASH)
            return Outcome(number, result, stage, f"the process exited with status {self.process.exitcode}")
        self.stop(kill=True)
        return Outcome(number, TIMEOUT, stage, f"timed out after {seconds:.0f} s", seconds=seconds)

    def stop(self, kill: bool = False) -> None:
        """End the process; kill it if requested."""
        self.left = 0
        if kill:
            self.process.kill()
        with suppress(OSError):
            self.pipe.send(None)
        self.process.join()
        self.pipe.close()


def run(source: str, numbers: Sequence[int], workers: int, xla: bool = True) -> Iterator[Outcome]:
    """Check programs in parallel workers and yield their outcomes in order of completion."""
    # XLA reads the flags when a worker starts. Compilation without optimisation is faster.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {XLA_FLAGS}".strip()
    waiting, found = iter(numbers), list[Outcome]()
    changed = threading.Condition()

    def serve() -> None:
        worker = Worker(source, xla)
        while True:
            with changed:
                number = next(waiting, None)
            if number is None:
                break
            if worker.left <= 0:
                worker.stop()
                worker = Worker(source, xla)
            outcome = worker.check(number)
            with changed:
                found.append(outcome)
                changed.notify()
        worker.stop()

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(workers)]
    for t in threads:
        t.start()
    for _ in numbers:
        with changed:
            changed.wait_for(lambda: found)
            outcome = found.pop(0)
        yield outcome
    for t in threads:
        t.join()
