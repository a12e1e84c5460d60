"""`hlogym opt`: run passes over a program."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from compiler.errors import UnknownNameError
from compiler.ir import HloModule
from compiler.passes.infrastructure.base import HloPass
from compiler.passes.infrastructure.pipeline import PassPipeline, PipelineRun, leaves
from compiler.passes.infrastructure.registry import PASSES, make_passes
from compiler.passes.pipelines.default import default_pipeline
from compiler.support.options import describe_options
from compiler.support.safe_names import printable
from experiments.answer import give_answer
from experiments.console import error_console, is_terminal, stdout
from experiments.decisions import fused_module
from experiments.inputs import program_of, read_valid_module
from experiments.learned import load_order
from experiments.results import check_output, write_text

__all__ = ["list_all_passes", "optimise", "print_fused"]


def list_all_passes(output: Path | None = None, as_json: bool = False) -> None:
    """Print the name, the first line of documentation and the options of each pass."""
    if output is not None:
        check_output(output)
    rows = [
        {"pass": name, "description": (cls.__doc__ or "").strip().splitlines()[0], "options": describe_options(cls)}
        for name, cls in sorted(PASSES.items())
    ]
    table = Table("pass", "description", "options", box=None, header_style="bold")
    for row in rows:
        table.add_row(*row.values())
    give_answer(rows, lambda: stdout.print(table), as_json, output)


def optimise(
    name: str,
    passes: str | None,
    order: str | None,
    stop_after: str | None,
    stats: bool,
    print_after_all: bool,
    output: Path | None = None,
    as_json: bool = False,
) -> None:
    """Run the named passes, a learned order or the default pipeline, verify after each pass, and print the HLO.

    Raises:
        UnknownNameError: there is no such pass, or the pass to stop after is not in the pipeline.
        PolicyError: the folder of the learned order cannot be used.
    """
    pipeline: HloPass = default_pipeline()
    if order is not None:
        pipeline = load_order(Path(order))
    elif passes is not None:
        pipeline = PassPipeline("command line", make_passes(passes))
    names = {p.name for p in leaves(pipeline)}
    if stop_after is not None and stop_after not in names:
        raise UnknownNameError("pass to stop after", stop_after, names)
    program = program_of(name)
    if output is not None:
        check_output(output, program.path)
    module = read_valid_module(program)
    run = PipelineRun(verify=True, stop_after=stop_after, hooks=(_print_changed,) if print_after_all else ())
    run.run(pipeline, module)
    _give(module, output, as_json, run)
    if stats:
        error_console.print(_statistics(run))


def print_fused(
    name: str,
    backend: str,
    policy: str | None,
    plan: Path | None,
    for_xla: bool,
    output: Path | None = None,
    as_json: bool = False,
) -> None:
    """Print the module that the compiler makes of a program, with its fusions.

    Raises:
        PlanError: the plan cannot be read, or was made for another program.
    """
    program = program_of(name)
    if output is not None:
        check_output(output, program.path)
    module = fused_module(read_valid_module(program), backend, policy, plan, for_xla)
    _give(module, output, as_json)


def _give(module: HloModule, output: Path | None, as_json: bool, run: PipelineRun | None = None) -> None:
    """Write the module to a file or print it; with JSON, print what was done, and the module if there is no file."""
    text = str(module).rstrip("\n") + "\n"
    if output is not None or not as_json:
        _write(text, output)
    if as_json:
        hlo = {"hlo": text} if output is None else {"file": str(output)}
        passes = {} if run is None else {"passes": [asdict(s) for s in run.statistics()]}
        print(json.dumps({"instructions": module.instruction_count, **passes, **hlo}, indent=2))


def _print_changed(hlo_pass: HloPass, module: HloModule, changed: bool) -> None:
    if changed:
        _write(f"// after {hlo_pass.name}\n{str(module).rstrip()}\n\n")


def _write(text: str, output: Path | None = None) -> None:
    """Write to a file, or to stdout; on a terminal, control characters are escaped."""
    if output is not None:
        write_text(output, text)
        return
    sys.stdout.write(printable(text) if is_terminal() else text)


def _statistics(run: PipelineRun) -> Table:
    table = Table(box=None, header_style="bold")
    table.add_column("pass")
    for name in ("runs", "changed", "ops before", "ops after", "removed", "ms"):
        table.add_column(name, justify="right")
    for s in run.statistics():
        table.add_row(
            s.name, str(s.runs), str(s.changed), str(s.before), str(s.after), str(s.removed), f"{s.seconds * 1e3:.2f}"
        )
    return table
