"""The reference of the command line, made from what `--help` says."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import click
import typer.main

from docs.tools.markdown import fenced, sentence, table
from experiments.cli import app

__all__ = ["command_line_page"]


def command_line_page() -> str:
    """Return the page as Markdown."""
    group = typer.main.get_command(app)
    parts = [
        "# Command line",
        "`hlogym --help` lists the commands, and each command has `--help` with an example. This page is generated "
        "from the same source. The exit status is 0 on success, 1 on an error, 2 if the command line cannot be read, "
        "and 130 after Ctrl-C; an interrupted command keeps what it has found and says where. Any command takes "
        "`--debug`, which shows where an error came from.",
    ]
    panels: dict[str, list[tuple[str, click.Command]]] = {}
    for panel, name, command in _commands(group):
        panels.setdefault(panel, []).append((name, command))
    for panel, commands in panels.items():
        rows = [[f"[`hlogym {name}`](#{_anchor(name)})", sentence(_split(command)[0])] for name, command in commands]
        parts += [f"## {panel}", table(["Command", "What it does"], rows)]
        for name, command in commands:
            parts += _section(name, command)
    return "\n\n".join(parts) + "\n"


def _commands(group: Any) -> Iterator[tuple[str, str, click.Command]]:
    """Yield the panel, the name and each command of a group; a command of an inner group has both names."""
    for name, command in group.commands.items():
        panel = getattr(command, "rich_help_panel", "Commands")
        if hasattr(command, "commands"):
            yield from ((panel, f"{name} {inner}", its) for _, inner, its in _commands(command))
        else:
            yield panel, name, command


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def _section(name: str, command: click.Command) -> Iterator[str]:
    text, examples = _split(command)
    yield f"### `hlogym {name}` {{ #{_anchor(name)} }}"
    yield text
    if examples:
        yield fenced("\n".join(examples), "sh", title="Example" if len(examples) == 1 else "Examples")
    rows = [_row(p) for p in command.params if p.name != "help"]
    if rows:
        yield table(["Argument or option", "Default", "Meaning"], rows)


def _split(command: click.Command) -> tuple[str, list[str]]:
    """Return the help text without its examples, and the examples."""
    paragraphs = [" ".join(p.split()) for p in inspect.cleandoc(command.help or "").split("\n\n")]
    plain = [p for p in paragraphs if "hlogym " not in p or ": hlogym " not in p]
    examples = [p.split(": ", 1)[1] for p in paragraphs if ": hlogym " in p]
    return "\n\n".join(plain), examples


def _row(parameter: click.Parameter) -> list[str]:
    helped = str(getattr(parameter, "help", "") or "")
    if parameter.param_type_name == "argument":
        shown = parameter.metavar or (parameter.name or "").upper()
        return [f"`{shown}`", "required" if parameter.required else "", helped]
    names = ", ".join(f"`{n}`" for n in [*parameter.opts, *parameter.secondary_opts])
    default = parameter.default
    if parameter.required:
        shown = "required"
    elif default is None or default is False or default == [] or default == ():
        shown = ""
    elif default is True:
        shown = "on"
    else:
        shown = f"`{default}`"
    return [names, "" if re.fullmatch(r"``", shown) else shown, helped]
