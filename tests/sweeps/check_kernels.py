"""Wrong kernels: inject one fault into a program's C code and test whether the output check detects it.

    python -m tests.sweeps.check_kernels SUITE PROGRAM FIRST LAST

runs the faults FIRST to LAST - 1 of a program and prints one line of JSON for each. It runs as a separate process,
because a wrong kernel may crash it.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from compiler.api import compile as compile_hlo
from compiler.codegen.nest.loop_ir import Kernel
from compiler.codegen.printing import print_c
from compiler.errors import HlogymError
from env.reference import Reference, fresh_outputs
from tests.sweeps.check_corruptions import relative_to_largest
from tests.sweeps.check_subjects import Subject, subjects

Array = npt.NDArray[Any]

SECONDS = 60
CAUGHT, MISSED, SAME, CRASH, UNBUILT = "caught", "missed", "same outputs", "crash", "not built"


@dataclass(frozen=True)
class Fault:
    """The result of one injected fault.

    Attributes:
        program: name of the program.
        kind: kind of change.
        line: the changed line, before and after.
        result: CAUGHT, MISSED, SAME (bitwise equal outputs), CRASH or UNBUILT.
        before: whether the former check, relative to the largest magnitude, detected it.
    """

    program: str
    kind: str
    line: str
    result: str
    before: bool = False


Change = Callable[[re.Match[str]], str]

_OTHER = {"expf": "exp2f", "logf": "log2f", "sqrtf": "cbrtf", "sinf": "cosf", "cosf": "sinf", "tanh_f32": "atanf"}
CHANGES: tuple[tuple[str, str, Change], ...] = (
    ("loop one too short", r"< (\d+); (\w+)\+\+", lambda m: f"< {int(m[1]) - 1}; {m[2]}++"),
    ("loop starts late", r"(index_t \w+) = 0; (\w+) <", lambda m: f"{m[1]} = 1; {m[2]} <"),
    ("- replaced by +", r"= (v\d+) - (v\d+);", lambda m: f"= {m[1]} + {m[2]};"),
    ("+ replaced by -", r"= (v\d+) \+ (v\d+);", lambda m: f"= {m[1]} - {m[2]};"),
    ("* replaced by +", r"= (v\d+) \* (v\d+);", lambda m: f"= {m[1]} + {m[2]};"),
    ("/ replaced by *", r"= (v\d+) / (v\d+);", lambda m: f"= {m[1]} * {m[2]};"),
    ("operand used twice", r"= (v\d+) ([-+*/]) (v\d+);", lambda m: f"= {m[1]} {m[2]} {m[1]};"),
    ("term not added", r"^(\s*)((?:a\d+|acc\d+\[[^\]]*\]) = v\d+;)$", lambda m: f"{m[1]};"),
    ("result not stored", r"^(\s*)(o\d+\[[^\]]*\] = v\d+;)$", lambda m: f"{m[1]};"),
    ("wrong stride", r"\[\(?(\d+)\*", lambda m: m[0].replace(m[1], str(max(0, int(m[1]) - 1)))),
    ("neighbour read", r"= (p\d+)\[(\w+)\];", lambda m: f"= {m[1]}[{m[2]} > 0 ? {m[2]} - 1 : 0];"),
    ("comparison reversed", r"\((v\d+) (>=|>|<=|<) (v\d+)", lambda m: f"({m[3]} {m[2]} {m[1]}"),
    ("branches exchanged", r"\? (v\d+) : (v\d+)\)", lambda m: f"? {m[2]} : {m[1]})"),
    ("constant twice as large", r"p([+-]\d+)(f?);", lambda m: f"p{int(m[1]) + 1:+d}{m[2]};"),
    ("wrong initial value of a sum", r"= 0x0\.0p\+0f;", lambda m: "= 0x1.0p-3f;"),
    ("another function", r"\b(expf|logf|sqrtf|sinf|cosf|tanh_f32)\(", lambda m: f"{_OTHER[m[1]]}("),
    ("computed in float16", r"= (v\d+ [-+*/] v\d+);", lambda m: f"= (float)(_Float16)({m[1]});"),
)


def kernels_of(text: str) -> list[str]:
    """Return the C source of a program's kernels."""
    printed: list[str] = []

    def note(kernel: Kernel, name: str) -> str:
        printed.append(_print_c(kernel, name))
        return printed[-1]

    with mock.patch.object(print_c, "print_c", note):
        compile_hlo(text)
    return list(dict.fromkeys(printed))


