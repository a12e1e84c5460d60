"""Arguments and options that commands share, so that each is written, checked and described in one way."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand

__all__ = [
    "AnswerFile", "Backend", "Command", "Json", "Plan", "Policy", "Program", "Results", "Rules", "Runs", "Seed",
    "Track", "Workers", "found_policy", "output_option",
]  # fmt: skip

NAMES = frozenset({
    "config", "cost_model", "entries", "export_to", "first", "folder", "inputs", "json_file", "markdown",
    "markdown_file", "order", "output", "plan", "plans", "policy", "program", "programs", "results", "run", "runs",
    "second", "suite",
})  # fmt: skip
"""Parameters of commands that name files, folders, programs, policies and runs."""
PROGRAMS = (
    "File of HLO, HloProto or StableHLO, dump folder of XLA (DUMP, DUMP:NAME, DUMP:NAME:after), name of a program in "
    "the suites, or - for standard input."
)
SUITES = "suites, folders, dumps of XLA, files, or programs of the suites"
POLICIES = (
    "heuristic, learned, learned:rules, a fusion policy such as priority or 'merger{transposed_share=0.3}', the folder "
    "of an exported policy, the name or folder of a training run (its best policy), or models:/NAME/VERSION of "
    "MLflow's registry. `hlogym list policies` lists the names."
)
WORKERS = (
    "Where plans are measured: local; local:N for N workers on this machine; ray or ray#N for the Ray cluster that "
    "runs on this machine, ray://HOST:PORT#N for another."
)


class Command(TyperCommand):
    """A command that refuses empty names of files, programs and policies: often variables of a shell that are not set.

    As a path, an empty name would be the current folder.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; typer.BadParameter if a name is empty."""
        given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        param: Any  # of click, or of the copy in newer versions of Typer
        for param in self.get_params(ctx):
            values = given.get(param.name)
            if param.name in NAMES and "" in (values if isinstance(values, list | tuple) else (values,)):
                raise typer.BadParameter("the name is empty", ctx, param)
        return super().parse_args(ctx, args)


def found_policy(policy: str | None) -> str | None:
    """Return a policy of the command line as the compiler takes it; see `find_policy`."""
    if policy is None:
        return None
    from experiments.policy_arguments import find_policy

    return find_policy(policy)


def output_option(text: str) -> typer.models.OptionInfo:
    """Return the option `-o` of a command; the text says what is written."""
    option: typer.models.OptionInfo = typer.Option("--output", "-o", help=text)
    return option


Program: TypeAlias = Annotated[str, typer.Argument(metavar="PROGRAM", help=PROGRAMS)]
Backend: TypeAlias = Annotated[
    str, typer.Option(help="cpu, cuda, xla, interpreter, or auto (cuda if there is a GPU, else cpu).")
]
Policy: TypeAlias = Annotated[
    str | None, typer.Option(help=f"What decides: {POLICIES} Default: the compiler's own.", callback=found_policy)
]
Plan: TypeAlias = Annotated[
    Path | None, typer.Option(help="Replay the decisions of this plan (JSON) instead of asking a policy.")
]
Rules: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--rule",
        help="Rule about fusions, such as 'forbid exp* with op:reduce', 'force a with b', 'require scope:*softmax*'. "
        "May be given several times.",
    ),
]
PlanReward: TypeAlias = Annotated[
    str,
    typer.Option(
        help="What plans are compared by: measured-time, estimated-time (the cost model), or emulated-time (predicted "
        "for a GPU, without one). Predicted plans are not checked against the interpreter."
    ),
]
Seed: TypeAlias = Annotated[int, typer.Option(help="Seed of all random numbers.", min=0, max=2**32 - 1)]
Workers: TypeAlias = Annotated[str, typer.Option(metavar="WHERE", help=WORKERS)]
Results: TypeAlias = Annotated[Path, typer.Option(help="Folder of results.")]
Runs: TypeAlias = Annotated[Path, typer.Option(help="Folder of training runs and of the local MLflow store.")]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Track: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--track/--no-track",
        help="Record the results in MLflow. Default: if MLFLOW_TRACKING_URI is set, or --runs has a store.",
    ),
]
AnswerFile: TypeAlias = Annotated[Path | None, output_option("Also write the answer to this file (JSON).")]
