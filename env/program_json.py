"""Programs as JSON, for the worker process: name, text, input specs and tolerance."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from env.suites import Program, Tolerance
from env.suites.input_specs import input_spec_from_json

__all__ = ["program_from_json", "program_to_json"]


def program_to_json(program: Program) -> dict[str, Any]:
    """Return what a worker needs of a program."""
    tolerance = program.tolerance
    return {
        "name": program.name,
        "text": program.text(),
        "inputs": [s.to_json() for s in program.inputs],
        "tolerance": None if tolerance is None else tolerance.to_json(),
    }


def program_from_json(data: Mapping[str, Any]) -> Program:
    """Return the program that `program_to_json` wrote, without its text, which is `data["text"]`."""
    specs = tuple(input_spec_from_json(entry) for entry in data["inputs"])
    tolerance = None if data["tolerance"] is None else Tolerance.from_json(data["tolerance"])
    return Program(data["name"], "worker", "extra", Path(), "", specs, tolerance)
