"""Measure how the time of fusion grows with the size of a program, on beginnings of real programs.

    python -m tests.sweeps.fusion_scaling PROGRAM.hlo... [--out results/fusion]

The calls of a program are inlined; its beginning of N instructions returns every value that the rest would have read.
It goes through the default passes and lowering, and then the default policy fuses it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from compiler.ir import HloModule, Opcode
from compiler.passes import make_pass
from compiler.session import CompilationSession
from compiler.text import parse
from experiments.plots import save_figure, scaling_lines
from experiments.provenance import provenance

_NOT_COUNTED = (Opcode.PARAMETER, Opcode.CONSTANT, Opcode.TUPLE, Opcode.GET_TUPLE_ELEMENT)
SIZES = (500, 1_000, 2_000, 4_000, 8_000, 12_000, 16_000, 20_000)


@dataclass(frozen=True)
class Point:
    """The time of one beginning of a program.

    Attributes:
        program: its name.
        instructions: number of instructions as written, in all computations.
        at_start: number of instructions of the sequences when fusion starts, without parameters, constants and tuples.
        fusions: number of actions.
        passes_s, start_s, fusion_s: processor seconds of the passes, of lowering and the first actions, and of fusion.
    """

    program: str
    instructions: int
    at_start: int
    fusions: int
    passes_s: float
    start_s: float
    fusion_s: float


def beginning(module: HloModule, size: int) -> HloModule:
    """Return a module with the first instructions of the entry and all parameters; it returns all unused values."""
    module = module.clone()
    entry = module.entry
    kept = [i for i in entry.post_order() if i.opcode is not Opcode.PARAMETER][:size]
    inside = set(kept)
    ends = [i for i in kept if i.shape.is_array and not any(u in inside for u in i.users)]
    before = entry.root
    entry.root = entry.add(Opcode.TUPLE, ends)
    entry.remove_dead([before])
    entry.remove_dead()
    module.header.clear()
    module.remove_unreachable()
    return module


def measure(program: str, module: HloModule, backend: str) -> Point:
    """Compile a module until it is fused; return the processor seconds."""
    started = time.process_time()
    session = CompilationSession(module, backend)
    session.run_passes()
    session.run_loop_policy()
    passed = time.process_time()
    _ = session.fusion
    ready = time.process_time()
    sequences = session.module.control_flow_computations()
    size = sum(i.opcode not in _NOT_COUNTED for c in sequences for i in c.instructions)
    fusions = len(session.run_fusion_policy())
    fused = time.process_time()
    return Point(program, module.instruction_count, size, fusions, passed - started, ready - passed, fused - ready)


def points(path: Path, sizes: Sequence[int], backend: str) -> list[Point]:
    """Return the times of the beginnings of a program, and of the whole."""
    module = parse(path.read_text(encoding="utf-8"), filename=path.name, fill_elided=True)
    make_pass("call-inliner").run(module)
    whole = sum(i.opcode is not Opcode.PARAMETER for i in module.entry.instructions)
    found = []
    for size in [*(s for s in sizes if s < whole), whole]:
        found.append(measure(path.stem, beginning(module, size) if size < whole else module, backend))
        print(row(found[-1]), flush=True)
    return found


def exponent(found: Sequence[Point]) -> float:
    """Return the exponent of the power law that fits the seconds of fusion to the instructions at its start."""
    x, y = np.log([p.at_start for p in found]), np.log([max(p.fusion_s, 1e-3) for p in found])
    return float(np.polyfit(x, y, 1)[0])


def row(p: Point) -> str:
    """Return a row of the Markdown table."""
    numbers = (p.passes_s, p.start_s, p.fusion_s, 1e3 * p.fusion_s / max(p.at_start, 1))
    cells = (p.program, f"{p.instructions:,}", f"{p.at_start:,}", f"{p.fusions:,}", *(f"{n:.2f}" for n in numbers))
    return "| " + " | ".join(cells) + " |"


HEADER = (
    "| program | instructions | at the start of fusion | fusions | passes s | fusion start s | fusion s |"
    " fusion, ms per instruction at its start |\n|---|---:|---:|---:|---:|---:|---:|---:|"
)


def write(by_program: dict[str, list[Point]], folder: Path) -> None:
    """Write the table and the plot."""
    made = provenance()
    arguments = " ".join(Path(a).name for a in sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        "# Time of fusion by the size of the program",
        "",
        f"- command: python -m tests.sweeps.fusion_scaling {arguments}",
        *(f"- {k}: {made[k]}" for k in ("commit", "date", "machine")),
        "",
        "Beginnings of real programs with the default policy; processor seconds. The exponent is that of the power law"
        " fitted to the seconds of fusion over the instructions at its start: 1 is linear.",
        "",
        *(f"- {name}: exponent {exponent(found):.2f}" for name, found in by_program.items() if len(found) > 1),
        "",
        "![seconds of fusion](scaling.svg)",
        "",
        HEADER,
        *(row(p) for found in by_program.values() for p in found),
    ]
    (folder / "scaling.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    series = {name: [(p.at_start, p.fusion_s) for p in found] for name, found in by_program.items()}
    save_figure(
        scaling_lines(series, "instructions at the start of fusion", "processor seconds"), folder / "scaling.svg"
    )


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("programs", nargs="+", type=Path, help="HLO files")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="instructions of the entry")
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--out", type=Path, help="folder for scaling.md and scaling.svg (default: only print)")
    options = parser.parse_args()
    print(HEADER)
    by_program = {}
    for path in options.programs:
        by_program[path.stem] = points(path, options.sizes, options.backend)
        if options.out:
            write(by_program, options.out)
    for name, found in by_program.items():
        print(f"{name}: exponent {exponent(found):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
