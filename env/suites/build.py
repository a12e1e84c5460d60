"""Build the suite "programs": lower every family, cut subgraphs out of its members, and write them with a manifest.

    python -m env.suites.build [--output DIR] [--families a,b]

Needs JAX (`pip install 'hlogym[jax]'`) and PyTorch; using the suite does not. Each family is written as soon as it is
made, so that an interrupted build continues where it stopped. Programs that are equal up to names have one fingerprint
and are kept once.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compiler.errors import HlogymError
from compiler.ir import HloModule
from compiler.ir.printing import PrintOptions, print_module
from compiler.ir.verifier import check_module
from compiler.support.files import write_file
from compiler.text import parse
from env.suites.input_specs import InputSpec, Normal, Randint, Uniform
from env.suites.locations import programs_folder
from env.suites.programs.cutter import cut, cut_inputs
from env.suites.programs.family import Family, Member
from env.suites.programs.splits import split_of_family

__all__ = ["BuildError", "build_suite", "families"]

JAX_MODULES = ("rows",)
TORCH_MODULES: tuple[str, ...] = ()
_PACKAGE = "env.suites.programs"
CUTS_PER_FAMILY = 14
CUT_SIZES = (4, 6, 8, 12, 16, 24, 40, 60)
MAX_TEXT = 400_000
"""Longer programs are left out; their compilation takes minutes."""


class BuildError(HlogymError, RuntimeError):
    """A suite of programs that cannot be built."""


def families() -> dict[str, tuple[Family, str]]:
    """Return every family by name, and the frontend that lowers it: "jax" or "torch"."""
    found: dict[str, tuple[Family, str]] = {}
    for names, frontend in ((JAX_MODULES, "jax"), (("generator",), "jax"), (TORCH_MODULES, "torch")):
        for name in names:
            for family in importlib.import_module(f"{_PACKAGE}.{name}").FAMILIES.by_name.values():
                if family.name in found:
                    raise BuildError(f"two families are called {family.name!r}")
                found[family.name] = family, frontend
    return found


def build_suite(output: Path, only: Sequence[str] = (), note: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Write the suite, or some families of it, to a folder; return its manifest.

    Args:
        output: the folder; families in it that are up to date are kept.
        only: names of families; by default all.
        note: called with a line after each family.

    Raises:
        BuildError: JAX or PyTorch is not installed, or there is no such family.
    """
    try:
        known = families()
    except ModuleNotFoundError as error:
        raise BuildError(f"building programs needs JAX and PyTorch ({error}): pip install 'hlogym[jax]'") from error
    if unknown := sorted(set(only) - known.keys()):
        raise BuildError(f"there is no family {unknown[0]!r}; known are {', '.join(known)}")
    chosen = list(only) or list(known)
    parts = []
    for number, name in enumerate(chosen):
        started = time.monotonic()
        part = _family_part(output, *known[name])
        parts.append(part)
        note(
            f"[{number + 1}/{len(chosen)}] {name}: {len(part['programs'])} programs "
            f"in {time.monotonic() - started:.1f} s" + "".join(f"\n    left out {x}" for x in part["left_out"])
        )
    manifest = _joined(parts)
    write_file(output / "manifest.json", _manifest_text(manifest))
    return manifest


# ---- one family


def _family_part(output: Path, family: Family, frontend: str) -> dict[str, Any]:
    """Return the manifest of one family; build it unless it was built from the same source with the same versions."""
    path = output / "parts" / f"{family.name}.json"
    key = _key(family)
    if path.is_file():
        part: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if part.get("key") == key:
            return part
    part = {"key": key, "programs": [], "left_out": []}
    seen: set[str] = set()
    sources: list[tuple[Member, HloModule, dict[str, Any]]] = []
    for member in family.members():
        module, specs, reason = _lowered(member, frontend)
        described = {"from": frontend, "function": family.source, "member": member.name}
        if member.seed is not None:
            described["seed"] = str(member.seed)
        name = f"{family.name}-{member.name}"
        entry = None if module is None else _write(output, name, family, module, specs, described, member.chaotic)
        if entry is None or module is None:
            part["left_out"].append(f"{name}: {reason or 'too long, or not valid'}")
        elif entry["fingerprint"] not in seen:
            seen.add(entry["fingerprint"])
            part["programs"].append(entry)
            sources.append((member, module, entry))
    part["programs"] += _cuts(output, family, sources, seen)
    write_file(path, json.dumps(part, indent=1) + "\n")
    return part


def _lowered(member: Member, frontend: str) -> tuple[HloModule | None, tuple[InputSpec, ...], str]:
    """Return a member as a module with the specs of its parameters, or no module and why."""
    lower = _lower_jax if frontend == "jax" else _lower_torch
    try:
        return *lower(member), ""
    except Exception as error:  # whatever a frontend raises, the other members are built
        return None, (), f"{type(error).__name__}: {error}".partition("\n")[0][:200]


def _lower_jax(member: Member) -> tuple[HloModule, tuple[InputSpec, ...]]:
    import jax

    from env.suites.lowering import lower_to_text

    shapes = [jax.ShapeDtypeStruct(a.dims, a.dtype) for a in member.arguments]  # type: ignore[no-untyped-call]
    return parse(lower_to_text(member.function, *shapes)), tuple(a.spec for a in member.arguments)


