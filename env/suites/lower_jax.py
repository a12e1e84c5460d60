"""Write the jax suite: lower the programs of `env.suites.jax_programs` to HLO text, with a manifest.

    python -m env.suites.lower_jax [--out DIR]

Needs JAX (`pip install 'hlogym[jax]'`); reading the suite does not. Programs whose text is longer than MAX_TEXT are
left out. The split of a program depends on its family, which for most is the program itself, so that adding a program
moves no other.
"""

from __future__ import annotations

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
from env.suites.lowering_command import run_lowering

MAX_TEXT = 64_000
SPECS: dict[str, tuple[InputSpec, ...]] = {"elementary_functions_at_infinities": (Uniform(-1, 3),)}
"""Specs for programs whose outputs would have no finite element if their inputs were drawn by `spec_of`."""
_SPLITS: tuple[Split, ...] = ("test", "validation", "train", "test", "train", "train")
"""A third of the programs is held out from training, a sixth is for choosing settings."""
_FAMILIES: dict[str, Split] = {"random": "train", "special": "validation"}
"""Families of several programs, by the first word of their names."""


def family_of(name: str) -> str:
    """Return the family of a program."""
    first = name.partition("_")[0]
    return first if first in _FAMILIES else name


def split_of(name: str) -> Split:
    """Return the split of a program, which is that of its family."""
    if (family := family_of(name)) in _FAMILIES:
        return _FAMILIES[family]
    return _SPLITS[zlib.crc32(name.encode()) % len(_SPLITS)]


def spec_of(array: npt.NDArray[Any]) -> InputSpec:
    """Return a spec that draws inputs like an argument: the same range for integers, the same spread for floats."""
    if array.dtype == np.bool_:
        return Randint(0, 2)
    if array.dtype.kind in "iu" or "int" in array.dtype.name:
        whole = array.astype(np.int64)
        # A value outside that range may never terminate: a Collatz sequence does not end from 0.
        return Randint(int(whole.min()), int(whole.max()) + 1) if whole.size else Randint(0, 2)
    values = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    finite = np.abs(values[np.isfinite(values)]) if array.dtype.kind == "c" else values[np.isfinite(values)]
    if finite.size and array.dtype.kind != "c" and finite.min() >= 0:
        low, high = round(float(finite.min()), 3), round(max(float(finite.max()), 1.0), 3)
        return Uniform(low, high) if low < high else Normal(low, 0.0)
    return Normal(0.0, round(float(finite.std()), 3) if finite.size > 1 else 1.0)


def entry(name: str, builder: Callable[..., Any]) -> tuple[str, dict[str, Any]]:
    """Return the HLO text of a program, and its entry in the manifest."""
    import jax

    from env.suites.lowering import lower_to_text

    fn, args = builder()
    specs = SPECS.get(name) or [spec_of(np.asarray(leaf)) for leaf in jax.tree.leaves(args)]
    description = (fn.__doc__ or builder.__doc__ or name.replace("_", " ")).strip().partition("\n")[0]
    return lower_to_text(fn, *args), {
        "name": name,
        "file": f"{name}.hlo",
        "split": split_of(name),
        "family": family_of(name),
        "description": description,
        "inputs": [spec.to_json() for spec in specs],
    }


def write_suite(out: Path) -> list[dict[str, Any]]:
    """Write every program and the manifest to `out`, and return the manifest's entries."""
    import jax

    from env.suites.jax_programs import PROGRAMS

    entries = []
    for name, builder in PROGRAMS.items():
        text, described = entry(name, builder)
        if len(text) <= MAX_TEXT:
            write_file(out / described["file"], text)
            entries.append(described)
    lines = ",\n".join(f"  {json.dumps(described)}" for described in entries)
    head = json.dumps({"lowered_with": f"jax {jax.__version__}"}).removesuffix("}")
    write_file(out / "manifest.json", f'{head}, "programs": [\n{lines}\n]}}\n')
    return entries


if __name__ == "__main__":
    sys.exit(run_lowering(__doc__, JAX, write_suite))
