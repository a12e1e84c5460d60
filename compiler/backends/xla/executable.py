"""The executable of the XLA backend."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compiler.analysis.cost_model import device_model
from compiler.backends.xla.flat_entry import with_flat_entry
from compiler.backends.xla.fused_modules import DISABLED_PASSES, module_for_xla, slow_in_xla
from compiler.backends.xla.library import run, xla
from compiler.codegen.kernel_spec import KernelSpec
from compiler.errors import ArgumentError, BackendError
from compiler.ir import HloModule, Opcode
from compiler.plan import CompilationPlan
from compiler.runtime.executable import ThunkSamples, ThunkTime, check_arguments, check_signature, parameter_leaves
from compiler.runtime.executable_text import executable_html, executable_text
from compiler.runtime.explanation import Explanation
from compiler.runtime.memory import ProgramMemory
from compiler.runtime.thunks import Thunk


class XlaExecutable:
    """A program that stock XLA compiled; it has no kernels and no thunks of its own.

    Args:
        module: the module after our passes. Its fusions, if it has any, are handed to XLA:CPU as they are; those for
            which XLA has no code, or code that repeats work, are dissolved.
        plan: the decisions, kept with the executable.

    Attributes:
        given: the HLO text that XLA got.

    Raises:
        BackendError: JAX is not installed, XLA refuses the program, or there are fusions and the device is not a CPU.
        UnsupportedError: a library call of the program cannot run beside fusions.
    """

    backend = "xla"

    def __init__(self, module: HloModule, plan: CompilationPlan | None = None) -> None:
        self.module = module
        self.plan = plan
        self.kernels: list[KernelSpec] = []
        self.thunks: list[Thunk] = []
        self.memory: ProgramMemory | None = None
        self._xla = xla()
        self._shapes = parameter_leaves(module)
        fused = any(i.opcode is Opcode.FUSION for c in module.control_flow_computations() for i in c.instructions)
        if fused and self._xla.platform != "cpu":
            raise BackendError(
                f"our fusions run on XLA's CPU only, and JAX's device is {self._xla.platform}; leave fusion_policy out"
            )
        self.given = str(with_flat_entry(module_for_xla(module, slow_in_xla) if fused else module))
        self._loaded = self._xla.compile(self.given, DISABLED_PASSES if fused else "")

    def __repr__(self) -> str:
        return executable_text(self)

    def _repr_html_(self) -> str:
        return executable_html(self)

    @property
    def text(self) -> str:
        """The HLO text after XLA's own passes, with the fusions that run."""
        return str(self._loaded.hlo_modules()[0].to_string())

    def __call__(self, *arrays: Any) -> list[Any]:
        """Run the program and return the leaves of its result in order.

        Args:
            *arrays: numpy arrays, JAX arrays, or other arrays with DLPack, such as those of PyTorch.

        Returns:
            numpy arrays, read-only where they share XLA's memory; JAX arrays if any argument is not an array of numpy.

        Raises:
            ArgumentError: the count, a shape or an element type is wrong.
        """
        foreign = any(hasattr(a, "__dlpack__") and not isinstance(a, np.ndarray | np.generic) for a in arrays)
        outputs = run(self._loaded, self._foreign(arrays) if foreign else self._buffers(arrays))
        return outputs if foreign else [np.asarray(o) for o in outputs]

    def _buffers(self, arrays: Sequence[Any]) -> list[Any]:
        return [self._xla.put(a) for a in check_arguments(arrays, self._shapes)]

    def _foreign(self, arrays: Sequence[Any]) -> list[Any]:
        jax = self._xla.jax
        found = []
        for n, a in enumerate(arrays):
            try:
                with jax.enable_x64(True):
                    there = a if isinstance(a, jax.Array) or not hasattr(a, "__dlpack__") else jax.dlpack.from_dlpack(a)
                    found.append(jax.device_put(there, self._xla.device))
            except (TypeError, ValueError, RuntimeError) as error:
                raise ArgumentError(f"argument {n}: JAX cannot read a {type(a).__name__}: {error}") from error
        check_signature([(np.dtype(a.dtype), a.shape) for a in found], self._shapes)
        return found

    def benchmark(self, arrays: Sequence[Any], repeats: int = 10) -> list[float]:
        """Return the seconds of each of `repeats` calls; the arguments are on the device before."""
        buffers = self._buffers(arrays)
        out = []
        for _ in range(repeats):
            start = time.perf_counter()
            for o in run(self._loaded, buffers):
                o.block_until_ready()
            out.append(time.perf_counter() - start)
        return out

    def time_thunks(self, arrays: Sequence[Any], repeats: int = 5) -> list[ThunkSamples]:
        """Return an empty list, because XLA's kernels are not timed one by one."""
        del arrays, repeats
        return []

    def profile(self, *arrays: Any, repeats: int = 20) -> list[ThunkTime]:
        """Return an empty list, because XLA's kernels are not timed one by one."""
        del arrays, repeats
        return []

    def explain(self) -> Explanation:
        """Return which decisions made the module that XLA got."""
        return Explanation(self.module, self.plan, self.thunks, device_model("cpu"))

    def save(self, path: str | Path) -> None:
        """Raise BackendError, because programs of XLA are not saved."""
        raise BackendError(f"cannot save to {path}: backend 'xla' cannot save programs; compile for 'cpu' or 'cuda'")
