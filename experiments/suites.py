"""`hlogym suites`: list the suites, build the suite "corpus", and check its programs against the interpreter."""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compiler.analysis.cost_model import CostModel, cpu, module_cost
from compiler.errors import HlogymError
from compiler.text import parse
from env.measurement import Measurer, MeasurerOptions
from env.suites import Program, load_suite, open_test_programs
from env.suites.build import build_suite, changed_programs
from env.suites.built import SPLITS, is_built
from env.suites.loading import SUITE_NAMES
from env.suites.locations import programs_folder
from env.suites.programs.listing import read_listing
from experiments.answer import give_answer
from experiments.console import clock, error_console, progress, stdout
from experiments.interruption import keeping
from experiments.provenance import provenance
from experiments.results import check_output, markdown_facts, markdown_table, rich_table, write_text

__all__ = ["CheckError", "build_programs", "check_programs", "list_suites", "suite_rows"]

ROUNDS = 3
BOUNDS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)


class CheckError(HlogymError, RuntimeError):
    """Programs that do not compile or differ from the interpreter."""


def suite_rows() -> list[list[str]]:
    """Return a table of every suite with its numbers of programs by split; the first row has the headings."""
    rows = [["suite", "train", "validation", "test", "extra", "families", "note"]]
    for name in SUITE_NAMES:
        if "/" in name or name in SPLITS:
            continue
        if name == "corpus":
            listed = read_listing()[0].values()
            counts, families = Counter(p.split for p in listed), {p.family for p in listed}
            note = "test is sealed" if is_built() else "not built: hlogym suites build"
        else:
            programs = load_suite(name).programs
            counts, families, note = Counter(p.split for p in programs), {p.family or p.name for p in programs}, ""
        rows.append([name, *(str(counts.get(s, 0)) for s in (*SPLITS, "extra")), str(len(families)), note])
    return rows


def list_suites(as_json: bool, output: Path | None = None) -> None:
    """Print every suite with its numbers of programs by split, and write them to a file if one is named."""
    if output is not None:
        check_output(output)
    rows = suite_rows()
    facts = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    markdown = output is not None and output.suffix == ".md"
    if output is not None and markdown:
        write_text(output, markdown_table(rows))
    give_answer(facts, lambda: stdout.print(rich_table(rows, "Suites")), as_json, None if markdown else output)


def build_programs(output: Path | None, families: Sequence[str], as_json: bool = False) -> None:
    """Build the suite "corpus", or some families into a folder of their own.

    Raises:
        BuildError: JAX is not installed.
        UnknownNameError: there is no such family.
    """
    started = time.monotonic()
    folder = output or programs_folder()
    with keeping(lambda: f"the families that were built are kept in {folder}; the same command continues"):
        manifest = build_suite(folder, families, lambda line: error_console.print(line, soft_wrap=True))
    if not families and (found := changed_programs(manifest)):
        error_console.print(
            f"{len(found)} programs differ from the list that comes with hlogym, such as {found[0]}; it was made with "
            + ", ".join(f"{k} {v}" for k, v in read_listing()[2].items()),
            soft_wrap=True,
        )
    facts = {"programs": len(manifest["programs"]), "folder": str(folder), "seconds": time.monotonic() - started}
    text = f"{facts['programs']} programs in {folder} after {clock(time.monotonic() - started)}"
    give_answer(facts, lambda: stdout.print(text, soft_wrap=True), as_json)


# ---- the check


@dataclass(frozen=True)
class _Row:
    """What is known of one program; measured and failure are only known of those in the sample."""

    name: str
    family: str
    split: str
    instructions: int
    estimate: float
    opcodes: tuple[str, ...]
    fingerprint: str
    measured: float | None = None
    failure: str | None = None


