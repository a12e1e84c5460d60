"""The command line `hlogym`: its commands, and errors reported as one readable message."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from io import TextIOWrapper
from pathlib import Path

if __name__ == "__main__":
    # `python -m` searches the current folder first, where a user's `env.py` or `numpy.py` would shadow the real module.
    _here = os.path.realpath(os.curdir)
    if _here != os.path.dirname(os.path.dirname(os.path.realpath(__file__))):  # noqa: PTH120 - pathlib is not loaded yet
        sys.path[:] = [p for p in sys.path if p and os.path.realpath(p) != _here]
    from experiments.quiet_imports import quiet_interruption

    quiet_interruption()

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from compiler.errors import HlogymError
from compiler.support.safe_names import printable
from experiments import commands_compile, commands_leaderboard, commands_learn, commands_list
from experiments.interruption import INTERRUPTED, insisting, status_of_signal
from experiments.module_command import error_text
from experiments.quiet_imports import usual_interruption

__all__ = ["app", "main"]


class _Group(TyperGroup):
    """The commands; an interrupted one says what it has kept and ends with status 130, or 143 after SIGTERM."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command of the context."""
        usual_interruption()
        try:
            with insisting():
                return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            kept = [a for a in stop.args if isinstance(a, str)]
            print(printable("; ".join(["stopped", *kept])), file=sys.stderr)
            raise SystemExit(status_of_signal()) from None


app = typer.Typer(
    cls=_Group,
    epilog="Every command accepts --debug, which prints the traceback of an error, and --open-test PURPOSE, which "
    "opens sealed test programs and records it. Start with: hlogym demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
commands_compile.register(app)
commands_learn.register(app)
commands_leaderboard.register(app)
commands_list.register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        from experiments.listing import version_text

        print(version_text())
        raise typer.Exit


@app.callback(help="An HLO compiler whose decisions are learned by agents from measured kernel time.")
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take the options that come before the name of a command."""
    del version


def main() -> None:
    """Run the command line and exit with status 0 on success, 1 on an error, 2 on a usage error, 130 if interrupted."""
    if sys.stdout is None:  # closed by the parent process; the command still does its work
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - for as long as the process lives
    debug = "--debug" in sys.argv
    sys.argv = [a for a in sys.argv if a != "--debug"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # do not fail on characters that the terminal's encoding lacks
            stream.reconfigure(errors="backslashreplace")
    try:
        with _opened(_take_open_test()):
            app(prog_name="hlogym")
    except BrokenPipeError:
        # The reader closed the pipe (`| head`). Python would raise again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:  # before or after the command itself
        print("stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except Exception as error:
        if debug:
            raise
        # A message may quote a program, a file or another compiler's output, and with it control characters.
        print(printable(_message(error)), file=sys.stderr)
        sys.exit(1)


def _take_open_test() -> str | None:
    """Remove `--open-test PURPOSE` from the command line and return the purpose; None if it is not there."""
    for number, argument in enumerate(sys.argv):
        if argument == "--open-test" and number + 1 < len(sys.argv):
            purpose = sys.argv[number + 1]
            del sys.argv[number : number + 2]
            return purpose
        if argument.startswith("--open-test="):
            del sys.argv[number]
            return argument.partition("=")[2]
    return None


def _opened(purpose: str | None) -> AbstractContextManager[None]:
    """Return a context in which test programs are open, if there is a purpose."""
    if purpose is None:
        return nullcontext()
    from env.suites import open_test_programs

    return open_test_programs(purpose)


def _message(error: Exception) -> str:
    match error:
        case HlogymError() | OSError(strerror=str()):
            return error_text(error)
        case _:
            first = (str(error).splitlines() or [""])[0]
            return f"error: {type(error).__name__}: {first}\nThis is a bug in hlogym; --debug shows where it happened."


if __name__ == "__main__":
    main()
