"""The tables of a folder of results, as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from compiler.support.display import counted
from compiler.support.json_reading import read_object
from compiler.support.safe_names import markdown_cell, shell_command
from env.statistics import Interval, geometric_mean, median_interval, ratio_interval
from experiments.gpu.job import GpuResultError, result_file
from experiments.gpu.parts import PARTS

__all__ = ["SLOW", "page", "race_lines"]

Result = Mapping[str, Any]

OURS = "hlogym"
SLOW = 0.9
"""Ratio to the better peer below which a program is listed."""
MOST_ERRORS = 40
FACTORS = "factors of the constants"
"""The fact of a fit by what each fitted constant was multiplied."""
LIBRARY = "eager"
LIBRARIES = {"products": "product ", "attention": "kernels/attention"}
"""What a library has a kernel for, and how the names of such programs begin."""
MEMORY_BOUND_BYTES = 8 << 20
"""Bytes of a kernel that memory limits, rather than its launch."""


def page(folder: Path) -> str:
    """Return the tables of the parts whose results are in a folder.

    Raises:
        GpuResultError: there are none, or one is no result of this command.
    """
    found: dict[str, Result] = {}
    for part in PARTS:
        path = result_file(folder, part.name)
        if path.exists():
            found[part.name] = read_object(path, GpuResultError)
    if not found:
        raise GpuResultError(
            f"{folder} has no results; run `{shell_command('python', '-m', 'experiments.gpu', '--out', folder)}` first"
        )
    lines = ["# Measured on one GPU", ""]
    for part in PARTS:
        if part.name in found:
            try:
                lines += _section(part.title, part.name, found[part.name], found.get("environment", {}))
            except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                raise GpuResultError(f"{result_file(folder, part.name)} is no result of this command") from error
    return "\n".join(lines).rstrip() + "\n"


def _section(title: str, name: str, result: Result, environment: Result) -> list[str]:
    lines = [f"## {title}", ""]
    facts = result["provenance"]
    state = "complete" if result["complete"] else "not complete"
    where = "; on the stand-in, whose times mean nothing" if result["stand_in"] else ""
    lines += [f"- `{facts['command']}`, commit {facts['commit']}, {facts['date']}; {state}{where}"]
    if result["skipped"]:
        return [*lines, f"- skipped: {markdown_cell(result['skipped'])}", ""]
    sections: Mapping[str, Callable[[Result, Result], list[str]]] = {
        "environment": _environment, "correctness": _correctness, "races": race_lines, "cartpole": race_lines,
        "choices": _choices, "kernel_times": _kernel_times, "model_fit": _model_fit, "sanitizer": _sanitizer,
        "training": _training,
    }  # fmt: skip
    lines += sections[name](result, environment)
    lines += [
        f"- failed: {markdown_cell(e['name'])}: {markdown_cell(str(e['error'])[:300])}{_fault(e)}"
        for e in result["errors"][:MOST_ERRORS]
    ]
    if len(result["errors"]) > MOST_ERRORS:
        lines.append(f"- and {len(result['errors']) - MOST_ERRORS} more failures in the JSON file")
    return [*lines, ""]


def _fault(entry: Mapping[str, Any]) -> str:
    """Return the kernels that were found to be at fault, as text that follows a message."""
    found = entry.get("kernels_at_fault")
    if not found:
        return ""
    if isinstance(found, str):
        return f" (kernels were not found: {markdown_cell(found[:200])})"
    named = (f"{k['kernel']} {k['symbol']}: {k['problem'][:200]}".strip() for k in found)
    return f" ({'; '.join(map(markdown_cell, named))})"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table, the header first, as lines that end with an empty one."""
    lines = ["| " + " | ".join(map(markdown_cell, row)) + " |" for row in rows]
    return ["", lines[0], "|" + "---|" * len(rows[0]), *lines[1:], ""]


# ---- sections


def _environment(result: Result, _: Result) -> list[str]:
    units = {"bytes_per_second": (1e9, "GB/s"), "flops_per_second": (1e12, "TFLOP/s"), "seconds": (1e-6, "µs")}
    rows = [["what", "value"]]
    for name, value in result["facts"].items():
        unit = next(((f, u) for end, (f, u) in units.items() if name.endswith(end)), None)
        rows.append([name.replace("_", " "), str(value) if unit is None else f"{value / unit[0]:.4g} {unit[1]}"])
    return table(rows)


