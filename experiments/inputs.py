"""Reading the programs, plans and arrays that are named on the command line."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile, is_zipfile

import numpy as np
import numpy.typing as npt

from compiler.errors import ArgumentError, HlogymError, HloVerificationError, UnknownNameError
from compiler.ir import HloModule
from compiler.ir.verifier import verify
from compiler.support.files import atomic_file
from compiler.text import parse
from env.suites import Program, find_program, program_in, random_inputs
from experiments.results import ResultError

if TYPE_CHECKING:
    from compiler.plan import CompilationPlan

__all__ = [
    "InputError", "entry_inputs", "load_inputs", "program_of", "read_module", "read_plan", "read_valid_module",
    "save_outputs",
]  # fmt: skip


class InputError(HlogymError, ValueError):
    """A file named on the command line that cannot be used."""


def program_of(name: str) -> Program:
    """Return the program of an HLO file or the program of that name in the quickstart suite.

    If the folder of the file has a suite manifest, the program has the input specifications of its suite.

    Raises:
        UnknownNameError: there is no such program.
        InputError: there is no such file, or it is not an HLO file.
    """
    path = Path(name)
    if path.suffix != ".hlo":
        try:
            return find_program(name)
        except UnknownNameError:
            if path.is_dir():
                raise InputError(f"{name} is a folder; name one of the files in it") from None
            if path.exists():
                raise InputError(f"{name} is not a program: the name of an HLO file ends in .hlo") from None
            raise
    if path.is_dir():
        raise InputError(f"{name} is a folder; name one of the files in it")
    if not path.is_file():
        near = get_close_matches(path.name, [p.name for p in path.parent.glob("*.hlo")], n=1, cutoff=0.7)
        hint = f"; did you mean {path.parent / near[0]}?" if near else ""
        raise InputError(f"there is no file {name}{hint}")
    return program_in(path)


def read_module(program: Program) -> HloModule:
    """Parse a program, which need not be valid; errors name its file.

    Raises:
        HloSyntaxError: the HLO text is malformed.
        InputError: the file is not UTF-8 text.
    """
    try:
        return parse(program.text(), filename=str(program.path))
    except UnicodeDecodeError as error:
        raise InputError(f"{program.path} is not text: {error.reason} at byte {error.start}") from error


def read_valid_module(program: Program) -> HloModule:
    """Parse and verify a program; errors name its file.

    Raises:
        HloSyntaxError: the HLO text is malformed.
        InputError: the module is not valid HLO, or the file is not UTF-8 text.
    """
    module = read_module(program)
    try:
        verify(module)
    except HloVerificationError as error:
        raise InputError(f"{program.path}: {error}") from error
    return module


def read_plan(path: Path) -> CompilationPlan:
    """Read a recorded plan.

    Raises:
        PlanError: the file cannot be read or is not a plan.
    """
    from compiler.plan import CompilationPlan

    return CompilationPlan.load(path)


def entry_inputs(program: Program, module: HloModule, seed: int) -> list[npt.NDArray[Any]]:
    """Return random inputs for the entry computation; the same seed gives the same inputs."""
    return random_inputs(program, [(s.dtype, s.dimensions) for s in module.entry.parameter_shapes], seed)


def load_inputs(path: Path, module: HloModule) -> list[npt.NDArray[Any]]:
    """Read arguments from an .npz file: by parameter name if all names match, otherwise in the order of the file.

    Raises:
        InputError: the file is not an .npz archive of arrays.
        ArgumentError: the number of arrays differs from the number of parameters.
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
    """Restore the element type of bfloat16 and float8 arrays, which NumPy saves as untyped bytes."""
    return array.view(dtype) if array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize else array


def save_outputs(path: Path, outputs: Sequence[npt.NDArray[Any]]) -> None:
    """Write outputs to an .npz file under the names out0, out1, ...

    Raises:
        ResultError: the file cannot be written.
    """
    try:
        with atomic_file(path) as file:
            np.savez(file, **{f"out{i}": np.asarray(o) for i, o in enumerate(outputs)})  # type: ignore[arg-type]
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror}") from error
