"""What the kernels of all suites need on GPUs with each of their choices, by NVRTC, without a GPU.

python -m tests.sweeps.cuda_choices [--suite kernels ...] [--each 2] [--out results/cuda/choices_nvrtc]

The default and all choices that differ from it in one knob or in the implementation are kernels that users, searches
and agents may get, so each must compile for every architecture. All defaults are compiled, and of the kernels of one
kind that differ in the same knob and value the `--each` first ones by the hash of their source, or with `--each 0` all.
What was compiled is kept beside the report as lines of JSON, by the hash of the source: a run that was interrupted goes
on, and a later run compiles what has changed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from compiler import CompilationSession, parse
from compiler.backends.cuda.cubins import compile_cubins
from compiler.backends.cuda.gpu_models import GpuModel
from compiler.backends.cuda.nvrtc import source_of
from compiler.codegen.kernel_spec import KernelSpec
from compiler.codegen.schedules.kernel_choice import GENERATED, KernelChoice
from compiler.codegen.templates.loop_kernel import LoopKernel
from compiler.errors import HlogymError
from compiler.runtime.instruction_kernels import emit_kernel
from compiler.runtime.kernel_sites import KernelSite
from compiler.support.threads import available_cores
from env.suites import Program, load_suite
from experiments.provenance import provenance
from tests.sweeps.cuda_traffic import ELSEWHERE, GPU, occupancy

SUITES = ("quickstart", "kernels", "linear_algebra", "jax", "models")
GPUS: Mapping[str, GpuModel] = {a: ({GPU.architecture: GPU} | ELSEWHERE)[a] for a in ("sm_80", "sm_90", "sm_100")}
"""Architectures, and GPUs that have them."""
DEFAULT = "default"


@dataclass(frozen=True)
class Candidate:
    """A kernel with one choice.

    Attributes:
        suite, program: where it is met first.
        choice: the choice as text; `DEFAULT` for the default.
        kernel: the kernel in CUDA C++.
    """

    suite: str
    program: str
    choice: str
    kernel: KernelSpec

    @property
    def key(self) -> str:
        """The hash of the source, with what precedes all kernels."""
        return hashlib.sha256(source_of([self.kernel]).encode()).hexdigest()[:20]


@dataclass(frozen=True)
class Compiled:
    """What NVRTC says of a kernel for one architecture.

    Attributes:
        key: the hash of the source.
        architecture: such as "sm_90".
        registers: per thread.
        spills: bytes per thread that are stored because registers ran out.
        stack: bytes of local memory per thread.
        shared: bytes of static shared memory per block.
        occupancy: threads that a multiprocessor holds over those that it could.
        error: why it does not compile; "" if it does.
    """

    key: str
    architecture: str
    registers: int = 0
    spills: int = 0
    stack: int = 0
    shared: int = 0
    occupancy: float = 0.0
    error: str = ""


@dataclass
class Tally:
    """Counts of a suite: kernels, their choices, those that a library computes, and distinct sources."""

    kernels: int = 0
    choices: int = 0
    libraries: int = 0
    sources: int = 0


def candidates(suite: str, programs: Iterable[Program], seen: set[str], tally: Tally) -> Iterator[Candidate]:
    """Yield the distinct kernels of programs with their choices; `seen` has the symbols that came before."""
    sites = set[str]()
    for program in programs:
        session = CompilationSession(parse(program.text()), backend="cuda")
        session.run_passes()
        session.run_loop_policy()
        session.run_fusion_policy()
        for site in session.kernel_sites():
            if site.fingerprint in sites:
                continue
            sites.add(site.fingerprint)
            tally.kernels += 1
            for n in range(site.choices.nearest):
                choice = site.choices[n]
                kernels = list(_kernels(session, site, choice))
                tally.choices += 1
                tally.libraries += not kernels
                for kernel in kernels:
                    if kernel.symbol not in seen:
                        seen.add(kernel.symbol)
                        tally.sources += 1
                        yield Candidate(suite, program.name, DEFAULT if n == 0 else str(choice), kernel)


def _kernels(session: CompilationSession, site: KernelSite, choice: KernelChoice) -> Iterator[KernelSpec]:
    """Yield the kernels of a choice: one if it is generated, else those that its steps have besides a library."""
    if choice.implementation == GENERATED:
        schedule = site.default_schedule.with_values(choice.schedule)
        made = emit_kernel(site.instruction, "cuda", schedule)
        yield made.spec if isinstance(made, LoopKernel) else made
        return
    fork = session.fork()
    fork.set_kernel(site.id, choice)
    others = {k.symbol for k in _finished(session.fork())}
    yield from (k for k in _finished(fork) if k.symbol not in others)


def _finished(session: CompilationSession) -> Sequence[KernelSpec]:
    return session.finish().kernels


def sampled(found: Iterable[Candidate], each: int) -> list[Candidate]:
    """Return all defaults, and of the choices of each kind of kernel, knob and value so many; 0 for all."""
    if not each:
        return list(found)
    defaults, groups = [], defaultdict[tuple[str, str], list[Candidate]](list)
    for c in found:
        if c.choice == DEFAULT:
            defaults.append(c)
        else:
            groups[c.kernel.kind, c.choice].append(c)
    return [*defaults, *(c for group in groups.values() for c in sorted(group, key=lambda c: c.key)[:each])]


def compiled(candidate: Candidate, architecture: str) -> Compiled:
    """Compile a kernel for an architecture; its faults are in the result."""
    kernel, gpu = candidate.kernel, GPUS[architecture]
    try:
        r = compile_cubins([kernel], architecture)[kernel.symbol].resources
    except HlogymError as e:
        return Compiled(candidate.key, architecture, error=str(e))
    held = occupancy(kernel, r, gpu)
    return Compiled(candidate.key, architecture, r.registers, r.spill_stores, r.stack_bytes, r.shared_bytes, held)


class Progress:
    """What was compiled, as lines of JSON in a file; without a path it is kept in memory only."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._found: dict[tuple[str, str], Compiled] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError, TypeError):  # the last line of a run that was interrupted
                    record = Compiled(**json.loads(line))
                    self._found[record.key, record.architecture] = record

    def results(self, chosen: Sequence[Candidate]) -> dict[tuple[str, str], Compiled]:
        """Return the results of candidates by key and architecture; compile those that are missing or have failed."""
        missing = [(c, a) for c in chosen for a in GPUS if not self._is_done(c.key, a)]
        with ThreadPoolExecutor(available_cores()) as pool:
            for record in pool.map(lambda pair: compiled(*pair), missing):
                self._found[record.key, record.architecture] = record
                if self._path is not None:
                    with self._path.open("a", encoding="utf-8") as file:
                        file.write("\n" + json.dumps(asdict(record)))
        return {(c.key, a): self._found[c.key, a] for c in chosen for a in GPUS}

    def _is_done(self, key: str, architecture: str) -> bool:
        found = self._found.get((key, architecture))
        return found is not None and not found.error


