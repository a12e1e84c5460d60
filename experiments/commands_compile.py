"""Commands that work on programs: run, opt, compile, tune, bench, view, reduce, doctor."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.command_options import (
    PROGRAMS,
    SUITES,
    AnswerFile,
    Backend,
    Command,
    Json,
    Plan,
    PlanReward,
    Policy,
    Program,
    Rules,
    Runs,
    Seed,
    Track,
    Workers,
    found_policy,
    output_option,
)

__all__ = ["register"]

Calibrate = Annotated[
    bool,
    typer.Option("--calibrate", help="Measure kernels for about a minute, and fit the cost model to this machine."),
]
CostModelFolder = Annotated[
    Path | None, typer.Option(help="The cost model that is calibrated. Default: the one that comes with hlogym.")
]


def run(
    program: Program,
    inputs: Annotated[
        Path | None, typer.Option(help="Arguments of the program (.npz). Default: random arrays.")
    ] = None,
    seed: Seed = 0,
    backend: Backend = "auto",
    policy: Policy = None,
    rule: Rules = None,
    plan: Plan = None,
    output: Annotated[Path | None, output_option("Write the outputs to this .npz file.")] = None,
    profile: Annotated[bool, typer.Option(help="Print the time of each kernel.")] = False,
    check: Annotated[
        bool, typer.Option(help="Compare the outputs with the interpreter's; exit with status 1 if they differ.")
    ] = False,
    keep_fusions: Annotated[
        bool,
        typer.Option("--keep-fusions", help="Compile the fusions of the file as they are, without passes and policy."),
    ] = False,
    explain: Annotated[
        bool,
        typer.Option(
            help="Print the decisions that made each kernel, and why kernels that follow each other are separate."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Compile a program, run it, and print its results and the median time of some calls.

    Example: hlogym run softmax.hlo --backend cpu --check --profile
    """
    from experiments.run import run_program

    if keep_fusions and plan is not None:
        raise typer.BadParameter("--keep-fusions and --plan exclude each other; give one of them")
    rules = _rules(rule, plan, keep_fusions)
    run_program(
        program, inputs, seed, backend, policy, plan, output, profile, check, as_json, keep_fusions, explain, rules
    )


def _rules(given: list[str] | None, plan: Path | None, keep_fusions: bool = False) -> list[str]:
    if given and (plan is not None or keep_fusions):
        other = "--plan" if plan is not None else "--keep-fusions"
        raise typer.BadParameter(f"--rule and {other} exclude each other: no fusions are chosen then")
    return given or []


