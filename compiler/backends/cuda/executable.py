"""The executable of the cuda backend: a program that is loaded on a GPU at its first call there."""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compiler.analysis.cost_model import device_model
from compiler.backends.cuda import bindings
from compiler.backends.cuda.arrays import Argument, take_arguments, take_results
from compiler.backends.cuda.cubins import Cubin, architecture_name, compile_cubins
from compiler.backends.cuda.device_program import DeviceProgram
from compiler.backends.cuda.saved_cubins import file_of, read_cubins, write_cubins
from compiler.backends.cuda.timing import time_program, time_step
from compiler.codegen.build_target import CUDA_TARGET
from compiler.codegen.kernel_spec import KernelSpec
from compiler.ir.module import HloModule
from compiler.plan import CompilationPlan
from compiler.runtime.allocation import allocate
from compiler.runtime.executable import ThunkSamples, ThunkTime, parameter_leaves, profile_thunks
from compiler.runtime.executable_text import executable_html, executable_text
from compiler.runtime.explanation import Explanation
from compiler.runtime.live_arrays import find_peak
from compiler.runtime.memory import ProgramMemory, program_memory
from compiler.runtime.program_files import ProgramFolder, SavedProgram, save_program
from compiler.runtime.thunk_emitter import ThunkProgram
from compiler.runtime.thunks import Thunk, kernels_of, walk


