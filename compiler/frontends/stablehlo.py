"""StableHLO, as MLIR text or bytecode, into an HloModule."""

from __future__ import annotations

import importlib
from typing import Any

from compiler.errors import BackendError, HloSyntaxError
from compiler.ir.module import HloModule
from compiler.text.parser import parse


def stablehlo(program: str | bytes) -> HloModule:
    """The HLO of a StableHLO program, not optimised, every constant in full.

    Args:
        program: MLIR text, MLIR bytecode, or a serialised portable artefact (`jax.export`, `torch_xla`).

    Raises:
        HloSyntaxError: the program is not StableHLO; the message is MLIR's own.
        BackendError: jaxlib, which reads StableHLO, is not installed.
    """
    mlir, hlo = jaxlib_modules()
    try:
        computation = mlir.mlir_module_to_xla_computation(program, use_tuple_args=False, return_tuple=False)
    except Exception as e:  # jaxlib's own error classes; known only once it is imported
        first_line = program.split("\n", 1)[0] if isinstance(program, str) else ""
        raise HloSyntaxError(f"this is not StableHLO: {e}", 1, 1, first_line, "<stablehlo>") from e
    return from_xla(computation, hlo)


def from_xla(computation: Any, hlo: Any) -> HloModule:
    """The module of an XlaComputation, through its text with all constants."""
    options = hlo.HloPrintOptions()
    options.print_large_constants = True
    return parse(computation.get_hlo_module().to_string(options))


def jaxlib_modules() -> tuple[Any, Any]:
    """The MLIR and HLO modules of jaxlib; BackendError when there is no jaxlib."""
    try:
        lib = importlib.import_module("jax._src.lib")
    except ImportError as e:
        raise BackendError(
            f"this frontend needs JAX, which cannot be imported here ({e}); install it with: pip install 'hlogym[jax]'"
        ) from e
    return lib._jax.mlir, lib.hlo
