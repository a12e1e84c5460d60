"""Writes the quickstart suite: lowers its programs with JAX to HLO text, before any optimisation, with a manifest.

    python -m env.suites.lower_quickstart [--out DIR]

Needs JAX (`pip install 'hlogym[jax]'`); reading the suite does not. What a program lowers to changes with JAX, so the
manifest says which version wrote it, and the files are written anew only on purpose.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.support.files import write_file
from env.suites import QUICKSTART

if TYPE_CHECKING:
    from env.suites.quickstart_programs import Recipe

# Texts that no script lowered: quoted in notes on XLA (XLA before and after its optimisations), kept letter for letter.
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
    """HLO text of one program: not optimised, every constant in full, no metadata."""
    import jax

    from env.suites.lowering import lower_to_text

    arguments = [jax.ShapeDtypeStruct(a.dims, a.dtype) for a in recipe.arguments]  # type: ignore[no-untyped-call]
    return lower_to_text(recipe.function, *arguments)


def manifest_entry(recipe: Recipe) -> dict[str, Any]:
    """What the manifest says of one program; what is empty is left out."""
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
    """Writes every program and the manifest to `out`; returns the files written."""
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


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=QUICKSTART, help="folder to write to (default: the suite's own)")
    out = parser.parse_args().out
    try:
        written = write_suite(out)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("jax", "jaxlib"):
            raise
        print("error: lowering needs JAX: pip install 'hlogym[jax]'", file=sys.stderr)
        return 1
    print(f"{len(written)} files written to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
