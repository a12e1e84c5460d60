"""Executables on disk: a folder of JSON, shared objects (or CUDA source) and arrays. Nothing is pickled.

manifest.json   format, backend, processor, buffers, thunks, kernels
module.hlo      the optimised module; plan.json: the decisions
program.so, kernels-N.so, constants.npz
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.backends import cpu
from compiler.codegen.kernel_spec import KernelSpec
from compiler.errors import BackendError, HlogymError
from compiler.ir.instruction import HloInstruction
from compiler.ir.module import HloModule
from compiler.ir.shape import Shape
from compiler.runtime.buffers import Buffer, BufferKind
from compiler.runtime.driver_c import print_driver
from compiler.runtime.executable import BuiltProgram, CpuExecutable
from compiler.runtime.planner import ThunkProgram
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

FORMAT = 1
_KINDS: dict[str, type[Thunk]] = {
    t.__name__: t for t in (KernelThunk, CopyThunk, GemmThunk, HostThunk, WhileThunk, ConditionalThunk)
}


class SavedProgramError(HlogymError, ValueError):
    """A folder that is no saved executable, or one that cannot run here."""


# ---- writing


def save(executable: CpuExecutable | CudaExecutable, folder: Path) -> None:
    """Write `executable` into `folder`, which is made; what stood there under the same names is replaced."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(executable, folder)
    except OSError as e:
        raise SavedProgramError(f"cannot write to {folder}: {e.strerror}; choose another folder") from e


def _write(executable: CpuExecutable | CudaExecutable, folder: Path) -> None:
    writer = _Writer()
    thunks = [writer.thunk(t) for t in executable.program.thunks]
    program = executable.program
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "backend": executable.backend,
        "arena_bytes": executable.arena_bytes,
        "parameters": [writer.buffer(b) for b in program.parameters],
        "results": [writer.buffer(b) for b in program.results],
        "constant_buffers": [writer.buffer(b) for b in program.constant_buffers],
        "thunks": thunks,
        "kernels": [_spec_to_json(k) for k in executable.kernels],
    }
    manifest["buffers"] = writer.buffers
    if isinstance(executable, CpuExecutable):
        manifest["processor"] = cpu.processor()
        shutil.copyfile(executable.built.driver_path, folder / "program.so")
        files: dict[Path, str] = {}
        for path in executable.built.objects.values():
            if path not in files:
                files[path] = f"kernels-{len(files)}.so"
                shutil.copyfile(path, folder / files[path])
        manifest["objects"] = {symbol: files[path] for symbol, path in executable.built.objects.items()}
    (folder / "module.hlo").write_text(str(executable.module))
    if executable.plan is not None:
        (folder / "plan.json").write_text(executable.plan.to_json())
    raw = {f"c{n}": np.frombuffer(c.tobytes(), np.uint8) for n, c in enumerate(program.constants)}
    with (folder / "constants.npz").open("wb") as f:
        np.savez(f, allow_pickle=False, **raw)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


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
        SavedProgramError: no such folder, another format, or built for another kind of processor.
    """
    folder = Path(path)
    manifest = _manifest(folder)
    try:
        return _Reader(folder, manifest).executable()
    except (KeyError, TypeError, IndexError, OSError) as e:
        raise SavedProgramError(f"{folder} is damaged: {e!r}; save the program again") from e


def _manifest(folder: Path) -> Mapping[str, Any]:
    try:
        data = json.loads((folder / "manifest.json").read_text())
    except OSError as e:
        raise SavedProgramError(f"{folder} is no saved program: {e.strerror}: manifest.json") from e
    except ValueError as e:
        raise SavedProgramError(f"{folder}/manifest.json is not JSON: {e}") from e
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise SavedProgramError(f"{folder} has another format than {FORMAT}; save the program again")
    here = cpu.processor()
    if data.get("backend") == "cpu" and data.get("processor") != here:
        raise SavedProgramError(
            f"{folder} was built for the processor {data.get('processor')!r}, this one is {here!r}: compile it here"
        )
    return data


class _Reader:
    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        self.folder, self.manifest = folder, manifest
        self.module: HloModule = parse((folder / "module.hlo").read_text(), filename=str(folder / "module.hlo"))
        self.specs = {k["symbol"]: _spec_from_json(k) for k in manifest["kernels"]}
        self.buffers = [Buffer(_shape(b["shape"]), BufferKind(b["kind"]), int(b["index"])) for b in manifest["buffers"]]

    def executable(self) -> CpuExecutable | CudaExecutable:
        from compiler.plan import CompilationPlan

        plan_file = self.folder / "plan.json"
        plan = CompilationPlan.from_json(plan_file.read_text()) if plan_file.exists() else None
        program = self._program()
        if self.manifest["backend"] == "cuda":
            from compiler.runtime.cuda_executable import CudaExecutable

            return CudaExecutable(self.module, program, self.manifest["arena_bytes"], plan)
        if self.manifest["backend"] != "cpu":
            raise BackendError(f"{self.folder} was saved for an unknown backend {self.manifest['backend']!r}")
        objects = {s: self._inside(name) for s, name in self.manifest["objects"].items()}
        built = BuiltProgram(
            program, self.manifest["arena_bytes"], print_driver(program.thunks), self._inside("program.so"), objects
        )
        return CpuExecutable(self.module, built, plan)

    def _inside(self, name: str) -> Path:
        """A file of the folder itself, whatever the manifest says."""
        return (self.folder / Path(name).name).resolve()

    def _program(self) -> ThunkProgram:
        m = self.manifest
        buffers = [self.buffers[n] for n in m["constant_buffers"]]
        with np.load(self.folder / "constants.npz", allow_pickle=False) as raw:
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
