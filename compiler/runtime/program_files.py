"""Saved programs: their files in a `saved_folder`, and how thunks and buffers are serialized. Nothing is pickled.

program.json   the backend with its details, and the buffers, thunks and kernels
module.hlo     the optimized module
plan.json      the compilation decisions, if there is a plan
constants.npz  the constants
Files of the backend, such as shared objects, are stored with them.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from compiler.codegen.kernel_spec import KernelSpec
from compiler.ir.instruction import HloInstruction
from compiler.ir.module import HloModule
from compiler.ir.shape import Shape
from compiler.plan import CompilationPlan
from compiler.runtime.buffers import Buffer, BufferKind
from compiler.runtime.saved_folder import Contents, SavedProgramError, read_folder, write_folder
from compiler.runtime.thunk_emitter import ThunkProgram
from compiler.runtime.thunks import (
    ConditionalThunk,
    CopyThunk,
    GemmThunk,
    HostThunk,
    KernelThunk,
    LibraryThunk,
    Thunk,
    WhileThunk,
    kernels_of,
    walk,
)
from compiler.support.paths import given_path
from compiler.text import parse
from compiler.text.scanner import Scanner
from compiler.text.shapes import parse_shape

__all__ = ["ProgramFolder", "SavedProgram", "SavedProgramError", "open_program", "save_program"]

_KINDS: dict[str, type[Thunk]] = {
    t.__name__: t for t in (KernelThunk, CopyThunk, GemmThunk, LibraryThunk, HostThunk, WhileThunk, ConditionalThunk)
}


@dataclass(frozen=True)
class SavedProgram:
    """The saved state of an executable of any backend.

    Attributes:
        backend: name of the backend that the program was built for.
        module: the HLO module after all passes and fusion.
        program: thunks and buffers, with memory assigned.
        arena_bytes: size of the memory for temporaries.
        plan: the compilation decisions.
        details: JSON data that only the backend interprets; its keys must differ from those of this module.
    """

    backend: str
    module: HloModule
    program: ThunkProgram
    arena_bytes: int
    plan: CompilationPlan | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


# ---- writing


def save_program(path: str | Path, saved: SavedProgram, files: Mapping[str, Path] | None = None) -> None:
    """Write a program to a folder, which is created if necessary; a program saved there before is replaced.

    Args:
        path: path of the folder.
        saved: the program.
        files: additional files to copy into the folder, by their names there.

    Raises:
        SavedProgramError: the folder cannot be written, or contains something other than a saved program.
    """
    folder = given_path(path, "a saved program", SavedProgramError)
    writer = _Writer()
    program = saved.program
    description: dict[str, Any] = {
        "backend": saved.backend,
        "arena_bytes": saved.arena_bytes,
        "parameters": [writer.buffer(b) for b in program.parameters],
        "results": [writer.buffer(b) for b in program.results],
        "constant_buffers": [writer.buffer(b) for b in program.constant_buffers],
        "thunks": [writer.thunk(t) for t in program.thunks],
        "kernels": [_spec_to_json(k) for k in kernels_of(walk(program.thunks))],
        "buffers": writer.buffers,
        **saved.details,
    }
    contents: dict[str, Callable[[Path], object]] = {
        "module.hlo": _text(str(saved.module)),
        "constants.npz": partial(_write_constants, program.constants),
        **{name: partial(_copy_file, file) for name, file in (files or {}).items()},
        "program.json": _text(json.dumps(description, indent=1) + "\n"),
    }
    if saved.plan is not None:
        contents["plan.json"] = _text(saved.plan.to_json())
    write_folder(folder, contents)


def _text(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text, encoding="utf-8")


def _copy_file(source: Path, target: Path) -> None:
    if not source.exists():
        raise SavedProgramError(f"the compiled code {source} is no longer in the cache; compile the program again")
    shutil.copyfile(source, target)


def _write_constants(constants: list[Any], path: Path) -> None:
    raw = {f"c{n}": np.frombuffer(c.tobytes(), np.uint8) for n, c in enumerate(constants)}
    with path.open("wb") as f:
        np.savez(f, allow_pickle=False, **raw)


def _spec_to_json(k: KernelSpec) -> dict[str, Any]:
    out = {f.name: getattr(k, f.name) for f in fields(k)}
    return out | {"inputs": [str(s) for s in k.inputs], "outputs": [str(s) for s in k.outputs]}


class _Writer:
    """A serializer of thunks and buffers; it numbers buffers in the order of their first use."""

    def __init__(self) -> None:
        self.buffers: list[dict[str, Any]] = []
        self._numbers: dict[Buffer, int] = {}

    def buffer(self, b: Buffer) -> int:
        found = self._numbers.get(b)
        if found is None:
            r = b.resolve()
            found = self._numbers[b] = len(self.buffers)
            self.buffers.append({"shape": str(b.shape), "kind": r.kind.value, "index": r.index})
        return found

    def thunk(self, t: Thunk) -> dict[str, Any]:
        out: dict[str, Any] = {"type": type(t).__name__}
        for f in fields(t):
            out[f.name] = self._field(getattr(t, f.name))
        return out

    def _field(self, value: Any) -> Any:
        if isinstance(value, Buffer):
            return self.buffer(value)
        if isinstance(value, KernelSpec):
            return value.symbol
        if isinstance(value, HloInstruction):
            parent = value.parent
            return [parent.name if parent else "", value.name]
        if isinstance(value, Thunk):
            return self.thunk(value)
        if isinstance(value, list | tuple):
            return [self._field(v) for v in value]
        return value


# ---- reading


@contextmanager
def open_program(path: str | Path) -> Iterator[ProgramFolder]:
    """Open a folder that `save_program` wrote; reading it inside the context raises no other kind of error.

    Raises:
        SavedProgramError: the folder does not exist, has another format, or is damaged.
    """
    folder = given_path(path, "a saved program", SavedProgramError)
    contents = read_folder(folder)
    try:
        yield ProgramFolder(folder, contents)
    except (LookupError, TypeError, ValueError, AttributeError, OSError, RecursionError) as e:
        if isinstance(e, SavedProgramError):
            raise
        raise SavedProgramError(f"{folder} is damaged: {e!r}; save the program again") from e


class ProgramFolder:
    """An open folder of a saved program, whose files match their checksums.

    Attributes:
        path: path of the folder.
        contents: the files.
        details: the parsed program.json, including the details of the backend.
    """

    def __init__(self, path: Path, contents: Contents) -> None:
        self.path, self.contents = path, contents
        self.details: Mapping[str, Any] = json.loads(contents.data("program.json").decode())

    @property
    def backend(self) -> str:
        """Return the name of the backend that the program was built for."""
        return str(self.details["backend"])

    def read(self) -> SavedProgram:
        """Read the program and return it."""
        plan = None
        if "plan.json" in self.contents.digests:
            plan = CompilationPlan.from_json(self.contents.data("plan.json").decode())
        module = parse(self.contents.data("module.hlo").decode(), filename=str(self.path / "module.hlo"))
        program = _Reader(self, module).program()
        return SavedProgram(self.backend, module, program, self.details["arena_bytes"], plan, self.details)


class _Reader:
    """A deserializer of the thunks and buffers in a program.json."""

    def __init__(self, folder: ProgramFolder, module: HloModule) -> None:
        self.path, self.contents, self.description, self.module = folder.path, folder.contents, folder.details, module
        self.specs = {k["symbol"]: _spec_from_json(k) for k in self.description["kernels"]}
        self.buffers = [
            Buffer(_shape(b["shape"]), BufferKind(b["kind"]), int(b["index"])) for b in self.description["buffers"]
        ]

    def program(self) -> ThunkProgram:
        m = self.description
        buffers = [self.buffers[n] for n in m["constant_buffers"]]
        with np.load(io.BytesIO(self.contents.data("constants.npz")), allow_pickle=False) as raw:
            constants = [
                np.frombuffer(raw[f"c{n}"].tobytes(), b.shape.dtype).reshape(b.shape.dimensions)
                for n, b in enumerate(buffers)
            ]
        return ThunkProgram(
            [self._thunk(t) for t in m["thunks"]],
            [self.buffers[n] for n in m["parameters"]],
            [self.buffers[n] for n in m["results"]],
            constants,
            buffers,
        )

    def _thunk(self, data: Mapping[str, Any]) -> Thunk:
        kind = _KINDS[data["type"]]
        return kind(**{f.name: self._field(kind, f.name, data[f.name]) for f in fields(kind)})

    def _field(self, kind: type[Thunk], name: str, value: Any) -> Any:
        if name in ("inputs", "outputs"):
            return tuple(self.buffers[n] for n in value)
        if name in ("source", "target", "lhs", "rhs", "out", "predicate", "selector"):
            return self.buffers[value]
        if name == "scratch":
            return None if value is None else self.buffers[value]
        if name == "spec":
            return self.specs[value]
        if name == "instruction":
            return self._instruction(*value)
        if name in ("condition", "body"):
            return [self._thunk(t) for t in value]
        if name == "branches":
            return [[self._thunk(t) for t in branch] for branch in value]
        return value

    def _instruction(self, computation: str, name: str) -> HloInstruction:
        parent = self.module.find(computation)
        found = None if parent is None else parent.find(name)
        if found is None:
            raise SavedProgramError(f"{self.path} is damaged: module.hlo has no %{name} in %{computation}")
        return found


def _shape(text: str) -> Shape:
    return parse_shape(Scanner(text))


def _spec_from_json(data: Mapping[str, Any]) -> KernelSpec:
    values = {f.name: data[f.name] for f in fields(KernelSpec)}
    for name in ("inputs", "outputs"):
        values[name] = tuple(_shape(t) for t in values[name])
    for name in ("in_place", "must_alias"):
        values[name] = tuple((int(a), int(b)) for a, b in values[name])
    return KernelSpec(**values)
