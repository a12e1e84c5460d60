"""Benchmark of products and convolutions with an epilogue: one call of oneDNN, a call and a kernel, or one kernel.

python -m experiments.benchmarks.epilogues [--rounds 60] [--out results/kernels/epilogues.md]

"call" is one call of oneDNN with the elementwise ops as post-operations, "apart" is what the compiler makes if such
calls have no price: a library's call and a generated kernel for the other ops, and "kernel" one generated kernel. The
programs are called in turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from compiler.analysis.cost_model import device_model
from compiler.codegen.schedules.kernel_choice import GENERATED, KernelChoice
from compiler.fusion.policies import make_policy
from compiler.ir import Opcode
from compiler.runtime.executable import Executable
from compiler.session import CompilationSession
from compiler.text import parse
from experiments.benchmarks.turns import check_alike, contains, milliseconds_in_turns, normal_arguments
from experiments.module_command import plain_errors
from experiments.provenance import provenance
from experiments.results import write_text

PRODUCTS = (Opcode.CONVOLUTION, Opcode.DOT)
RELU, GELU, BIAS, RESIDUAL, SCALE, SCALED = "relu", "gelu", "bias", "residual", "scale", "scale, residual"


@dataclass(frozen=True)
class Case:
    """One product or convolution of f32 with an epilogue.

    Attributes:
        name: of the row.
        x, weights, result: sizes.
        op: the op and its attributes, as HLO text around "%x, %k".
        epilogue: a constant above; each adds a bias first and but for "bias" ends in a maximum with 0 or a gelu.
        features: the dimension of the features in the result.
    """

    name: str
    x: Sequence[int]
    weights: Sequence[int]
    result: Sequence[int]
    op: str
    epilogue: str = RELU
    features: int = -1

    def text(self) -> str:
        """Return the program."""
        x, k, r = (f"f32[{','.join(map(str, s))}]" for s in (self.x, self.weights, self.result))
        name, _, attributes = self.op.partition(" ")
        f = self.features % len(self.result)
        vector, spread = f"f32[{self.result[f]}]", f"dimensions={{{f}}}"
        lines = [
            f"%x = {x} parameter(0)", f"%k = {k} parameter(1)", f"%c = {r} {name}(%x, %k), {attributes}",
            f"%b = {vector} parameter(2)", f"%w = {r} broadcast(%b), {spread}",
        ]  # fmt: skip
        value = "%c"
        if self.epilogue in (SCALE, SCALED):
            lines += [f"%s = {vector} parameter(3)", f"%v = {r} broadcast(%s), {spread}", f"%d = {r} multiply(%c, %v)"]
            value = "%d"
        lines.append(f"%a = {r} add({value}, %w)")
        value = "%a"
        if self.epilogue in (RESIDUAL, SCALED):
            lines += [f"%y = {r} parameter({3 + (self.epilogue == SCALED)})", f"%e = {r} add(%a, %y)"]
            value = "%e"
        if self.epilogue == GELU:
            lines += _gelu(r)
        elif self.epilogue != BIAS:
            lines += ["%z = f32[] constant(0)", f"%o = {r} broadcast(%z), dimensions={{}}"]
            lines.append(f"%m = {r} maximum({value}, %o)")
        lines[-1] = "ROOT " + lines[-1]
        return "HloModule epilogue\n\nENTRY %main {\n  " + "\n  ".join(lines) + "\n}\n"


def _gelu(r: str) -> list[str]:
    lines = []
    for name, value in (("p", 0.044715), ("q", 0.7978845608), ("h", 0.5), ("u", 1.0)):
        lines += [f"%{name} = f32[] constant({value})", f"%{name}s = {r} broadcast(%{name}), dimensions={{}}"]
    return [
        *lines, f"%g2 = {r} multiply(%a, %a)", f"%g3 = {r} multiply(%g2, %a)", f"%gp = {r} multiply(%g3, %ps)",
        f"%gs = {r} add(%a, %gp)", f"%gq = {r} multiply(%gs, %qs)", f"%gt = {r} tanh(%gq)", f"%gu = {r} add(%gt, %us)",
        f"%gh = {r} multiply(%gu, %hs)", f"%go = {r} multiply(%a, %gh)",
    ]  # fmt: skip


def _dot(m: int, k: int, n: int, epilogue: str = RELU) -> Case:
    op = "dot lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    return Case(f"{m}x{k} by {k}x{n}, {epilogue}", (m, k), (k, n), (m, n), op, epilogue)


def _conv(
    b: int, s: int, i: int, o: int, k: int = 3, epilogue: str = RELU, groups: int = 1, first: bool = False
) -> Case:
    window = f"window={{size={k}x{k} pad={k // 2}_{k // 2}x{k // 2}_{k // 2}}}"
    labels = "bf01_oi01->bf01" if first else "b01f_01io->b01f"
    x, r, w = (b, s, s, i), (b, s, s, o), (k, k, i // groups, o)
    if first:
        x, r, w = (b, i, s, s), (b, o, s, s), (o, i // groups, k, k)
    name = f"{k}x{k}, {'x'.join(map(str, x))} to {o}{', depthwise' if groups > 1 else ''}{', features first' * first}"
    op = f"convolution {window}, dim_labels={labels}, feature_group_count={groups}"
    return Case(f"{name}, {epilogue}", x, w, r, op, epilogue, 1 if first else -1)


CASES = (
    _conv(1, 56, 64, 64), _conv(8, 56, 64, 64), _conv(8, 28, 128, 128, epilogue=SCALED), _conv(8, 32, 16, 16),
    _conv(4, 32, 32, 32, epilogue=RESIDUAL), _conv(8, 112, 16, 16), _conv(8, 56, 64, 64, epilogue=SCALE),
    _conv(8, 112, 32, 32, epilogue=SCALED),
    _conv(8, 32, 64, 64, groups=64), _conv(8, 56, 128, 128, groups=128), _conv(8, 112, 64, 64, groups=64),
    _conv(1, 28, 128, 128, groups=128), _conv(1, 56, 64, 64, first=True), _conv(8, 56, 64, 64, first=True),
    _conv(1, 14, 256, 256, first=True),
    _dot(25088, 64, 256), _dot(25088, 256, 64), _dot(25088, 64, 256, RESIDUAL), _dot(3136, 256, 64),
    _dot(3136, 64, 256),
    _dot(512, 768, 3072), _dot(512, 768, 3072, GELU), _dot(512, 3072, 768, RESIDUAL), _dot(8192, 256, 1024, BIAS),
    _dot(8192, 256, 256), _dot(128, 784, 512), _dot(256, 512, 2048, GELU), _dot(2048, 2048, 512, BIAS),
    _dot(8192, 128, 512, GELU), _dot(1024, 128, 1024), _dot(4096, 64, 512), _dot(4096, 128, 128),
)  # fmt: skip


def build_apart(case: Case) -> Executable:
    """Return the program as the compiler makes it if calls with epilogues have no price."""
    session = CompilationSession(parse(case.text()), "cpu", device=replace(device_model("cpu"), has_epilogues=False))
    session.run_passes()
    session.run_fusion_policy(make_policy("default"))
    return session.finish()


def build_fused(case: Case, implementation: str) -> Executable:
    """Return the program as one kernel by an implementation."""
    session = CompilationSession(parse(case.text()), "cpu")
    session.run_passes()
    while True:
        named = {i.name for i in session.fusion.module.entry.instructions if contains(i, *PRODUCTS)}
        actions = [a for a in session.actions() if a.kind in ("producer-consumer", "producer-into-all-users")]
        others = [a for a in actions if named.isdisjoint((a.producer, *a.consumers))]
        chosen = [*others, *(a for a in actions if a.producer in named)]
        if not chosen:
            break
        session.apply(chosen[0])
    for k in session.kernel_sites():
        if contains(k.instruction, *PRODUCTS):
            session.set_kernel(k, KernelChoice(implementation))
    return session.finish()


BUILDERS: Sequence[Callable[[Case], Executable]] = (
    lambda case: build_fused(case, "onednn"), build_apart, lambda case: build_fused(case, GENERATED),
)  # fmt: skip


def measure(case: Case, rounds: int) -> tuple[list[float], float]:
    """Return the least milliseconds per call of each program, and the median of the ratios of "apart" to "call".

    Raises:
        ValueError: their results differ.
    """
    arguments = normal_arguments(parse(case.text()))
    programs = [b(case) for b in BUILDERS]
    check_alike(case.name, programs, arguments, rtol=1e-3, atol=1e-2)
    times = milliseconds_in_turns(programs, arguments, rounds, back_and_forth=True)
    return [min(t) for t in times], statistics.median(b / a for a, b in zip(times[0], times[1], strict=True))


def main() -> None:
    """Measure all cases and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("results/kernels/epilogues.md"))
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rows, ratios = [], []
    for case in CASES:
        (call, apart, kernel), median = measure(case, options.rounds)
        ratios.append((apart / call, median, kernel / call))
        rows.append(
            f"| {case.name} | {call:.3f} | {apart:.3f} | {kernel:.3f} | {apart / call:.2f} | {median:.2f} "
            f"| {kernel / call:.2f} |"
        )
        print(rows[-1], flush=True)
    means = " | ".join(f"{statistics.geometric_mean(column):.2f}" for column in zip(*ratios, strict=True))
    facts = provenance()
    lines = [
        "# Epilogues: one call of oneDNN, a call and a kernel, or one kernel", "",
        f"- command: `python -m experiments.benchmarks.epilogues --rounds {options.rounds}`",
        f"- commit: {facts['commit']}", f"- machine: {facts['machine']}", f"- date: {facts['date']}",
        f"- load: {load:.1f} running processes on average before the start", "",
        "Milliseconds per call, the minimum of interleaved calls, the ratios of these minima, and for apart also the",
        "median of the ratios of calls that follow each other.", "",
        "| program | call | apart | kernel | apart / call | median | kernel / call |",
        "|---|--:|--:|--:|--:|--:|--:|", *rows, f"| geometric mean | | | | {means} |",
    ]  # fmt: skip
    write_text(options.out, "\n".join(lines) + "\n")


if __name__ == "__main__":
    with plain_errors():
        main()
