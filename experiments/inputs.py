"""Programs, policies and arrays as the command line names them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile, is_zipfile

import numpy as np
import numpy.typing as npt

from compiler.errors import ArgumentError, HlogymError, UnknownNameError
from compiler.ir import HloModule
from compiler.support.files import atomic_file
from compiler.text import parse
from env.suites import Program, find_program, program_in, random_inputs
from experiments.results import ResultError

if TYPE_CHECKING:
    from compiler.plan import CompilationPlan

__all__ = ["InputError", "entry_inputs", "load_inputs", "program_of", "read_module", "read_plan", "save_outputs"]


class InputError(HlogymError, ValueError):
    """A file named on the command line that cannot be used, and why."""


def program_of(name: str) -> Program:
    """An HLO file, with its suite's input specs where its folder has a manifest, or a program of the quickstart suite.

    Raises:
        UnknownNameError: neither.
        InputError: it is there and is no HLO file.
    """
    path = Path(name)
    if path.suffix != ".hlo":
        if path.is_absolute() and path.exists():
            raise InputError(f"{name} is no program: a file of HLO text has a name that ends in .hlo")
        return find_program(name)
    if path.is_dir():
        raise InputError(f"{name} is a folder; name one of the files in it")
    if not path.is_file():
        there = [str(p) for p in path.parent.glob("*.hlo")] if path.parent.is_dir() else []
        raise UnknownNameError("HLO file", name, there)
    return program_in(path)


def read_module(program: Program) -> HloModule:
    """Parse a program; errors name its file."""
    try:
        return parse(program.text(), filename=str(program.path))
    except UnicodeDecodeError as error:
        raise InputError(f"{program.path} is not text: {error.reason} at byte {error.start}") from error


def read_plan(path: Path) -> CompilationPlan:
    """A recorded plan; PlanError when the file cannot be read or is none."""
    from compiler.plan import CompilationPlan

    return CompilationPlan.load(path)


def entry_inputs(program: Program, module: HloModule, seed: int) -> list[npt.NDArray[Any]]:
    """Random inputs for the entry computation, the same for the same seed."""
    return random_inputs(program, [(s.dtype, s.dimensions) for s in module.entry.parameter_shapes], seed)


def load_inputs(path: Path, module: HloModule) -> list[npt.NDArray[Any]]:
    """Arguments from an .npz file: by the parameters' names when all are there, else in the file's order.

    Raises:
        InputError: the file is no .npz archive of plain arrays.
        ArgumentError: it holds another number of arrays.
    """
    if path.is_file() and not is_zipfile(path):
        raise InputError(f"{path} is not an .npz archive; numpy.savez writes one")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, TypeError, AttributeError, EOFError, BadZipFile, zlib.error) as error:
        raise InputError(f"{path} is not an .npz archive of arrays: {error}") from error
    parameters = module.entry.parameters
    names = [p.name for p in parameters]
    if len(arrays) != len(names):
        raise ArgumentError(f"{path} holds {len(arrays)} arrays, and the program takes {len(names)}")
    chosen = [arrays[n] for n in names] if set(names) == set(arrays) else list(arrays.values())
    return [_retyped(a, p.shape.dtype) for a, p in zip(chosen, parameters, strict=True)]


def _retyped(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """NumPy stores bfloat16 and the float8 types as bytes without a meaning; give it back."""
    return array.view(dtype) if array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize else array


def save_outputs(path: Path, outputs: Sequence[npt.NDArray[Any]]) -> None:
    """Outputs as out0, out1, ... of an .npz file; ResultError when it cannot be written."""
    try:
        with atomic_file(path) as file:
            np.savez(file, **{f"out{i}": np.asarray(o) for i, o in enumerate(outputs)})  # type: ignore[arg-type]
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror}") from error
