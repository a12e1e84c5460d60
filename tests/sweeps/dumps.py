"""Table of a folder of dumps: compilation for the CPU, sources for CUDA, time of fusion, and what has no kernel.

    python -m tests.sweeps.dumps --folder DIR [--only NAME] [--limit N] [--backends cpu cuda xla] [--seconds 3600]
        [--again failed|all] [--out results/fusion]

The dumps are those of `tests.sweeps.real_models`, whose `--unpack` writes them to a folder. Each is compiled by each
backend in a process of its own, smallest first. Results are kept in dumps.json with commit, date and machine, so that
an interrupted run continues: results that are there are not made again, unless `--again` asks for it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from experiments.provenance import provenance
from experiments.results import write_text
from tests.sweeps.real_models import programs, run_apart

Row: TypeAlias = dict[str, Any]
"""A dump: its name (`program`), the names of equal files (`copies`), its size (`bytes`), and a result by backend."""
BACKENDS = ("cpu", "cuda", "xla")
COMPILE_LIMIT, FUSION_LIMIT = 60.0, 10.0
"""Processor seconds of a compilation, and of fusion alone, that no program should take."""


def sweep(rows: dict[str, Row], options: argparse.Namespace) -> Iterator[Row]:
    """Add the results that are missing to `rows`; yield each dump that has a new one."""
    end = time.monotonic() + options.seconds
    made = {k: v for k, v in provenance().items() if k in ("commit", "date", "machine")}
    for path, copies in programs(options).items():
        row = rows.setdefault(path.stem, {"program": path.stem, "bytes": path.stat().st_size, "copies": copies})
        for backend in options.backends:
            if time.monotonic() > end:
                return
            if _is_wanted(row.get(backend), options.again):
                row[backend] = run_apart(path, backend, options) | made
                yield row


def _is_wanted(found: Row | None, again: str) -> bool:
    return found is None or again == "all" or (again == "failed" and bool(found["error"]))


def line(row: Row) -> str:
    """Return a row of the Markdown table."""
    cpu, cuda, xla = (row.get(b) or {} for b in BACKENDS)
    cells = [
        row["program"] + (f" (and {len(row['copies'])} equal)" if row["copies"] else ""),
        f"{cpu['instructions']:,}" if cpu.get("instructions") else "",
        *(_total(cpu, kind) for kind in ("seconds", "cpu_seconds")),
        _stage(cpu, "fusion"),
        _kernels(cpu),
        _total(cuda, "cpu_seconds"),
        _stage(cuda, "fusion"),
        _kernels(cuda),
        _total(xla, "cpu_seconds"),
        "; ".join(_notes(row)),
    ]
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


def _notes(row: Row) -> Iterator[str]:
    for backend in BACKENDS:
        found = row.get(backend) or {"error": "", "host_ops": {}}
        if found["error"]:
            yield f"{backend} refused: {found['error'].partition(chr(10))[0][:200]}"
        yield from (f"{backend}: {n} x {text}" for text, n in found.get("host_ops", {}).items())


def _total(found: Row, kind: str) -> str:
    return f"{sum(found[kind].values()):.1f}" if found.get(kind) and not found["error"] else ""


def _stage(found: Row, stage: str) -> str:
    """Return the processor seconds of a stage."""
    return f"{found['cpu_seconds'].get(stage, 0.0):.2f}" if found.get("cpu_seconds") and not found["error"] else ""


def _kernels(found: Row) -> str:
    return f"{found['kernels']}/{found['launches']}" if found.get("kernels") is not None and not found["error"] else ""


HEADER = (
    "| program | instructions | CPU, s | CPU, processor s | fusion, s | kernels/launches |"
    " CUDA sources, processor s | CUDA fusion, s | CUDA kernels/launches | XLA:CPU, processor s |"
    " left to the interpreter, refused |\n|---|" + "---:|" * 9 + "---|"
)


def summary(rows: Sequence[Row]) -> list[str]:
    """Return what the table shows, in sentences."""
    out = [f"- dumps: {sum(1 + len(r['copies']) for r in rows)} files, {len(rows)} of them distinct"]
    for backend in BACKENDS:
        found = [(r["program"], r[backend]) for r in rows if r.get(backend)]
        good = [(name, f) for name, f in found if not f["error"]]
        if not found:
            continue
        out.append(f"- {backend}: {len(found)} tried, {len(good)} compile, {len(found) - len(good)} do not")
        if good and backend != "xla":
            whole = max((sum(f["cpu_seconds"].values()), name) for name, f in good)
            fusion = max((f["cpu_seconds"]["fusion"], name) for name, f in good)
            over = sum(sum(f["cpu_seconds"].values()) > COMPILE_LIMIT for _, f in good)
            late = sum(f["cpu_seconds"]["fusion"] > FUSION_LIMIT for _, f in good)
            host = Counter[str]()
            for _, f in good:
                host.update(f["host_ops"])
            left = "; ".join(f"{n} x {t}" for t, n in host.most_common()) or "nothing"
            out += [
                f"  - largest {whole[0]:.1f} processor seconds ({whole[1]}); {over} took over {COMPILE_LIMIT:.0f}",
                f"  - fusion at most {fusion[0]:.1f} s ({fusion[1]}); {late} took over {FUSION_LIMIT:.0f} s",
                f"  - left to the interpreter: {left}",
            ]
    both = [
        (sum(r["cpu"]["cpu_seconds"].values()), sum(r["xla"]["cpu_seconds"].values()))
        for r in rows
        if all(r.get(b) and not r[b]["error"] for b in ("cpu", "xla")) and r["cpu"]["machine"] == r["xla"]["machine"]
    ]
    if both:
        ratios = sorted(a / b for a, b in both)
        middle = ratios[len(ratios) // 2]
        where = f"{len(both)} programs on the same machine"
        out.append(f"- beside XLA:CPU, {where}, processor seconds: median {middle:.2f}x")
    return out


def page(rows: Sequence[Row], arguments: Sequence[str]) -> str:
    """Return the page; dumps without a result are listed at its end."""
    made = provenance()
    rows, missing = [r for r in rows if _has_result(r)], [r for r in rows if not _has_result(r)]
    short = " ".join(Path(a).name if a.startswith("/") else a for a in arguments)
    results = [r[b] for r in rows for b in BACKENDS if r.get(b)]
    commits = Counter(f["commit"].split()[0] for f in results)
    machines = Counter(f["machine"] for f in results)
    lines = [
        "# Dumps of real models",
        "",
        f"- command: `python -m tests.sweeps.dumps {short}`",
        f"- machines: {'; '.join(f'{m} ({n} results)' for m, n in machines.most_common())}",
        f"- date: {made['date']}",
        f"- commits: {', '.join(f'{c} ({n} results)' for c, n in commits.most_common())}",
        *summary(rows),
        "",
        "Processor seconds contain those of the C compiler; `CPU, s` is wall clock, with the time that other work takes"
        " from the cores. The cache of compiled code has the runtime and no kernels. Empty cells were not measured yet:"
        " the same command continues.",
        "",
        HEADER,
        *map(line, rows),
    ]
    if missing:
        lines += ["", f"Not reached yet, {len(missing)} dumps:", "", *(f"- {r['program']}" for r in missing)]
    return "\n".join(lines) + "\n"


def _has_result(row: Row) -> bool:
    return any(b in row for b in BACKENDS)


def main() -> int:
    """Run from the command line; return exit status 1 if a program fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="folder with the dumps (*.hlo)")
    parser.add_argument("--only", nargs="*", help="only programs whose names contain one of these")
    parser.add_argument("--limit", type=int, help="only the N smallest")
    parser.add_argument("--backends", nargs="+", default=["cpu", "cuda"], choices=BACKENDS)
    parser.add_argument("--nvrtc", default="", metavar="ARCH", help="compile CUDA kernels for it, such as sm_90")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after this time")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds per program (default: %(default)g)")
    parser.add_argument("--memory-gb", type=float, default=10.0, help="memory per program (default: %(default)g)")
    parser.add_argument("--again", default="", choices=("failed", "all"), help="results to make again")
    parser.add_argument("--out", type=Path, default=Path("results/fusion"), help="folder for dumps.json and dumps.md")
    options = parser.parse_args()
    file = options.out / "dumps.json"
    rows: dict[str, Row] = {}
    if file.is_file():
        rows = {r["program"]: r for r in json.loads(file.read_text(encoding="utf-8"))["rows"]}

    for path, copies in programs(options).items():
        rows.setdefault(path.stem, {"program": path.stem, "bytes": path.stat().st_size})["copies"] = copies

    def ordered() -> list[Row]:
        return sorted(rows.values(), key=lambda r: (r["bytes"], r["program"]))

    for row in sweep(rows, options):
        print(line(row), flush=True)
        write_text(file, json.dumps({"rows": list(filter(_has_result, ordered()))}, indent=1) + "\n")
        write_text(options.out / "dumps.md", page(ordered(), sys.argv[1:]))
    print("\n".join(summary(list(filter(_has_result, ordered())))))
    return int(any(r[b]["error"] for r in rows.values() for b in BACKENDS if r.get(b)))


if __name__ == "__main__":
    sys.exit(main())
