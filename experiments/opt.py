"""`hlogym opt`: passes over a program."""

from __future__ import annotations

import sys

from rich.table import Table

from compiler.ir import HloModule
from compiler.passes.base import HloPass
from compiler.passes.default import default_pipeline
from compiler.passes.pipeline import PassPipeline, PipelineRun
from compiler.passes.registry import PASSES, describe_options, make_passes
from experiments.console import error_console, stdout
from experiments.inputs import program_of, read_module

__all__ = ["list_all_passes", "optimise"]


def list_all_passes() -> None:
    """Print names, options and first lines of documentation."""
    table = Table("pass", "does", "options", box=None, header_style="bold")
    for name, cls in sorted(PASSES.items()):
        table.add_row(name, (cls.__doc__ or "").strip().splitlines()[0], describe_options(cls))
    stdout.print(table)


def optimise(name: str, passes: str | None, stats: bool, print_after_all: bool) -> None:
    """Run the named passes, or the default pipeline, verify after each, and print the HLO."""
    pipeline = default_pipeline() if passes is None else PassPipeline("command line", make_passes(passes))
    module = read_module(program_of(name))
    run = PipelineRun(verify=True, hooks=(_print_changed,) if print_after_all else ())
    run.run(pipeline, module)
    sys.stdout.write(str(module).rstrip("\n") + "\n")
    if stats:
        error_console.print(_statistics(run))


def _print_changed(hlo_pass: HloPass, module: HloModule, changed: bool) -> None:
    if changed:
        sys.stdout.write(f"// after {hlo_pass.name}\n{str(module).rstrip()}\n\n")


def _statistics(run: PipelineRun) -> Table:
    table = Table("pass", "runs", "changed", "ops removed", "ms", box=None, header_style="bold")
    for s in run.statistics():
        table.add_row(s.name, str(s.runs), str(s.changed), str(s.removed), f"{s.seconds * 1e3:.2f}")
    return table
