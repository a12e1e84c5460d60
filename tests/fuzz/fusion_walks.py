"""Fuzz fusion states: random modules, random legal actions with fissions, moves and undos among them.

Every third state is for CUDA, the others for C. After each walk each fusion must have a kernel there, the module must
equal the interpreter's results of the original, and the actions, savings and digests must be those of a recomputation.
`undo` must restore the text, and fissions must lead back to the module without fusions.

Every fourth module has products, scatters and sorts (`template_graph`), and half of these, or with `--convolutions` all
modules, convolutions. With `--native N`, of every N-th of these the kernels are compiled, and their results equal the
interpreter's too.

python -m tests.fuzz.fusion_walks [--modules 20000] [--seed 0] [--seconds 600] [--native 4] [--convolutions]
    [--out PAGE] [--progress walks.json]

With `--progress`, the tally is kept in a file from which the same command continues. Seeds that failed are tried again
first; those that pass now are fixed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from compiler.analysis.library_work import TEMPLATE_OPS
from compiler.api import CompileOptions
from compiler.api import compile as compile_program
from compiler.codegen.build_target import C_TARGET, CUDA_TARGET
from compiler.codegen.buildability import kernel_refusal
from compiler.codegen.languages import find_language
from compiler.codegen.lowering.lower import lower
from compiler.errors import UnsupportedError
from compiler.fusion.actions import KINDS
from compiler.fusion.rewriting import body_of
from compiler.fusion.state import FusionState
from compiler.interpreter import evaluate
from compiler.ir import HloModule
from experiments.provenance import provenance
from experiments.results import write_text
from tests.fusion.checks import check, take_apart
from tests.fusion.programs import random_graph
from tests.fusion.template_graphs import integer_arguments, template_graph
from tests.fuzz.random_modules import random_inputs, random_module

STEPS = 12
KEPT_EVERY = 50
"""Number of modules after which the tally is written."""


@dataclass
class Tally:
    """What was done: modules, actions by kind, states checked, modules that were evaluated, and what failed.

    `templates` counts the fusions around products, scatters and sorts, `unlike` those with outputs of several shapes.
    `fixed` are failures of an earlier commit that are gone. `seconds` are processor seconds, and `commits` those of
    the code that walked.
    """

    modules: int = 0
    actions: Counter[str] = field(default_factory=Counter)
    undone: int = 0
    evaluated: int = 0
    native: int = 0
    templates: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)
    seconds: float = 0.0
    commits: list[str] = field(default_factory=list)

    @staticmethod
    def read(file: Path) -> Tally:
        """Return the tally of an earlier run; an empty one if there is no file."""
        if not file.is_file():
            return Tally()
        known = Tally(**json.loads(file.read_text(encoding="utf-8")))
        known.actions, known.templates = Counter(known.actions), Counter(known.templates)
        return known

    def write(self, file: Path) -> None:
        """Write the tally."""
        write_text(file, json.dumps(vars(self), indent=1) + "\n")


def module_of(seed: int, convolutions: bool = False) -> HloModule:
    """Return the module of a seed, with convolutions if asked for, without dead instructions: fusions drop these."""
    if convolutions or seed % 4 == 3:
        module = template_graph(seed, 12, convolutions or seed % 8 == 7)
    else:
        module = random_graph(seed, 14) if seed % 2 else random_module(np.random.default_rng(seed), 40)
    for c in module.computations:
        c.remove_dead()
    return module


def walk(seed: int, tally: Tally, native: int = 0, convolutions: bool = False) -> None:
    """Take one random walk; raise AssertionError when a state is not what it should be.

    Args:
        seed: of the module and the walk.
        tally: counts what is done.
        native: of every so many graphs of templates, the kernels are compiled and run; 0: of none.
        convolutions: whether every module has convolutions.
    """
    rng = np.random.default_rng(seed)
    module = module_of(seed, convolutions)
    original = module.clone()
    target = CUDA_TARGET if seed % 3 == 0 else C_TARGET
    tiles = find_language(target.language).tiles
    state = FusionState(module, target=target)
    start, fingerprint = str(state.module), state.fingerprint
    former: list[str] = []
    for _ in range(STEPS):
        actions = state.actions(KINDS)
        if former and (not actions or rng.random() < 0.25):
            state.undo()
            tally.undone += 1
            assert str(state.module) == former.pop(), "undo does not restore the module"
        elif actions:
            wanted = "fission" if rng.random() < 0.2 else "move" if rng.random() < 0.3 else ""
            offered = [a for a in actions if a.kind == wanted] or actions
            action = offered[int(rng.integers(len(offered)))]
            former.append(str(state.module))
            state.apply(action)
            tally.actions[action.kind] += 1
    check(state)
    for f in state.fusions():
        assert kernel_refusal(body_of(f), target) is None, f"%{f.name} has no kernel in {target.language}"
        tally.templates.update({i.opcode.text for i in body_of(f).instructions if i.opcode in TEMPLATE_OPS})
        tally.templates["unlike shapes"] += lower(body_of(f), tiles=tiles).nests > 1
    _compare(original, state.module, rng, tally)
    if native and (convolutions or seed % 4 == 3) and seed // 4 % native == 0:
        _compare_native(state.module, rng, tally)
    before = len(state.history)
    take_apart(state, rng)
    tally.actions["fission"] += len(state.history) - before
    check(state)
    assert not state.fusions(), "fissions do not lead back to the state without fusions"
    assert state.fingerprint == fingerprint, "without fusions, the fingerprint is not that of the start"
    _compare(original, state.module, rng, tally)
    while state.can_undo:
        state.undo()
    assert str(state.module) == start, "undo does not restore the start"


def _failure(seed: int, tally: Tally, options: argparse.Namespace) -> list[str]:
    """Take a walk; return what failed, if anything."""
    try:
        walk(seed, tally, options.native, options.convolutions)
    except Exception as e:
        return [f"seed {seed}: {type(e).__name__}: {e}".strip()]
    return []


def _compare(original: HloModule, fused: HloModule, rng: np.random.Generator, tally: Tally) -> None:
    arguments = random_inputs(original, rng)
    try:
        expected = _evaluated(original, arguments)
    except UnsupportedError:
        return
    for n, (a, b) in enumerate(zip(_evaluated(fused, arguments), expected, strict=True)):
        assert np.array_equal(a, b, equal_nan=b.dtype.kind in "fc"), f"result {n} differs"
    tally.evaluated += 1


def _compare_native(fused: HloModule, rng: np.random.Generator, tally: Tally) -> None:
    arguments = integer_arguments(fused, rng)
    executable = compile_program(str(fused), options=CompileOptions(keep_fusions=True))
    for n, (a, b) in enumerate(zip(executable(*arguments), _evaluated(fused, arguments), strict=True)):
        assert np.array_equal(a, b, equal_nan=True), f"result {n} of the kernels differs"
    tally.native += 1


def _evaluated(module: HloModule, arguments: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return [_plain(np.asarray(a)) for a in evaluate(module, [np.array(a) for a in arguments])]


def _plain(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array in a type that numpy can compare with NaN."""
    return array if array.dtype.kind in "biufc" else array.astype(np.float32)


