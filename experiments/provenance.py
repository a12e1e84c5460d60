"""Provenance of a result: the command, the commit, the kind of machine and the date."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from compiler.support.processor import facts
from compiler.support.safe_names import shell_command

__all__ = ["compiler_digest", "machine_class", "package_version", "provenance"]

_ROOT = Path(__file__).resolve().parent.parent
_THREAD_SETTINGS = ("HLOGYM_NUM_THREADS", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "XLA_FLAGS")


def provenance() -> dict[str, Any]:
    """Return the provenance that is stored in every results file, as a JSON object."""
    return {
        "command": shell_command("hlogym", *(_short(a) for a in sys.argv[1:])),
        "commit": _commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine_class(),
        "python": platform.python_version(),
        "hlogym": package_version("hlogym"),
        "c_compiler": _first_line(["gcc", "--version"]),
        **{name: os.environ[name] for name in _THREAD_SETTINGS if name in os.environ},
    }


def machine_class() -> str:
    """Return a description of the machine's processor and system, without its host name."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{_processor()}, {cores} cores, {platform.system()} {platform.machine()}"


def _processor() -> str:
    found = facts()
    if not found:
        return platform.processor() or "unknown processor"
    flags = found.get("flags", "").split()
    vector = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else ""
    return " ".join(filter(None, [found.get("model name", platform.machine()), vector]))


def _short(argument: str) -> str:
    """Return the last part of an absolute path; other arguments are returned unchanged."""
    return Path(argument).name if argument.startswith("/") else argument


def _commit() -> str:
    commit = _first_line(["git", "-C", str(_ROOT), "rev-parse", "--short=12", "HEAD"])
    dirty = _first_line(["git", "-C", str(_ROOT), "status", "--porcelain", "--untracked-files=no"])
    return f"{commit or 'unknown'}{' with changes' if dirty else ''}"


def package_version(name: str) -> str:
    """Return the version of an installed distribution, or that it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = done.stdout.strip().splitlines()
    return lines[0] if lines and done.returncode == 0 else ""


@functools.lru_cache(maxsize=1)
def compiler_digest() -> str:
    """Return a hash of the contents of the compiler's sources, to tell what was measured with other code."""
    from compiler.program_cache import compiler_sources  # what only names its provenance does not load the compiler

    digest = hashlib.sha256()
    for name, path in compiler_sources().items():
        content = path.read_bytes()
        digest.update(f"{name} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()[:16]
