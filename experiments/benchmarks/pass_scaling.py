"""Time of the default pipeline on modules of growing size, and of single passes on small ones; writes results/.

python -m experiments.benchmarks.pass_scaling [FILE.hlo...] [--out results/passes/throughput.md]

The large modules are generated: elementwise ops, broadcasts of constants, pairs of transposes and reshapes,
reductions, selects and matrix products in random order, without dead code. Given files are measured in addition. The
small modules are those of the quickstart suite; random single sweeps run over each, as in training a pass order. All
times are processor times of one process.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, PrimitiveType
from compiler.ir.shape import array_shape
from compiler.ir.verifier import check_module
from compiler.passes import HloPass, PipelineRun, make_pass
from compiler.passes.infrastructure.base import op_count
from compiler.passes.infrastructure.pipeline import leaves
from compiler.passes.infrastructure.registry import pass_text
from compiler.passes.pipelines.default import default_pipeline, xla_order
from compiler.text import parse
from env.suites import load_suite
from experiments.module_command import plain_errors
from experiments.provenance import provenance
from experiments.results import write_text

SIZES = (2500, 5000, 10_000, 20_000, 40_000)
WALK = 200
"""Pass applications per small module."""
_SHAPE = array_shape(PrimitiveType.F32, 64, 32)


class Maker:
    """Builds one random module; `values` are matrices of one shape, used as operands of later instructions."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.module = HloModule("scaling")
        self.sum = HloComputation("sum")
        scalars = [self.sum.add_parameter(n, array_shape(PrimitiveType.F32)) for n in (0, 1)]
        self.sum.root = self.sum.add(Opcode.ADD, scalars)
        self.main = HloComputation("main")
        self.module.add(self.sum)
        self.module.add(self.main, entry=True)
        self.values = [self.main.add_parameter(n, _SHAPE) for n in range(4)]

    def draw(self) -> HloInstruction:
        """Return a random recent value."""
        return self.rng.choice(self.values[-30:])

    def make(self, size: int) -> HloModule:
        """Return a module of about `size` instructions."""
        steps: list[Callable[[], HloInstruction]] = [
            self.binary, self.binary, self.binary, self.unary, self.by_constant, self.transposed, self.reshaped,
            self.mean, self.choice, self.products,
        ]  # fmt: skip
        while len(self.main) < size:
            self.values.append(self.rng.choice(steps)())
        total = self.values[-1]
        for v in [v for v in self.values if not v.users and v is not total]:
            total = self.main.add(Opcode.ADD, (total, v))
        self.main.root = total
        return self.module

    def binary(self) -> HloInstruction:
        opcode = self.rng.choice([Opcode.ADD, Opcode.MULTIPLY, Opcode.SUBTRACT, Opcode.MAXIMUM])
        return self.main.add(opcode, (self.draw(), self.draw()))

    def unary(self) -> HloInstruction:
        return self.main.add(self.rng.choice([Opcode.NEGATE, Opcode.TANH, Opcode.ABS]), (self.draw(),))

    def by_constant(self) -> HloInstruction:
        scalar = self.main.add_constant(np.float32(self.rng.choice([0, 1, 2, 0.5, 3])))
        whole = self.main.add(Opcode.BROADCAST, (scalar,), _SHAPE, dimensions=())
        return self.main.add(self.rng.choice([Opcode.ADD, Opcode.MULTIPLY]), (self.draw(), whole))

    def transposed(self) -> HloInstruction:
        there = self.main.add(Opcode.TRANSPOSE, (self.draw(),), dimensions=(1, 0))
        return self.main.add(Opcode.TRANSPOSE, (self.main.add(Opcode.NEGATE, (there,)),), dimensions=(1, 0))

    def reshaped(self) -> HloInstruction:
        there = self.main.add(Opcode.RESHAPE, (self.draw(),), array_shape(PrimitiveType.F32, 64, 1, 32))
        return self.main.add(Opcode.RESHAPE, (self.main.add(Opcode.NEGATE, (there,)),), _SHAPE)

    def mean(self) -> HloInstruction:
        zero = self.main.add_constant(np.float32(0))
        row = self.main.add(Opcode.REDUCE, (self.draw(), zero), dimensions=(1,), to_apply=self.sum)
        return self.main.add(Opcode.BROADCAST, (row,), _SHAPE, dimensions=(0,))

    def choice(self) -> HloInstruction:
        x, y = self.draw(), self.draw()
        return self.main.add(Opcode.SELECT, (self.main.add(Opcode.COMPARE, (x, y), direction="LT"), x, y))

    def products(self) -> HloInstruction:
        x, y = self.draw(), self.draw()
        square = self.main.add(Opcode.DOT, (x, y), lhs_contracting_dims=(1,), rhs_contracting_dims=(1,))
        return self.main.add(Opcode.DOT, (square, y), lhs_contracting_dims=(1,), rhs_contracting_dims=(0,))