class CudaExecutable:
    """A program compiled for a GPU.

    Without a GPU the kernels, module and plan can be inspected, and `cubins` compiles the kernels, but a call raises
    BackendError. A call launches the program on CuPy's current stream of the calling thread and returns before it is
    done. Several threads may call it; calls on different streams wait for each other, because they share temporaries.

    An argument that the module's header donates to a result (`input_output_alias`, `buffer_donor`) is overwritten and
    returned as that result, if it is a CuPy array that owns its memory and shares it with no other argument. Otherwise
    the call works on a copy of it.

    Attributes:
        synchronous: wait after each launch, so that an error names the kernel that caused it; slow.
        tf32: let cuBLAS round operands of f32 products to 10 bits of mantissa for tensor cores (TF32), as XLA does by
            default; it is read when the program is loaded, at the first call.
    """

    backend = "cuda"

    def __init__(
        self,
        module: HloModule,
        program: ThunkProgram,
        arena_bytes: int,
        plan: CompilationPlan | None = None,
        cubins: Mapping[str, dict[str, Cubin]] | None = None,
    ) -> None:
        self.module, self.program, self.plan = module, program, plan
        self.arena_bytes = arena_bytes
        self.thunks: list[Thunk] = list(walk(program.thunks))
        self._shapes = parameter_leaves(module)
        self.synchronous = self.tf32 = False
        self._loaded: dict[tuple[int, int], DeviceProgram] = {}
        self._cupy: Any = None
        self._cubins: dict[str, dict[str, Cubin]] = dict(cubins or {})
        self._loading = threading.Lock()

    @staticmethod
    def build(module: HloModule, program: ThunkProgram, plan: CompilationPlan | None = None) -> CudaExecutable:
        """Assign memory to the buffers of a program and return the executable; the first call compiles the kernels."""
        return CudaExecutable(module, program, allocate(program), plan)

    def __repr__(self) -> str:
        return executable_text(self)

    def _repr_html_(self) -> str:
        return executable_html(self)

    def explain(self) -> Explanation:
        """Return which decisions made each kernel, and why kernels that follow each other are separate."""
        return Explanation(
            self.module, self.plan, self.thunks, device_model("gpu"), CUDA_TARGET, find_peak(self.program.thunks)
        )

    def save(self, path: str | Path) -> None:
        """Save the program to a folder; any machine with a GPU can load it.

        The kernels are saved as source, and compiled for the architectures for which they have been compiled here, by a
        call or by `cubins`. On other GPUs they are compiled at the first call.
        """
        details = {"architectures": sorted(self._cubins)}
        saved = SavedProgram(self.backend, self.module, self.program, self.arena_bytes, self.plan, details)
        with tempfile.TemporaryDirectory() as folder:
            files = {file_of(a): write_cubins(Path(folder), a, found) for a, found in self._cubins.items()}
            save_program(path, saved, files)

    @staticmethod
    def load(folder: ProgramFolder) -> CudaExecutable:
        """Return the executable saved in an open folder."""
        saved = folder.read()
        names = {a: file_of(a) for a in folder.details.get("architectures", ())}
        cubins = {a: read_cubins(a, folder.contents.data(name)) for a, name in names.items()}
        return CudaExecutable(saved.module, saved.program, saved.arena_bytes, saved.plan, cubins)

    @property
    def memory(self) -> ProgramMemory:
        """Return the memory of the GPU that a call holds."""
        return program_memory(self.program, self.arena_bytes)

    @property
    def kernels(self) -> list[KernelSpec]:
        """Return the distinct generated kernels in program order."""
        return kernels_of(self.thunks)

    def cubins(self, architecture: str | int = "sm_90") -> dict[str, Cubin]:
        """Return the compiled kernels by symbol, with what they need of the GPU; see `compile_cubins`."""
        name = architecture_name(architecture)
        found = self._cubins.get(name)
        if found is None or not found.keys() >= {k.symbol for k in self.kernels}:
            found = self._cubins[name] = compile_cubins(self.kernels, name)
        return found

    @property
    def donated(self) -> Mapping[int, int]:
        """The argument whose memory each result takes over, by the number of the result."""
        return {b.index: n for n, b in enumerate(self.program.parameters) if b.kind.value == "output"}

    def __call__(self, *arrays: Any) -> list[Any]:
        """Run the program on CuPy, DLPack or numpy arrays and return the leaves of its result as new CuPy arrays.

        Raises:
            ArgumentError: the arguments do not match.
            BackendError: there is no GPU here, or CUDA fails.
            CodegenError: a kernel cannot be compiled or launched.
            MemoryLimitError: the memory of the GPU does not suffice.
            DeviceLostError: a kernel failed; this process cannot use the GPU any more.
        """
        program = self._on_device()
        try:
            return program.call(self._arguments(program, arrays), donate=True, synchronous=self.synchronous)
        except Exception as e:
            error = program.error_of(e, "the call")
            if error is e:
                raise
            raise error from e

    def _arguments(self, program: DeviceProgram, arrays: Sequence[Any]) -> list[Argument]:
        xp = program.xp
        return take_arguments(xp, arrays, self._shapes, xp.cuda.get_current_stream())

    def _on_device(self) -> DeviceProgram:
        """Return the program on the current GPU; load it there at the first call."""
        if self._cupy is None or sys.modules.get("cupy") is not self._cupy:
            self._cupy = bindings.cupy()  # asks for a GPU, which is not needed at each call
        xp: Any = self._cupy
        key = id(xp), int(xp.cuda.runtime.getDevice())
        found = self._loaded.get(key)
        if found is None:
            with self._loading:
                found = self._loaded.get(key)
                if found is None:
                    capability = xp.cuda.Device(key[1]).compute_capability
                    cubins = self.cubins(f"sm_{capability}")
                    found = self._loaded[key] = DeviceProgram(
                        xp, key[1], self.program, self.arena_bytes, cubins, self.tf32
                    )
        return found

    def benchmark(self, arrays: Sequence[Any], repeats: int = 10) -> list[float]:
        """Return the seconds of each of `repeats` executions on the GPU, measured by CUDA events.

        Launches are queued before the first one starts where the program allows it, so that the time of the host does
        not count. Arguments are on the GPU before, and donated ones are copied between the executions.
        """
        program = self._on_device()
        with program.translated("the benchmark"):
            return time_program(program, *self._prepared(program, arrays), repeats)

    def _prepared(
        self, program: DeviceProgram, arrays: Sequence[Any]
    ) -> tuple[list[Argument], list[Any], list[tuple[int, int]]]:
        """Return the arguments, the arrays of the results and the copies between them, for runs that are timed."""
        arguments = self._arguments(program, arrays)
        return arguments, *take_results(program.xp, program.result_shapes, program.donated, arguments, donate=False)

    def time_thunks(self, arrays: Sequence[Any], repeats: int = 5) -> list[ThunkSamples]:
        """Return the seconds of `repeats` executions of each thunk, one after the other, on the data of one call.

        A loop or conditional takes no time itself; the number of executions is the expected one.
        """
        program = self._on_device()
        with program.translated("the measurement"):
            arguments, results, copies = self._prepared(program, arrays)
            return self._thunk_samples(program, arguments, results, copies, repeats)

    def _thunk_samples(
        self,
        program: DeviceProgram,
        arguments: list[Argument],
        results: list[Any],
        copies: list[tuple[int, int]],
        repeats: int,
    ) -> list[ThunkSamples]:
        with program.bound(arguments, results) as stream:
            program.begin(copies, arguments, results, stream)
            program.launch(stream, synchronous=True)
            return [
                ThunkSamples(t.executions, time_step(program, *program.step_of(t), stream, repeats))
                for t in self.thunks
            ]

    def profile(self, *arrays: Any, repeats: int = 20) -> list[ThunkTime]:
        """Call the program and return the median time of each thunk with its bytes and flops."""
        return profile_thunks(self.thunks, self.time_thunks(arrays, repeats))
