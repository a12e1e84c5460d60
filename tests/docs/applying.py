"""Applying the recipes of the documentation to a copy of the source tree, by the snippets that their pages show."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SNIPPETS = ROOT / "docs" / "recipes" / "snippets"
PACKAGES = ("compiler", "env", "agents", "experiments", "tests", "hlogym.py", "pyproject.toml")


@dataclass(frozen=True)
class Touched:
    """The files that a recipe creates, and those that it changes."""

    new: tuple[Path, ...]
    changed: tuple[Path, ...]

    @property
    def all(self) -> tuple[Path, ...]:
        return (*self.new, *self.changed)


def copy_tree(target: Path) -> Path:
    """Copy what can be imported, without results and caches."""
    for name in PACKAGES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target / name)
    return target


def apply_recipe(name: str, tree: Path) -> Touched:
    """Put the files of a recipe into a tree, and its `.diff` files into the files that they name."""
    new, changed = [], []
    for snippet in sorted(p for p in (SNIPPETS / name).rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        relative = snippet.relative_to(SNIPPETS / name)
        if snippet.suffix == ".diff":
            target = tree / relative.with_suffix("")
            target.write_text(insert(target.read_text(encoding="utf-8"), snippet), encoding="utf-8")
            changed.append(relative.with_suffix(""))
        else:
            target = tree / relative
            assert not target.exists(), f"{relative} is there already"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(snippet, target)
            new.append(relative)
    return Touched(tuple(new), tuple(changed))


def insert(text: str, snippet: Path) -> str:
    """Return the text with the `+` lines of a diff behind its context lines, which must occur once."""
    lines = snippet.read_text(encoding="utf-8").splitlines()
    context = "".join(f"{line[1:]}\n" for line in lines if line.startswith(" "))
    added = "".join(f"{line[1:]}\n" for line in lines if line.startswith("+"))
    assert text.count(context) == 1, f"{snippet}: its context occurs {text.count(context)} times"
    return text.replace(context, context + added)


def run_python(tree: Path, *arguments: str, timeout: float = 250) -> str:
    """Run Python in a tree; its output, or an assertion with what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=tree, env=environment, capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
