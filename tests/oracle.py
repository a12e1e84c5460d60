"""XLA:CPU through jaxlib, from HLO text to arrays: the reference for the interpreter and the backends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt
from jax._src import xla_bridge
from jax._src.lib import _jax, hlo  # type: ignore[attr-defined]  # no public name parses or compiles HLO text

Array = npt.NDArray[Any]
XlaError = jax.errors.JaxRuntimeError


class Compiled(NamedTuple):
    """A loaded executable, and whether each leaf of its result is a token."""

    executable: Any
    token_leaves: tuple[bool, ...]


def run_xla(text: str, args: Sequence[Any] = ()) -> list[Array]:
    """Compile HLO text with XLA:CPU and run it.

    Args:
        text: HLO text of a module whose parameters are arrays, not tuples.
        args: one array per parameter of the entry; dtypes are not converted.

    Returns:
        The array leaves of the entry's result in order, without tokens; scalars are 0-d arrays.

    Raises:
        XlaError: XLA rejects the HLO text, or does not support it on the CPU.
    """
    executable, token_leaves = compile_xla(text)
    device = _client().devices()[0]
    with jax.enable_x64(True):
        buffers = [jax.device_put(np.asarray(a), device) for a in args]
        results = executable.execute_sharded(buffers).disassemble_into_single_device_arrays()
    return [np.asarray(shards[0]) for shards, token in zip(results, token_leaves, strict=True) if not token]


@lru_cache(maxsize=256)
def compile_xla(text: str) -> Compiled:
    """Compile HLO text and return the loaded executable; results are cached."""
    parsed = hlo.hlo_module_from_text(text)
    computation = hlo.XlaComputation(parsed.as_serialized_hlo_module_proto())
    mlir = _jax.mlir.xla_computation_to_mlir_module(computation)
    devices = _jax.DeviceList(tuple(_client().devices()[:1]))
    executable = _client().compile_and_load(mlir, devices, _jax.CompileOptions())
    leaves = _leaves(computation.program_shape().result_shape())
    return Compiled(executable, tuple("token" in str(leaf) for leaf in leaves))


def optimized_text(text: str) -> str:
    """Return the HLO text that XLA:CPU produces with all its passes."""
    return str(compile_xla(text).executable.hlo_modules()[0].to_string())


def _client() -> Any:
    return xla_bridge.get_backend("cpu")


def _leaves(shape: Any) -> Iterator[Any]:
    if not shape.is_tuple():
        yield shape
        return
    for part in shape.tuple_shapes():
        yield from _leaves(part)