def _correctness(result: Result, _: Result) -> list[str]:
    rows = [["suite", "plans", "programs", "right", "wrong", "failed", "kernels"]]
    groups: dict[tuple[str, str], Counter[str]] = {}
    for entry in (*result["rows"], *result["errors"]):
        suite, _, rest = entry["name"].partition("/")
        group = groups.setdefault((suite, "random schedules" if " schedules " in rest else "default"), Counter())
        state = "failed" if "error" in entry else "wrong" if entry["finding"] else "right"
        group.update({state: 1, "programs": 1, "kernels": entry.get("kernels", 0)})
    for (suite, plans), group in sorted(groups.items(), key=lambda g: (g[0][1], g[0][0])):
        rows.append([suite, plans, *(str(group[n]) for n in ("programs", "right", "wrong", "failed", "kernels"))])
    lines = table(rows)
    lines += [
        f"- wrong: {markdown_cell(r['name'])}: {markdown_cell(str(r['finding'])[:300])}{_fault(r)}"
        for r in result["rows"]
        if r["finding"]
    ]
    return lines


def race_lines(result: Result, environment: Result) -> list[str]:
    """Return the summary and the table of a part whose rows have samples by contestant."""
    peers = list(dict.fromkeys(n for r in result["rows"] for n in (*r["samples"], *r["failures"]) if n != OURS))
    copy = (environment.get("facts") or {}).get("copy_bytes_per_second")
    compared = [r for r in result["rows"] if len(r["samples"]) > 1]
    lines: list[str] = []
    for kind, meaning in (("device", "on the device"), ("call", "around the call")):
        for peer in peers:
            lines += _mean(f"{meaning}, {peer} / ours", [r for r in compared if peer in r["samples"]], kind, (peer,))
        if len(peers) > 1:
            lines += _mean(f"{meaning}, the best peer / ours", compared, kind, peers)
    for what, start in LIBRARIES.items():
        some = [r for r in compared if r["name"].startswith(start) and LIBRARY in r["samples"]]
        lines += _mean(f"on the device, {what} by PyTorch's library / ours", some, "device", (LIBRARY,))
    ordered = sorted(result["rows"], key=lambda r: ratio_to_best(r, "device", peers) or 0.0)
    slow = [r["name"] for r in ordered if (ratio := ratio_to_best(r, "device", peers)) is not None and ratio < SLOW]
    if compared:
        lines.append(f"- below {SLOW}x the best peer on the device: {len(slow)} of {len(compared)}")
    header = ["program", OURS, *peers, "best / ours", "95% interval", "best / ours, call", "share of copy bandwidth"]
    rows = [header]
    for r in ordered:
        seconds = {n: median(s["device"]) for n, s in r["samples"].items()}
        cells = [time_text(seconds.get(n)) for n in (OURS, *peers)]
        best = best_interval(r, "device", peers)
        called = ratio_to_best(r, "call", peers)
        share = r["bytes"] / seconds[OURS] / copy if copy and "bytes" in r else None
        rows.append(
            [
                r["name"], *cells, "-" if best is None else f"{ratio_text(best.value)}x",
                "-" if best is None else f"{ratio_text(best.low)} to {ratio_text(best.high)}",
                "-" if called is None else f"{ratio_text(called)}x", "-" if share is None else f"{share:.0%}",
            ]
        )  # fmt: skip
    lines += table(rows)
    for r in result["rows"]:
        lines += [f"- {r['name']}: {n} left out: {markdown_cell(why)}" for n, why in r["failures"].items()]
        lines += [f"- {r['name']}: {n}: {s:.2%} of the environments differ" for n, s in
                  r.get("differing_environments", {}).items()]  # fmt: skip
    return lines


def _mean(what: str, rows: Sequence[Mapping[str, Any]], kind: str, peers: Sequence[str]) -> list[str]:
    """Return a line with the geometric mean of the ratios of rows, if there are two or more."""
    ratios = [ratio for r in rows if (ratio := ratio_to_best(r, kind, peers)) is not None]
    if len(ratios) < 2:
        return []
    mean = geometric_mean(ratios)
    return [
        f"- {what}: {ratio_text(mean.value)}x [{ratio_text(mean.low)}, {ratio_text(mean.high)}], {len(ratios)} programs"
    ]


def best_interval(row: Mapping[str, Any], kind: str, peers: Sequence[str]) -> Interval | None:
    """Return the time of the fastest of the peers relative to ours with its interval, or None if there is none."""
    samples: Mapping[str, Mapping[str, Sequence[float]]] = row["samples"]
    present = [p for p in peers if p in samples]
    if not present or OURS not in samples:
        return None
    best = min(present, key=lambda p: median(samples[p][kind]))
    return ratio_interval(samples[best][kind], samples[OURS][kind])


def ratio_to_best(row: Mapping[str, Any], kind: str, peers: Sequence[str]) -> float | None:
    """Return the time of the fastest of the peers relative to ours, or None if there is none."""
    found = best_interval(row, kind, peers)
    return None if found is None else found.value


