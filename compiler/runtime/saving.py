"""Executables on disk: JSON, shared objects (or CUDA source) and arrays in a `saved_folder`. Nothing is pickled.

program.json    backend, processor, buffers, thunks, kernels
module.hlo      the optimised module; plan.json: the decisions
driver.so, kernels-N.so, runtime.so, constants.npz
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.backends import cpu
from compiler.codegen.kernel_spec import KernelSpec
from compiler.errors import BackendError
from compiler.ir.instruction import HloInstruction
from compiler.ir.module import HloModule
from compiler.ir.shape import Shape
from compiler.runtime.buffers import Buffer, BufferKind
from compiler.runtime.driver_c import print_driver
from compiler.runtime.executable import BuiltProgram, CpuExecutable
from compiler.runtime.saved_folder import Contents, SavedProgramError, read_folder, write_folder
from compiler.runtime.thunk_emitter import ThunkProgram
from compiler.runtime.thunks import (
    ConditionalThunk,
    CopyThunk,
    GemmThunk,
    HostThunk,
    KernelThunk,
    Thunk,
    WhileThunk,
)
from compiler.text import parse
from compiler.text.scanner import Scanner
from compiler.text.shapes import parse_shape

if TYPE_CHECKING:
    from compiler.runtime.cuda_executable import CudaExecutable

__all__ = ["SavedProgramError", "load", "save"]

_KINDS: dict[str, type[Thunk]] = {
    t.__name__: t for t in (KernelThunk, CopyThunk, GemmThunk, HostThunk, WhileThunk, ConditionalThunk)
}


# ---- writing


def save(executable: CpuExecutable | CudaExecutable, path: str | Path) -> None:
    """Write `executable` into a folder, which is made; a program saved there before is replaced.

    Raises:
        SavedProgramError: the folder cannot be written, or holds something of somebody else's.
    """
    folder = _folder(path)
    writer = _Writer()
    thunks = [writer.thunk(t) for t in executable.program.thunks]
    program = executable.program
    told: dict[str, Any] = {
        "backend": executable.backend,
        "arena_bytes": executable.arena_bytes,
        "parameters": [writer.buffer(b) for b in program.parameters],
        "results": [writer.buffer(b) for b in program.results],
        "constant_buffers": [writer.buffer(b) for b in program.constant_buffers],
        "thunks": thunks,
        "kernels": [_spec_to_json(k) for k in executable.kernels],
    }
    told["buffers"] = writer.buffers
    files: dict[str, Callable[[Path], object]] = {
        "module.hlo": _text(str(executable.module)),
        "constants.npz": partial(_write_constants, program.constants),
    }
    if executable.plan is not None:
        files["plan.json"] = _text(executable.plan.to_json())
    if isinstance(executable, CpuExecutable):
        told["processor"] = cpu.processor()
        objects = dict.fromkeys(executable.built.objects.values())
        names = {path: f"kernels-{n}.so" for n, path in enumerate(objects)}
        told["objects"] = {symbol: names[path] for symbol, path in executable.built.objects.items()}
        names |= {executable.built.driver_path: "driver.so", executable.built.runtime_path: "runtime.so"}
        files |= {name: partial(_copy_object, path) for path, name in names.items()}
    files["program.json"] = _text(json.dumps(told, indent=1) + "\n")
    write_folder(folder, files)


def _text(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text, encoding="utf-8")


def _copy_object(source: Path, target: Path) -> None:
    if not source.exists():
        raise SavedProgramError(f"the built code {source} is gone from the cache; compile the program again")
    shutil.copyfile(source, target)


def _write_constants(constants: list[Any], path: Path) -> None:
    raw = {f"c{n}": np.frombuffer(c.tobytes(), np.uint8) for n, c in enumerate(constants)}
    with path.open("wb") as f:
        np.savez(f, allow_pickle=False, **raw)


def _spec_to_json(k: KernelSpec) -> dict[str, Any]:
    out = {f.name: getattr(k, f.name) for f in fields(k)}
    return out | {"inputs": [str(s) for s in k.inputs], "outputs": [str(s) for s in k.outputs]}


class _Writer:
    """Numbers buffers as thunks mention them."""

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


def load(path: str | Path) -> CpuExecutable | CudaExecutable:
    """Read what `Executable.save` wrote; no compiler is needed for a cpu program.

    Raises:
        SavedProgramError: no such folder, another format, damaged, or built for another kind of processor.
    """
    folder = _folder(path)
    contents = read_folder(folder)
    try:
        return _Reader(folder, contents).executable()
    except (LookupError, TypeError, ValueError, AttributeError, OSError, RecursionError) as e:
        if isinstance(e, SavedProgramError):
            raise
        raise SavedProgramError(f"{folder} is damaged: {e!r}; save the program again") from e


def _folder(path: str | Path) -> Path:
    if path == "" or "\0" in str(path):
        raise SavedProgramError(f"{str(path)!r} names no folder for a program")
    return Path(path)


class _Reader:
    def __init__(self, folder: Path, contents: Contents) -> None:
        self.folder, self.contents = folder, contents
        self.told: Mapping[str, Any] = json.loads(contents.data("program.json").decode())
        here = cpu.processor()
        if self.told["backend"] == "cpu" and self.told["processor"] != here:
            built_for = self.told["processor"]
            raise SavedProgramError(
                f"{folder} was built for the processor {built_for!r}, this one is {here!r}: compile it here"
            )
        text = contents.data("module.hlo").decode()
        self.module: HloModule = parse(text, filename=str(folder / "module.hlo"))
        self.specs = {k["symbol"]: _spec_from_json(k) for k in self.told["kernels"]}
        self.buffers = [
            Buffer(_shape(b["shape"]), BufferKind(b["kind"]), int(b["index"])) for b in self.told["buffers"]
        ]

    def executable(self) -> CpuExecutable | CudaExecutable:
        from compiler.plan import CompilationPlan

        plan = None
        if "plan.json" in self.contents.digests:
            plan = CompilationPlan.from_json(self.contents.data("plan.json").decode())
        program = self._program()
        if self.told["backend"] == "cuda":
            from compiler.runtime.cuda_executable import CudaExecutable

            return CudaExecutable(self.module, program, self.told["arena_bytes"], plan)
        if self.told["backend"] != "cpu":
            raise BackendError(f"{self.folder} was saved for an unknown backend {self.told['backend']!r}")
        built = BuiltProgram(
            program,
            self.told["arena_bytes"],
            print_driver(program.thunks),
            self._object("runtime.so"),
            self._object("driver.so"),
            {symbol: self._object(name) for symbol, name in self.told["objects"].items()},
        )
        return CpuExecutable(self.module, built, plan)

    def _object(self, name: str) -> Path:
        """A shared object, in the cache, from where it can be loaded."""
        cache = cpu.object_cache()
        return cache.object(self.contents.digests[name]) or cache.keep(self.contents.data(name))

    def _program(self) -> ThunkProgram:
        m = self.told
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
            raise SavedProgramError(f"{self.folder} is damaged: module.hlo has no %{name} in %{computation}")
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
