"""The command line, run in this process."""

import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from experiments.cli import main


class Reply(NamedTuple):
    status: int
    out: str
    err: str


class Shell:
    """Runs the command line in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def __call__(self, *arguments: str | Path) -> Reply:
        self._monkeypatch.setattr(sys, "argv", ["hlogym", *map(str, arguments)])
        status = 0
        try:
            main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        out, err = self._capsys.readouterr()
        return Reply(status, out, err)

    def fails(self, *arguments: str | Path) -> str:
        """Run a command that must fail and return its error message."""
        reply = self(*arguments)
        assert reply.status != 0, reply.out
        assert "Traceback" not in reply.err
        assert reply.err.startswith("error: "), reply.err
        assert "bug in hlogym" not in reply.err
        return reply.err
