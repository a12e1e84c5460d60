"""Gains of a known size: the default plan against itself, with a delay in the default that no shipped code has.

    python -m tests.sweeps.planted_gain planted [--limit 60] [--share 0.03]

The worker process compiles a small C function that runs the program and then waits, and times it in the default's
place.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from env.isolated import python_command
from env.worker_process import WorkerProcess
from experiments.yardstick.__main__ import Yardstick
from experiments.yardstick.races import planted_lines, race_row, race_table

_WAIT = r"""
#include <stdint.h>
#include <time.h>
typedef void (*program_t)(char *, char *const *, char *const *, char *const *, void *);
static program_t program;
static int64_t nanoseconds;
static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
void plant(program_t p, int64_t ns) { program = p; nanoseconds = ns; }
void delayed(char *a, char *const *b, char *const *c, char *const *d, void *e) {
  program(a, b, c, d, e);
  const int64_t end = now() + nanoseconds;
  while (now() < end);
}
"""
_WORKER = """
import ctypes, subprocess, tempfile
import env.worker as w

with tempfile.TemporaryDirectory() as folder:
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-xc", "-", "-o", folder + "/wait.so"], input={wait!r}.encode(),
                   check=True)
    wait = ctypes.CDLL(folder + "/wait.so")
wait.plant.argtypes = [ctypes.c_void_p, ctypes.c_int64]
real = w.race
def race(default, candidate, inputs, budget, load):
    executable = default.func.__self__
    address = executable._entry_address
    default(inputs[0], 3)
    wait.plant(address, int({share} * min(default(inputs[0], 9)[0]) * 1e9))
    executable._entry_address = ctypes.cast(wait.delayed, ctypes.c_void_p).value
    try:
        return real(default, candidate, inputs, budget, load)
    finally:
        executable._entry_address = address
w.race = race
w.main()
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    yardstick = Yardstick(__doc__ or "", ("planted",))
    yardstick.parser.add_argument("--share", type=float, default=0.03, help="the gain (default: %(default)s)")
    o = yardstick.options(arguments)
    worker = WorkerProcess(python_command(_WORKER.format(wait=_WAIT, share=o.share)))
    with yardstick.measurer(worker) as measurer:
        yardstick.run(
            "Planted gains",
            partial(race_row, measurer, repeats=o.repeats),
            partial(planted_lines, gate=str(measurer.options.gate), share=o.share),
            race_table,
            "tests.sweeps.planted_gain",
        )


if __name__ == "__main__":
    main(sys.argv[1:])
