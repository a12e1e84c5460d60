"""Compile one HLO program and print what it took as one line of JSON (`Compilation`).

    python -m tests.sweeps.real_model_run PROGRAM.hlo [--backend cpu|cuda|xla]

Each program is compiled in a process of its own, so that memory and time can be limited.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from compiler.backends.cpu import toolchain
from compiler.backends.cuda.nvrtc import source_of
from compiler.errors import CodegenError, HlogymError, UnsupportedError
from compiler.ir.instruction import HloInstruction
from compiler.ir.module import HloModule
from compiler.runtime.instruction_kernels import emit_kernel
from compiler.runtime.memory import program_memory
from compiler.runtime.thunk_emitter import ThunkEmitter, ThunkProgram
from compiler.runtime.thunks import GemmThunk, HostThunk, KernelThunk, LibraryThunk, walk
from compiler.session import CompilationSession
from compiler.text import parse
from tests.codegen.nvrtc_errors import nvrtc_errors


@dataclass
class Compilation:
    """What the compilation of one program took.

    Attributes:
        instructions: number of instructions as written, in all computations.
        fused_from: number of instructions of the sequences when fusion starts.
        seconds: wall-clock seconds by stage.
        cpu_seconds: processor seconds by stage, with those of the C compiler; they depend less on other load.
        actions: number of fusions.
        launches: thunks that run a kernel.
        kernels: distinct kernels.
        objects: shared objects that were compiled, without the runtime.
        source_bytes: length of the kernels' source.
        library_calls: calls of BLAS or oneDNN.
        host_ops: ops left to the interpreter, by opcode and reason.
        rss_mib: peak memory of the process and the largest compiler process.
        memory: bytes that a call holds: arguments, results, temporaries, constants.
        error: why the program was refused.
    """

    instructions: int = 0
    fused_from: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    actions: int = 0
    launches: int = 0
    kernels: int = 0
    objects: int = 0
    source_bytes: int = 0
    library_calls: int = 0
    host_ops: dict[str, int] = field(default_factory=dict)
    rss_mib: int = 0
    memory: dict[str, int] = field(default_factory=dict)
    error: str = ""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the seconds of a block to a stage."""
        start, cpu = time.perf_counter(), _processor_seconds()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
            self.cpu_seconds[name] = self.cpu_seconds.get(name, 0.0) + _processor_seconds() - cpu

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose calls are added to a stage."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.stage(name):
                return function(*args, **kwargs)

        return call


def _processor_seconds() -> float:
    """Return the processor time of this process and of the children that have ended."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def compile_file(path: Path, backend: str, made: Compilation, architecture: str = "") -> None:
    """Compile a program stage by stage, as `compile` does; note times and counts in `made`.

    If `architecture` is not empty, NVRTC compiles the kernels for it.
    """
    with made.stage("parse"):
        module = parse(path.read_text(encoding="utf-8"), filename=path.name, fill_elided=True)
    made.instructions = module.instruction_count
    with made.stage("passes"):
        session = CompilationSession(module, backend)
        session.run_passes()
    with made.stage("loops"):
        session.run_loop_policy()
    with made.stage("fusion start"):
        state = session.fusion
    made.fused_from = sum(len(c.instructions) for c in session.module.control_flow_computations())
    with made.stage("fusion"):
        made.actions = len(session.run_fusion_policy())
    del state
    with _building(made):
        executable = session.finish()
    _count(executable, backend, made)
    if architecture:
        with made.stage("nvrtc"):
            errors = nvrtc_errors(source_of(executable.kernels), architecture)
        if errors:
            raise CodegenError(f"NVRTC: {errors[:300]}")


@contextmanager
def _building(made: Compilation) -> Iterator[None]:
    """Divide the seconds of building among code generation, allocation, the C compiler and the rest."""
    build = toolchain.CpuToolchain._build

    def counted(self: toolchain.CpuToolchain, sources: Sequence[toolchain.Source]) -> Iterator[bytes]:
        made.objects += sum(s.name != "runtime" for s in sources)
        return build(self, sources)

    with (
        mock.patch.object(ThunkEmitter, "emit", made.timed("codegen", ThunkEmitter.emit)),
        mock.patch.object(toolchain, "program_objects", made.timed("gcc", toolchain.program_objects)),
        mock.patch.object(toolchain.CpuToolchain, "_build", counted),
        made.stage("finish"),
    ):
        yield
    for seconds in (made.seconds, made.cpu_seconds):
        seconds["finish"] -= seconds.get("codegen", 0.0) + seconds.get("gcc", 0.0)


def _count(executable: Any, backend: str, made: Compilation) -> None:
    program: ThunkProgram = executable.program
    made.kernels = len(executable.kernels)
    made.source_bytes = sum(len(k.source) for k in executable.kernels)
    thunks = list(walk(program.thunks))
    made.launches = sum(isinstance(t, KernelThunk) for t in thunks)
    made.library_calls = sum(isinstance(t, (LibraryThunk, GemmThunk)) for t in thunks)
    left = Counter(_host_text(t.instruction, backend) for t in thunks if isinstance(t, HostThunk))
    made.host_ops = dict(left.most_common())
    made.memory = asdict(program_memory(program, executable.arena_bytes))


def _host_text(i: HloInstruction, backend: str) -> str:
    """Return the opcode of an op left to the interpreter, and why it has no kernel."""
    name = i.opcode.text
    try:
        emit_kernel(i, {"cpu": "c", "cuda": "cuda"}[backend])
    except UnsupportedError as e:
        return f"{name}: {str(e).replace(f'%{i.name}', '%...')[:160]}"
    return f"{name}: has a kernel"


def compile_xla(path: Path, made: Compilation) -> None:
    """Compile a program with XLA:CPU."""
    from tests.oracle import compile_xla as by_xla

    module = parse(path.read_text(encoding="utf-8"), filename=path.name, fill_elided=True)
    made.instructions = module.instruction_count
    text = str(_for_one_device(module))
    by_xla("HloModule warm\nENTRY e { ROOT p = f32[4] parameter(0) }")
    with made.stage("xla"):
        compiled = by_xla(text)
    stats = compiled.executable.get_compiled_memory_stats()
    made.memory = {"temporaries": stats.temp_size_in_bytes, "constants": stats.generated_code_size_in_bytes}


def _for_one_device(module: HloModule) -> HloModule:
    """Return a module without partitions and donations, which XLA would compile for several devices."""
    kept = module.clone()
    for entry in ("input_output_alias", "buffer_donor", "num_partitions", "replica_count"):
        kept.header.pop(entry, None)
    return kept


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("program", type=Path)
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda", "xla"))
    parser.add_argument("--nvrtc", default="", metavar="ARCH", help="compile the kernels for it, such as sm_90")
    options = parser.parse_args()
    made = Compilation()
    try:
        if options.backend == "xla":
            compile_xla(options.program, made)
        else:
            compile_file(options.program, options.backend, made, options.nvrtc)
    except (HlogymError, MemoryError) as e:
        made.error = f"{type(e).__name__}: {e}"
    kib = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    made.rss_mib = kib // 1024
    print(json.dumps(asdict(made)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
