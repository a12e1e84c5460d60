"""Parses, verifies and round-trips every HLO file of a folder, such as XLA's own benchmark programs; prints a table.

    python tests/sweeps/xla_benchmarks.py DIR [--limit-mb N] [--reference]

XLA keeps its programs under xla/tools/benchmarks/hlo and xla/backends/cpu/benchmarks/hlo of its source tree. With
--reference, jaxlib's parser must take what we print, and agree on it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from compiler.errors import HlogymError
from compiler.ir.verifier import check_module
from compiler.text import parse


def check(path: Path, reference: bool) -> tuple[str, int, float]:
    """What came of one file ("ok", or what went wrong), its number of instructions, and the seconds it took."""
    text = path.read_text(encoding="utf-8")
    start = time.perf_counter()
    try:
        module = parse(text, filename=path.name, fill_elided=True)
    except HlogymError as e:
        return f"parse: {str(e).splitlines()[0]}", 0, time.perf_counter() - start
    findings = check_module(module)
    seconds = time.perf_counter() - start
    count = module.instruction_count
    if findings:
        return f"verify: {findings[0]} ({len(findings)} in all)", count, seconds
    printed = str(module)
    if str(parse(printed)) != printed:
        return "round trip: the second print differs", count, seconds
    if reference:
        from jax._src.lib import hlo  # type: ignore[attr-defined]  # no public name parses HLO text

        options = hlo.HloPrintOptions()
        options.print_large_constants = True
        theirs = parse(hlo.hlo_module_from_text(printed).to_string(options))
        if theirs.fingerprint() != module.fingerprint():
            return "jaxlib reads another program", count, seconds
    return "ok", count, seconds


def main() -> int:
    """The command line; the exit status is 0 only when every file is ok."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit-mb", type=float, default=64.0, help="leave out larger files")
    parser.add_argument("--reference", action="store_true", help="hold what we print against jaxlib's parser")
    options = parser.parse_args()
    failures = 0
    print("| program | instructions | parse and verify | result |\n|---|---:|---:|---|")
    for path in sorted(options.folder.rglob("*.hlo")):
        if not 0 < path.stat().st_size <= options.limit_mb * 1e6:
            print(f"| {path.name} | | | left out: {path.stat().st_size / 1e6:.1f} MB |")
            continue
        result, count, seconds = check(path, options.reference)
        failures += result != "ok"
        print(f"| {path.name} | {count:,} | {seconds:.2f} s | {result} |", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
