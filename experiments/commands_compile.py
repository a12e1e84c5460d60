"""Commands about one program: run, opt, compile, tune, bench, view, reduce, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["register"]

Program = Annotated[str, typer.Argument(metavar="FILE.hlo", help="An HLO file, or a program of the quickstart suite.")]
Backend = Annotated[str, typer.Option(help="cpu, cuda, interpreter, or auto: cuda where there is one.")]
Policy = Annotated[str | None, typer.Option(help="Name of a fusion policy, or folder of an exported one.")]
Plan = Annotated[Path | None, typer.Option(help="Replay a recorded plan (JSON).")]
Seed = Annotated[int, typer.Option(help="Of the random inputs.", min=0, max=2**32 - 1)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def run(
    program: Program,
    inputs: Annotated[Path | None, typer.Option(help="Arguments (.npz); random ones without it.")] = None,
    seed: Seed = 0,
    backend: Backend = "auto",
    policy: Policy = None,
    plan: Plan = None,
    output: Annotated[Path | None, typer.Option(help="Write the outputs to an .npz file.")] = None,
    profile: Annotated[bool, typer.Option(help="Show the time of each kernel.")] = False,
    check: Annotated[bool, typer.Option(help="Compare with the interpreter; exit status 1 when they differ.")] = False,
    as_json: Json = False,
) -> None:
    """Compile a program and run it.

    Example: hlogym run softmax.hlo --backend cpu --check --profile
    """
    from experiments.run import run_program

    run_program(program, inputs, seed, backend, policy, plan, output, profile, check, as_json)


def opt(
    program: Annotated[str | None, typer.Argument(metavar="[FILE.hlo]", help="An HLO file.")] = None,
    passes: Annotated[str | None, typer.Option(help="Passes in order, with commas between.")] = None,
    order: Annotated[Path | None, typer.Option(help="Folder of a learned pass order to run instead.")] = None,
    stop_after: Annotated[str | None, typer.Option(help="Stop once this pass has run.")] = None,
    list_passes: Annotated[bool, typer.Option(help="List all passes with their options.")] = False,
    stats: Annotated[bool, typer.Option(help="Print what each pass did, on stderr.")] = False,
    print_after_all: Annotated[bool, typer.Option(help="Print the module after each pass that changed it.")] = False,
) -> None:
    """Run passes over a program and print its HLO.

    Example: hlogym opt softmax.hlo --passes call-inliner,dce --stats
    """
    from experiments.opt import list_all_passes, optimise

    if list_passes:
        list_all_passes()
    elif program is None:
        raise typer.BadParameter("name an HLO file, or give --list-passes")
    else:
        optimise(program, passes, order, stop_after, stats, print_after_all)


def compile_command(
    program: Program,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the artefact.")],
    backend: Backend = "cpu",
    policy: Policy = None,
    plan: Plan = None,
) -> None:
    """Compile ahead of time; `compiler.load(DIR)` runs the result without a C compiler.

    Example: hlogym compile softmax.hlo -o softmax.aot
    """
    from experiments.run import compile_ahead

    compile_ahead(program, output, backend, policy, plan)


def tune(
    program: Program,
    output: Annotated[Path, typer.Option("--output", "-o", help="The plan (JSON).")],
    budget: Annotated[int, typer.Option(help="Plans to measure.", min=1)] = 64,
    backend: Backend = "auto",
    policy: Annotated[str | None, typer.Option(help="Folder of an exported policy that proposes plans.")] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Search this program's decisions with measurements, and write the best plan.

    Example: hlogym tune cartpole_naive.hlo --budget 64 -o plan.json
    """
    from experiments.tune import tune_program

    tune_program(program, output, budget, backend, policy, seed, as_json)


def bench(
    programs: Annotated[list[str], typer.Argument(metavar="SUITE|FILE...", help="Suites, HLO files or program names.")],
    against: Annotated[str, typer.Option(help="Peers, with commas between: xla, inductor, eager.")] = "",
    policy: Policy = None,
    backend: Backend = "cpu",
    rounds: Annotated[int, typer.Option(help="Timings of each, taken in turns.", min=2)] = 15,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to a file.")] = None,
    seed: Seed = 0,
) -> None:
    """Time programs side by side with peers: interleaved, outputs compared first, ratios with intervals.

    Example: hlogym bench test --against xla,inductor
    """
    from experiments.bench import bench_programs

    bench_programs(programs, [p for p in against.split(",") if p], policy, backend, rounds, json_file, seed)


def view(
    program: Program,
    plan: Plan = None,
    policy: Policy = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the page here and open nothing.")] = None,
    times: Annotated[bool, typer.Option(help="Measure each kernel and show its time.")] = True,
    backend: Backend = "cpu",
) -> None:
    """Show the graph with its fusions and times, in the browser.

    Example: hlogym view softmax.hlo -o softmax.html
    """
    from experiments.view import view_program

    view_program(program, plan, policy, output, times, backend)


def reduce(
    program: Program,
    output: Annotated[Path, typer.Option("--output", "-o", help="The smaller program (HLO).")],
    backend: Backend = "cpu",
    policy: Policy = None,
    passes: Annotated[
        str | None, typer.Option(help="Look for the fault in these passes instead, run in the interpreter.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Shrink a program on which a backend, or passes, fail or differ from the interpreter, for a report of the fault.

    Example: hlogym reduce wrong.hlo -o small.hlo

    Example: hlogym reduce wrong.hlo --passes while-loop-unroller,dce -o small.hlo
    """
    from experiments.reduce import reduce_for_backend, reduce_for_passes

    if passes is None:
        reduce_for_backend(program, output, backend, policy, seed)
    else:
        reduce_for_passes(program, output, passes, seed)


def doctor(as_json: Json = False) -> None:
    """Say what is installed, which backends work here, and why not.

    Example: hlogym doctor
    """
    from experiments.doctor import examine

    examine(as_json)


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    for name, function in (
        ("run", run), ("opt", opt), ("compile", compile_command), ("tune", tune), ("bench", bench), ("view", view),
        ("reduce", reduce), ("doctor", doctor),
    ):  # fmt: skip
        app.command(name, rich_help_panel="Programs")(function)
