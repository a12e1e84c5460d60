"""Other compilers on the same HLO: XLA through jaxlib, eager PyTorch and Inductor through a translation to PyTorch."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.errors import BackendError, UnknownNameError
from compiler.ir import HloModule
from experiments.sampling import warm_sample

__all__ = ["PEERS", "Contestant", "check_peer", "make_peer"]

PEERS = ("xla", "inductor", "eager")
XLA_MISSING = "XLA is not installed here; pip install 'hlogym[jax]'"


@dataclass(frozen=True)
class Contestant:
    """A compiled program that can be run and timed.

    Attributes:
        name: the name of the compiler, as shown in tables.
        outputs: runs the program once and returns its outputs as NumPy arrays.
        sample: runs the program the given number of times and returns the mean seconds per call.
    """

    name: str
    outputs: Callable[[], list[npt.NDArray[Any]]]
    sample: Callable[[int], float]


def check_peer(name: str) -> None:
    """Raise an error if there is no such peer, or if it is not installed; compiles nothing.

    Raises:
        UnknownNameError: there is no such peer.
        BackendError: the peer is not installed.
    """
    if name not in PEERS:
        raise UnknownNameError("peer", name, PEERS)
    if name == "xla" and importlib.util.find_spec("jaxlib") is None:
        raise BackendError(XLA_MISSING)


def make_peer(name: str, module: HloModule, arrays: Sequence[npt.NDArray[Any]]) -> Contestant:
    """Compile a program with another compiler for the given arguments.

    Raises:
        UnknownNameError: there is no such peer.
        BackendError: the peer is not installed, or cannot run this program.
    """
    check_peer(name)
    if name == "xla":
        return _xla(module, arrays)
    return _torch(name, module, arrays)


def _xla(module: HloModule, arrays: Sequence[npt.NDArray[Any]]) -> Contestant:
    try:
        import jax
        from jax._src import xla_bridge
        from jax._src.lib import _jax, hlo  # type: ignore[attr-defined]  # no public name compiles HLO text
    except ImportError as error:
        raise BackendError(XLA_MISSING) from error
    # Without this, programs that call LAPACK crash the process.
    importlib.import_module("jaxlib.cpu._lapack").initialize()
    client: Any = xla_bridge.get_backend("cpu")
    device = client.devices()[0]
    try:
        parsed = hlo.hlo_module_from_text(str(_without_donations(module)))
        computation = hlo.XlaComputation(parsed.as_serialized_hlo_module_proto())
        mlir = _jax.mlir.xla_computation_to_mlir_module(computation)
        executable = client.compile_and_load(mlir, _jax.DeviceList((device,)), _jax.CompileOptions())
        with jax.enable_x64(True):
            buffers = [jax.device_put(np.asarray(a), device) for a in arrays]
    except (RuntimeError, ValueError) as error:
        raise BackendError(f"XLA does not take this program: {(str(error).splitlines() or ['?'])[0]}") from error

    def run() -> list[Any]:
        shards = executable.execute_sharded(buffers).disassemble_into_single_device_arrays()
        return [s[0].block_until_ready() for s in shards]

    return Contestant("xla", lambda: [np.asarray(o) for o in run()], lambda n: warm_sample(run, n))


def _without_donations(module: HloModule) -> HloModule:
    """Return a copy without input-output aliases, because the same buffers are passed to every call."""
    kept = module.clone()
    for entry in ("input_output_alias", "buffer_donor"):
        kept.header.pop(entry, None)
    return kept


def _torch(name: str, module: HloModule, arrays: Sequence[npt.NDArray[Any]]) -> Contestant:
    import torch

    from experiments.torch_program import to_torch

    function = to_torch(module, compiled=name == "inductor")
    tensors = [torch.from_numpy(np.ascontiguousarray(a)) for a in arrays]

    def run() -> Sequence[Any]:
        with torch.no_grad():
            found: Sequence[Any] = function(*tensors)
        return found

    return Contestant(name, lambda: [t.numpy() for t in run()], lambda n: warm_sample(run, n))
