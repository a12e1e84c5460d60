"""Times modules compiled by `torch.compile(backend="hlogym")` beside Inductor and eager PyTorch, in turns.

python -m experiments.benchmarks.torch_modules [NAME ...] [--rounds 7] [--seconds 0.05] [--out results/torch/modules.md]
                                              [--progress FILE] [--limit 420] [--again]

Each contender first runs on the same arguments, and its outputs and gradients are compared with those of eager mode in
float32. Then they take turns: in each round every contender repeats the call for some time, in an order that changes.
A ratio is the median over the rounds of a contender's time per call over that of hlogym in the same round.

With `--progress`, each module is stored in a file as soon as it is measured, so that an interrupted run continues and a
long one can be divided by `--limit`. The table then has all modules that the file has. A row of another commit is kept
and its commit is named, unless `--again` asks for new measurements.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import gc
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

from compiler.torch_backend import register
from experiments.module_command import plain_errors
from experiments.provenance import provenance
from experiments.results import markdown_table, write_text
from experiments.torch_modules.table import TABLE

CONTENDERS = ("hlogym", "inductor", "eager")
TOLERANCE = 2e-3
"""Largest difference from eager mode, relative to the largest value of an output or gradient."""


@dataclass(frozen=True)
class Row:
    """The times of one module.

    Attributes:
        name: name in the table of modules.
        kind: "inference" (without gradients) or "training" (forward and backward).
        seconds: the time of a call in each round, by contender.
        compile_seconds: the time of the first call.
        failed: why a contender has no times.
        commit: of the compiler that was measured.
    """

    name: str
    kind: str
    seconds: dict[str, list[float]]
    compile_seconds: dict[str, float]
    failed: dict[str, str]
    commit: str

    def ratio(self, other: str) -> float | None:
        """Return how many times longer another contender takes than hlogym; None if one has no times."""
        ours, theirs = self.seconds.get("hlogym"), self.seconds.get(other)
        if not ours or not theirs:
            return None
        return float(np.median([b / a for a, b in zip(ours, theirs, strict=True)]))

    def cells(self) -> list[str]:
        """Return the row of the table."""
        times = [f"{min(t) * 1e6:.0f}" if (t := self.seconds.get(c)) else "failed" for c in CONTENDERS]
        ratios = ["" if (r := self.ratio(c)) is None else f"{r:.2f}" for c in CONTENDERS[1:]]
        compiled = [f"{self.compile_seconds[c]:.1f}" if c in self.compile_seconds else "" for c in CONTENDERS[:2]]
        return [self.name, self.kind, *times, *ratios, *compiled]


def _inference(module: Any, args: tuple[Any, ...]) -> list[Any]:
    with torch.no_grad():
        return _tensors(module(*args))


def _training(module: Any, args: tuple[Any, ...]) -> list[Any]:
    outputs = _tensors(module(*args))
    total: Any = torch.stack([o.float().mean() for o in outputs if o.requires_grad]).sum()
    total.backward()
    gradients = [p.grad for p in module.parameters()]
    for p in module.parameters():
        p.grad = None
    return [o.detach() for o in outputs] + gradients


def _tensors(found: Any) -> list[Any]:
    return [x for x in _pytree.tree_leaves(found) if isinstance(x, torch.Tensor)]


def measure(name: str, kind: str, rounds: int, seconds: float) -> Row:
    """Compile, compare and time one module."""
    step = _training if kind == "training" else _inference
    module, args = TABLE[name].make(large=True)
    module.train(kind == "training")
    wanted = step(copy.deepcopy(module), args)
    calls: dict[str, Callable[[], Any]] = {}
    compiled_in, failed = {}, {}
    for contender in CONTENDERS:
        torch._dynamo.reset() if contender == "hlogym" else None
        own = copy.deepcopy(module)
        call: Any = own if contender == "eager" else torch.compile(own, backend=contender)
        start = time.perf_counter()
        try:
            found = step(call, args)
            difference = _difference(found, wanted)
        except Exception as e:  # a contender that fails is a result
            failed[contender] = f"{type(e).__name__}: {str(e).partition(chr(10))[0]}"
            continue
        compiled_in[contender] = time.perf_counter() - start
        if difference > TOLERANCE:
            failed[contender] = f"differs from eager mode by {difference:.1e}"
            continue
        calls[contender] = functools.partial(step, call, args)
    return Row(name, kind, _in_turns(calls, rounds, seconds), compiled_in, failed, provenance()["commit"])


def _difference(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    """Return the largest difference relative to the largest value of each tensor; tiny values count as 0.01."""
    worst = 0.0
    for a, b in zip(found, wanted, strict=True):
        if b is None or not b.numel():
            continue
        scale = max(float(b.abs().max()), 1e-2)
        worst = max(worst, float((a.double() - b.double()).abs().max()) / scale)
    return worst


def _in_turns(calls: dict[str, Callable[[], Any]], rounds: int, seconds: float) -> dict[str, list[float]]:
    repeats = {}
    for name, call in calls.items():
        for _ in range(3):
            call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, int(seconds / max(time.perf_counter() - start, 1e-7)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    gc.collect()
    for k in range(rounds):
        for name in order if k % 2 else order[::-1]:
            call = calls[name]
            call()
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            times[name].append((time.perf_counter() - start) / repeats[name])
    return times


def read_progress(path: Path) -> dict[tuple[str, str], Row]:
    """Return the rows of a file of progress by name and kind; none if there is no such file.

    Raises:
        ValueError: the file is not one of this program.
    """
    if not path.exists():
        return {}
    try:
        rows = [Row(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    except (TypeError, ValueError) as e:
        raise ValueError(f"{path} has no rows of modules: {e}") from e
    return {(r.name, r.kind): r for r in rows}


def write_progress(path: Path, rows: Iterable[Row]) -> None:
    """Write the rows; the file is never incomplete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps([dataclasses.asdict(r) for r in rows], indent=1) + "\n")


