"""Run random JAX programs, random modules or the conformance cases with all implementations, and write a report.

python -m tests.fuzz.jax_programs [--programs 5000] [--seed 0] [--workers 2] [--source jax]
    [--out results/conformance/random_jax.md] [--log FILE] [--causes]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from experiments.provenance import provenance
from tests.fuzz import everywhere
from tests.fuzz.everywhere import AGREE, FAULTS, NO_XLA, NOT_MADE, SOURCES, Outcome
from tests.fuzz.known import KNOWN

WHAT = {
    "jax": "random JAX functions composed of typical pieces of code (tests/fuzz/jax_functions.py)",
    "modules": "random modules (tests/fuzz/random_modules.py)",
    "cases": "the conformance cases of tests/sweeps",
}
SHOWN = (NOT_MADE, NO_XLA)
"""Outcomes that do not concern hlogym; they are counted, but not listed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return exit status 1 if there is a fault without a known cause."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--programs", type=int, default=5000, help="number of programs (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="number of the first program (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="number of processes (default: %(default)s)")
    parser.add_argument(
        "--source", choices=sorted(SOURCES), default="jax", help="kind of programs (default: %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path,
        help="Markdown report; a .json file is written next to it (default: results/conformance/random_SOURCE.md)",
    )  # fmt: skip
    parser.add_argument("--log", type=Path, help="append outcomes to this file, and skip the programs it contains")
    parser.add_argument("--causes", action="store_true", help="run nothing; only add known causes to the report")
    options = parser.parse_args(arguments)
    out = options.out or Path(f"results/conformance/random_{options.source}.md")
    if options.causes:
        return _add_causes(options.source, out)
    numbers = range(options.seed, options.seed + options.programs)
    outcomes = _logged(options.log, numbers)
    left = [n for n in numbers if n not in outcomes]
    for outcome in everywhere.run(options.source, left, options.workers):
        outcomes[outcome.number] = outcome
        _log(options.log, outcome)
        _print_progress(outcome, len(outcomes), len(numbers))
    found = [outcomes[n] for n in numbers]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(_report(options, found)) + "\n", encoding="utf-8")
    out.with_suffix(".json").write_text(_figures(options, found), encoding="utf-8")
    return 1 if any(o.result in FAULTS and _cause(options.source, o) is None for o in found) else 0


def _add_causes(source: str, report: Path) -> int:
    figures = json.loads(report.with_suffix(".json").read_text(encoding="utf-8"))
    lines = report.read_text(encoding="utf-8").splitlines()
    for other in figures["others"]:
        other["cause"] = cause = KNOWN.get((source, other["number"]))
        begins = f"- {other['number']}: "
        if cause is not None:
            lines = [
                f"{line.partition('. Cause: ')[0]}. Cause: {cause}" if line.startswith(begins) else line
                for line in lines
            ]
    report.write_text("\n".join(lines) + "\n", encoding="utf-8")
    report.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 1 if any(o["result"] in FAULTS and o["cause"] is None for o in figures["others"]) else 0


def _cause(source: str, outcome: Outcome) -> str | None:
    return KNOWN.get((source, outcome.number))


def _logged(log: Path | None, numbers: range) -> dict[int, Outcome]:
    if log is None or not log.exists():
        return {}
    read = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    made = [Outcome(**{**r, "used": tuple(r["used"])}) for r in read]
    return {o.number: o for o in made if o.number in numbers}


def _log(log: Path | None, outcome: Outcome) -> None:
    if log is not None:
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")


def _print_progress(outcome: Outcome, done: int, total: int) -> None:
    if outcome.result not in (AGREE, *SHOWN):
        print(f"{outcome.number}: {outcome.result} ({outcome.stage}): {outcome.detail}", file=sys.stderr, flush=True)
    if done % 250 == 0:
        print(f"{done} of {total}", file=sys.stderr, flush=True)


def _command(options: argparse.Namespace) -> str:
    return (
        f"python -m tests.fuzz.jax_programs --programs {options.programs} --seed {options.seed} "
        f"--workers {options.workers} --source {options.source}"
    )


def _report(options: argparse.Namespace, found: Sequence[Outcome]) -> Iterator[str]:
    origin, counts = provenance(), Counter(o.result for o in found)
    yield f"# Random programs: {options.source}"
    yield ""
    yield f"- command: `{_command(options)}`"
    for key in ("commit", "machine", "date"):
        yield f"- {key}: {origin[key]}"
    yield f"- seconds: {sum(o.seconds for o in found):,.0f}, summed over all workers"
    yield ""
    yield (
        f"{len(found):,} programs: {WHAT[options.source]}. Each runs in the interpreter, as native code and on "
        "XLA:CPU. Half of the programs are compiled with the default decisions, the others without fusion or with "
        "random decisions. Native code runs twice, with different initial contents of memory. Results are compared "
        "elementwise; the tolerance is the spread of the interpreter's results under random perturbations of its "
        "roundings (tests/fuzz/uncertainty.py)."
    )
    yield ""
    yield "| outcome | programs |"
    yield "|---|---:|"
    for result, n in counts.most_common():
        yield f"| {result} | {n:,} |"
    yield ""
    yield "## Differences and their causes"
    yield ""
    listed = [o for o in found if o.result not in (AGREE, *SHOWN)]
    for result in dict.fromkeys(o.result for o in listed):
        yield f"### {result}"
        yield ""
        for o in (o for o in listed if o.result == result):
            cause = _cause(options.source, o)
            yield f"- {o.number}: {_one_line(o.detail)}" + ("" if cause is None else f". Cause: {cause}")
        yield ""
    if not listed:
        yield "None."
        yield ""
    yield "## Pieces of the programs"
    yield ""
    used = Counter(name for o in found for name in o.used)
    yield ", ".join(f"{name} {n:,}" for name, n in used.most_common())


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300].replace("|", "\\|")


def _figures(options: argparse.Namespace, found: Sequence[Outcome]) -> str:
    origin = {k: v for k, v in provenance().items() if k in ("commit", "date", "machine")}
    outcomes = [
        {k: v for k, v in asdict(o).items() if k != "used"} | {"cause": _cause(options.source, o)}
        for o in found
        if o.result != AGREE
    ]
    counts = dict(Counter(o.result for o in found))
    payload = {"command": _command(options), **origin, "programs": len(found), "counts": counts, "others": outcomes}
    return json.dumps(payload, indent=1) + "\n"


if __name__ == "__main__":
    sys.exit(main())
