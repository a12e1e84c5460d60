"""Compile dumps of real models, each in a process of its own, and record what the compilation took.

    python -m tests.sweeps.real_models --folder DIR [--only NAME] [--limit N] [--backend cpu|cuda] [--xla]

The dumps are the files `perf_tools/hlo_eval_tools/**/*before_optimizations.txt` of the repository ROCm/xla on GitHub;
`--unpack GITDIR` writes them to the folder from a bare clone of it. Equal files are compiled once. At the start of each
program, the cache of compiled code has the runtime and no kernels.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from experiments.provenance import provenance

DUMPS = "before_optimizations.txt"
_SMALL = """
HloModule small
ENTRY main {
  x = f32[1,8,8,4] parameter(0)
  k = f32[3,3,4,4] parameter(1)
  c = f32[1,6,6,4] convolution(x, k), window={size=3x3}, dim_labels=b01f_01io->b01f
  ROOT n = f32[1,6,6,4] negate(c)
}
"""
PREFIX = "perf_tools/hlo_eval_tools/"
STAGES = ("parse", "passes", "loops", "fusion start", "fusion", "codegen", "gcc", "finish")


def unpack(repository: Path, folder: Path) -> int:
    """Write the dumps of a bare clone of ROCm/xla to a folder; return their number.

    A file that the clone lacks is skipped with a message.
    """
    git = ["git", "--git-dir", str(repository)]
    listing = subprocess.run([*git, "ls-tree", "-r", "HEAD", PREFIX], capture_output=True, text=True, check=True)
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for line in listing.stdout.splitlines():
        meta, _, path = line.partition("\t")
        if not path.endswith(DUMPS):
            continue
        blob = subprocess.run([*git, "cat-file", "-p", meta.split()[2]], capture_output=True, check=False)
        if blob.returncode:
            print(f"the clone lacks {path}", file=sys.stderr)
            continue
        name = path.removeprefix(PREFIX).removesuffix("." + DUMPS).replace("/", "--")
        (folder / f"{name}.hlo").write_bytes(blob.stdout)
        count += 1
    return count


def programs(options: argparse.Namespace) -> dict[Path, list[str]]:
    """Return the distinct files of a folder, smallest first, with the names of their copies."""
    by_digest: dict[str, list[Path]] = {}
    for path in sorted(options.folder.rglob("*.hlo")):
        if not options.only or any(name in path.name for name in options.only):
            by_digest.setdefault(hashlib.sha256(path.read_bytes()).hexdigest(), []).append(path)
    groups = sorted(by_digest.values(), key=lambda g: (g[0].stat().st_size, g[0].name))
    return {g[0]: [p.stem for p in g[1:]] for g in groups[: options.limit]}


def run_apart(path: Path, backend: str, options: argparse.Namespace) -> dict[str, Any]:
    """Compile one program in a process with limits of time and memory; return its `Compilation` as an object."""
    command = [sys.executable, "-m", "tests.sweeps.real_model_run", str(path), "--backend", backend]
    command += ["--nvrtc", options.nvrtc] if options.nvrtc and backend == "cuda" else []
    limit = int(options.memory_gb * 1e9)

    def confine() -> None:
        os.nice(5)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    with tempfile.TemporaryDirectory(prefix="hlogym-real-") as cache:
        shutil.copytree(_primed_cache(), cache, dirs_exist_ok=True)
        environment = {**os.environ, "HLOGYM_CACHE": cache}
        try:
            done = _run(command, environment, confine, options.timeout)
        except subprocess.TimeoutExpired:
            return {"error": f"timed out after {options.timeout:.0f} s"}
    if done.returncode:
        last = done.stderr.strip().splitlines() or [""]
        return {"error": f"exit status {done.returncode}: {last[-1][:300]}"}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@functools.cache
def _primed_cache() -> Path:
    """Return a cache of compiled code with the runtime and the bindings of libraries."""
    folder = Path(tempfile.mkdtemp(prefix="hlogym-primed-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    command = [sys.executable, "-c", f"import hlogym; hlogym.compile({_SMALL!r})"]
    subprocess.run(command, env={**os.environ, "HLOGYM_CACHE": str(folder)}, check=True, timeout=300)
    return folder


def _run(
    command: list[str], environment: dict[str, str], confine: Callable[[], None], timeout: float
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, env=environment, preexec_fn=confine
    )


def sweep(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield what each program took."""
    for path, copies in programs(options).items():
        row = {"program": path.stem, "copies": copies, "bytes": path.stat().st_size}
        row |= run_apart(path, options.backend, options)
        if options.xla:
            theirs = run_apart(path, "xla", options)
            row["xla"] = {
                "seconds": theirs.get("seconds", {}).get("xla"),
                "cpu_seconds": theirs.get("cpu_seconds", {}).get("xla"),
                "temporaries": theirs.get("memory", {}).get("temporaries"),
                "rss_mib": theirs.get("rss_mib"),
                "error": theirs.get("error", ""),
            }
        yield row


def total(row: dict[str, Any]) -> float | None:
    """Return the seconds of all stages, or None if the program was refused."""
    return None if row["error"] else sum(row["seconds"].values())