def _choices(result: Result, _: Result) -> list[str]:
    kernels = [k for r in result["rows"] for k in r["kernels"]]
    if not kernels:
        return ["- no kernel was timed"]
    gains = [(ratio_interval(k["default"], k["best"]), k) for k in kernels]
    mean = geometric_mean([g.value for g, _ in gains])
    clear = sum(g.low > 1.03 for g, _ in gains)
    rows = [["kernel", "default", "best", "gain", "95% interval", "choice"]]
    for g, k in sorted(gains, key=lambda pair: -pair[0].value):
        times = [time_text(median(k[which])) for which in ("default", "best")]
        interval = f"{ratio_text(g.low)} to {ratio_text(g.high)}"
        rows.append([k["kernel"][:90], *times, f"{ratio_text(g.value)}x", interval, k["best_choice"]])
    return [
        f"- {counted(len(kernels), 'kernel')}, {result['facts'].get('budget', '?')} choices each; gain as a geometric "
        f"mean {mean.value:.3f}x; {counted(clear, 'kernel')} {'gains' if clear == 1 else 'gain'} more than 3%",
        *table(rows),
    ]


def _kernel_times(result: Result, environment: Result) -> list[str]:
    copy = (environment.get("facts") or {}).get("copy_bytes_per_second")
    large = [k for r in result["rows"] for k in r["kernels"] if k["bytes"] >= MEMORY_BOUND_BYTES]
    lines: list[str] = []
    if copy and large:
        shares = sorted(k["bytes"] / k["seconds"] / copy for k in large)
        moving = f"{counted(len(large), 'kernel')} {'moves' if len(large) == 1 else 'move'}"
        lines.append(
            f"- {moving} {MEMORY_BOUND_BYTES >> 20} MiB or more: {median(shares):.0%} of the copy bandwidth is their "
            f"median, {shares[0]:.0%} the least; {sum(s < 0.9 for s in shares)} are below 90%"
        )
    rows = [["kernel", "kind", "blocks", "threads", "empty cache", "warm cache", "share of copy bandwidth"]]
    for r in result["rows"]:
        for k in r["kernels"]:
            share = k["bytes"] / k["seconds"] / copy if copy else None
            rows.append([f"{r['name']}: {k['name']}", k["kind"], str(k["grid"]), str(k["block"]),
                         time_text(k["seconds"]), time_text(k["warm_seconds"]),
                         "-" if share is None else f"{share:.0%}"])  # fmt: skip
    return [*lines, *table(rows)]


def _model_fit(result: Result, _: Result) -> list[str]:
    facts: Mapping[str, Any] = result["facts"]
    lines = [f"- {name}: {markdown_cell(str(v))}" for name, v in facts.items() if not isinstance(v, Mapping)]
    constants, factors = facts.get("constants", {}), facts.get(FACTORS, {})
    if constants:
        fitted = [["constant", "fitted value", "fitted / before"]]
        for name, value in constants.items():
            factor = ratio_text(factors[name]) if name in factors else "not fitted"
            fitted.append([name.replace("_", " "), value if isinstance(value, str) else f"{value:.4g}", factor])
        lines += table(fitted)
    rows = [["kernel", "kind", "measured", "predicted", "fitted", "fitted / measured"]]
    for r in result["rows"]:
        rows += [[f"{r['name']}: {k['name']}", k["kind"],
                  *(time_text(k.get(n)) for n in ("seconds", "predicted", "fitted")),
                  ratio_text(k["fitted"] / k["seconds"]) if "fitted" in k else "-"] for k in r["kernels"]]  # fmt: skip
        lines += [f"- {r['name']}: {n} left out: {markdown_cell(why)}" for n, why in r["left_out"].items()]
    return [*lines, *table(rows)]


def _sanitizer(result: Result, _: Result) -> list[str]:
    rows = [["tool", "programs", "summary"]]
    rows += [[r["name"], str(len(r["programs"])), r["summary"]] for r in result["rows"]]
    return [*table(rows), *(f"- {markdown_cell(line)}" for r in result["rows"] for line in r["faults"])]


def _training(result: Result, _: Result) -> list[str]:
    rows = [["strategy", "program", "speedup over the default", "95% interval"]]
    for r in result["rows"]:
        speedup = median_interval(r["speedups"])
        rows.append([r["strategy"], r["program"], f"{speedup.value:.3f}x", f"{speedup.low:.3f} to {speedup.high:.3f}"])
    facts = [f"- {name.replace('_', ' ')}: {markdown_cell(str(value))}" for name, value in result["facts"].items()]
    return [*facts, *table(rows)]


def ratio_text(value: float) -> str:
    """Return a ratio with two decimals, or with two significant digits where these would be lost."""
    return f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.2g}"


def time_text(seconds: float | None) -> str:
    """Return a duration with three significant digits in microseconds, milliseconds or seconds; `-` for None."""
    if seconds is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"