def _lower_torch(member: Member) -> tuple[HloModule, tuple[InputSpec, ...]]:
    import torch

    from compiler.frontends.torch import argument_values
    from compiler.frontends.torch_export import export
    from compiler.frontends.torch_program import lower_program

    torch.manual_seed(0)
    tensors = [torch.zeros(a.dims, dtype=getattr(torch, a.dtype)) for a in member.arguments]
    program = export(member.function, tuple(tensors), {})
    module = lower_program(program, freeze=False)
    values = argument_values(program, tensors, freeze=False, seed=None)
    weights = len(values) - len(tensors)
    specs = (*(_spec_of(v) for v in values[:weights]), *(a.spec for a in member.arguments))
    state = len(module.entry.parameters) - len(specs)
    return module, (*specs, *(Randint(0, 1000) for _ in range(state)))


def _spec_of(values: Any) -> InputSpec:
    """Return a spec for a weight: its own spread, or a range around one for scales and variances."""
    if values.dtype == np.bool_ or values.dtype.kind in "iu":
        return Randint(0, 2)
    wide = values.astype(np.float64)
    if values.ndim < 2:
        return Uniform(0.5, 1.5) if values.size and wide.min() >= 0.9 else Normal(0.0, 0.1)
    return Normal(0.0, round(float(wide.std()), 4) or 0.1)


def _write(
    output: Path,
    name: str,
    family: Family,
    module: HloModule,
    specs: Sequence[InputSpec],
    provenance: Mapping[str, str],
    chaotic: bool = False,
) -> dict[str, Any] | None:
    """Write a program, and return its entry; return None if it cannot be used."""
    text = print_module(module, PrintOptions.canonical())
    if len(text) > MAX_TEXT or check_module(module) or not all(s.is_array for s in module.parameter_shapes):
        return None
    split = split_of_family(family.name)
    file = f"{split}/{name}.hlo"
    write_file(output / file, text.rstrip() + "\n")
    entry: dict[str, Any] = {
        "name": name,
        "file": file,
        "split": split,
        "family": family.name,
        "description": family.description,
        "inputs": [spec.to_json() for spec in specs],
        "fingerprint": hashlib.sha256(text.encode()).hexdigest()[:32],
        "instructions": module.instruction_count,
        "provenance": dict(provenance),
    }
    if chaotic:
        entry["chaotic"] = True
    return entry


def _cuts(
    output: Path, family: Family, sources: Sequence[tuple[Member, HloModule, dict[str, Any]]], seen: set[str]
) -> Iterator[dict[str, Any]]:
    """Yield entries of subgraphs cut from members of a family, which are unlike its other programs."""
    pool = [s for s in sources if s[1].instruction_count >= 12]
    found = 0
    for attempt in range(CUTS_PER_FAMILY * 3):
        if not pool or found == CUTS_PER_FAMILY:
            return
        seed = zlib.crc32(f"{family.name}:{attempt}".encode())
        member, module, parent = pool[seed % len(pool)]
        made = cut(module, seed, CUT_SIZES[attempt % len(CUT_SIZES)])
        if made is None or not 5 <= made.instruction_count:
            continue
        described = {"from": "cut", "parent": parent["name"], "seed": str(seed)}
        name = f"{family.name}-cut-{attempt:02d}"
        fingerprint = made.fingerprint()[:32]
        if fingerprint in seen:
            continue
        entry = _write(output, name, family, made, cut_inputs(made), described, member.chaotic)
        if entry is not None:
            seen.add(fingerprint)
            found += 1
            yield entry


# ---- the manifest


def _versions() -> dict[str, str]:
    import jax
    import torch

    return {"jax": jax.__version__, "torch": torch.__version__.partition("+")[0]}


def _key(family: Family) -> str:
    """Return a hash of what a family is made from: its file, the shared files, and the versions of the frontends."""
    here = Path(__file__).parent / "programs"
    own = here / f"{family.source.split('.')[-2]}.py"
    digest = hashlib.sha256(json.dumps(_versions()).encode() + split_of_family(family.name).encode())
    for path in (Path(__file__), own, *(here / f"{n}.py" for n in ("family", "cutter"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the manifest of several families; of equal programs in different families, the first is kept."""
    seen: dict[str, str] = {}
    programs = []
    for part in parts:
        for entry in part["programs"]:
            if seen.setdefault(entry["fingerprint"], entry["name"]) == entry["name"]:
                programs.append(entry)
    return {"lowered_with": _versions(), "programs": programs}


def _manifest_text(manifest: Mapping[str, Any]) -> str:
    head = json.dumps({k: v for k, v in manifest.items() if k != "programs"}).removesuffix("}")
    lines = ",\n".join(f"  {json.dumps(entry)}" for entry in manifest["programs"])
    return f'{head}, "programs": [\n{lines}\n]}}\n'


def main() -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=programs_folder(), help="folder (default: %(default)s)")
    parser.add_argument("--families", default="", help="comma-separated names of families (default: all)")
    options = parser.parse_args()
    started = time.monotonic()
    try:
        manifest = build_suite(options.output, [f for f in options.families.split(",") if f], print)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{len(manifest['programs'])} programs in {options.output} after {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
