"""How far fusion policies are from proven optima, by the cost model and by measured time, on the cpu backend.

python -m experiments.benchmarks.fusion_optima [--graphs 60] [--measured 20] [--suites quickstart jax/train]
    [--policies default,priority,runs/NAME/policy] [--states 2000] [--seconds 1200] [--real-time]
    [--out results/fusion/optima.md]

Connected subgraphs are cut out of real programs after the default passes. For each, exhaustive search visits every
state that fusions reach, so that the least estimated time is proven. Of graphs with few states, every state is compiled
and measured end to end, in turns; the fastest are measured again, and the fastest of these is the optimum by time. The
regret of a policy is the time of the state that it makes over that of the optimum, less 1. Policies are those of
`compiler.fusion.policies` with their options, and folders of learned policies. Writes a page, and rows in .json from
which an interrupted run continues.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from itertools import zip_longest
from pathlib import Path
from statistics import mean
from typing import Any, TypeAlias

import numpy as np

from compiler.api import CompileOptions
from compiler.api import compile as compile_hlo
from compiler.errors import HlogymError, PolicyError
from compiler.fusion.policies import POLICIES, Exhaustive, make_policy
from compiler.fusion.protocol import FusionPolicy, run_policy
from compiler.fusion.state import FusionState
from compiler.ir import HloModule
from compiler.learned.fusion_policy import load_policy
from compiler.learned.whole_folder import SHIPPED as SHIPPED_FOLDER
from compiler.passes.pipelines.default import default_pipeline
from compiler.policy import load_whole
from compiler.runtime.executable import Executable, parameter_leaves
from compiler.support.options import split_specs
from compiler.text import parse
from env.real_time import real_time
from env.statistics import Interval
from env.suites import Program, load_suite
from env.suites.programs.cutter import cut
from env.summaries import hierarchical_interval
from experiments.module_command import plain_errors
from experiments.provenance import provenance
from experiments.results import ResultError, write_text

SHIPPED = "learned"
"""The part for fusion of the policy that ships."""
POLICY_NAMES = (*(p for p in POLICIES if p != "exhaustive"), SHIPPED)
MakePolicy: TypeAlias = Callable[[], FusionPolicy]
SIZES = (5, 7, 9, 11, 13)
"""Numbers of instructions of the subgraphs."""
MIN_FUSIBLE, MAX_FUSIBLE = 3, 10
MAX_STATES = 2_000
"""Graphs with more states are left out: few have fewer than ten times as many, which take minutes."""
MAX_MEASURED = 48
"""Greatest number of states of a graph whose states are all measured."""
MAX_BYTES = 1 << 26
PER_PROGRAM = 2
ROUNDS, FINAL_ROUNDS, FINALISTS = 5, 15, 6
SAMPLE_SECONDS = 3e-4


@dataclass
class Graph:
    """One subgraph with its proven optimum.

    Attributes:
        program: where it was cut out.
        fingerprint: of the subgraph as a module.
        fusible: number of instructions that can be fused.
        states: number of states that fusions reach, all of them visited.
        unfused, best: estimated seconds without fusion and of the best state.
        estimated: estimated seconds of the state that each policy makes.
        fastest: measured seconds of the fastest state, None if they were not measured.
        measured: measured seconds of the state that each policy makes, and of the one that the cost model prefers.
    """

    program: str
    fingerprint: str
    fusible: int
    states: int
    unfused: float
    best: float
    estimated: dict[str, float] = field(default_factory=dict)
    fastest: float | None = None
    measured: dict[str, float] = field(default_factory=dict)


@dataclass
class _Ends:
    """The states of a graph: all sources by fingerprint, the best by the cost model, and where policies end."""

    sources: dict[str, str]
    best: str
    policies: dict[str, str]


def spread(programs: Iterable[Program]) -> list[Program]:
    """Return one program of each family, then a second one of each, and so on; without a family it is one itself."""
    families: dict[str, list[Program]] = {}
    for program in programs:
        families.setdefault(program.family or f"program {program.name}", []).append(program)
    rounds = zip_longest(*families.values())
    return [p for each in rounds for p in each if p is not None]


def subgraphs(programs: Iterable[Program]) -> Iterator[tuple[str, HloModule]]:
    """Yield subgraphs of each program in turn, of several sizes and without repetitions."""
    seen: set[str] = set()
    for program in programs:
        module = parse(program.text())
        try:
            default_pipeline().run(module)
        except HlogymError as error:
            print(f"{program.name}: {error}", file=sys.stderr)
            continue
        found = 0
        for seed in range(4 * len(SIZES)):
            piece = cut(module, seed, SIZES[seed % len(SIZES)])
            if piece is None or found >= PER_PROGRAM:
                continue
            key = piece.module.fingerprint()
            if key not in seen and _is_suitable(piece.module):
                seen.add(key)
                found += 1
                yield program.name, piece.module


def _is_suitable(module: HloModule) -> bool:
    total = sum(s.byte_size for s in parameter_leaves(module))
    return total <= MAX_BYTES and MIN_FUSIBLE <= _fusible(FusionState(module.clone())) <= MAX_FUSIBLE


def _fusible(state: FusionState) -> int:
    return sum(s.legality.refusal_of(i) is None for s, i in state.instructions())


def read_policies(text: str) -> dict[str, MakePolicy]:
    """Return policies by name: those of a comma-separated list of names with options, and of folders; empty: all names.

    Raises:
        UnknownNameError, OptionError: there is no such policy or option.
        WeightsError: a folder has no policy that can be loaded.
    """
    found: dict[str, MakePolicy] = {}
    for name in split_specs(text) or POLICY_NAMES:
        if Path(name).is_dir():
            learned = load_policy(name)
            label = Path(name).parent.name if Path(name).name in ("policy", "best") else Path(name).name
            found[f"learned: {label}"] = partial(replace, learned)
        elif name == SHIPPED:
            found[name] = _shipped
        else:
            make_policy(name)  # reports a bad name before any work is done
            found[name] = partial(make_policy, name)
    return found


@cache
def _shipped() -> FusionPolicy:
    fusion = load_whole(SHIPPED_FOLDER).fusion
    if not isinstance(fusion, FusionPolicy):
        raise PolicyError("the policy that ships does not decide fusion")
    return fusion


def examine(
    name: str, module: HloModule, policies: Mapping[str, MakePolicy], max_states: int = MAX_STATES
) -> tuple[Graph, _Ends] | None:
    """Return a graph with its optimum and the results of policies; None if there are too many states."""
    fingerprint = module.fingerprint()
    start = FusionState(module)
    state = start.fork()
    search = Exhaustive(limit=max_states)
    run_policy(state, search)
    proofs = list(search.proofs.values())
    states = math.prod(p.states for p in proofs)
    if not all(p.complete for p in proofs) or states < 2:
        return None
    sources: dict[str, str] = {}
    if states <= MAX_MEASURED:
        sources = _sources(start)
    graph = Graph(name, fingerprint, _fusible(start), states, start.seconds(), state.seconds())
    ends = _Ends(sources, state.fingerprint, {})
    sources.setdefault(state.fingerprint, str(state.module))
    for policy, make in policies.items():
        end = start.fork()
        run_policy(end, make())
        ends.policies[policy] = end.fingerprint
        ends.sources.setdefault(end.fingerprint, str(end.module))  # policies may join pairs that are not listed
        graph.estimated[policy] = end.seconds()
    return graph, ends


def _sources(start: FusionState) -> dict[str, str]:
    """Return the text of every state."""
    sources: dict[str, str] = {}

    def objective(state: FusionState) -> float:
        sources[state.fingerprint] = str(state.module)
        return state.seconds()

    run_policy(start.fork(), Exhaustive(limit=MAX_MEASURED, objective=objective))
    return sources


def measure(graph: Graph, ends: _Ends, undisturbed: bool = False) -> None:
    """Measure every state of a graph, and set the times of the graph.

    Args:
        graph: the graph.
        ends: its states.
        undisturbed: whether timing has real-time priority.

    Raises:
        PermissionError: this process may not have real-time priority.
    """
    module = parse(ends.sources[ends.best])
    rng = np.random.default_rng(0)
    inputs = [rng.uniform(0.5, 1.5, s.dimensions).astype(s.dtype) for s in parameter_leaves(module)]
    options = CompileOptions(verify=False, optimize=False)
    built = {key: compile_hlo(text, options=options) for key, text in ends.sources.items()}
    with real_time() if undisturbed else nullcontext():
        seconds = _times(built, inputs, ROUNDS)
        wanted = {*ends.policies.values(), ends.best, *sorted(seconds, key=seconds.__getitem__)[:FINALISTS]}
        again = _times({k: e for k, e in built.items() if k in wanted}, inputs, FINAL_ROUNDS)
    graph.fastest = min(again.values())
    graph.measured = {p: again[key] for p, key in ends.policies.items()}
    graph.measured["exhaustive"] = again[ends.best]


def _times(built: dict[str, Executable], inputs: list[Any], rounds: int) -> dict[str, float]:
    """Return the least seconds of a call of each executable, in turns."""
    least = dict.fromkeys(built, float("inf"))
    for n in range(rounds):
        for key in built if n % 2 else reversed(built):
            once = min(built[key].benchmark(inputs, 2))
            repeats = max(3, min(300, round(SAMPLE_SECONDS / max(once, 1e-9))))
            least[key] = min(least[key], *built[key].benchmark(inputs, repeats))
    return least


@dataclass
class Progress:
    """What a run has found, in a file from which an interrupted run continues.

    Attributes:
        file: a JSON file.
        settings: what a run that continues must have in common with it.
        graphs: the graphs with their optima.
        refused: fingerprints of the subgraphs that have too many states.
    """

    file: Path | None
    settings: dict[str, Any]
    graphs: list[Graph] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def read(self) -> None:
        """Read what an earlier run has found.

        Raises:
            ResultError: the file has other settings, or cannot be read.
        """
        if self.file is None or not self.file.is_file():
            return
        try:
            data = json.loads(self.file.read_text(encoding="utf-8"))
            same = data["settings"] == self.settings
            self.graphs, self.refused = [Graph(**g) for g in data["graphs"]], list(data["refused"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ResultError(f"{self.file} cannot be continued: {error!r}; remove it and start again") from error
        if not same:
            raise ResultError(f"{self.file} was written with other settings; remove it, or use another --out")

    def write(self) -> None:
        """Write what was found so far."""
        if self.file is not None:
            data = {
                "provenance": provenance(), "settings": self.settings, "refused": self.refused,
                "graphs": [asdict(g) for g in self.graphs],
            }  # fmt: skip
            write_text(self.file, json.dumps(data, indent=1) + "\n")

    @property
    def known(self) -> set[str]:
        """Fingerprints of the subgraphs that need not be searched again."""
        return {*self.refused, *(g.fingerprint for g in self.graphs)}


def report(graphs: Sequence[Graph], arguments: Sequence[str]) -> str:
    """Return the tables in Markdown."""
    origin = provenance()
    measured = [g for g in graphs if g.fastest is not None]
    states = sorted(g.states for g in graphs)
    lines = [
        "# Fusion policies beside proven optima",
        "",
        f"- command: `python -m experiments.benchmarks.fusion_optima {' '.join(arguments)}`",
        *(f"- {key}: {origin[key]}" for key in ("commit", "machine", "date", "c_compiler")),
        "",
        f"{len(graphs)} subgraphs of {len({g.program for g in graphs})} programs, {MIN_FUSIBLE} to {MAX_FUSIBLE} "
        f"fusible instructions, {states[0]} to {states[-1]} states (median {states[len(states) // 2]}). Every state "
        "that the listed actions reach was visited; a policy may also join two readers of a value that are not "
        "neighbours, which no list has. The regret is the time of the state that a policy makes over the least "
        "time of all states, less 1.",
        "",
        "## By the cost model",
        "",
        *_table({p: [g.estimated[p] / g.best for g in graphs] for p in graphs[0].estimated}, 1e-9),
    ]
    if measured:
        lines += [
            "",
            "## By measured time",
            "",
            f"{len(measured)} of them, those with at most {MAX_MEASURED} states: each state was compiled and measured "
            f"end to end, the {FINALISTS} fastest and those of the policies again. Within 3% of the fastest counts as "
            "optimal. `exhaustive` is the optimum of the cost model.",
            "",
            *_table({p: [g.measured[p] / (g.fastest or 1.0) for g in measured] for p in measured[0].measured}, 0.03),
        ]
    return "\n".join(lines) + "\n"


def mean_regret(ratios: Sequence[float]) -> Interval:
    """Return the mean regret with a bootstrap interval over the graphs, from ratios to the optimum."""
    nested = {str(n): [[r]] for n, r in enumerate(ratios)}
    mean_ratio = hierarchical_interval(nested, lambda x: np.log(np.exp(x).mean(axis=1)))
    return Interval(mean_ratio.value - 1, mean_ratio.low - 1, mean_ratio.high - 1)


def _table(ratios: dict[str, list[float]], tolerance: float) -> list[str]:
    rows = ["| policy | optimal | mean regret | 95% interval | worst regret |", "|---|---|---|---|---|"]
    for policy, found in sorted(ratios.items(), key=lambda r: mean(r[1])):
        optimal = sum(r <= 1 + tolerance for r in found)
        regret = mean_regret(found)
        interval = f"{regret.low:.2%} to {regret.high:.2%}" if regret.is_known else "-"
        rows.append(
            f"| {policy} | {optimal} of {len(found)} | {regret.value:.2%} | {interval} | {max(found) - 1:.1%} |"
        )
    return rows


def main(arguments: list[str]) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--suites", nargs="+", default=["quickstart", "jax/train"])
    parser.add_argument("--graphs", type=int, default=60, help="number of subgraphs")
    parser.add_argument("--measured", type=int, default=20, help="greatest number of them that are measured too")
    parser.add_argument("--seconds", type=float, default=1200, help="begin no further subgraph after this time")
    parser.add_argument("--out", type=Path, help="Markdown file; a JSON file is written next to it")
    parser.add_argument("--policies", default="", help="names with options, and folders (default: all policies)")
    parser.add_argument(
        "--states", type=int, default=MAX_STATES, help="greatest number of states (default: %(default)s)"
    )
    parser.add_argument("--real-time", action="store_true", help="measure with real-time priority (SCHED_FIFO)")
    options = parser.parse_args(arguments)
    policies = read_policies(options.policies)
    start = time.monotonic()
    settings = {"suites": options.suites, "states": options.states, "policies": list(policies)}
    progress = Progress(None if options.out is None else options.out.with_suffix(".json"), settings)
    progress.read()
    graphs, known = progress.graphs, progress.known
    measured = sum(g.fastest is not None for g in graphs)
    for name, module in subgraphs(spread(p for s in options.suites for p in load_suite(s).programs)):
        if len(graphs) >= options.graphs or time.monotonic() - start > options.seconds:
            break
        if (key := module.fingerprint()) in known:
            continue
        found = examine(name, module, policies, options.states)
        if found is None:
            progress.refused.append(key)
            progress.write()
            continue
        graph, ends = found
        if graph.states <= MAX_MEASURED and measured < options.measured:
            try:
                measure(graph, ends, options.real_time)
                measured += 1
            except HlogymError as error:
                print(f"{name}: {error}", file=sys.stderr)
        graphs.append(graph)
        print(f"{name}: {graph.fusible} fusible, {graph.states} states, "
              f"{time.monotonic() - start:.0f} s", flush=True)  # fmt: skip
        progress.write()
    if options.out is not None and graphs:
        write_text(options.out, report(graphs, arguments))
    return 0 if graphs else 1


if __name__ == "__main__":
    with plain_errors():
        sys.exit(main(sys.argv[1:]))
