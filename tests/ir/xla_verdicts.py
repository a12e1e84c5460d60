"""Ask XLA about programs, in a separate process, because XLA aborts on some that it refuses.

    python -m tests.ir.xla_verdicts compile|infer < programs.json

reads a JSON list of programs and prints one JSON line for each: an error or null, and the shape of the entry's result.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

CRASH = "XLA aborts"
_NOT_ON_CPU = ("UNIMPLEMENTED", "is not supported by XLA:CPU", "No registered implementation for")
"""Errors raised after verification: the program is valid, but this backend cannot run it."""


class Verdict(NamedTuple):
    """The error of XLA, or None and the shape of the result of the entry."""

    error: str | None
    shape: str | None = None


def verdicts(programs: Sequence[str]) -> list[str | None]:
    """Return for each program None if XLA parses, verifies and compiles it for CPU, else its error."""
    return [v.error for v in _ask("compile", programs)]


def inferred(programs: Sequence[str]) -> list[str | None]:
    """Return for each program the shape of the entry's result in XLA's parser, or None if it cannot be parsed."""
    return [v.shape for v in _ask("infer", programs)]


def _ask(what: str, programs: Sequence[str]) -> list[Verdict]:
    found: list[Verdict] = []
    while len(found) < len(programs):
        command = [sys.executable, "-m", "tests.ir.xla_verdicts", what]
        rest = json.dumps(programs[len(found) :])
        done = subprocess.run(command, input=rest, capture_output=True, text=True, check=False)
        found += [Verdict(*json.loads(line)) for line in done.stdout.splitlines()]
        if len(found) < len(programs):
            if done.returncode >= 0:
                raise RuntimeError(f"the process that asks XLA failed:\n{done.stderr[-2000:]}")
            found.append(Verdict(CRASH))
    return found


def _answer(what: str, text: str) -> Verdict:
    from jax._src.lib import hlo  # type: ignore[attr-defined]  # no public name parses HLO text

    from tests.oracle import compile_xla

    try:
        module = hlo.hlo_module_from_text(text)
        if what == "compile":
            compile_xla(text)
        computation = hlo.XlaComputation(module.as_serialized_hlo_module_proto())
        return Verdict(None, str(computation.program_shape().result_shape()))
    except Exception as e:
        message = str(e)
        return Verdict(None if any(known in message for known in _NOT_ON_CPU) else message)


if __name__ == "__main__":
    for given in json.loads(sys.stdin.read()):
        print(json.dumps(_answer(sys.argv[1], given)), flush=True)