# ---- the report


def report(
    tallies: Mapping[str, Tally],
    chosen: Sequence[Candidate],
    results: Mapping[tuple[str, str], Compiled],
    each: int,
    source: Mapping[str, object],
) -> str:
    """Return the counts and tables as Markdown."""
    failed = [(c, results[c.key, a]) for c in chosen for a in GPUS if results[c.key, a].error]
    total = sum(t.sources for t in tallies.values())
    share = (
        "all of them are"
        if len(chosen) == total
        else f"of these, a sample of {len(chosen)} (all defaults, and of the kernels of one kind with the same "
        f"knob and value the first {each} by the hash of their source) is"
    )
    lines = [
        "# What CUDA kernels need with each of their choices",
        "",
        f"`{source['command']}`, commit {source['commit']}, {source['machine']}, {source['date']}.",
        "",
        "The choices of a kernel are its default and those that differ from it in one knob or in the implementation. "
        f"Distinct sources: {total}; {share} compiled by NVRTC for {', '.join(GPUS)}.",
        "",
        "| suite | kernels | choices | by a library alone | distinct sources | compiled | failures |",
        "|---|" + "---:|" * 6,
    ]
    for suite, t in tallies.items():
        own = [c for c in chosen if c.suite == suite]
        bad = sum(c.suite == suite for c, _ in failed)
        lines.append(
            f"| {suite} | {t.kernels} | {t.choices} | {t.libraries} | {t.sources} | {len(own) * len(GPUS)} | {bad} |"
        )
    lines += ["", f"## Failures ({len(failed)})", ""]
    if not failed:
        lines.append("None.")
    for c, r in failed:
        reason = r.error.strip().splitlines()[-1]
        lines.append(f"- {c.suite}/{c.program}/{c.kernel.name} with {c.choice} for {r.architecture}: {reason}")
    for title, is_default in (("Defaults", True), ("Other choices", False)):
        part = [c for c in chosen if (c.choice == DEFAULT) is is_default]
        lines += ["", f"## {title}", "", *_kinds(part, results)]
    lines += ["", "## Defaults with spills", "", "| suite | program | kernel | kind | bytes |", "|---|---|---|---|---|"]
    for c in chosen:
        spills = {a: results[c.key, a].spills for a in GPUS}
        if c.choice == DEFAULT and any(spills.values()):
            text = ", ".join(f"{n} for {a}" for a, n in spills.items() if n)
            lines.append(f"| {c.suite} | {c.program} | {c.kernel.name} | {c.kernel.kind} | {text} |")
    return "\n".join([*lines, ""])


