"""Random modules: each must verify and round trip, and the interpreter must compute on it what XLA computes.

python -m tests.fuzz.compare_modules [--count 20000] [--compared 20000] [--seed 0] [--out FILE]
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from compiler.interpreter import evaluate
from compiler.ir import HloModule
from compiler.ir.verifier import verify
from compiler.text import parse
from tests.fuzz.random_modules import random_inputs, random_module
from tests.oracle import run_xla

TOLERANCE = {2: 0.1, 4: 1e-3, 8: 1e-3}
"""Relative and absolute, by the bytes of the coarsest floating-point type in the module: its roundings add up."""


def check_round_trip(module: HloModule) -> None:
    """AssertionError unless the module verifies, and its text reads back as the same text and program."""
    verify(module)
    text = str(module)
    again = parse(text)
    assert str(again) == text, f"the second print differs:\n{text}"
    assert again.fingerprint() == module.fingerprint(), f"read back, the fingerprint differs:\n{text}"


def check_values(module: HloModule, args: list[np.ndarray[Any, Any]]) -> None:
    """AssertionError unless the interpreter and XLA agree on these arguments."""
    text = str(module)
    got, want = evaluate(module, args), run_xla(text, args)
    floats = [
        i.shape.element_type for c in module.computations for i in c.instructions if i.shape.element_type.is_float
    ]
    tolerance = TOLERANCE[min((t.byte_size for t in floats), default=8)]
    assert len(got) == len(want)
    for n, (a, b) in enumerate(zip(got, want, strict=True)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), (
            f"result {n}: {a.dtype}{a.shape}, XLA {b.dtype}{b.shape}\n{text}"
        )
        if a.dtype.kind in "biu":
            same = np.array_equal(a, b)
        else:
            x, y = a.astype(np.float64), b.astype(np.float64)
            same = np.allclose(x, y, rtol=tolerance, atol=tolerance * max(1.0, _size(y)), equal_nan=True)
        assert same, f"result {n} differs:\n{a}\nXLA:\n{b}\n{text}"


def _size(values: np.ndarray[Any, Any]) -> float:
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max()) if finite.size else 1.0


def main() -> int:
    """The command line; the exit status is 0 only when every module is as it must be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--compared", type=int, default=20_000, help="how many of them are run, too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/fuzz/random_modules.md"))
    options = parser.parse_args()
    opcodes: Counter[str] = Counter()
    problems: list[str] = []
    for number in range(options.count):
        rng = np.random.default_rng((options.seed, number))
        module = random_module(rng, 40)
        opcodes.update(i.opcode.text for c in module.computations for i in c.instructions)
        try:
            check_round_trip(module)
            if number < options.compared:
                check_values(module, random_inputs(module, rng))
        except Exception as e:
            problems.append(f"module {number} of seed {options.seed}: {type(e).__name__}: {str(e).splitlines()[0]}")
            print(f"{problems[-1]}\n{e}\n", file=sys.stderr, flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(_report(options, opcodes, problems), encoding="utf-8")
    return 1 if problems else 0


def _report(options: argparse.Namespace, opcodes: Counter[str], problems: list[str]) -> str:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    compared = min(options.count, options.compared)
    used = "\n".join(f"| {name} | {n:,} |" for name, n in opcodes.most_common())
    listed = "".join(f"- {p}\n" for p in problems) or "None.\n"
    command = (
        f"python -m tests.fuzz.compare_modules --count {options.count} --compared {compared} --seed {options.seed}"
    )
    return (
        f"# Random modules\n\n{options.count:,} modules verified and round-tripped, {compared:,} of them run by the "
        f"interpreter and by XLA on the same arguments.\n\n- command: `{command}`\n"
        f"- commit: {commit.stdout.strip() or 'unknown'}\n- date: {datetime.date.today().isoformat()}\n"
        f"- instructions: {sum(opcodes.values()):,}\n\n## Differences\n\n{listed}\n## Ops used\n\n"
        f"| op | times |\n|---|---:|\n{used}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
