"""How much memory the process can still allocate, and a check that fails before an allocation that cannot fit.

Linux overcommits: an allocation succeeds, and the process is killed when it touches the memory, so that neither numpy
nor C code sees an error. The limit is the minimum of the machine's available memory and swap, the remaining memory of
the process's control groups, and what `ulimit -v` and `ulimit -d` leave.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from compiler.errors import BackendError, MemoryLimitError

SMALL = 64 << 20
"""Allocations up to this many bytes are not checked."""

_CGROUPS = Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """Return how many bytes this process can still allocate, or None if that cannot be determined."""
    known = [n for n in (_of_machine(), *_of_control_groups(), *_of_limits()) if n is not None]
    return max(0, min(known)) if known else None


def when_short(release: Callable[[], int]) -> None:
    """Register a function that frees memory held in reserve and returns how many bytes that were."""
    _RESERVES.append(release)


_RESERVES: list[Callable[[], int]] = []


def bytes_of_variable(name: str, default: int) -> int:
    """Return a number of bytes from a variable of the environment, such as 500M or 4G, or the default if it is not set.

    Raises:
        BackendError: its value is not a number of bytes.
    """
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    match = re.fullmatch(r"([0-9]{1,18})([KMGT]?)", text.upper())
    if match is None:
        raise BackendError(f"{name} must be a number of bytes such as 500M or 4G, not {text!r}")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[match[2]]


def check_memory(needed: int, what: str) -> None:
    """Raise an error if an allocation cannot fit into the available memory.

    Args:
        needed: a lower bound of the bytes held at the same time, beyond what is held now.
        what: what needs them, as the subject of the error message.

    Raises:
        MemoryLimitError: fewer bytes are available.
    """
    if needed <= SMALL:
        return
    available = available_bytes()
    if available is not None and needed > available:
        if sum(release() for release in _RESERVES) > 0:
            available = available_bytes() or 0
        if needed <= available:
            return
        raise MemoryLimitError(f"{what} needs {size_text(needed)} of memory, and {size_text(available)} are available")


def size_text(count: int) -> str:
    """Format a number of bytes for a message."""
    if count >= 10**21:
        return f"more than 10^{len(str(count)) - 1} bytes" if count < 10**4000 else "more than 10^4000 bytes"
    for unit, power in (("GiB", 30), ("MiB", 20)):
        if count >= 1 << power:
            return f"{count:,} bytes ({count / (1 << power):,.2f} {unit})"
    return f"{count:,} bytes"


# ---- sources of limits


def _of_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        facts = {name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines)}
        return facts["MemAvailable"] + facts.get("SwapFree", 0)
    except (OSError, ValueError, KeyError, IndexError):
        pass
    try:
        # Not the free memory, but an upper bound of it.
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def _of_control_groups() -> Iterator[int]:
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            yield from _of_groups(_CGROUPS, path, "memory.max", "memory.current", "inactive_file", "active_file")
            yield from _of_groups(
                _CGROUPS / "unified", path, "memory.max", "memory.current", "inactive_file", "active_file"
            )
        elif "memory" in controllers.split(","):
            yield from _of_groups(
                _CGROUPS / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
                "total_active_file",
            )  # fmt: skip


def _of_groups(root: Path, path: str, limit: str, usage: str, *reclaimable: str) -> Iterator[int]:
    """Yield the remaining bytes of a control group and of its ancestors; in a container the path may not exist."""
    folder = root / path.strip("/")
    while True:
        found = _of_group(folder, limit, usage, reclaimable)
        if found is not None:
            yield found
        if folder == root or root not in folder.parents:
            return
        folder = folder.parent


def _of_group(folder: Path, limit: str, usage: str, reclaimable: tuple[str, ...]) -> int | None:
    try:
        most, used = (folder / limit).read_text(encoding="ascii").strip(), int((folder / usage).read_text())
    except (OSError, ValueError):
        return None
    return int(most) - used + _reclaimable(folder, reclaimable) if most.isdigit() else None  # "max" means no limit


def _reclaimable(folder: Path, names: tuple[str, ...]) -> int:
    """Return the bytes of cached files, which count as used but are reclaimed on demand."""
    try:
        lines = [line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines()]
    except (OSError, ValueError):
        return 0
    return sum(int(words[1]) for words in lines if len(words) == 2 and words[0] in names and words[1].isdigit())


def _of_limits() -> Iterator[int]:
    try:
        import resource

        pages = [int(n) for n in Path("/proc/self/statm").read_text(encoding="ascii").split()]
        held = {resource.RLIMIT_AS: pages[0], resource.RLIMIT_DATA: pages[5]}
        for kind, count in held.items():
            limit = resource.getrlimit(kind)[0]
            if limit != resource.RLIM_INFINITY:
                yield limit - count * resource.getpagesize()
    except (ImportError, OSError, ValueError, IndexError):
        return