def opt(
    program: Annotated[str | None, typer.Argument(metavar="PROGRAM", help=PROGRAMS)] = None,
    passes: Annotated[
        str | None,
        typer.Option(help="Comma-separated passes to run in this order, '' for none. Default: the default pipeline."),
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(
            help="Run a learned pass order instead of --passes: the folder of a policy, a training run, or "
            "models:/NAME/VERSION.",
            callback=found_policy,
        ),
    ] = None,
    stop_after: Annotated[str | None, typer.Option(help="Stop after the first run of this pass.")] = None,
    list_passes: Annotated[bool, typer.Option(help="List all passes and their options.")] = False,
    stats: Annotated[bool, typer.Option(help="Print runs, op counts and time of each pass to stderr.")] = False,
    print_after_all: Annotated[
        bool, typer.Option(help="Also print the module after each pass that changed it.")
    ] = False,
    fused: Annotated[
        bool, typer.Option("--fused", help="Make every decision of the compiler and print the module with its fusions.")
    ] = False,
    for_xla: Annotated[
        bool, typer.Option("--for-xla", help="With --fused: dissolve the fusions that XLA:CPU refuses (kCustom).")
    ] = False,
    plan: Plan = None,
    policy: Policy = None,
    backend: Backend = "cpu",
    output: Annotated[
        Path | None, output_option("Write the HLO, or the list of passes, to this file instead of standard output.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run passes over a program and print its HLO.

    Example: hlogym opt softmax.hlo --passes call-inliner,dce --stats

    Example: hlogym opt softmax.hlo --fused > fused.hlo; hlogym run fused.hlo --keep-fusions
    """
    from experiments.opt import list_all_passes, optimise, print_fused

    of_passes = passes is not None or order is not None or stop_after is not None or stats or print_after_all
    if list_passes:
        list_all_passes(output, as_json)
    elif program is None:
        raise typer.BadParameter("name an HLO file, or give --list-passes")
    elif fused and of_passes:
        raise typer.BadParameter("--fused makes all decisions; give it without the options that choose passes")
    elif fused:
        print_fused(program, backend, policy, plan, for_xla, output, as_json)
    elif for_xla or plan is not None or policy is not None:
        raise typer.BadParameter("--for-xla, --plan and --policy need --fused")
    elif passes is not None and order is not None:
        raise typer.BadParameter("--passes and --order exclude each other; give one of them")
    else:
        optimise(program, passes, order, stop_after, stats, print_after_all, output, as_json)


def compile_command(
    program: Program,
    output: Annotated[Path, output_option("Folder to write the compiled program to.")],
    backend: Backend = "cpu",
    policy: Policy = None,
    rule: Rules = None,
    plan: Plan = None,
    as_json: Json = False,
) -> None:
    """Compile a program ahead of time; `hlogym.load(DIR)` loads the result without compiling.

    Example: hlogym compile softmax.hlo -o softmax.aot
    """
    from experiments.run import compile_ahead

    compile_ahead(program, output, backend, policy, plan, _rules(rule, plan), as_json)


def tune(
    program: Program,
    output: Annotated[Path, output_option("Write the best plan to this file (JSON).")],
    budget: Annotated[int, typer.Option(help="Maximum number of plans to measure.", min=1)] = 64,
    seconds: Annotated[
        float | None, typer.Option(help="Time limit of the search in seconds. Default: none.", min=0)
    ] = None,
    search: Annotated[
        str,
        typer.Option(
            help="random, greedy, local, beam, annealing, evolution or guided, with options in braces: "
            "'local{groups=kernels+fusion}', 'evolution{population=8,model=analytic}'."
        ),
    ] = "guided",
    backend: Backend = "auto",
    policy: Annotated[
        str | None,
        typer.Option(
            help="Policy from whose plan the search starts; see `hlogym run --help`. Default: the default plan.",
            callback=found_policy,
        ),
    ] = None,
    seed: Seed = 0,
    reward: PlanReward = "measured-time",
    workers: Workers = "local",
    track: Track = None,
    runs: Runs = Path("runs"),
    as_json: Json = False,
) -> None:
    """Search for the fastest plan of a program by measuring candidates, or by predicting their times.

    Example: hlogym tune cartpole_naive.hlo --budget 64 -o plan.json

    Example: hlogym tune cartpole_naive.hlo --search 'annealing{model=analytic}' --seconds 120 -o plan.json

    Example: hlogym tune cartpole_naive.hlo --workers ray://head:10001#8 -o plan.json

    Example: hlogym tune cartpole_naive.hlo --reward emulated-time -o plan.json
    """
    from agents.search_run import Budget
    from env.workers import parse_workers
    from experiments.mlflow_store import store_of
    from experiments.tune import tune_program

    limits = Budget(budget, math.inf if seconds is None else seconds)
    tune_program(
        program, output, limits, backend, policy, search, seed, as_json, parse_workers(workers),
        store_of(track, runs), reward,
    )  # fmt: skip


def bench(
    programs: Annotated[
        list[str],
        typer.Argument(metavar="PROGRAM...", help=f"Programs to time: {SUITES}; - is standard input."),
    ],
    against: Annotated[
        str, typer.Option(help="Comma-separated compilers to compare with: xla, inductor, eager. Default: none.")
    ] = "",
    policy: Policy = None,
    backend: Backend = "cpu",
    rounds: Annotated[int, typer.Option(help="Number of interleaved timings per program and compiler.", min=2)] = 15,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="[FILE]",
            help="Print JSON instead of a table, or also write it to this file.",
        ),
    ] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Also write the table to this file (Markdown).")
    ] = None,
    output: Annotated[
        Path | None, output_option("Also write the results to this file: Markdown if it ends in .md, else JSON.")
    ] = None,
    cold: Annotated[
        bool,
        typer.Option("--cold", help="Measure compile time with empty caches and peak memory instead of time per call."),
    ] = False,
    only: Annotated[
        str, typer.Option(help="Time only programs whose names match this pattern, such as 'conv*'.")
    ] = "*",
    seed: Seed = 0,
    track: Track = None,
    runs: Runs = Path("runs"),
) -> None:
    """Time programs and compare them with other compilers.

    The outputs are compared first, the timings are interleaved and taken around the Python call, and the ratio to the
    better peer has a 95% interval. For the suites kernels and models, xla and inductor run programs that were written
    for JAX and PyTorch; for other programs they run a translation of the HLO.

    Example: hlogym bench test --against xla,inductor
    """
    from compiler.support.options import split_specs
    from experiments.bench import bench_programs
    from experiments.mlflow_store import store_of

    peers = split_specs(against)
    as_json = json_file == Path("-")
    json_file = None if as_json else json_file
    markdown = output is not None and output.suffix == ".md"
    other = None if output is None else markdown_file if markdown else json_file
    if markdown:
        markdown_file = output
    else:
        json_file = output or json_file
    if other is not None:
        raise typer.BadParameter(f"--output {output} and {other} name two files for the same results; give one of them")
    bench_programs(
        programs,
        peers,
        policy,
        backend,
        rounds,
        json_file,
        seed,
        markdown_file,
        only,
        cold,
        as_json,
        store_of(track, runs),
    )


class BenchCommand(Command):
    """The command `bench`, whose `--json` prints JSON as everywhere unless the name of a file follows it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; `--json` at the end or before an option is `--json -`."""
        given = []
        for number, argument in enumerate(args):
            given.append(argument)
            after = args[number + 1 : number + 2]
            if argument == "--json" and (not after or (after[0].startswith("-") and after[0] != "-")):
                given.append("-")
        return super().parse_args(ctx, given)


def view(
    program: Program,
    plan: Plan = None,
    policy: Policy = None,
    output: Annotated[
        Path | None,
        output_option("Write the HTML page to this file. Default: open it in the browser."),
    ] = None,
    times: Annotated[
        bool, typer.Option(help="Build the program, measure each kernel and show its time. Default: estimates.")
    ] = False,
    backend: Backend = "cpu",
    as_json: Json = False,
) -> None:
    """Show the graph of a compiled program as an HTML page.

    The page has the fusions with their times and reasons, a slider over the decisions, and what each pass changed.

    Example: hlogym view softmax.hlo -o softmax.html

    Example: hlogym view step.hlo --plan plan.json --times -o step.html
    """
    from experiments.view import view_program

    view_program(program, plan, policy, output, times, backend, as_json)


def diff(
    program: Program,
    first: Annotated[
        str, typer.Argument(metavar="A", help="Plan (JSON), policy as of --policy, or default.", callback=found_policy)
    ],
    second: Annotated[
        str, typer.Argument(metavar="[B]", help="Plan or policy that A is compared with.", callback=found_policy)
    ] = "default",
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure what each difference is worth: A beside A without it.")
    ] = False,
    rounds: Annotated[int, typer.Option(help="Number of interleaved timings per plan.", min=2)] = 25,
    backend: Backend = "cpu",
    seed: Seed = 0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Also write a page, if the file ends in .html, or else JSON."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare the decisions of two plans of a program.

    A plan is a file that `hlogym tune` wrote, or what a policy decides. Policies give the reasons for their choices.

    Example: hlogym diff softmax plan.json

    Example: hlogym diff softmax learned default --measure -o softmax.html
    """
    from experiments.differences.command import compare_plans

    compare_plans(program, first, second, backend, measure, rounds, seed, output, as_json)


def reduce(
    program: Program,
    output: Annotated[Path, output_option("Write the reduced program to this file (HLO).")],
    backend: Backend = "cpu",
    policy: Policy = None,
    passes: Annotated[
        str | None,
        typer.Option(help="Comma-separated passes to test in the interpreter instead of the backend. Default: none."),
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Reduce a program that fails or computes a wrong result to a small one that still does, for a bug report.

    Example: hlogym reduce wrong.hlo -o small.hlo

    Example: hlogym reduce wrong.hlo --passes while-loop-unroller,dce -o small.hlo
    """
    from experiments.reduce import reduce_for_backend, reduce_for_passes

    if passes is None:
        reduce_for_backend(program, output, backend, policy, seed, as_json)
    else:
        reduce_for_passes(program, output, passes, seed, as_json)


def doctor(
    calibrate: Calibrate = False,
    cost_model: CostModelFolder = None,
    output: AnswerFile = None,
    as_json: Json = False,
) -> None:
    """Report what is installed, which backends work, and why the others do not; or calibrate the cost model.

    Example: hlogym doctor

    Example: hlogym doctor --calibrate
    """
    if cost_model is not None and not calibrate:
        raise typer.BadParameter("--cost-model is what is calibrated; give it with --calibrate")
    if calibrate:
        from experiments.calibration import calibrate as calibrate_here

        return calibrate_here(cost_model, output, as_json)
    from experiments.doctor import examine

    return examine(as_json, output)


def register(app: typer.Typer) -> None:
    """Add the commands of this module to `app`."""
    for name, function in (
        ("run", run), ("opt", opt), ("compile", compile_command), ("tune", tune), ("bench", bench), ("view", view),
        ("diff", diff), ("reduce", reduce), ("doctor", doctor),
    ):  # fmt: skip
        cls = BenchCommand if function is bench else Command
        app.command(name, rich_help_panel="Programs", cls=cls)(function)
