"""A process in which several threads call one program at once, with C code built for the thread sanitizer.

`python -m tests.runtime.concurrent_calls SUITE SEED`, where SUITE may be "canary". The environment must name a
sanitizing compiler as CC and preload its runtime. What it writes to the standard error output has the form of
`tests.runtime.sanitized`.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from compiler.api import compile as compile_hlo
from compiler.backends.cpu import toolchain as cpu
from compiler.runtime.executable import parameter_leaves
from env.suites import load_suite, random_inputs

THREADS, CALLS = 3, 3


def report(what: str) -> None:
    """Write a line for the parent process."""
    print(what, file=sys.stderr, flush=True)


def run_at_once(call: Callable[[], Any]) -> None:
    """Run a function in several threads at the same time."""
    threads = [threading.Thread(target=call) for _ in range(THREADS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def check_program(name: str, exe: Any, args: Sequence[Any]) -> None:
    """Call a program in several threads at once; every call has the same results."""
    wanted = exe(*args)

    def call() -> None:
        for _ in range(CALLS):
            if any(a.tobytes() != b.tobytes() for a, b in zip(exe(*args), wanted, strict=True)):
                report(f"PROBLEM {name}: the results of calls at the same time differ")

    run_at_once(call)


def run_canary() -> None:
    """Write to one variable from several threads, in C code."""
    source = "int shared; void bad(void) { for (int k = 0; k < 10000000; k++) *(volatile int *)&shared += 1; }"
    library = ctypes.CDLL(str(cpu.toolchain().shared_object(source, "bad")))
    run_at_once(library.bad)


def main(what: str, seed: str) -> None:
    """Run all programs of a suite."""
    os.environ.pop("LD_PRELOAD", None)  # the shell and the compiler do not run with the thread sanitizer
    if what == "canary":
        report("RUN canary")
        run_canary()
    else:
        for program in load_suite(what).programs:
            report(f"RUN {program.name}")
            exe = compile_hlo(program.text(), backend="cpu")
            wanted = [(s.dtype, s.dimensions) for s in parameter_leaves(exe.module)]
            check_program(program.name, exe, random_inputs(program, wanted, int(seed)))
    report("DONE")


if __name__ == "__main__":
    main(*sys.argv[1:])
