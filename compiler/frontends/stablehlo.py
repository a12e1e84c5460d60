"""StableHLO, as MLIR text or bytecode, into an HloModule."""

from __future__ import annotations

import importlib
import re
from typing import Any

from compiler.errors import ArgumentError, BackendError, HloSyntaxError, UnsupportedError
from compiler.ir.module import HloModule
from compiler.text.parser import parse


def stablehlo(program: str | bytes | bytearray) -> HloModule:
    """The HLO of a StableHLO program, not optimised, every constant in full.

    Args:
        program: MLIR text, MLIR bytecode, or a serialised portable artefact (`jax.export`, `torch_xla`).

    Raises:
        ArgumentError: neither text nor bytes.
        HloSyntaxError: the program is not StableHLO; the message is MLIR's own.
        UnsupportedError: it is, but has dimensions without a fixed size.
        BackendError: jaxlib, which reads StableHLO, is not installed.
    """
    if not isinstance(program, str | bytes | bytearray):
        raise ArgumentError(f"stablehlo takes MLIR text or bytes, got a {type(program).__name__}")
    program = program if isinstance(program, str) else bytes(program)
    first_line = program.lstrip().partition("\n")[0] if isinstance(program, str) else ""
    if first_line.startswith("HloModule"):
        raise HloSyntaxError("this is HLO text, not StableHLO: parse reads it", 1, 1, first_line, "<stablehlo>")
    mlir, hlo = jaxlib_modules()
    try:
        computation = mlir.mlir_module_to_xla_computation(program, use_tuple_args=False, return_tuple=False)
    except Exception as e:  # jaxlib's own error classes; known only once it is imported
        said = _first_error(str(e))
        if "dynamic" in said or (isinstance(program, str) and _OPEN_SIZE.search(program)):
            raise UnsupportedError(
                f"this StableHLO has dimensions without a fixed size; export it with concrete shapes ({said})"
            ) from e
        raise HloSyntaxError(f"this is not StableHLO: {said}", 1, 1, first_line, "<stablehlo>") from e
    return from_xla(computation, hlo)


_OPEN_SIZE = re.compile(r"tensor<(?:\d+x)*\?")


def _first_error(message: str) -> str:
    """MLIR's first complaint, without where in jaxlib or in somebody's sources it arose."""
    lines = [line.partition("error: ")[2].strip() for line in message.splitlines() if "error: " in line]
    return lines[0] if lines else message.strip().partition("\n")[0]


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