def check_programs(
    sample: int,
    shard: tuple[int, int],
    longest: float,
    output: Path | None,
    state: Path | None,
    seed: int,
    as_json: bool = False,
) -> None:
    """Compile a sample of the built programs, compare each with the interpreter, time it, and write a table.

    Args:
        sample: how many programs, drawn over the families; 0: all.
        shard: (number, count): this process takes every count-th program of the sample from the number-th on.
        longest: programs of a longer estimated time, in seconds, are not in the sample; the interpreter may take a
            thousand times as long.
        output: file of the table: Markdown if it ends in .md, else JSON.
        state: file of results, one JSON object a line, to which results are added; programs in it are not run again.
        seed: seed of the sample and of the inputs.
        as_json: print JSON instead of text.

    Raises:
        CheckError: some programs failed.
    """
    if output is not None:
        check_output(output)
    with open_test_programs("check of programs against the interpreter"):
        programs = [p for split in SPLITS for p in load_suite(f"corpus/{split}").programs]
    rows = [_described(p) for p in programs]
    known = _read_state(state)
    chosen = _sample([r for r in rows if r.estimate <= longest], sample, seed)[shard[0] :: shard[1]]
    by_name = {p.name: p for p in programs}
    with progress() as bar, Measurer(options=MeasurerOptions(seed=seed, rounds=ROUNDS)) as measurer:
        task = bar.add_task("checking", total=len(chosen))
        with keeping(lambda: _kept(known, chosen, state)):
            for name in chosen:
                bar.update(task, advance=1, description=name)
                if name not in known:
                    known[name] = _checked(by_name[name], measurer)
                    if state is not None:
                        with state.open("a", encoding="utf-8") as file:
                            file.write(json.dumps({"name": name, **known[name]}) + "\n")
    rows = [_Row(**{**asdict(r), **known.get(r.name, {})}) for r in rows]
    markdown = output is not None and output.suffix == ".md"
    if output is not None and markdown:
        write_text(output, _report(rows, sum(p.name in known for p in programs)))
    failed = [f"{r.name}: {r.failure}" for r in rows if r.failure]
    checked = [r for r in rows if r.name in known]
    text = f"{len(checked) - len(failed)} of {len(checked)} checked programs compile and equal the interpreter"
    facts = {"checked": len(checked), "failed": failed, "programs": [asdict(r) for r in checked]}
    give_answer(facts, lambda: stdout.print(text), as_json, None if markdown else output)
    if failed:
        raise CheckError("\n  - ".join([f"{len(failed)} programs failed:", *failed[:20]]))


def _kept(known: Mapping[str, Mapping[str, Any]], chosen: Sequence[str], state: Path | None) -> str:
    """Return what an interrupted check has done, and where it is kept."""
    done = [known[name] for name in chosen if name in known]
    failed = sum(row["failure"] is not None for row in done)
    where = f"kept in {state}; the same command continues" if state else "not kept, because there is no --state"
    return f"{len(done)} of {len(chosen)} programs were checked, {failed} failed; {where}"


def _described(program: Program) -> _Row:
    module = parse(program.text())
    opcodes = {i.opcode.text for c in module.computations for i in c.instructions}
    return _Row(
        program.name,
        program.family,
        program.split,
        module.instruction_count,
        module_cost(module, _COSTS).seconds,
        tuple(sorted(opcodes)),
        module.fingerprint(),
    )


_COSTS = CostModel(cpu())


def _read_state(state: Path | None) -> dict[str, dict[str, Any]]:
    if state is None or not state.is_file():
        return {}
    found = [json.loads(line) for line in state.read_text(encoding="utf-8").splitlines()]
    return {entry.pop("name"): entry for entry in found}


def _sample(rows: Sequence[_Row], sample: int, seed: int) -> list[str]:
    """Return the names of a sample: in turns one program of each family, in an order drawn by the seed."""
    rng = np.random.default_rng(seed)
    families: dict[str, list[str]] = {}
    for row in rows:
        families.setdefault(row.family, []).append(row.name)
    shuffled = [[names[i] for i in rng.permutation(len(names))] for names in families.values()]
    order = [names[k] for k in range(max(map(len, shuffled), default=0)) for names in shuffled if k < len(names)]
    return order[:sample] if sample else order


