"""Fuzz plans with mutations: each mutant must raise PlanError or give a program with the interpreter's results.

python -m tests.fuzz.mutated_plans [--count 20000] [--seed 0] [--out results/fuzz/mutated_plans.md]
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from compiler.errors import PlanError
from compiler.plan import CompilationPlan
from compiler.session import CompilationSession
from compiler.text import parse
from tests.fuzz.plan_mutations import MEANING, STRUCTURAL, Data, mutated_bytes, mutated_fields
from tests.fuzz.plan_programs import PROGRAMS, PlanProgram, plan_program

LIMIT_SECONDS = 30.0
BACKENDS = ("cpu", "cpu", "cpu", "cpu", "cuda", "cpu", "cpu", "cpu", "cpu", "interpreter")


@dataclasses.dataclass
class Tally:
    """The outcomes by kind of mutation.

    Attributes:
        outcomes: number of mutants by kind of mutation and outcome.
        seen: keys of the programs that were run; each runs once.
        programs_run: number of programs that were run.
        slowest: seconds of the slowest mutant.
    """

    outcomes: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    seen: set[str] = dataclasses.field(default_factory=set)
    programs_run: int = 0
    slowest: float = 0.0


def attempt(program: PlanProgram, make: Callable[[], CompilationPlan], tally: Tally, backend: str = "cpu") -> str:
    """Return "rejected when read", "rejected on replay" or "right"; raise an exception for any other outcome."""
    try:
        plan = make()
    except PlanError as e:
        str(e)
        return "rejected when read"
    module = parse(program.text)
    session = CompilationSession(module, backend)
    try:
        session.replay(plan)
    except PlanError as e:
        str(e)
        fresh = CompilationSession(module, backend)
        assert (session.phase, str(session.module)) == (fresh.phase, str(fresh.module)), "the session has changed"
        assert session.plan == fresh.plan, "the session has changed"
        return "rejected on replay"
    key = f"{backend} {session.module.fingerprint()} {sorted(session.plan.kernels.items())}"
    assert CompilationPlan.from_json(session.plan.to_json()) == session.plan
    if key in tally.seen:
        return "right"
    tally.seen.add(key)
    tally.programs_run += 1
    executable = session.finish()
    if backend != "cuda":  # without a GPU, only its source can be generated
        finding = program.wanted.difference(executable(*program.inputs))
        assert finding is None, finding
    return "right"


def mutant(seed: int, number: int, folder: Path) -> tuple[str, PlanProgram, Callable[[], CompilationPlan], object]:
    """Return the mutant with a number: kind of mutation, program, factory of the plan, and its mutated data."""
    rng = np.random.default_rng((seed, number))
    program = plan_program(PROGRAMS[int(rng.integers(len(PROGRAMS)))])
    plan = program.plans[int(rng.integers(len(program.plans)))]
    way = int(rng.integers(10))
    if way == 0:
        damaged = mutated_bytes(plan.to_json(), rng)
        file = folder / "plan.json"
        file.write_bytes(damaged)
        return "the file's bytes", program, lambda: CompilationPlan.load(file), damaged
    if way == 1:
        return "fields in Python", program, lambda: mutated_fields(plan, rng), plan
    kind, pool = ("structure", STRUCTURAL) if way < 6 else ("meaning", MEANING)
    data: Data = plan.to_dict()
    for _ in range(int(rng.choice([1, 1, 1, 2, 3]))):
        if not isinstance(data, dict) or not data:
            break
        data = pool[int(rng.integers(len(pool)))](data, program, rng)
    if way % 2 and isinstance(data, Mapping):
        text = json.dumps(data)
        return kind, program, lambda: CompilationPlan.from_json(text), data
    return kind, program, lambda: CompilationPlan.from_json(data), data


def fuzz(count: int, seed: int, show: Callable[[int, Tally], None] | None = None) -> Tally:
    """Try `count` mutants and return the outcomes.

    Raises:
        AssertionError: a mutant raised anything but PlanError, gave wrong results, or took too long.
    """
    tally = Tally()
    with TemporaryDirectory() as folder:
        for number in range(count):
            kind, program, make, source = "", None, None, None
            start = time.perf_counter()
            try:
                kind, program, make, source = mutant(seed, number, Path(folder))
                word = attempt(program, make, tally, BACKENDS[number % len(BACKENDS)])
            except Exception as e:
                raise AssertionError(
                    f"mutant {number} of seed {seed} ({kind}, {program.name if program else '?'}): "
                    f"{type(e).__name__}: {e}\n{str(source)[:20_000]}"
                ) from e
            seconds = time.perf_counter() - start
            tally.slowest = max(tally.slowest, seconds)
            if seconds > LIMIT_SECONDS:
                raise AssertionError(f"mutant {number} of seed {seed} took {seconds:.1f} s\n{str(source)[:20_000]}")
            tally.outcomes[kind, word] += 1
            if show is not None:
                show(number, tally)
    return tally


def main() -> int:
    """Run from the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=20_000, help="number of mutants (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the mutants (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("results/fuzz/mutated_plans.md"), help="results file (default: %(default)s)"
    )
    options = parser.parse_args()
    start = time.perf_counter()
    tally = fuzz(options.count, options.seed, _progress)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    rows = "\n".join(f"| {kind} | {word} | {n:,} |" for (kind, word), n in sorted(tally.outcomes.items()))
    report = (
        "# Mutated plans\n\nEach plan was read, replayed, compiled and run. All of them either raised PlanError and "
        "left the session unchanged, or gave the interpreter's results.\n\n"
        f"- command: `python -m tests.fuzz.mutated_plans --count {options.count} --seed {options.seed}`\n"
        f"- commit: {commit.stdout.strip() or 'unknown'}\n- date: {datetime.date.today().isoformat()}\n"
        f"- programs: {', '.join(PROGRAMS)}; distinct modules compiled and run: {tally.programs_run:,}\n"
        f"- slowest mutant: {tally.slowest:.1f} s; total time: {(time.perf_counter() - start) / 60:.0f} min\n\n"
        f"| mutation | outcome | plans |\n|---|---|---:|\n{rows}\n"
    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(report, encoding="utf-8")
    print(report)
    return 0


def _progress(number: int, tally: Tally) -> None:
    if number % 500 == 499:
        print(f"{number + 1}: {dict(tally.outcomes)}, {tally.programs_run} run", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
