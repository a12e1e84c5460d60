"""What is printed is what was said: no markup, no emoji codes, no control of the terminal."""

from __future__ import annotations

import sys

import pytest
from rich.progress import TextColumn
from rich.table import Table
from rich.text import Text

from compiler.errors import HlogymError
from experiments import cli
from experiments.console import PlainConsole, progress

TEXTS = ("[red]x[/red]", "[/nothing]", ":warning:", "a\\[b", "$x$")


@pytest.mark.parametrize("text", TEXTS)
def test_texts_are_shown_as_they_are(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    console = PlainConsole(width=200)
    console.print(text)
    table = Table(text, title=text)
    table.add_row(text)
    console.print(table)
    assert capsys.readouterr().out.count(text) == 4


def test_control_characters_are_spelled_out_but_layout_stays(capsys: pytest.CaptureFixture[str]) -> None:
    PlainConsole(width=200).print("a\x1b[2J\x07\r\u202eb\nsecond", Text("styled", "bold"))
    assert capsys.readouterr().out == "a\\x1b[2J\\x07\\r\\u202eb\nsecond styled\n"


def test_a_bar_shows_its_description_as_it_is() -> None:
    with progress() as bar:
        task = bar.add_task("training [red]x[/red] {0} \x1b[2J", total=1)
        column = bar.columns[1]
        assert isinstance(column, TextColumn)
        shown = column.render(next(t for t in bar.tasks if t.id == task))
    assert str(shown) == "training [red]x[/red] {0} \\x1b[2J"


def test_errors_do_not_control_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise HlogymError("gcc says: \x1b[31merror\x1b[0m\nline two \x9b2J")

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.setattr(sys, "argv", ["hlogym"])
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err == "error: gcc says: \\x1b[31merror\\x1b[0m\nline two \\x9b2J\n"
