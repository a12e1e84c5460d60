"""`hlogym opt`: run passes over a program."""

from __future__ import annotations

import sys
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
from experiments.console import error_console, is_terminal, stdout
from experiments.decisions import fused_module
from experiments.inputs import program_of, read_valid_module
from experiments.learned import load_order

__all__ = ["list_all_passes", "optimise", "print_fused"]


def list_all_passes() -> None:
    """Print the name, the first line of documentation and the options of each pass."""
    table = Table("pass", "description", "options", box=None, header_style="bold")
    for name, cls in sorted(PASSES.items()):
        table.add_row(name, (cls.__doc__ or "").strip().splitlines()[0], describe_options(cls))
    stdout.print(table)


def optimise(
    name: str, passes: str | None, order: Path | None, stop_after: str | None, stats: bool, print_after_all: bool
) -> None:
    """Run the named passes, a learned order or the default pipeline, verify after each pass, and print the HLO.

    Raises:
        UnknownNameError: there is no such pass, or the pass to stop after is not in the pipeline.
        PolicyError: the folder of the learned order cannot be used.
    """
    pipeline: HloPass = default_pipeline()
    if order is not None:
        pipeline = load_order(order)
    elif passes is not None:
        pipeline = PassPipeline("command line", make_passes(passes))
    names = {p.name for p in leaves(pipeline)}
    if stop_after is not None and stop_after not in names:
        raise UnknownNameError("pass to stop after", stop_after, names)
    module = read_valid_module(program_of(name))
    run = PipelineRun(verify=True, stop_after=stop_after, hooks=(_print_changed,) if print_after_all else ())
    run.run(pipeline, module)
    _write(str(module).rstrip("\n") + "\n")
    if stats:
        error_console.print(_statistics(run))


def print_fused(name: str, backend: str, policy: str | None, plan: Path | None, for_xla: bool) -> None:
    """Print the module that the compiler makes of a program, with its fusions.

    Raises:
        PlanError: the plan cannot be read, or was made for another program.
    """
    module = fused_module(read_valid_module(program_of(name)), backend, policy, plan, for_xla)
    _write(str(module).rstrip("\n") + "\n")


def _print_changed(hlo_pass: HloPass, module: HloModule, changed: bool) -> None:
    if changed:
        _write(f"// after {hlo_pass.name}\n{str(module).rstrip()}\n\n")


def _write(text: str) -> None:
    """Write to stdout; on a terminal, control characters are escaped."""
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
