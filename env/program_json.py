"""Programs as JSON, for the worker process: name, text, input specs and tolerance."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from env.suites import InputSpec, Normal, Program, Randint, Tolerance, Uniform

__all__ = ["program_from_json", "program_to_json"]

_SPECS: Mapping[str, type[InputSpec]] = {"normal": Normal, "uniform": Uniform, "randint": Randint}


def program_to_json(program: Program) -> dict[str, Any]:
    """What a worker needs of a program: name, text, input specs and tolerance."""
    t = program.tolerance
    return {
        "name": program.name,
        "text": program.text(),
        "inputs": [s.to_json() for s in program.inputs],
        "tolerance": None if t is None else t.to_json(),
    }


def program_from_json(data: Mapping[str, Any]) -> Program:
    """The program of `program_to_json`; its text is not kept, and stands in `data["text"]`."""
    specs = []
    for entry in data["inputs"]:
        values = dict(entry)
        specs.append(_SPECS[values.pop("kind")](**values))
    tolerance = None if data["tolerance"] is None else Tolerance.from_json(data["tolerance"])
    return Program(data["name"], "worker", "extra", Path(), "", tuple(specs), tolerance)