def _checked(program: Program, measurer: Measurer) -> dict[str, Any]:
    compared = measurer.compare(program, {"default": None})
    if "default" in compared.failures:
        return {"measured": None, "failure": " ".join(compared.failures["default"].split())[:300]}
    return {"measured": compared.seconds("default").value, "failure": None}


# ---- the table


def _report(rows: Sequence[_Row], checked: int) -> str:
    splits = {s: [r for r in rows if r.split == s] for s in SPLITS}
    prints = Counter(r.fingerprint for r in rows)
    shared = [f for f, n in prints.items() if n > 1]
    crossing = [f for f in {r.family for r in rows} if len({r.split for r in rows if r.family == f}) > 1]
    failed = [r for r in rows if r.failure]
    longest = max((r.estimate for r in rows if r.failure or r.measured is not None), default=0.0)
    quantiles = [[s, *(f"{q:,.0f}" for q in _quantiles([r.instructions for r in part]))] for s, part in splits.items()]
    times = [
        ["estimated", *_histogram(r.estimate for r in rows)],
        ["measured", *_histogram(r.measured for r in rows if r.measured is not None)],
    ]
    head = ["family", "split", "programs", "checked", "failed", "median measured"]
    parts = [
        "# Programs\n",
        *markdown_facts(provenance()),
        "",
        f"{len(rows)} programs in {len({r.family for r in rows})} families. {len(shared)} fingerprints occur twice, "
        f"and {len(crossing)} families are in several splits. {checked} programs were compiled, compared with the "
        f"interpreter and timed, none of them with an estimate above {longest * 1e3:.3g} ms; {len(failed)} failed.\n",
        "## Splits\n",
        markdown_table([["split", "families", "programs", "cut", "drawn"], *map(_split_row, splits, splits.values())]),
        "## Instructions per program\n",
        markdown_table([["split", "least", "quarter", "median", "three quarters", "most"], *quantiles]),
        "## Time per call\n",
        "Estimated: the cost model's time of the program before any pass. Measured: end to end, compiled with the "
        "defaults.\n",
        markdown_table([["", *_BOUND_NAMES], *times]),
        "## Opcodes\n",
        _opcodes(rows),
        "## Families\n",
        markdown_table([head, *_family_rows(rows)]),
    ]
    if failed:
        parts += ["## Failures\n", *(f"- {r.name}: {r.failure}" for r in failed), ""]
    return "\n".join(parts)


def _split_row(split: str, rows: Sequence[_Row]) -> list[str]:
    cuts = sum("-cut-" in r.name for r in rows)
    drawn = sum(r.family.startswith("drawn_") and "-cut-" not in r.name for r in rows)
    return [split, str(len({r.family for r in rows})), str(len(rows)), str(cuts), str(drawn)]


def _quantiles(values: Sequence[float]) -> list[float]:
    return [float(q) for q in np.quantile(values, [0, 0.25, 0.5, 0.75, 1])] if values else []


_BOUND_NAMES = ("< 1 us", "1-10 us", "10-100 us", "0.1-1 ms", "1-10 ms", "10-100 ms", "0.1-1 s", ">= 1 s")


def _histogram(values: Iterable[float]) -> list[str]:
    counts = Counter(sum(v >= b for b in BOUNDS) for v in values)
    return [str(counts.get(k, 0)) for k in range(len(_BOUND_NAMES))]


def _opcodes(rows: Sequence[_Row]) -> str:
    counts = Counter(op for r in rows for op in r.opcodes)
    return f"{len(counts)} opcodes: " + ", ".join(f"{op} {n}" for op, n in counts.most_common()) + ".\n"


def _family_rows(rows: Sequence[_Row]) -> list[list[str]]:
    families: dict[str, list[_Row]] = {}
    for row in rows:
        families.setdefault(row.family, []).append(row)
    found = []
    for family, part in sorted(families.items()):
        times = [r.measured for r in part if r.measured is not None]
        failed = sum(r.failure is not None for r in part)
        median = f"{statistics.median(times) * 1e6:,.1f} us" if times else ""
        found.append([family, part[0].split, str(len(part)), str(len(times) + failed), str(failed), median])
    return found
