"""Quality of the output check: false alarms on correct programs, and detection of corrupted outputs and kernels.

    python -m tests.sweeps.output_check [--plans 2] [--seeds 2] [--faults 14] [--out results/conformance]

Takes about an hour on two cores.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from experiments.provenance import provenance
from tests.sweeps.check_alarms import FEW, MANY, NONE, Check, check_subject
from tests.sweeps.check_corruptions import Trial, try_subject
from tests.sweeps.check_kernels import CAUGHT, CRASH, MISSED, SAME, UNBUILT, Fault, try_faults
from tests.sweeps.check_programs import PROGRAMS
from tests.sweeps.check_subjects import OWN, SUITES, subjects

FAULTY = (
    "quickstart/softmax", "quickstart/layer_norm_forward", "quickstart/bias_gelu", "quickstart/mlp_train_step",
    "quickstart/column_stats", "quickstart/elementwise_chain", "quickstart/log_softmax_gather",
    "quickstart/softmax_cross_entropy_grad", "quickstart/adam_step", "quickstart/attention",
    "quickstart/transpose_scale_add", "quickstart/cartpole_split", "jax/conv_net_gradient", "jax/batch_norm_gradient",
    "jax/causal_attention_gradient", "jax/transformer_block_gradient", "jax/rotary_embedding_and_rms_norm",
    "jax/embedding_gradient", "jax/segment_softmax_and_maximum", "jax/cumulative_operations",
    "jax/median_and_quantiles", "jax/f16_layer_norm_gradient", "jax/bf16_network", "jax/float64_statistics",
    "jax/complex_arithmetic",
    "jax/special_digamma", "jax/heat_equation", "jax/scatter_of_every_kind", "jax/quantise_and_dequantise",
    *(f"{OWN}/{name}" for name in PROGRAMS),
)  # fmt: skip
"""Programs into whose kernels faults are injected."""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a Markdown table with right-aligned numbers."""
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    return [*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows), ""]


def of_alarms(checks: Sequence[Check]) -> Iterator[str]:
    """Yield the section on false alarms."""
    ways = list(dict.fromkeys(c.way for c in checks))
    yield from (
        "## False alarms",
        "",
        f"{len({(c.suite, c.program) for c in checks})} programs, compiled in several ways and checked on the inputs "
        f"of {len({c.seed for c in checks})} seeds. All outputs are correct, so each rejected output is a false alarm.",
        "",
    )
    rows = []
    for way in (*ways, "all"):
        mine = [c for c in checks if way in (c.way, "all")]
        count = Counter(c.runs for c in mine)
        rows.append([way, len(mine), count[NONE], count[FEW], count[MANY], sum(c.finding is not None for c in mine)])
    head = ("compiled by", "checked", "no evaluations", "few evaluations", "many evaluations", "false alarms")
    yield from table(head, rows)
    yield from (f"- {c.suite}/{c.program}, {c.way}, seed {c.seed}: {c.finding}" for c in checks if c.finding)
    yield ""


def of_trials(trials: Sequence[Trial]) -> Iterator[str]:
    """Yield the section on corrupted outputs."""
    yield from (
        "## Corrupted outputs",
        "",
        f"Each output of {len({t.program for t in trials})} programs, corrupted in "
        f"{len({t.corruption for t in trials})} ways, if that changes it. The former check had a tolerance relative "
        "to the output's largest magnitude.",
        "",
    )
    rows = []
    for what in (*dict.fromkeys(t.corruption for t in trials), "all"):
        mine = [t for t in trials if what in (t.corruption, "all")]
        rows.append([what, len(mine), sum(t.before for t in mine), sum(t.now for t in mine)])
    yield from table(("corruption", "tried", "detected by the former check", "detected"), rows)
    missed: dict[str, list[Trial]] = defaultdict(list)
    for t in trials:
        if not t.now:
            missed[f"{t.program}, output {t.output}"].append(t)
    yield from ("Not detected, by output:", "")
    yield from (f"- {where}: {'; '.join(t.corruption for t in ts)}" for where, ts in sorted(missed.items()))
    yield ""


def of_faults(faults: Sequence[Fault]) -> Iterator[str]:
    """Yield the section on wrong kernels."""
    yield from (
        "## Wrong kernels",
        "",
        f"One fault at a time, injected into the C code of {len({f.program for f in faults})} programs. Only faults "
        "that change the outputs can be detected. Out-of-bounds accesses may crash the process instead.",
        "",
    )
    rows = []
    for kind in (*sorted({f.kind for f in faults if f.result != CRASH}), "all"):
        mine = [f for f in faults if kind in (f.kind, "all") and f.result != CRASH]
        count = Counter(f.result for f in mine)
        changed = [f for f in mine if f.result in (CAUGHT, MISSED)]
        rows.append([kind, len(mine), count[UNBUILT], count[SAME], len(changed), sum(f.before for f in changed),
                     count[CAUGHT]])  # fmt: skip
    head = (
        "fault", "tried", "not built", "same outputs", "changed outputs", "detected by the former check", "detected"
    )  # fmt: skip
    yield from table(head, rows)
    yield from (f"Processes that crashed: {sum(f.result == CRASH for f in faults)}.", "", "Not detected:", "")
    yield from (f"- {f.program}, {f.kind}: `{f.line}`" for f in faults if f.result == MISSED)
    yield ""


def faults_of(count: int) -> Iterator[Fault]:
    """Yield the results of injected faults in the programs of FAULTY."""
    for name in FAULTY:
        print(f"wrong kernels: {name}", file=sys.stderr, flush=True)
        suite, _, program = name.partition("/")
        yield from try_faults(suite, program, count)


def main() -> int:
    """Run from the command line; return exit status 1 if there is a false alarm."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--plans", type=int, default=2, help="random plans and random pass orders per program (default: %(default)s)"
    )
    parser.add_argument("--seeds", type=int, default=2, help="inputs per program (default: %(default)s)")
    parser.add_argument("--faults", type=int, default=14, help="injected faults per program (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("results/conformance"),
        help="folder for output_check.md (default: %(default)s)",
    )  # fmt: skip
    options = parser.parse_args()
    checks: list[Check] = []
    trials: list[Trial] = []
    # Without this, programs that call LAPACK crash the process. JAX does the same when it lowers such a call.
    importlib.import_module("jaxlib.cpu._lapack").initialize()
    with tempfile.TemporaryDirectory() as folder:
        for subject in subjects((*SUITES, OWN), Path(folder)):
            print(f"{subject.program.suite}/{subject.program.name}", file=sys.stderr, flush=True)
            checks += check_subject(subject, range(options.seeds), options.plans)
            trials += try_subject(subject)
    faults = list(faults_of(options.faults))
    origin = provenance()
    lines = [
        "# The output check",
        "",
        f"- command: `python -m tests.sweeps.output_check {' '.join(sys.argv[1:])}`",
        f"- commit: {origin['commit']}",
        f"- date: {origin['date']}",
        f"- machine: {origin['machine']}",
        "",
        *of_alarms(checks),
        *of_trials(trials),
        *of_faults(faults),
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "output_check.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    return 1 if any(c.finding for c in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