def line(row: dict[str, Any]) -> str:
    """Return a row of the Markdown table."""
    xla = row.get("xla", {})
    theirs = [_seconds(xla.get("seconds")), _seconds(xla.get("cpu_seconds")), _mebibytes(xla.get("temporaries"))]
    notes = [f"{n} x {text}" for text, n in row.get("host_ops", {}).items()]
    notes += [f"{name}: {e.partition(chr(10))[0][:200]}" for name, e in _errors(row).items()]
    if row["error"]:
        cells = [row["program"], *[""] * (len(STAGES) + 8), *theirs, "; ".join(notes)]
    else:
        memory = row["memory"]
        cells = [
            row["program"],
            f"{row['instructions']:,}",
            *(_seconds(row["cpu_seconds"].get(s, 0.0)) for s in STAGES),
            _seconds(sum(row["cpu_seconds"].values())),
            _seconds(total(row)),
            f"{row['kernels']}/{row['launches']}",
            str(row["library_calls"]),
            f"{row['rss_mib']:,}",
            _mebibytes(memory["arguments"]),
            _mebibytes(memory["temporaries"]),
            *theirs,
            "; ".join(notes),
        ]
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


def _errors(row: dict[str, Any]) -> dict[str, str]:
    """Return the errors of both compilers by name."""
    found = {"refused": row["error"], "XLA:CPU": row.get("xla", {}).get("error", "")}
    return {name: error for name, error in found.items() if error}


def _mebibytes(value: int | None) -> str:
    return "" if value is None else f"{value / 2**20:,.0f}"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


_COLUMNS = (
    "instructions", *STAGES, "all, cpu s", "all, s", "kernels/launches", "library calls", "peak MiB", "arguments MiB",
    "temporaries MiB", "XLA:CPU s", "its cpu s", "its temporaries MiB",
)  # fmt: skip
HEADER = f"| program | {' | '.join(_COLUMNS)} | left to the interpreter, refused |\n|---{'|---:' * len(_COLUMNS)}|---|"


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Return what the table shows, in sentences."""
    weight = [1 + len(r["copies"]) for r in rows]
    good = [r for r in rows if not r["error"]]
    seconds = sorted((total(r) or 0.0, r["program"]) for r in good)
    host = Counter[str]()
    for r in good:
        host.update(r["host_ops"])
    out = [
        f"- programs: {sum(weight)} files, {len(rows)} of them distinct; {len(good)} distinct ones compile,"
        f" {len(rows) - len(good)} do not",
    ]
    if seconds:
        out.append(
            f"- seconds: median {seconds[len(seconds) // 2][0]:.1f}, largest {seconds[-1][0]:.1f} ({seconds[-1][1]});"
            f" {sum(s > 60 for s, _ in seconds)} take more than 60 s"
        )
        fusion = max((r["seconds"]["fusion"], r["program"]) for r in good)
        out.append(f"- fusion: largest {fusion[0]:.1f} s ({fusion[1]})")
    out.append("- ops in the interpreter: " + ("; ".join(f"{n} x {t}" for t, n in host.most_common()) or "none"))
    for kind in ("seconds", "cpu_seconds"):
        both = [(sum(r[kind].values()), r["xla"][kind]) for r in good if r.get("xla", {}).get(kind)]
        if both:
            ratios = sorted(a / b for a, b in both)
            out.append(
                f"- beside XLA:CPU, {kind.replace('_', ' ')}: {len(both)} programs that both compile,"
                f" {sum(a for a, _ in both):.0f} and {sum(b for _, b in both):.0f}; median ratio"
                f" {ratios[len(ratios) // 2]:.2f}, largest {ratios[-1]:.2f}"
            )
    return out


def write(rows: list[dict[str, Any]], backend: str, folder: Path) -> None:
    """Write the results as JSON and as a Markdown page."""
    name = "real_models" if backend == "cpu" else f"real_models_{backend}"
    made = provenance()
    made["command"] = "python -m tests.sweeps.real_models " + " ".join(_short(a) for a in sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**made, "rows": rows}, indent=1)
    (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    lines = [
        f"# Compile time of real models, backend {backend}",
        "",
        *(f"- {k}: {made[k]}" for k in ("command", "commit", "date", "machine")),
        *summary(rows),
        "",
        "Stages are in processor seconds, with those of the C compiler; `all, s` is wall clock. The cache of compiled"
        " code has the runtime and no kernels. `fusion start` lowers what kernels cannot compute and finds the first"
        " actions. `peak MiB` is the memory of the compiling process or of its largest compiler process; arguments and"
        " temporaries are those of a call.",
        "",
        HEADER,
        *map(line, rows),
    ]
    (folder / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _short(argument: str) -> str:
    return Path(argument).name if argument.startswith("/") else argument


def main() -> int:
    """Run from the command line; return exit status 1 if a program fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="folder with the dumps (*.hlo)")
    parser.add_argument("--unpack", type=Path, help="write the dumps of this bare clone of ROCm/xla to the folder")
    parser.add_argument("--only", nargs="*", help="only programs whose names contain one of these")
    parser.add_argument("--limit", type=int, help="only the N smallest")
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--xla", action="store_true", help="compile with XLA:CPU, too")
    parser.add_argument("--nvrtc", default="", metavar="ARCH", help="compile CUDA kernels for it, such as sm_90")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds per program (default: %(default)g)")
    parser.add_argument("--memory-gb", type=float, default=10.0, help="memory per program (default: %(default)g)")
    parser.add_argument("--out", type=Path, help="folder for real_models.json and .md (default: only print)")
    options = parser.parse_args()
    if options.unpack:
        print(f"{unpack(options.unpack, options.folder)} dumps in {options.folder}", file=sys.stderr)
    print(HEADER)
    rows = []
    for row in sweep(options):
        rows.append(row)
        print(line(row), flush=True)
        if options.out:
            write(rows, options.backend, options.out)
    print("\n".join(summary(rows)))
    return int(any(r["error"] for r in rows))


if __name__ == "__main__":
    sys.exit(main())