_print_c = print_c.print_c


def faults_of(text: str, count: int) -> list[tuple[str, str, str]]:
    """Return `(kind, kernel, changed kernel)` of `count` faults, distributed evenly over the kinds that apply.

    The same HLO text gives the same faults.
    """
    rng = random.Random(0)
    places = {
        kind: [(k, n) for k in kernels_of(text) for n, line in enumerate(k.splitlines()) if re.search(pattern, line)]
        for kind, pattern, _ in CHANGES
    }
    for found in places.values():
        rng.shuffle(found)
    drawn: list[tuple[str, str, str]] = []
    while len(drawn) < count and any(places.values()):
        for kind, pattern, change in CHANGES:
            if places[kind]:
                kernel, n = places[kind].pop()
                lines = kernel.splitlines(keepends=True)
                lines[n] = re.sub(pattern, change, lines[n], count=1, flags=re.MULTILINE)
                drawn.append((kind, kernel, "".join(lines)))
    return drawn[:count]


def outputs_with(text: str, kernel: str, changed: str, reference: Reference) -> list[Array]:
    """Return the outputs of a program in which one kernel is replaced."""

    def print_changed(k: Kernel, name: str) -> str:
        printed = _print_c(k, name)
        return changed if printed == kernel else printed

    with mock.patch.object(print_c, "print_c", print_changed):
        executable = compile_hlo(text)
    return fresh_outputs(executable, reference)


def run_faults(subject: Subject, first: int, last: int) -> Iterator[Fault]:
    """Build and run a program with each of some faults, and check its outputs."""
    text, name = subject.program.text(), subject.program.name
    reference = subject.reference(0)
    right = [np.asarray(o) for o in compile_hlo(text)(*reference.inputs)]
    for kind, kernel, changed in faults_of(text, last)[first:]:
        differing = next((a, b) for a, b in zip(kernel.splitlines(), changed.splitlines(), strict=True) if a != b)
        line = f"{differing[0].strip()}  ->  {differing[1].strip()}"
        try:
            got = outputs_with(text, kernel, changed, reference)
        except HlogymError:
            yield Fault(name, kind, line, UNBUILT)
            continue
        if all(a.tobytes() == b.tobytes() for a, b in zip(got, right, strict=True)):
            yield Fault(name, kind, line, SAME)
            continue
        before = any(relative_to_largest(g, w) for g, w in zip(got, reference.outputs, strict=True))
        caught = reference.difference(got, subject.program.tolerance) is not None
        yield Fault(name, kind, line, CAUGHT if caught else MISSED, before)


def try_faults(suite: str, name: str, count: int) -> Iterator[Fault]:
    """Run the faults of a program in child processes, which may crash."""
    first = 0
    while first < count:
        command = [sys.executable, "-m", __spec__.name if __spec__ else __name__, suite, name, str(first), str(count)]
        with tempfile.TemporaryDirectory() as cache:
            try:
                done = subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    timeout=SECONDS * (count - first),
                    check=False,
                    env={**os.environ, "HLOGYM_CACHE": cache},
                )
                out, ended = done.stdout, done.returncode == 0
            except subprocess.TimeoutExpired as error:
                out, ended = (error.stdout or b"").decode(), False
        found = [Fault(**json.loads(line)) for line in out.splitlines() if line.startswith("{")]
        yield from found
        if ended:
            return
        yield Fault(name, "?", "", CRASH)
        first += len(found) + 1


def main() -> None:
    """Run as a child process of `try_faults`."""
    suite, name, first, last = sys.argv[1:5]
    with tempfile.TemporaryDirectory() as folder:
        (subject,) = (s for s in subjects([suite], Path(folder)) if s.program.name == name)
        for fault in run_faults(subject, int(first), int(last)):
            print(json.dumps(asdict(fault)), flush=True)


if __name__ == "__main__":
    main()
