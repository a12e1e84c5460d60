"""The command `list`: what there is to give to the other commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.command_options import SUITES, AnswerFile, Command, Json, Runs

__all__ = ["register"]


def list_command(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND",
            help="suites, programs, passes, policies, environments, rewards, searches, runs, settings or "
            "backends. Default: how many there are of each.",
        ),
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(help=f"programs: {SUITES}, separated by commas. Default: those of hlogym."),
    ] = None,
    runs: Runs = Path("runs"),
    output: AnswerFile = None,
    as_json: Json = False,
) -> None:
    """List suites, programs, passes, policies, environments, rewards, searches, runs, settings or backends.

    The lists contain what other installed distributions declare as entry points of hlogym, with the distribution, or
    with the reason why it cannot be used.

    Example: hlogym list policies

    Example: hlogym list programs --suite test --json
    """
    from experiments.listing import print_list

    print_list(kind, suite, runs, output, as_json)


def register(app: typer.Typer) -> None:
    """Add the command of this module to `app`."""
    app.command("list", rich_help_panel="Programs", cls=Command)(list_command)
