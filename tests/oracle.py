"""XLA:CPU through jaxlib: HLO text in, arrays out. The reference the interpreter and the backends are held against."""

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
    """A loaded executable, and for each leaf of its result whether it is a token."""

    executable: Any
    token_leaves: tuple[bool, ...]


def run_xla(text: str, args: Sequence[Any] = ()) -> list[Array]:
    """Compile HLO text with XLA:CPU and run it.

    Args:
        text: a module whose parameters are arrays (no tuples).
        args: one array for each parameter of the entry; taken in the dtype they have.

    Returns:
        The array leaves of the entry's result in order, 0-d arrays for scalars; tokens are left out.

    Raises:
        XlaError: XLA does not take the text, or does not support it on CPU.
    """
    executable, token_leaves = compile_xla(text)
    device = _client().devices()[0]
    with jax.enable_x64(True):
        buffers = [jax.device_put(np.asarray(a), device) for a in args]
        results = executable.execute_sharded(buffers).disassemble_into_single_device_arrays()
    return [np.asarray(shards[0]) for shards, token in zip(results, token_leaves, strict=True) if not token]


@lru_cache(maxsize=256)
def compile_xla(text: str) -> Compiled:
    """The loaded executable of an HLO text; the same one for the same text."""
    parsed = hlo.hlo_module_from_text(text)
    computation = hlo.XlaComputation(parsed.as_serialized_hlo_module_proto())
    mlir = _jax.mlir.xla_computation_to_mlir_module(computation)
    devices = _jax.DeviceList(tuple(_client().devices()[:1]))
    executable = _client().compile_and_load(mlir, devices, _jax.CompileOptions())
    leaves = _leaves(computation.program_shape().result_shape())
    return Compiled(executable, tuple("token" in str(leaf) for leaf in leaves))


def optimized_text(text: str) -> str:
    """The HLO that XLA:CPU makes of a text after all its passes."""
    return str(compile_xla(text).executable.hlo_modules()[0].to_string())


def _client() -> Any:
    return xla_bridge.get_backend("cpu")


def _leaves(shape: Any) -> Iterator[Any]:
    if not shape.is_tuple():
        yield shape
        return
    for part in shape.tuple_shapes():
        yield from _leaves(part)
