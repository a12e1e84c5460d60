"""Library calls: instructions that one call of a library computes, such as a convolution with bias and activation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from compiler.ir.instruction import HloInstruction


@dataclass(frozen=True)
class LibraryCall:
    """One instruction as a call of a library.

    Attributes:
        operation: the operation in the library's terms, as JSON data; only the backend reads it.
        operands: positions of the instruction's operands that the library reads, in its order.
        scratch_bytes: size of the temporary memory that the call needs.
        flops: number of floating point operations.
    """

    operation: Mapping[str, Any]
    operands: tuple[int, ...]
    scratch_bytes: int
    flops: int


class KernelLibrary(Protocol):
    """A library whose calls compute whole instructions."""

    def call_of(self, instruction: HloInstruction) -> LibraryCall | None:
        """Return the call that computes an instruction, or None if the library should not compute it."""
        ...


def no_library(instruction: HloInstruction) -> str | None:
    """Return why no library computes an instruction, for backends that have none."""
    return f"no library computes %{instruction.name} on this backend"
