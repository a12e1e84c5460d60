"""Writes the jax suite: lowers the programs of `env.suites.jax_programs` to HLO text, with a manifest.

    python -m env.suites.lower_jax [--out DIR]

Needs JAX (`pip install 'hlogym[jax]'`); reading the suite does not. Programs whose text is longer than MAX_TEXT are
left out. A program's split hangs on its name alone, so a program added later moves no other.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.support.files import write_file
from env.suites import JAX, InputSpec, Normal, Randint, Split, Uniform

MAX_TEXT = 64_000
SPECS: dict[str, tuple[InputSpec, ...]] = {"elementary_functions_at_infinities": (Uniform(-1, 3),)}
"""Inputs of programs whose own arguments, drawn at random, would give outputs without a finite number."""
_SPLITS: tuple[Split, ...] = ("test", "validation", "train", "test", "train", "train")
"""A third is held out from learning, a sixth is for choosing settings."""


def split_of(name: str) -> Split:
    """What a program is for."""
    return _SPLITS[zlib.crc32(name.encode()) % len(_SPLITS)]


def spec_of(array: npt.NDArray[Any]) -> InputSpec:
    """Random inputs of the kind of an argument: its range for whole numbers, its spread for the others."""
    if array.dtype == np.bool_:
        return Randint(0, 2)
    if array.dtype.kind in "iu" or "int" in array.dtype.name:
        whole = array.astype(np.int64)
        # A program may hang on what its own arguments leave out: a Collatz sequence never ends from 0.
        return Randint(int(whole.min()), int(whole.max()) + 1) if whole.size else Randint(0, 2)
    values = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    finite = np.abs(values[np.isfinite(values)]) if array.dtype.kind == "c" else values[np.isfinite(values)]
    if finite.size and array.dtype.kind != "c" and finite.min() >= 0:
        low, high = round(float(finite.min()), 3), round(max(float(finite.max()), 1.0), 3)
        return Uniform(low, high) if low < high else Normal(low, 0.0)
    return Normal(0.0, round(float(finite.std()), 3) if finite.size > 1 else 1.0)


def entry(name: str, builder: Callable[..., Any]) -> tuple[str, dict[str, Any]]:
    """A program's HLO text, and what the manifest says of it."""
    import jax

    from env.suites.lowering import lower_to_text

    fn, args = builder()
    specs = SPECS.get(name) or [spec_of(np.asarray(leaf)) for leaf in jax.tree.leaves(args)]
    told = (fn.__doc__ or builder.__doc__ or name.replace("_", " ")).strip().partition("\n")[0]
    return lower_to_text(fn, *args), {
        "name": name,
        "file": f"{name}.hlo",
        "split": split_of(name),
        "description": told,
        "inputs": [spec.to_json() for spec in specs],
    }


def write_suite(out: Path) -> list[dict[str, Any]]:
    """Writes every program and the manifest to `out`; returns the manifest's entries."""
    import jax

    from env.suites.jax_programs import PROGRAMS

    entries = []
    for name, builder in PROGRAMS.items():
        text, told = entry(name, builder)
        if len(text) <= MAX_TEXT:
            write_file(out / told["file"], text)
            entries.append(told)
    lines = ",\n".join(f"  {json.dumps(told)}" for told in entries)
    head = json.dumps({"lowered_with": f"jax {jax.__version__}"}).removesuffix("}")
    write_file(out / "manifest.json", f'{head}, "programs": [\n{lines}\n]}}\n')
    return entries


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=JAX, help="folder to write to (default: the suite's own)")
    out = parser.parse_args().out
    try:
        entries = write_suite(out)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("jax", "jaxlib"):
            raise
        print("error: lowering needs JAX: pip install 'hlogym[jax]'", file=sys.stderr)
        return 1
    print(f"{len(entries)} programs written to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
