"""A small distribution that declares entry points, written into a folder on the path of imports."""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path

import pytest

_NUMBERS = itertools.count()


def install(
    monkeypatch: pytest.MonkeyPatch, folder: Path, source: str, entries: dict[str, dict[str, str]], name: str = "acme"
) -> str:
    """Write a distribution into a folder, put it on the path, and return the name of its only module.

    Args:
        monkeypatch: undoes the change of the path.
        folder: where to write.
        source: the source of the module.
        entries: group -> name of the entry point -> object in the module.
        name: the name of the distribution; its version is 1.2.
    """
    module = f"{name}_module{next(_NUMBERS)}"
    site = folder / f"site_{module}"
    info = site / f"{name}-1.2.dist-info"
    info.mkdir(parents=True)
    (site / f"{module}.py").write_text(textwrap.dedent(source))
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    lines = []
    for group, rows in entries.items():
        lines += [f"[{group}]", *(f"{key} = {module}:{value}" for key, value in rows.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(site))
    return module
