"""The pass catalogue: a page for each folder of passes, made from the registry and the golden tests."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compiler.passes import PASSES, HloPass
from compiler.passes.pipelines import default
from compiler.passes.pipelines.simplifier import MEMBERS
from docs.tools.markdown import fenced, indented, sentence, table

__all__ = ["pass_pages"]

GOLDEN = Path(__file__).parents[2] / "tests" / "golden"
MARK = "// ---- after\n"
TITLES = {
    "algebra": "Algebra",
    "cleanup": "Cleanup",
    "control_flow": "Control flow",
    "dots": "Dots and convolutions",
    "expanders": "Expanders",
    "loops": "Loops",
    "movement": "Data movement",
    "pipelines": "Pipelines",
    "reductions": "Reductions and sorts",
}
"""Titles of the pages; a folder that is not listed is called by its own name."""


_INTRODUCTION = """
hlogym has {count} passes. Each one has a name, a class in `compiler/passes/`, and golden tests that show HLO before and
after. This catalogue is generated from the code and from those tests.

To run passes, use `hlogym opt FILE.hlo --passes a,b,c`, `compile(text, pipeline=[...])`, or the
[PassOrder environment](../environments/pass_order.md). A pass is written with its options in braces,
`while-loop-unroller{{factor=4}}`, and `name@1` limits it to one sweep over the module.
[A pass](../recipes/pass.md) shows how to add one.
""".strip()
_WHERE = """
*default*: a step of the default pipeline. *simplifier*: its rules are applied by `algebraic-simplifier`, which is a
step of the default pipeline. *lowering*: runs between loop decisions and fusion. *on request*: only where a pipeline, a
plan or an agent names it.
""".strip()


def pass_pages() -> Mapping[str, str]:
    """Return the catalogue as Markdown by page: `index.md` and one page for each folder."""
    folders: dict[str, dict[str, type[HloPass]]] = {}
    for name, cls in sorted(PASSES.items()):
        folders.setdefault(_folder(cls), {})[name] = cls
    pages = {f"{folder}.md": _folder_page(folder, found) for folder, found in sorted(folders.items())}
    return {"index.md": _index(folders), **pages}


def _folder(cls: type[HloPass]) -> str:
    return cls.__module__.removeprefix("compiler.passes.").split(".")[0]


def _title(folder: str) -> str:
    return TITLES.get(folder, folder.replace("_", " ").capitalize())


def _index(folders: Mapping[str, Mapping[str, type[HloPass]]]) -> str:
    parts = ["# Pass catalogue", _INTRODUCTION.format(count=len(PASSES))]
    for folder, found in sorted(folders.items()):
        rows = [[f"[`{n}`]({folder}.md#{n})", _escaped(sentence(c.__doc__)), _where(n)] for n, c in found.items()]
        parts += [f"## {_title(folder)}", table(["Pass", "What it does", "Runs in"], rows)]
    return "\n\n".join([*parts, _WHERE]) + "\n"


def _folder_page(folder: str, found: Mapping[str, type[HloPass]]) -> str:
    parts = [f"# {_title(folder)}"]
    for name, cls in found.items():
        parts += [_section(name, cls)]
    return "\n\n".join(parts) + "\n"


def _section(name: str, cls: type[HloPass]) -> str:
    prose, _, attributes = (inspect.getdoc(cls) or "").partition("\nAttributes:\n")
    parts = [f"## `{name}` {{ #{name} }}", _escaped(prose.rstrip())]
    file = cls.__module__.replace(".", "/") + ".py"
    parts.append(f"Runs in: {_where(name)}. Source: `{file}`.")
    options = _options(cls, _descriptions(attributes))
    if options:
        parts.append(table(["Option", "Default", "Range", "Meaning"], options))
    cases = sorted((GOLDEN / name).glob("*.hlo"))
    for number, case in enumerate(cases):
        shown = _case(case)
        if number == 0:
            parts.append(f"{shown.sentence}{shown.written_as}")
            parts.append(f'=== "Before"\n\n{indented(fenced(shown.before, "hlo"))}')
            parts.append(f'=== "After"\n\n{indented(fenced(shown.after, "hlo"))}')
    if len(cases) > 1:
        more = "\n".join(f"- `{c.relative_to(GOLDEN.parents[1]).as_posix()}`: {_case(c).sentence}" for c in cases[1:])
        parts.append(f"Other cases:\n\n{more}")
    return "\n\n".join(parts)


@dataclasses.dataclass(frozen=True)
class _Case:
    sentence: str
    written_as: str
    before: str
    after: str


def _case(path: Path) -> _Case:
    text, _, after = path.read_text(encoding="utf-8").partition(MARK)
    first, _, before = text.partition("\n")
    written_as = ""
    if before.startswith("// pass: "):
        line, _, before = before.partition("\n")
        written_as = f" (`{line.removeprefix('// pass: ')}`)"
    return _Case(first.removeprefix("// shows: "), written_as, before, after)


def _descriptions(attributes: str) -> dict[str, str]:
    """Return what the section `Attributes` of a docstring says of each name."""
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", attributes, re.MULTILINE)
    return {name: _escaped(" ".join(text.split())) for name, text in entries}


def _options(cls: type[Any], meanings: Mapping[str, str]) -> list[list[str]]:
    return [
        [
            f"`{f.name}`",
            f"`{str(f.default).lower() if isinstance(f.default, bool) else f.default}`",
            _range(f),
            meanings.get(f.name, ""),
        ]
        for f in dataclasses.fields(cls)
    ]


def _range(option: dataclasses.Field[Any]) -> str:
    if isinstance(option.default, bool):
        return "true, false"
    bounds = option.metadata.get("bounds")
    return "an element type" if bounds is None else f"{bounds[0]} to {bounds[1]}"


def _where(name: str) -> str:
    steps = (*default.STRUCTURE, *default.SIMPLIFICATION, *default.LOOPS, "computation-deduplication")
    found = []
    if any(_name(s) == name for s in steps):
        found.append("default")
    if name in MEMBERS:
        found.append("simplifier")
    if any(_name(s) == name for s in default.LOWERING):
        found.append("lowering")
    return ", ".join(found) or "on request"


def _name(step: str) -> str:
    return step.partition("{")[0]


def _escaped(text: str) -> str:
    """Return prose in which stars and angle brackets of formulas are not Markdown; code in backquotes stays."""
    parts = text.split("`")
    for i in range(0, len(parts), 2):
        parts[i] = parts[i].replace("*", "\\*").replace("<", "&lt;").replace("_", "\\_")
    return "`".join(parts)