def _kinds(part: Sequence[Candidate], results: Mapping[tuple[str, str], Compiled]) -> Iterator[str]:
    """Yield a table with a row for each kind of kernel and architecture."""
    yield "Registers and occupancy: median, and the worst. Spills: kernels with some, and the most bytes per thread."
    yield ""
    yield "| kind | architecture | sources | registers | occupancy | spills | shared kB, most |"
    yield "|---|---|" + "---:|" * 5
    for kind in sorted({c.kernel.kind for c in part}):
        for a in GPUS:
            rs = [results[c.key, a] for c in part if c.kernel.kind == kind]
            rs = [r for r in rs if not r.error]
            if not rs:
                continue
            registers, held = [r.registers for r in rs], [r.occupancy for r in rs]
            spills = [r.spills for r in rs if r.spills]
            yield (
                f"| {kind} | {a} | {len(rs)} | {statistics.median(registers):.0f}, {max(registers)} | "
                f"{statistics.median(held):.0%}, {min(held):.0%} | {len(spills)}, {max(spills, default=0)} | "
                f"{max(r.shared for r in rs) / 1024:.1f} |"
            )


def main() -> None:
    """Compile the kernels of the suites and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", nargs="+", default=SUITES)
    parser.add_argument("--each", type=int, default=2, help="kernels of one kind, knob and value; 0 for all")
    parser.add_argument("--out", type=Path, help="path of the report without its ending")
    options = parser.parse_args()
    source = provenance()
    path: Path | None = options.out and options.out.with_suffix(".jsonl")
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    tallies, found, seen = dict[str, Tally](), list[Candidate](), set[str]()
    for suite in options.suite:
        tallies[suite] = Tally()
        found += candidates(suite, load_suite(suite).programs, seen, tallies[suite])
        print(f"{suite}: {tallies[suite]}", flush=True)
    chosen = sampled(found, options.each)
    results = Progress(path).results(chosen)
    command = f"python -m tests.sweeps.cuda_choices --suite {' '.join(options.suite)} --each {options.each}"
    text = report(tallies, chosen, results, options.each, {**source, "command": command})
    if options.out:
        options.out.with_suffix(".md").write_text(text, encoding="utf-8")
    failures = sum(bool(r.error) for r in results.values())
    print(f"{len(results)} compiled, {failures} failures")


if __name__ == "__main__":
    main()
