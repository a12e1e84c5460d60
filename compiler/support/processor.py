"""What is known of the processor that runs compiled programs."""

from __future__ import annotations

import functools
import hashlib
import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class VectorUnit:
    """The vector registers of a processor.

    Attributes:
        size: bytes of a register.
        registers: their number.
    """

    size: int
    registers: int

    @property
    def room(self) -> int:
        """The bytes of all registers."""
        return self.size * self.registers


AVX512, AVX2, NEON = VectorUnit(64, 32), VectorUnit(32, 16), VectorUnit(16, 32)
_BY_FEATURE = {"avx512f": AVX512, "avx2": AVX2}
"""The vectors of processors with a feature, the widest first."""


@functools.lru_cache(maxsize=1)
def processor() -> str:
    """Return the processor's model and a digest of its features, on which code compiled with -march=native depends."""
    found = facts()
    if not found:
        return platform.processor() or platform.machine()
    features = hashlib.sha256(found.get("flags", "").encode()).hexdigest()[:12]
    return f"{found.get('model name', platform.machine())} {features}"


@functools.lru_cache(maxsize=1)
def microarchitecture() -> str:
    """Return what processors have in common on which equal code takes about the same time: `AuthenticAMD 25 avx512f`.

    These are the vendor, the family (of Intel, whose family is always the same, the model as well) and the vectors.
    """
    found = facts()
    vendor, family = found.get("vendor_id", platform.machine()), found.get("cpu family", "")
    model = found.get("model", "") if "Intel" in vendor else ""
    return " ".join(filter(None, (vendor, family, model, _feature(found))))


@functools.lru_cache(maxsize=1)
def vector_unit() -> VectorUnit:
    """Return the vector registers of this machine's processor; those of AVX2 if it is not known."""
    return _BY_FEATURE.get(_feature(facts()), NEON if platform.machine() in ("aarch64", "arm64") else AVX2)


def _feature(found: dict[str, str]) -> str:
    features = found.get("flags", "").split()
    return next((f for f in _BY_FEATURE if f in features), "")


def facts() -> dict[str, str]:
    """Return what Linux says of the last processor, by name; nothing on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
