"""Make the programs of one family: lower its members, cut subgraphs out of them, and write them."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compiler.ir import HloModule
from compiler.ir.printing import PrintOptions, print_module
from compiler.ir.verifier import check_module
from compiler.support.files import write_file
from compiler.text import parse
from env.suites.input_specs import InputSpec, Normal, Randint, Uniform
from env.suites.programs.cutter import cut, cut_inputs
from env.suites.programs.family import Family, Member
from env.suites.programs.splits import split_of_family

__all__ = ["family_part", "versions"]

CUTS_PER_FAMILY = 14
LEAST_INSTRUCTIONS = 5
CUT_SIZES = (4, 6, 8, 12, 16, 24, 40, 60)
MAX_TEXT = 400_000
"""Longer programs are left out; their compilation takes minutes."""


def family_part(output: Path, family: Family, frontend: str) -> dict[str, Any]:
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
    """Write a program as canonical text, and return its entry; return None if it cannot be used."""
    text = print_module(module, PrintOptions.canonical())
    if len(text) > MAX_TEXT or check_module(module) or not all(s.is_array for s in module.parameter_shapes):
        return None
    if print_module(parse(text), PrintOptions.canonical()) != text:
        return None
    split = split_of_family(family.name)
    file = f"{name}.hlo"
    write_file(output / split / file, text)
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
        extracted = cut(module, seed, CUT_SIZES[attempt % len(CUT_SIZES)])
        if extracted is None or extracted.module.instruction_count < LEAST_INSTRUCTIONS:
            continue
        made = extracted.module
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


def versions() -> dict[str, str]:
    """Return the versions of the frontends."""
    import jax
    import torch

    return {"jax": jax.__version__, "torch": torch.__version__.partition("+")[0]}


def _key(family: Family) -> str:
    """Return a hash of what a family is made from: its file, the shared files, and the versions of the frontends."""
    here = Path(__file__).parent
    own = here / f"{family.source.split('.')[-2]}.py"
    digest = hashlib.sha256(json.dumps(versions()).encode() + split_of_family(family.name).encode())
    for path in (Path(__file__), own, *(here / f"{n}.py" for n in ("family", "cutter", "differentiation"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