def report(tally: Tally, options: argparse.Namespace) -> str:
    """Return the page."""
    native = f" --native {options.native}" if options.native else ""
    native += " --convolutions" if options.convolutions else ""
    lines = [
        "# Random walks over fusion states", "",
        f"`python -m tests.fuzz.fusion_walks --modules {tally.modules} --seed {options.seed}{native}`, commits "
        f"{', '.join(tally.commits)}, {provenance()['date']}, {tally.seconds:.0f} processor seconds.", "",
        "Each walk ends with a recomputation of actions, savings, times and digests, with the interpreter's results, "
        "and with fissions until nothing is fused.", "",
        "| | number |", "|---|--:|", f"| modules | {tally.modules} |",
        f"| evaluations that agree | {tally.evaluated} |",
        *(f"| {kind} | {n} |" for kind, n in sorted(tally.actions.items())), f"| undone | {tally.undone} |",
        *(f"| fusions at the end with {name} | {n} |" for name, n in sorted(tally.templates.items())),
        f"| modules whose kernels were run | {tally.native} |",
        f"| failures | {len(tally.failures)} |", f"| failures of earlier commits, fixed | {len(tally.fixed)} |",
        "", *(f"- {f}" for f in tally.failures), *(f"- fixed: {f}" for f in tally.fixed),
    ]  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Walk over the modules of the seeds, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--native", type=int, default=0, help="run the kernels of every N-th graph of templates")
    parser.add_argument("--convolutions", action="store_true", help="let every module have convolutions")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--progress", type=Path, help="file that keeps the tally, from which a run continues")
    options = parser.parse_args()
    tally, end = Tally.read(options.progress) if options.progress else Tally(), time.monotonic() + options.seconds
    commit = str(provenance()["commit"])
    if commit not in tally.commits:
        tally.commits.append(commit)
    start = time.process_time() - tally.seconds
    failed, tally.failures = tally.failures, []
    for text in failed:
        seed = int(text.split()[1].rstrip(":"))
        still = _failure(seed, Tally(), options)
        tally.failures += still
        tally.fixed += [] if still else [text]
    for seed in range(options.seed + tally.modules, options.seed + options.modules):
        if time.monotonic() > end:
            break
        tally.failures += _failure(seed, tally, options)
        tally.modules += 1
        if options.progress and tally.modules % KEPT_EVERY == 0:
            tally.seconds = time.process_time() - start
            tally.write(options.progress)
    tally.seconds = time.process_time() - start
    if options.progress:
        tally.write(options.progress)
    page = report(tally, options)
    if options.out is not None:
        write_text(options.out, page)
    sys.stdout.write(page)
    sys.exit(bool(tally.failures))


if __name__ == "__main__":
    main()
