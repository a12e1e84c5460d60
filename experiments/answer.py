"""What a command answers: text for a person, or the same facts as JSON, on standard output and in a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from experiments.console import stdout
from experiments.results import write_text

__all__ = ["give_answer", "print_fields"]

_WIDTH = 10


def give_answer(facts: Any, show: Callable[[], object], as_json: bool, output: Path | None = None) -> None:
    """Print the answer of a command: as text, or as JSON where `--json` was given.

    Args:
        facts: the answer as plain data.
        show: prints the answer as text.
        as_json: print JSON instead of text.
        output: file that receives the JSON too; None: no file. Call `check_output` before the work begins.

    Raises:
        ResultError: the file cannot be written.
    """
    text = json.dumps(facts, indent=2)
    if output is not None:
        write_text(output, text + "\n")
    if as_json:
        print(text)
    else:
        show()


def print_fields(fields: Mapping[str, object]) -> None:
    """Print one line per field, with the values in one column; fields that are None are left out."""
    width = max([_WIDTH, *(len(name) + 2 for name, value in fields.items() if value is not None)])
    for name, value in fields.items():
        if value is not None:
            first, *rest = str(value).splitlines() or [""]
            lines = [f"{name:{width}}{first}", *(" " * width + line for line in rest)]
            stdout.print("\n".join(lines), soft_wrap=True)
