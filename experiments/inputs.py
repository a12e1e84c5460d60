"""Reading the programs, plans and arrays that are named on the command line."""

from __future__ import annotations

import atexit
import io
import sys
import tempfile
import zlib
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile, is_zipfile

import numpy as np
import numpy.typing as npt

from compiler.errors import ArgumentError, HlogymError, HloVerificationError, UnknownNameError
from compiler.ir import HloModule
from compiler.ir.verifier import verify
from compiler.runtime.executable import parameter_leaves
from compiler.support.files import atomic_file
from compiler.text import parse
from env.suites import Program, find_program, program_in, random_inputs
from env.suites.dumps import Dump, dump_of, dump_program_name
from env.suites.program_files import MOST_BYTES
from experiments.results import STANDARD_OUTPUT, ResultError, write_bytes

if TYPE_CHECKING:
    from compiler.plan import CompilationPlan

__all__ = [
    "InputError", "entry_inputs", "load_inputs", "program_of", "read_module", "read_plan", "read_valid_module",
    "save_outputs",
]  # fmt: skip


STANDARD_INPUT = "-"
MOST_SHOWN = 20
"""How many modules of a dump a message lists."""


class InputError(HlogymError, ValueError):
    """A file named on the command line that cannot be used."""


def program_of(name: str) -> Program:
    """Return the program that an argument of the command line names.

    If the folder of a file has a suite manifest, the program has the input specifications of its suite.

    Args:
        name: a program of the suites, a file (HLO text with any ending, a proto of XLA, StableHLO), a folder that XLA
            dumped and that has one module (or `FOLDER:NAME`, `FOLDER:NAME:after`), or `-` for standard input.

    Raises:
        UnknownNameError: there is no such program.
        InputError: there is no such file, or the folder is not a dump with one module; the message lists its modules.
    """
    if name == STANDARD_INPUT:
        return program_in(_standard_input())
    path = Path(name)
    if path.suffix != ".hlo":
        try:
            return find_program(name)
        except UnknownNameError:
            if (dump := dump_of(name)) is not None:
                return program_in(_only_module(name, dump))
            if path.is_dir():
                raise _folder_error(path) from None
            if path.exists():
                return program_in(path)
            raise
    if path.is_dir():
        raise _folder_error(path)
    if not path.is_file():
        near = get_close_matches(path.name, [p.name for p in path.parent.glob("*.hlo")], n=1, cutoff=0.7)
        hint = f"; did you mean {path.parent / near[0]}?" if near else ""
        raise InputError(f"there is no file {name}{hint}")
    return program_in(path)


def _folder_error(path: Path) -> InputError:
    files = sorted(p for p in path.glob("*.hlo") if p.is_file())
    such = f", such as {files[0]}" if files else "; it has no .hlo files, and XLA dumped none into it"
    return InputError(f"{path} is a folder; name one of the files in it{such}")


def _only_module(name: str, dump: Dump) -> Path:
    """Return the file of a dump's only module."""
    if len(dump.files) == 1:
        return dump.files[0]
    stage = "after" if dump.after else "before"
    if not dump.files:
        raise InputError(f"{name}: there is no such module {stage} optimization among the dumps in {dump.folder}")
    shown = "".join(f"\n  {dump_program_name(f)} ({f.stat().st_size:,} bytes)" for f in dump.files[:MOST_SHOWN])
    more = len(dump.files) - MOST_SHOWN
    rest = f"\n  ... and {more} more" if more > 0 else ""
    end = ":after" if dump.after else ""
    raise InputError(
        f"{dump.folder} has {len(dump.files)} modules {stage} optimization; name one, such as "
        f"{dump.folder}:{dump_program_name(dump.files[-1])}{end}:{shown}{rest}"
    )


@cache
def _standard_input() -> Path:
    """Return a file with what was read from standard input, which is removed at the end of the process."""
    data = sys.stdin.buffer.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise InputError(f"standard input has more than {MOST_BYTES} bytes; a program was expected")
    if not data.strip():
        raise InputError("standard input is empty; a program was expected")
    folder = tempfile.TemporaryDirectory(prefix="hlogym-")
    atexit.register(folder.cleanup)
    path = Path(folder.name) / "stdin.hlo"
    path.write_bytes(data)
    return path


def read_module(program: Program) -> HloModule:
    """Parse a program, which need not be valid; errors name its file.

    Raises:
        HloSyntaxError: the HLO text is malformed.
        ProgramFileError: the file is in none of the known formats.
        BackendError: its format needs JAX, which is not installed.
    """
    return parse(program.text(), filename=str(program.path))


def read_valid_module(program: Program) -> HloModule:
    """Parse and verify a program; errors name its file.

    Raises:
        HloSyntaxError: the HLO text is malformed.
        InputError: the module is not valid HLO.
        ProgramFileError: the file is in none of the known formats.
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
    """Return random arrays for the parameters of a program, those of tuples too; the same seed gives the same ones."""
    return random_inputs(program, [(s.dtype, s.dimensions) for s in parameter_leaves(module)], seed)


def load_inputs(path: Path, module: HloModule) -> list[npt.NDArray[Any]]:
    """Read arguments from an .npz file: by parameter name if all names match, otherwise in the order of the file.

    Raises:
        InputError: the file is not an .npz archive of arrays.
        ArgumentError: the number of arrays differs from that of the parameters, or of the arrays in them.
    """
    if path.is_file() and not is_zipfile(path):
        raise InputError(f"{path} is not an .npz archive; numpy.savez writes one")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, TypeError, AttributeError, EOFError, BadZipFile, zlib.error) as error:
        raise InputError(f"{path} is not an .npz archive of arrays: {error}") from error
    shapes = parameter_leaves(module)
    if len(arrays) != len(shapes):
        raise ArgumentError(f"{path} holds {len(arrays)} arrays, and the program takes {len(shapes)}")
    names = [p.name for p in module.entry.parameters]
    chosen = [arrays[n] for n in names] if set(names) == set(arrays) else list(arrays.values())
    return [_retyped(a, s.dtype) for a, s in zip(chosen, shapes, strict=True)]


def _retyped(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Restore the element type of bfloat16 and float8 arrays, which NumPy saves as untyped bytes."""
    return array.view(dtype) if array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize else array


def save_outputs(path: Path, outputs: Sequence[npt.NDArray[Any]]) -> None:
    """Write outputs to an .npz file under the names out0, out1, ...

    Raises:
        ResultError: the file cannot be written.
    """
    if path == STANDARD_OUTPUT:
        archive = io.BytesIO()
        np.savez(archive, **{f"out{i}": np.asarray(o) for i, o in enumerate(outputs)})  # type: ignore[arg-type]
        write_bytes(path, archive.getvalue())
        return
    try:
        with atomic_file(path) as file:
            np.savez(file, **{f"out{i}": np.asarray(o) for i, o in enumerate(outputs)})  # type: ignore[arg-type]
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror}") from error
