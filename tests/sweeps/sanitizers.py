"""Generated kernels and the C runtime under gcc's sanitizers of addresses, undefined behavior and threads.

python -m tests.sweeps.sanitizers [--suites quickstart,kernels] [--random fusions,products,schedules,...]
                                  [--threads quickstart] [--out results/robustness/sanitizers.md]

The thread pool is always among the subjects. Each other subject runs in a process of its own, see
`tests.runtime.sanitized` and `tests.runtime.concurrent_calls`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compiler.backends.cpu.native_runtime import runtime_source
from experiments.provenance import provenance

ROOT = Path(__file__).parents[2]
POOL = "thread pool"
RANDOM = ("fusions", "products", "schedules", "loops", "scatters", "sorts", "scans")


@dataclass(frozen=True)
class Sanitizer:
    """A sanitizer of gcc.

    Attributes:
        title: what it checks.
        runtime: its library, which must be loaded first.
        flags: flags of the compiler.
        process: the module that runs programs under it.
        options: environment of the process.
    """

    title: str
    runtime: str
    flags: str
    process: str
    options: tuple[tuple[str, str], ...]


ADDRESS = Sanitizer(
    "addresses, undefined behavior",
    "libasan.so",
    "-O1 -g -fsanitize=address,undefined,float-cast-overflow -fsanitize-recover=address,undefined",
    "tests.runtime.sanitized",
    (("ASAN_OPTIONS", "detect_leaks=0:halt_on_error=0:verify_asan_link_order=0"),),
)
THREAD = Sanitizer(
    "threads",
    "libtsan.so",
    "-O1 -g -fsanitize=thread",
    "tests.runtime.concurrent_calls",
    (("TSAN_OPTIONS", "halt_on_error=0"), ("HLOGYM_NUM_THREADS", "3")),
)


@dataclass(frozen=True)
class Sanitized:
    """The outcome of one process: the number of programs or batches that it ran, and what was reported about them."""

    runs: int
    problems: list[str]


def sanitizer_runtime(sanitizer: Sanitizer) -> str | None:
    """Return the path of a sanitizer's library, or None if it is not installed."""
    gcc = shutil.which("gcc")
    if gcc is None:
        return None
    command = [gcc, f"-print-file-name={sanitizer.runtime}"]
    found = Path(subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip())
    return str(found) if found.is_absolute() and found.exists() else None


def run_sanitized(folder: Path, sanitizer: Sanitizer, *what: str) -> Sanitized:
    """Run the sanitizer's process with some arguments.

    Args:
        folder: for the compiler script and the cache of compiled code.
        sanitizer: the sanitizer.
        what: the arguments of its process.
    """
    compiler = folder / "sanitizing-gcc"
    compiler.write_text(f'#!/bin/sh\nexec gcc "$@" {sanitizer.flags}\n')
    compiler.chmod(0o755)
    environment = {
        **os.environ, "CC": str(compiler), "HLOGYM_CACHE": str(folder / "cache"), "PYTHONMALLOC": "malloc",
        "LD_PRELOAD": sanitizer_runtime(sanitizer) or "", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2",
        **dict(sanitizer.options),
    }  # fmt: skip
    command = [sys.executable, "-m", sanitizer.process, *what]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    runs: list[str] = []
    problems: list[str] = []
    lines = done.stderr.splitlines()
    for line in lines:
        if line.startswith("RUN "):
            runs.append(line.removeprefix("RUN "))
        elif line != "DONE":
            problems.append(f"{runs[-1] if runs else 'at the start'}: {line}")
    if "DONE" not in lines:
        problems.append(f"it ended early: {lines[-1:]}")
    return Sanitized(len(runs), problems)


def stress_pool(folder: Path, sanitizer: Sanitizer, check: str = "pool_stress.c") -> Sanitized | None:
    """Run a check of the thread pool, built with a sanitizer; None where gcc cannot build or run it.

    Args:
        folder: for the program.
        sanitizer: to build it with.
        check: file in tests/backends; by default several callers and gangs at once.

    Raises:
        ValueError: the compiler rejected the source; the message is its own.
    """
    program, source = folder / "stress", folder / "stress.c"
    source.write_text(runtime_source() + (ROOT / "tests/backends" / check).read_text())
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread", *sanitizer.flags.split()]
    command = ["gcc", *flags, str(source), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if "cannot find" in built.stderr:
        return None
    if built.returncode != 0:
        raise ValueError(built.stderr)
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=200, check=False)
    if "unexpected memory mapping" in done.stderr:
        return None
    problems = done.stderr.splitlines()
    if (done.returncode, done.stdout) != (0, "right\n"):
        problems.append(f"it returned {done.returncode} and wrote {done.stdout!r}")
    return Sanitized(1, problems)


def main(arguments: list[str]) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--suites", default="quickstart,kernels", help="suites, separated by commas")
    parser.add_argument("--random", default=",".join(RANDOM), help=f"random subjects among {', '.join(RANDOM)}")
    parser.add_argument("--threads", default="quickstart", help="suites whose programs several threads call at once")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--out", type=Path, help="write a report in Markdown")
    options = parser.parse_args(arguments)
    missing = [s.title for s in (ADDRESS, THREAD) if sanitizer_runtime(s) is None]
    if missing:
        parser.error(f"gcc has no sanitizer of {', '.join(missing)} here")
    subjects: list[tuple[Sanitizer, Sequence[str]]] = []
    subjects += [(ADDRESS, (name, "default", "kernel", options.seed)) for name in _names(options.suites)]
    subjects += [(ADDRESS, (name, "none", "keep", options.seed)) for name in _names(options.random)]
    subjects += [(THREAD, (name, options.seed)) for name in _names(options.threads)]
    subjects += [(sanitizer, (POOL,)) for sanitizer in (ADDRESS, THREAD)]
    origin, rows, failed = provenance(), [], False
    with tempfile.TemporaryDirectory() as folder:
        for sanitizer, what in subjects:
            own = Path(folder) / sanitizer.runtime
            own.mkdir(exist_ok=True)
            start = time.monotonic()
            if what[0] == POOL:
                result = stress_pool(own, sanitizer) or Sanitized(0, [])
            else:
                result = run_sanitized(own, sanitizer, *what)
            rows.append(
                f"| {what[0]} | {sanitizer.title} | {result.runs} | {len(result.problems)} "
                f"| {time.monotonic() - start:.0f} |"
            )
            print(rows[-1], *result.problems[:40], sep="\n", flush=True)
            failed |= bool(result.problems)
    lines = [
        "# Kernels and runtime under sanitizers",
        "",
        f"- command: `python -m tests.sweeps.sanitizers {' '.join(arguments)}`",
        *(f"- {key}: {origin[key]}" for key in ("commit", "machine", "date")),
        "",
        "The generated kernels, the runtime, the driver and the calls from Python are built with the sanitizers. Each "
        "program runs on an arena with poisoned gaps, or is called by several threads at once.",
        "",
        "| subject | sanitizers | programs or batches | lines reported | s |",
        "|---|---|---|---|---|",
        *rows,
    ]
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 1 if failed else 0


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
