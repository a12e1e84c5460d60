"""Frontend of XLA's binary formats: `HloProto`, which XLA dumps, and `HloModuleProto`."""

from __future__ import annotations

from compiler.errors import ArgumentError, HloSyntaxError
from compiler.frontends.stablehlo import from_xla, jaxlib_modules
from compiler.ir.module import HloModule

MODULE_TAG, ENTRY_NAME_TAG = 0x0A, 0x12
"""Field 1 of both messages (of an HloProto the module, of a module its name), and field 2 of a module."""


def hlo_proto(data: bytes) -> HloModule:
    """Convert a serialized HloProto or HloModuleProto to a module, with all constants.

    Raises:
        ArgumentError: `data` is not bytes.
        HloSyntaxError: it is neither of the two.
        BackendError: jaxlib, which reads them, is not installed.
    """
    if not isinstance(data, bytes):
        raise ArgumentError(f"hlo_proto takes bytes, got a {type(data).__name__}")
    _, hlo = jaxlib_modules()
    try:
        return from_xla(hlo.XlaComputation(_module_of(data)), hlo)
    except HloSyntaxError:
        raise
    except Exception as e:  # jaxlib's error classes are only known once it is imported
        reason = (str(e).splitlines() or ["?"])[0]
        raise HloSyntaxError(f"this is not an HloProto of XLA: {reason}", 1, 1, "", "<proto>") from e


def looks_like_proto(data: bytes) -> bool:
    """Check whether bytes can be an HloProto or an HloModuleProto, by their first field."""
    first = _first_field(data)
    return first is not None and first[0] < first[1]


def _module_of(data: bytes) -> bytes:
    """Return the HloModuleProto: the bytes themselves, or the first field of an HloProto."""
    first = _first_field(data)
    if first is None:
        raise HloSyntaxError("this is not an HloProto of XLA: its first field is malformed", 1, 1, "", "<proto>")
    start, end = first
    return data if data[end : end + 1] == bytes([ENTRY_NAME_TAG]) else data[start:end]


def _first_field(data: bytes) -> tuple[int, int] | None:
    """Return where the first field begins and ends, if it is field 1 and has a length."""
    if data[:1] != bytes([MODULE_TAG]):
        return None
    length, shift, at = 0, 0, 1
    while at < len(data) and shift < 64:
        byte = data[at]
        length |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if byte < 0x80:
            return (at, at + length) if at + length <= len(data) else None
    return None
