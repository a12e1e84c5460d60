"""StableHLO frontend: converts MLIR text or bytecode to an HloModule."""

from __future__ import annotations

import importlib
import re
from typing import Any

from compiler.errors import ArgumentError, BackendError, HloSyntaxError, UnsupportedError
from compiler.ir.module import HloModule
from compiler.text.parser import parse


def stablehlo(program: str | bytes | bytearray, filename: str | None = None) -> HloModule:
    """Convert a StableHLO program to HLO, unoptimized, with all constants.

    Args:
        program: MLIR text, MLIR bytecode, or a serialized portable artifact (`jax.export`, `torch_xla`).
        filename: the file that it is from, for messages.

    Raises:
        ArgumentError: the program is neither text nor bytes.
        HloSyntaxError: the program is not StableHLO; the message is MLIR's.
        UnsupportedError: the program has dimensions without a fixed size.
        BackendError: jaxlib, which parses StableHLO, is not installed.
    """
    if not isinstance(program, str | bytes | bytearray):
        raise ArgumentError(f"stablehlo takes MLIR text or bytes, got a {type(program).__name__}")
    program = program if isinstance(program, str) else bytes(program)
    where = filename or "<stablehlo>"
    if isinstance(program, str) and program.lstrip().startswith("HloModule"):
        first_line = program.lstrip().partition("\n")[0]
        raise HloSyntaxError("this is HLO text, not StableHLO; use parse", 1, 1, first_line, where)
    mlir, hlo = jaxlib_modules()
    try:
        computation = mlir.mlir_module_to_xla_computation(program, use_tuple_args=False, return_tuple=False)
    except Exception as e:  # jaxlib's error classes are only known once it is imported
        line, column, reason = _first_error(str(e))
        if "dynamic" in reason or (isinstance(program, str) and _OPEN_SIZE.search(program)):
            raise UnsupportedError(
                f"this StableHLO has dimensions without a fixed size; export it with concrete shapes ({reason})"
            ) from e
        lines = program.splitlines() if isinstance(program, str) else []
        source_line = lines[line - 1] if 0 < line <= len(lines) else ""
        raise HloSyntaxError(f"this is not StableHLO: {reason}", line, column, source_line, where) from e
    return from_xla(computation, hlo)


_OPEN_SIZE = re.compile(r"tensor<(?:\d+x)*\?")
_ERROR = re.compile(r"(?:-:(\d+):(\d+): )?error: (.*)")
"""A message of MLIR, with the line and the column where it is about the text."""


def _first_error(message: str) -> tuple[int, int, str]:
    """Return the line, the column and the text of MLIR's first error, without locations in jaxlib."""
    found = _ERROR.search(message)
    if found is None:
        return 1, 1, message.strip().partition("\n")[0]
    return int(found[1] or 1), int(found[2] or 1), found[3].strip()


def from_xla(computation: Any, hlo: Any) -> HloModule:
    """Convert an XlaComputation to a module through its text with all constants."""
    options = hlo.HloPrintOptions()
    options.print_large_constants = True
    return parse(computation.get_hlo_module().to_string(options))


def jaxlib_modules() -> tuple[Any, Any]:
    """Return the MLIR and HLO modules of jaxlib; raise BackendError if it is not installed."""
    try:
        lib = importlib.import_module("jax._src.lib")
    except ImportError as e:
        raise BackendError(
            f"this frontend needs JAX, which cannot be imported here ({e}); install it with: pip install 'hlogym[jax]'"
        ) from e
    return lib._jax.mlir, lib.hlo