def measure_missing(
    wanted: Iterable[tuple[str, str]],
    done: dict[tuple[str, str], Row],
    measure_one: Callable[[str, str], Row],
    until: float,
) -> Iterator[Row]:
    """Measure what is wanted and not yet done, and yield each new row, which is in `done` by then.

    Args:
        wanted: names and kinds.
        done: rows by name and kind; it grows.
        measure_one: measures one module.
        until: time of `time.monotonic` after which no measurement starts.
    """
    for key in wanted:
        if key in done:
            continue
        if time.monotonic() > until:
            return
        done[key] = measure_one(*key)
        yield done[key]


def report(rows: Sequence[Row]) -> str:
    """Return the results as Markdown."""
    made = provenance()
    commits = " and ".join(dict.fromkeys(r.commit for r in rows)) or made["commit"]
    head = ["module", "kind", *(f"{c}, us" for c in CONTENDERS), *(f"{c} / hlogym" for c in CONTENDERS[1:])]
    head += [f"first call of {c}, s" for c in CONTENDERS[:2]]
    lines = [
        "# Modules of PyTorch through torch.compile",
        "",
        f"`python -m experiments.benchmarks.torch_modules`, commit {commits}, {made['date']}, {made['machine']},",
        f"torch {torch.__version__}, {torch.get_num_threads()} threads.",
        "",
        "Times are the fastest round's, per call; ratios are medians over rounds, above 1 where hlogym is faster.",
        "",
        markdown_table([head, *(r.cells() for r in rows)]),
        "",
    ]
    for kind in ("inference", "training"):
        for other in CONTENDERS[1:]:
            found = [x for r in rows if r.kind == kind and (x := r.ratio(other)) is not None]
            if found:
                mean = float(np.exp(np.mean(np.log(found))))
                lines.append(f"- {kind}, {other} / hlogym: geometric mean {mean:.2f} over {len(found)} modules")
    lines += [f"- {r.name}, {r.kind}, {c}: {why}" for r in rows for c, why in r.failed.items()]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the table; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="modules of the table; default: all")
    parser.add_argument("--kinds", default="inference,training")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.05, help="time of each contender in each round")
    parser.add_argument("--out", type=Path, default=Path("results/torch/modules.md"))
    parser.add_argument("--progress", type=Path, metavar="FILE", help="keep each row here, and continue from it")
    parser.add_argument("--limit", type=float, default=math.inf, help="start no measurement after so many seconds")
    parser.add_argument("--again", action="store_true", help="measure what the file of progress has, too")
    given = parser.parse_args(arguments)
    unknown = [n for n in given.names if n not in TABLE]
    if unknown:
        parser.error(f"unknown modules {', '.join(unknown)}; there are {', '.join(TABLE)}")
    wanted = [(name, kind) for name in given.names or TABLE for kind in given.kinds.split(",")]
    try:
        done = read_progress(given.progress) if given.progress else {}
    except ValueError as e:
        parser.error(str(e))
    if given.again:
        done = {key: row for key, row in done.items() if key not in wanted}
    measure_one = functools.partial(measure, rounds=given.rounds, seconds=given.seconds)
    until = time.monotonic() + given.limit
    register()
    with torch._dynamo.config.patch(allow_rnn=True):
        for row in measure_missing(wanted, done, measure_one, until):
            print("  ".join(row.cells()), flush=True)
            if given.progress:
                write_progress(given.progress, done.values())
    left = sum(key not in done for key in wanted)
    if left:
        print(f"{left} of {len(wanted)} measurements are left: the same command continues", flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(given.out, report([done[key] for key in _order(done)]))
    return 0


def _order(keys: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return names and kinds in the order of the table."""
    positions = {name: n for n, name in enumerate(TABLE)}
    return sorted(keys, key=lambda key: (positions.get(key[0], len(positions)), key[1]))


if __name__ == "__main__":
    with plain_errors():
        sys.exit(main())
