"""The counts of generated kernels: each kernel is counted once, and its counts are kept on disk."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from compiler.backends.cuda.emulation.counting import ArrayCounts, KernelCounts
from compiler.backends.cuda.emulation.emulator import build
from compiler.backends.cuda.emulation.inputs import aligned_array, input_arrays
from compiler.backends.cuda.emulation.toolchain import EmulatorToolchain, toolchain
from compiler.codegen.kernel_spec import KernelSpec
from compiler.errors import BackendError

__all__ = ["MOST_BYTES", "TrafficCounter"]

MOST_BYTES = 6 << 30
"""Bytes of the arrays of a kernel beyond which it is not run."""


class TrafficCounter:
    """Counts the traffic of kernels, and remembers what it has counted.

    Args:
        keep: whether counts are also kept in the cache of compiled code on disk.
    """

    def __init__(self, keep: bool = True) -> None:
        self._keep = keep
        self._known: dict[str, KernelCounts] = {}

    def counts(self, specs: Sequence[KernelSpec]) -> dict[str, KernelCounts]:
        """Return the counts of kernels by symbol, on inputs by `input_arrays`.

        Raises:
            BackendError: g++ is missing or cannot run, or a kernel has too large arrays or fails in the emulator.
            CodegenError: g++ rejects a kernel.
        """
        tools = toolchain()
        keys = {s.symbol: _key(s) for s in specs}
        missing = {s.symbol: s for s in specs if not self._find(keys[s.symbol], tools)}
        if missing:
            kernels = build(list(missing.values()))
            for spec in missing.values():
                arrays = self._arrays(spec)
                counts, error = kernels.count(spec.symbol, [a.ctypes.data for a in arrays])
                if error:
                    raise BackendError(f"kernel {spec.name} fails in the emulator: {error}")
                self._known[keys[spec.symbol]] = counts
                if self._keep:
                    tools.cache.write_note(_index(tools), keys[spec.symbol], json.dumps(dataclasses.asdict(counts)))
        return {symbol: self._known[key] for symbol, key in keys.items()}

    def _find(self, key: str, tools: EmulatorToolchain) -> bool:
        """Check whether a kernel was counted before."""
        if key not in self._known and self._keep:
            found = _read(tools.cache.note(_index(tools), key))
            if found is not None:
                self._known[key] = found
        return key in self._known

    def _arrays(self, spec: KernelSpec) -> list[Any]:
        size = sum(s.byte_size for s in (*spec.inputs, *spec.outputs))
        if size > MOST_BYTES:
            raise BackendError(f"kernel {spec.name} has arrays of {size} bytes, more than the emulator runs")
        arrays = [*input_arrays(spec.inputs), *map(aligned_array, spec.outputs)]
        for source, target in spec.must_alias:
            arrays[source] = arrays[target]
        return arrays


def _key(spec: KernelSpec) -> str:
    """Return what the counts of a kernel depend on, as a hash."""
    text = "\n".join([spec.symbol, spec.signature, str(spec.must_alias), str(spec.grid), str(spec.block)])
    return hashlib.sha256(text.encode()).hexdigest()


_SAMPLING = 2
"""Version of the choice of blocks that are sampled, on which counts depend."""


def _index(tools: EmulatorToolchain) -> str:
    return f"counts-{_SAMPLING}-{tools.identity}"


def _read(text: str) -> KernelCounts | None:
    """Return counts that were kept as JSON, or None if there are none or they are damaged."""
    try:
        values = json.loads(text)
        arrays = tuple(ArrayCounts(**a) for a in values.pop("arrays"))
        return KernelCounts(arrays=arrays, **values)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
