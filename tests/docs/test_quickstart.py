"""The quickstart does what it says: its commands run in order, and print what the page shows.

Numbers, such as times, may differ. `pytest tests/docs/test_quickstart.py --update-golden` writes the outputs of a real
run; read the diff.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, Block, blocks_of, masked

ROOT = DOCS.parent
PAGE = DOCS / "quickstart.md"
SHOWN_FOLDER = "/home/me/tour"
"""What the page prints for the folder in which the commands run."""


class Tour:
    """Runs the blocks of the page in one folder, in order.

    Attributes:
        outputs: the text that each block with an output should have, by block.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outputs: dict[Block, str] = {}
        self._printed = ""

    def run(self, block: Block) -> None:
        match block.language, block.title:
            case "hlo", name:
                (self.folder / name).parent.mkdir(exist_ok=True)
                (self.folder / name).write_text(block.text, encoding="utf-8")
            case "sh", _:
                for line in block.text.splitlines():
                    self._dry_run(line)
            case "console", _:
                self.outputs[block] = "\n".join(self._console(block))
            case "python", _:
                (self.folder / "script.py").write_text(block.text, encoding="utf-8")
                self._printed = self._python("script.py")
            case "text", "Output":
                self.outputs[block] = self._printed
            case _:
                raise AssertionError(f"nothing runs a block of {block.language!r} with title {block.title!r}")

    def _dry_run(self, line: str) -> None:
        """Run a command whose output is not shown; those of the installation are checked without installing."""
        if line == ". .venv/bin/activate":
            return
        program, *arguments = shlex.split(line)
        if program == "hlogym":
            self._python("-m", "experiments.cli", *arguments)
            return
        assert program == "make", f"nothing runs {line!r}"
        subprocess.run(["make", "-n", *arguments], cwd=ROOT, capture_output=True, check=True, timeout=60)

    def _console(self, block: Block) -> Iterator[str]:
        for command in (line[2:] for line in block.text.splitlines() if line.startswith("$ ")):
            program, *arguments = shlex.split(command)
            assert program == "hlogym"
            yield f"$ {command}"
            yield self._python("-m", "experiments.cli", *arguments)

    def _python(self, *arguments: str) -> str:
        caches = {"XDG_CACHE_HOME": str(self.folder / "cache"), "HOME": str(self.folder)}
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.folder, env={**os.environ, **caches, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        lines = done.stdout.replace(str(self.folder), SHOWN_FOLDER).splitlines()
        return "\n".join(line.rstrip() for line in lines).strip("\n") + "\n"


@pytest.mark.timeout(600)
def test_quickstart(tmp_path: Path, update_golden: bool) -> None:
    markdown = PAGE.read_text(encoding="utf-8")
    blocks = blocks_of(markdown)
    tour = Tour(tmp_path)

    for block in blocks:
        tour.run(block)

    if update_golden:
        for block, output in sorted(tour.outputs.items(), key=lambda item: -item[0].start):
            markdown = markdown[: block.start] + output.rstrip("\n") + "\n" + markdown[block.end :]
        PAGE.write_text(markdown, encoding="utf-8")
    for block, output in tour.outputs.items():
        assert masked(output) == masked(block.text) or update_golden
    assert len(tour.outputs) >= 7
