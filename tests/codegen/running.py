"""Helpers that run single kernels, as C or as CUDA C++ in an emulator, and compare them with the interpreter."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.backends.cpu import toolchain as cpu
from compiler.backends.cpu.libraries import load_library
from compiler.backends.cpu.native_runtime import RUNTIME
from compiler.backends.cuda import emulation
from compiler.codegen.kernel_spec import KernelSpec, build_spec, flops_of
from compiler.codegen.languages import default_schedule, find_language
from compiler.codegen.lowering.lower import lower, roots_of
from compiler.codegen.schedules.schedule import Schedule
from compiler.interpreter import evaluate_computation
from compiler.ir import HloComputation
from compiler.ir.shape import Shape
from compiler.text import parse
from env.comparison import difference
from env.reference import Reference
from env.suites import Tolerance

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A kernel with arguments and the expected results."""

    spec: KernelSpec
    args: tuple[Array, ...]
    reference: Reference


def fused(text: str, computations: str = "") -> HloComputation:
    """Parse the lines of a computation and return it, for use as one fused computation."""
    lines = "\n  ".join(line.strip() for line in text.strip().splitlines())
    return parse(f"HloModule case\n{computations}\nENTRY fused {{\n  {lines}\n}}\n").entry


def kernel_of(computation: HloComputation, language: str, schedule: Schedule | None = None) -> KernelSpec:
    """Return the kernel of a computation; raise UnsupportedError if there is none."""
    schedule = schedule or default_schedule(language)
    outputs = tuple(r.shape for r in roots_of(computation))
    kernel = lower(computation, schedule, find_language(language).tiles)
    flops = flops_of(computation)
    return build_spec("case", kernel, language, schedule, computation.parameter_shapes, outputs, flops)


def case_of(
    computation: HloComputation, args: Sequence[Array], language: str, schedule: Schedule | None = None
) -> Case:
    """Return a case whose expected results are those of the interpreter."""
    reference = Reference(lambda a, context: leaves(evaluate_computation(computation, a, context)), args)
    return Case(kernel_of(computation, language, schedule), tuple(args), reference)


def leaves(value: Any) -> list[Array]:
    """Return the arrays in a value of the interpreter, in order."""
    if isinstance(value, tuple):
        return [leaf for v in value for leaf in leaves(v)]
    return [np.asarray(value)]


def random_args(shapes: Sequence[Shape], rng: np.random.Generator) -> list[Array]:
    """Return random arrays of moderate values: floats between -2 and 2 and small integers."""
    return [random_array(s, rng) for s in shapes]


def random_array(shape: Shape, rng: np.random.Generator) -> Array:
    """Return one array as `random_args` does."""
    dtype, dims = shape.dtype, shape.dimensions
    if dtype == np.bool_:
        return rng.integers(0, 2, dims).astype(bool)
    if dtype.kind in "iu":
        return rng.integers(-8 if dtype.kind == "i" else 0, 9, dims).astype(dtype)
    return np.asarray(rng.uniform(-2, 2, dims)).astype(dtype)


def problem(
    found: Sequence[Array], wanted: Case | Reference | Sequence[Array], rtol: float | None = None
) -> str | None:
    """Return how results differ from the expected ones, or None; the tolerance is that of their types or `rtol`."""
    if isinstance(wanted, Case):
        wanted = wanted.reference
    tolerance = None if rtol is None else Tolerance(rtol)
    if isinstance(wanted, Reference):
        return wanted.difference(found, tolerance)
    return difference(found, wanted, tolerance)


# ---- C


def run_c(cases: Sequence[Case]) -> list[list[Array]]:
    """Build the kernels of all cases at once, run them on the CPU and return their results."""
    toolchain = cpu.toolchain()
    RUNTIME.load(toolchain.runtime())
    objects = cpu.kernel_objects([c.spec for c in cases], toolchain)
    out = []
    for c in cases:
        buffers, pointers = _memory(c)
        library = load_library(objects[c.spec.symbol])
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.function(c.spec.symbol))
        function(ctypes.addressof(pointers))
        out.append(buffers[len(c.args) :])
    return out


def _memory(c: Case) -> tuple[list[Array], Any]:
    """Return the arguments and new outputs with pointers to them; those that must alias share a buffer."""
    ins = [np.ascontiguousarray(a).reshape(a.shape) for a in c.args]
    outputs = [_poisoned(s) for s in c.spec.outputs]
    for source, target in c.spec.must_alias:
        out = outputs[target - len(ins)]
        np.copyto(out, ins[source])
        ins[source] = out
    buffers = [*ins, *outputs]
    pointers = (ctypes.c_void_p * max(1, len(buffers)))(*(b.ctypes.data for b in buffers))
    return buffers, pointers


def _poisoned(s: Shape) -> Array:
    """Return an output array filled with a byte pattern that reveals elements the kernel did not write."""
    out: Array = np.empty(s.dimensions, s.dtype)
    out.reshape(-1).view(np.uint8)[...] = 0 if s.dtype == np.bool_ else 0x5A
    return out


# ---- emulated CUDA


def has_emulator() -> bool:
    """Check whether a C++ compiler is installed."""
    return emulation.available()


@dataclass(frozen=True)
class Emulated:
    """The results of an emulated kernel and the error that the emulator detected ("" if none)."""

    outputs: list[Array]
    error: str


def run_emulated(cases: Sequence[Case], folder: Path, max_grid: int = 3) -> list[Emulated]:
    """Run all cases with their own block size and at most `max_grid` blocks; return their results."""
    del folder  # what was built is in the cache of compiled code
    kernels = emulation.build([c.spec for c in cases])
    out = []
    for c in cases:
        buffers, _ = _memory(c)
        error = kernels.launch(c.spec.symbol, [b.ctypes.data for b in buffers], max_blocks=max_grid)
        out.append(Emulated(buffers[len(c.args) :], error))
    return out


def processor_has(*features: str) -> bool:
    """Check whether Linux lists features of the processor, for example avx2."""
    try:
        found = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False
    return set(features) <= set(found)
