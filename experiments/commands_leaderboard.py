"""The commands `leaderboard entry`, `leaderboard verify` and `leaderboard page`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.command_options import Command

__all__ = ["register"]

Entries = Annotated[list[Path], typer.Argument(metavar="ENTRY...", help="Folders of entries.")]
Results = Annotated[Path, typer.Option(help="Folder of verified results.")]
_RESULTS = Path("results/leaderboard")


def entry(
    output: Annotated[Path, typer.Option("--output", "-o", help="New folder for the entry.")],
    name: Annotated[str, typer.Option(help="Name of the entry.")],
    author: Annotated[str, typer.Option(help="Who made it.")],
    suite: Annotated[str, typer.Option(help="Suite that it is for: a name, or a folder for one of your own.")],
    policy: Annotated[
        str | None,
        typer.Option(
            help="The policy: the folder of an exported one, the name or folder of a training run (its best policy), "
            "models:/NAME/VERSION of MLflow's registry, or a name of `hlogym policies`."
        ),
    ] = None,
    plans: Annotated[
        Path | None, typer.Option(help="Folder with a plan PROGRAM.json for each program of the suite.")
    ] = None,
    about: Annotated[str, typer.Option(help="One or two sentences about it.")] = "",
    backend: Annotated[str, typer.Option(help="Backend that it is for.")] = "cpu",
    decides: Annotated[
        str, typer.Option(help="Comma-separated phases that the plans decide; those of a policy are known.")
    ] = "passes,expansions,loops,fusion,kernels",
) -> None:
    """Write an entry from an exported policy, or from a plan per program.

    Example: hlogym leaderboard entry --policy my-policy --name mine --author "A. Name" --suite validation -o mine
    """
    from experiments.leaderboard.commands import make_entry

    if (policy is None) == (plans is None):
        raise typer.BadParameter("give either --policy or --plans")
    make_entry(output, name, author, suite, policy, plans, about, backend, decides.split(","))


def verify(
    entries: Entries,
    results: Results = _RESULTS,
    suite: Annotated[
        Path | None, typer.Option(help="Folder of the suite that the entries name. Default: the suite of hlogym.")
    ] = None,
    processes: Annotated[int, typer.Option(help="Fresh processes per program and entry.", min=1)] = 2,
    rounds: Annotated[int, typer.Option(help="ABBA blocks per process at most.", min=2)] = 25,
    seconds: Annotated[float, typer.Option(help="Time limit of the blocks in seconds.", min=0)] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.", min=0, max=2**32 - 1)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Compile, check and time entries beside the default plan on this machine, and sign their results.

    Example: hlogym leaderboard verify entries/rules entries/mine
    """
    from experiments.leaderboard.commands import verify_entries
    from experiments.leaderboard.verification import Measuring

    verify_entries(entries, results, Measuring(processes, rounds, seconds, seed), suite, as_json)


def page(
    entries: Entries,
    output: Annotated[Path, typer.Option("--output", "-o", help="HTML file to write.")],
    results: Results = _RESULTS,
) -> None:
    """Write one HTML page of entries that were verified on this machine.

    Example: hlogym leaderboard page entries/rules entries/mine -o leaderboard.html
    """
    from experiments.leaderboard.commands import make_page

    make_page(entries, results, output)


def register(app: typer.Typer) -> None:
    """Add the group of commands to `app`."""
    group = typer.Typer(
        help="Verify entries of a leaderboard on this machine, and make a page of them.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    for name, function in (("entry", entry), ("verify", verify), ("page", page)):
        group.command(name, cls=Command)(function)
    app.add_typer(group, name="leaderboard", rich_help_panel="Learning")
