"""Warnings of the C compiler on the runtime, on the kernels of program suites, and on random schedules.

python -m tests.sweeps.compiler_warnings [--suites quickstart,jax,kernels,models] [--schedules 300]
                                         [--out results/robustness/warnings.md]
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from compiler.backends.cpu.native_runtime import RUNTIME_FLAGS, runtime_source
from compiler.backends.cpu.onednn.library import FLAGS as ONEDNN_FLAGS
from compiler.backends.cpu.onednn.library import onednn_source
from compiler.backends.cpu.toolchain import FLAGS, balanced_groups, find_compiler
from compiler.codegen.kernel_spec import KernelSpec
from compiler.codegen.printing import print_c
from compiler.errors import UnsupportedError
from compiler.session import CompilationSession
from compiler.text import parse
from env.suites import load_suite
from experiments.provenance import provenance
from tests.codegen.random_kernels import random_kernel
from tests.codegen.running import kernel_of
from tests.fuzz.schedules import random_schedule

SUITES = ("quickstart", "jax", "kernels", "models")
WARNINGS = ("-Wall", "-Wextra")
_WARNING = re.compile(r"warning: (.*?) \[(-W[a-z0-9=-]+)\]")


@dataclass
class Warned:
    """What the compiler said about some sources.

    Attributes:
        what: what was compiled.
        sources: number of functions or files.
        counts: number of warnings by flag.
        examples: the first warning of each flag.
    """

    what: str
    sources: int
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def note(self, messages: str) -> None:
        """Count the warnings in the messages of the compiler."""
        for line in messages.splitlines():
            found = _WARNING.search(line)
            if found is not None:
                self.counts[found[2]] += 1
                self.examples.setdefault(found[2], line)


def kernels_of(suite: str) -> dict[str, KernelSpec]:
    """Return the generated kernels of a suite by symbol, with default decisions."""
    found: dict[str, KernelSpec] = {}
    for program in load_suite(suite).programs:
        session = CompilationSession(parse(program.text()), "cpu")
        session.run_passes()
        session.run_loop_policy()
        session.run_fusion_policy()
        found.update({s.spec.symbol: s.spec for s in session.kernel_sites() if s.spec is not None})
    return found


def random_kernels(count: int) -> dict[str, KernelSpec]:
    """Return random kernels with random schedules by symbol."""
    rng, found = np.random.default_rng(0), dict[str, KernelSpec]()
    for _ in range(count):
        with contextlib.suppress(UnsupportedError):
            spec = kernel_of(random_kernel(rng), "c", random_schedule(rng))
            found[spec.symbol] = spec
    return found


def compile_with_warnings(text: str, flags: Iterable[str]) -> str:
    """Compile C source and return the messages of the compiler; raise ValueError if it rejects the source."""
    with tempfile.TemporaryDirectory() as folder:
        c_file = Path(folder) / "checked.c"
        c_file.write_text(text)
        options = [f for f in flags if f not in ("-w", "-shared", "-O3")]
        command = [
            find_compiler(),
            *options,
            "-O1",
            *WARNINGS,
            "-c",
            str(c_file),
            "-o",
            str(Path(folder) / "checked.o"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(done.stderr[:4000])
    return done.stderr


def check_kernels(what: str, kernels: Sequence[KernelSpec]) -> Warned:
    """Return the warnings about some kernels."""
    result = Warned(what, len(kernels))
    for group in balanced_groups(kernels, 1):
        text = "\n".join([print_c.preamble(), *(k.source for k in group)])
        result.note(compile_with_warnings(text, FLAGS))
    return result


def check_runtime() -> Warned:
    """Return the warnings about the C sources of the runtime."""
    result = Warned("runtime", 2)
    result.note(compile_with_warnings(runtime_source(), RUNTIME_FLAGS))
    result.note(compile_with_warnings(onednn_source(), ONEDNN_FLAGS))
    return result


def main(arguments: list[str]) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--suites", default=",".join(SUITES), help="names of suites, separated by commas")
    parser.add_argument("--out", type=Path, help="write a report in Markdown")
    parser.add_argument("--schedules", type=int, default=300, help="number of random kernels with random schedules")
    options = parser.parse_args(arguments)
    origin = provenance()
    results, seen = [check_runtime()], set[str]()
    for suite in (name for name in options.suites.split(",") if name):
        kernels = kernels_of(suite)
        results.append(check_kernels(suite, [k for symbol, k in kernels.items() if symbol not in seen]))
        seen.update(kernels)
    results.append(check_kernels("random schedules", list(random_kernels(options.schedules).values())))
    lines = [
        "# Warnings of the C compiler",
        "",
        f"- command: `python -m tests.sweeps.compiler_warnings {' '.join(arguments)}`",
        *(f"- {key}: {origin[key]}" for key in ("commit", "machine", "date")),
        "",
        f"`gcc {' '.join(WARNINGS)}` over the C runtime and the generated kernels of each suite, each kernel once.",
        "",
        "| source | functions or files | warnings |",
        "|---|---|---|",
    ]
    for r in results:
        counts = ", ".join(f"{n} {flag}" for flag, n in r.counts.most_common())
        lines.append(f"| {r.what} | {r.sources} | {counts or '0'} |")
    print("\n".join(lines))
    for r in results:
        for example in r.examples.values():
            print(f"{r.what}: {example}")
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 1 if any(r.counts for r in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
