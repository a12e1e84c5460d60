"""`hlogym view`: write the graph of a compilation, with its fusions, times, reasons and passes, as one HTML page."""

from __future__ import annotations

import tempfile
import webbrowser
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from compiler.analysis.cost_model import CostModel
from compiler.backends.registry import find_backend
from compiler.errors import HloSyntaxError
from compiler.ir import HloModule
from compiler.ir.verifier import verify
from compiler.learned.learned_costs import BACKEND as LEARNED_BACKEND
from compiler.learned.learned_costs import shown_costs
from compiler.plan import CompilationPlan
from compiler.runtime.executable import Executable
from compiler.text import parse
from env.suites import Program
from experiments.answer import give_answer, print_fields
from experiments.console import error_console, progress
from experiments.decisions import decided_session
from experiments.inputs import entry_inputs, program_of, read_valid_module
from experiments.noise import LoadWatch, print_noise
from experiments.results import check_output, write_text
from experiments.run import compile_hlo
from experiments.view.graph import graph_data
from experiments.view.history import record_history
from experiments.view.page import make_page
from experiments.view.sources import kernel_sources

MOST_LEARNED = 2000
"""Most fusions of a plan whose kernels have learned times at every step, each some milliseconds."""
__all__ = ["graph_page", "read_program", "view_program"]


def view_program(
    name: str,
    plan: Path | None,
    policy: str | None,
    output: Path | None,
    times: bool,
    backend: str,
    as_json: bool = False,
) -> None:
    """Run `hlogym view`; see its `--help`."""
    program = program_of(name)
    if output is not None:
        check_output(output, program.path, *([plan] if plan is not None else []))
    module = read_program(program)
    measured: dict[str, float] = {}
    implementations: dict[str, str] = {}
    noise: str | None = None
    with progress() as bar:
        task = bar.add_task("decisions", total=2 + times)
        decided = decided_session(module, backend, policy, plan).plan
        if times:
            bar.update(task, description="measuring", advance=1)
            executable = compile_hlo(module, backend=backend, plan=decided)
            watch = LoadWatch()
            measured = _measure(executable, program, module)
            noise = watch.why_noisy()
            implementations = {k.name: k.implementation for k in executable.explain().kernels}
        bar.update(task, description="steps and reasons", advance=1)
        page = graph_page(module, decided, backend, measured, implementations)
    if output is not None:
        write_text(output, page)
        shown = str(output)
    else:
        with tempfile.NamedTemporaryFile("w", suffix=".html", prefix="hlogym-", delete=False, encoding="utf-8") as file:
            file.write(page)
        shown = file.name
    facts = {"page": shown, "decisions": len(decided.steps), "kernel_seconds": measured, "noise": noise}
    give_answer(facts, lambda: print_fields({"page": shown}), as_json)
    print_noise(noise)
    if output is None and not webbrowser.open(Path(shown).as_uri()):
        error_console.print("no browser could be opened; open the page by hand, or name a file with -o")


def graph_page(
    module: HloModule,
    plan: CompilationPlan,
    backend: str = "cpu",
    measured: Mapping[str, float] | None = None,
    implementations: Mapping[str, str] | None = None,
) -> str:
    """Return the page of a compilation.

    Args:
        module: the program before compilation.
        plan: the decisions of a session on this module.
        backend: the backend that the plan was made for.
        measured: seconds per call of each kernel, by name.
        implementations: what computes each kernel, by name.
    """
    costs = _costs_of(plan, backend)
    history = record_history(module, plan, backend, costs)
    sources = kernel_sources(module, plan, backend)
    data = graph_data(history, plan, costs, measured or {}, implementations or {}, sources)
    return make_page(module.name, data, [asdict(p) for p in history.passes], dict(history.hlo))


def _costs_of(plan: CompilationPlan, backend: str) -> CostModel:
    """Return the cost model of a page: the learned one for a CPU, unless pricing every step would take long."""
    target = find_backend(backend)
    if target.name == LEARNED_BACKEND and len(plan.steps) <= MOST_LEARNED:
        return shown_costs()  # a name may be another kernel at an earlier step
    return CostModel(target.device_model())


def read_program(program: Program) -> HloModule:
    """Parse and verify a program; a page may show one whose constants are elided."""
    try:
        return read_valid_module(program)
    except HloSyntaxError as error:
        if "elided" not in str(error):
            raise
        error_console.print("warning: constants are elided in this file; the page shows them as {...}", markup=False)
    module = parse(program.text(), filename=str(program.path), fill_elided=True)
    verify(module)
    return module


def _measure(executable: Executable, program: Program, module: HloModule) -> dict[str, float]:
    """Return the seconds per call of each kernel, by name."""
    seconds: dict[str, float] = {}
    for row in executable.profile(*entry_inputs(program, module, 0)):
        seconds[row.name] = seconds.get(row.name, 0.0) + row.total
    return seconds