def row(name: str, module: HloModule) -> str:
    """Return one row of the table: sizes, pass applications, seconds and microseconds per instruction."""
    instructions, before = module.instruction_count, op_count(module)
    run = PipelineRun()
    start = time.process_time()
    run.run(default_pipeline(), module)
    seconds = time.process_time() - start
    if run.unsettled:
        raise RuntimeError(f"{name}: {', '.join(run.unsettled)} did not reach a fixed point within the limit of rounds")
    each = seconds / instructions * 1e6
    return (
        f"| {name} | {instructions} | {before} | {op_count(module)} | {len(run.records)} | {seconds:.1f} | {each:.0f} |"
    )


def applications() -> list[str]:
    """Return the section on single sweeps over small modules, with the time of each part of an application."""
    modules = [parse(p.text(), fill_elided=True) for p in load_suite("quickstart").programs]
    names = sorted({pass_text(p) for p in leaves(xla_order())})
    passes = [make_pass(f"{n}@1") for n in names]
    times = {
        "copying the module": _seconds_each(HloModule.clone, modules),
        "a pass that changes nothing": _idle(modules, passes),
        "verifying": _seconds_each(check_module, modules),
        "the fingerprint": _seconds_each(HloModule.fingerprint, modules),
        "the op count": _seconds_each(op_count, modules),
    }
    rng = random.Random(0)
    walk = _seconds_each(lambda m: _walk(m, passes, rng), modules, repeat=1) / WALK
    size = sum(m.instruction_count for m in modules) / len(modules)
    return [
        "",
        "## Single sweeps over small modules",
        "",
        f"{len(modules)} programs of the quickstart suite, {size:.0f} instructions on average; {len(passes)} passes.",
        "Random sweeps, each on a copy of the module, with fingerprint and op count after a change: "
        f"**{1 / walk:.0f} applications per second**.",
        "",
        "| part of an application | us |",
        "|---|---|",
        *(f"| {name} | {seconds * 1e6:.0f} |" for name, seconds in times.items()),
    ]


def _seconds_each(work: Callable[[HloModule], object], modules: Sequence[HloModule], repeat: int = 50) -> float:
    """Return the mean processor seconds of `work` per module."""
    start = time.process_time()
    for m in modules:
        for _ in range(repeat):
            work(m)
    return (time.process_time() - start) / len(modules) / repeat


def _idle(modules: Sequence[HloModule], passes: Sequence[HloPass]) -> float:
    """Return the seconds per pass application on programs that are already at the default pipeline's fixed point."""
    settled = [m.clone() for m in modules]
    for m in settled:
        default_pipeline().run(m)
    return _seconds_each(lambda m: [p.run(m) for p in passes], settled, repeat=3) / len(passes)


def _walk(module: HloModule, passes: Sequence[HloPass], rng: random.Random) -> HloModule:
    for _ in range(WALK):
        after = module.clone()
        if rng.choice(passes).run(after):
            after.fingerprint()
            op_count(after)
            module = after
    return module


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="HLO files to measure beside the generated modules")
    parser.add_argument(
        "--out", type=Path, default=Path("results/passes/throughput.md"), help="results file (default: %(default)s)"
    )
    options = parser.parse_args()
    origin = provenance()
    names = " ".join(Path(a).name if a.startswith("/") else a for a in sys.argv[1:])
    lines = [
        "# Default pipeline run to its fixed point",
        "",
        f"- command: `python -m experiments.benchmarks.pass_scaling {names}`",
        f"- commit: {origin['commit']}",
        f"- machine: {origin['machine']}; processor time of one process, with other processes running",
        f"- date: {origin['date']}",
        "",
        "| module | instructions | ops before | ops after | pass applications | seconds | us per instruction |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [row(f"generated, {n}", Maker(0).make(n)) for n in SIZES]
    lines += [row(f.name, parse(f.read_text(encoding="utf-8"), fill_elided=True)) for f in options.files]
    lines += applications()
    text = "\n".join(lines) + "\n"
    write_text(options.out, text)
    print(text)


if __name__ == "__main__":
    with plain_errors():
        main()
