"""Strings are printed verbatim: without markup or emoji codes, and with control characters escaped."""

from __future__ import annotations

import sys
import time

import pytest
from rich.progress import TextColumn
from rich.table import Table
from rich.text import Text

from compiler.errors import HlogymError
from experiments import cli, console
from experiments.console import PlainConsole, clock, pace, progress

STRINGS = ("[red]x[/red]", "[/nothing]", ":warning:", "a\\[b", "$x$")


@pytest.mark.parametrize("text", STRINGS)
def test_strings_are_printed_verbatim(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    console = PlainConsole(width=200)
    console.print(text)
    table = Table(text, title=text)
    table.add_row(text)
    console.print(table)
    assert capsys.readouterr().out.count(text) == 4


def test_control_characters_are_escaped_and_newlines_kept(capsys: pytest.CaptureFixture[str]) -> None:
    PlainConsole(width=200).print("a\x1b[2J\x07\r\u202eb\nsecond", Text("styled", "bold"))
    assert capsys.readouterr().out == "a\\x1b[2J\\x07\\r\\u202eb\nsecond styled\n"


def test_a_progress_bar_shows_its_description_verbatim() -> None:
    with progress() as bar:
        task = bar.add_task("training [red]x[/red] {0} \x1b[2J", total=1)
        column = bar.columns[1]
        assert isinstance(column, TextColumn)
        shown = column.render(next(t for t in bar.tasks if t.id == task))
    assert str(shown) == "training [red]x[/red] {0} \\x1b[2J"


def test_the_pace_is_a_rate_and_the_time_left() -> None:
    assert pace(None, None) == ""
    assert pace(12.3, 80.4) == "12/s, 1 min 20 s left"
    assert pace(0.05, 7300) == "3.0/min, 2 h 1 min left"
    assert [clock(s) for s in (0.4, 59.6, 3599, 3600)] == ["0 s", "1 min 0 s", "59 min 59 s", "1 h 0 min"]


def test_without_a_terminal_progress_is_a_line_from_time_to_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "PERIOD", 0.05)
    with progress() as bar:
        task = bar.add_task("training first", total=20)
        bar.update(task, completed=5, so_far="speedup 1.42x")
        time.sleep(0.3)
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("training first: 5/20, ")
    assert first.endswith(", speedup 1.42x")


def test_control_characters_in_errors_are_escaped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**options: str) -> None:
        raise HlogymError("gcc says: \x1b[31merror\x1b[0m\nline two \x9b2J")

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.setattr(sys, "argv", ["hlogym"])
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err == "error: gcc says: \\x1b[31merror\\x1b[0m\nline two \\x9b2J\n"
