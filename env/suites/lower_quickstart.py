"""Write the quickstart suite: lower its programs with JAX to HLO text, before any optimisation, with a manifest.

    python -m env.suites.lower_quickstart [--out DIR]

Needs JAX (`pip install 'hlogym[jax]'`); reading the suite does not. What a program lowers to changes with JAX, so the
manifest records the version that wrote it, and the files are only rewritten on purpose.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.support.files import write_file
from env.suites import QUICKSTART
from env.suites.lowering_command import run_lowering

if TYPE_CHECKING:
    from env.suites.quickstart_programs import Recipe

# Programs that were not lowered here: XLA's dumps before and after its optimisations, kept unchanged.
QUOTED: tuple[dict[str, Any], ...] = tuple(
    {
        "name": name,
        "file": f"{name}.hlo",
        "split": "extra",
        "description": f"x + 1 as TensorFlow wrote it, {when} XLA's optimisations",
        "inputs": [{"kind": "normal", "mean": 0.0, "std": 1.0}],
    }
    for name, when in (("seed_broadcast_add_before", "before"), ("seed_broadcast_add_after", "after"))
)


def lower(recipe: Recipe) -> str:
    """Return the HLO text of a program: not optimised, every constant in full, no metadata."""
    import jax

    from env.suites.lowering import lower_to_text

    arguments = [jax.ShapeDtypeStruct(a.dims, a.dtype) for a in recipe.arguments]  # type: ignore[no-untyped-call]
    return lower_to_text(recipe.function, *arguments)


def manifest_entry(recipe: Recipe) -> dict[str, Any]:
    """Return the entry of a program in the manifest, without empty fields."""
    name = recipe.function.__name__
    entry: dict[str, Any] = {
        "name": name,
        "file": f"{name}.hlo",
        "split": recipe.split,
        "description": recipe.description,
        "inputs": [a.spec.to_json() for a in recipe.arguments],
    }
    if recipe.tolerance is not None:
        entry["tolerance"] = recipe.tolerance.to_json()
    if recipe.chaotic:
        entry["chaotic"] = True
    if recipe.comment:
        entry["comment"] = recipe.comment
    return entry


def write_suite(out: Path) -> list[Path]:
    """Write every program and the manifest to `out`, and return the files written."""
    import jax

    from env.suites.quickstart_programs import RECIPES

    written = []
    for recipe in RECIPES:
        path = out / f"{recipe.function.__name__}.hlo"
        write_file(path, lower(recipe))
        written.append(path)
    if out.resolve() != QUICKSTART.resolve():
        for entry in QUOTED:
            write_file(out / entry["file"], (QUICKSTART / entry["file"]).read_bytes())
            written.append(out / entry["file"])
    manifest = {
        "lowered_with": f"jax {jax.__version__}",
        "programs": [manifest_entry(recipe) for recipe in RECIPES] + list(QUOTED),
    }
    path = out / "manifest.json"
    write_file(path, json.dumps(manifest, indent=2) + "\n")
    return [*written, path]


if __name__ == "__main__":
    sys.exit(run_lowering(__doc__, QUICKSTART, write_suite))
