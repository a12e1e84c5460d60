"""`hlogym doctor`: report what is installed, which backends work, and why the others do not."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from rich.table import Table
from rich.text import Text

from compiler.backends.cpu.onednn.library import WHEEL
from compiler.backends.cpu.onednn.library import why_unavailable as why_no_onednn
from compiler.backends.registry import BACKENDS
from experiments.answer import give_answer
from experiments.console import stdout
from experiments.provenance import machine_class
from experiments.results import check_output

__all__ = ["Finding", "examine"]

_PACKAGES = (
    "hlogym", "numpy", "scipy", "ml_dtypes", "gymnasium", "stable-baselines3", "sb3-contrib", "torch", "mlflow",
    "safetensors", "matplotlib",
)  # fmt: skip
_OPTIONAL = ("jax", "jaxlib", "cupy-cuda12x", "cupy-cuda13x")
_TEST = "ENTRY e { p = f32[64] parameter(0) ROOT r = f32[64] add(p, p) }"


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        group: the section of the report.
        name: what was checked.
        ok: True, False, or None for an optional component that is missing.
        detail: the version, or what is wrong and what to do.
    """

    group: str
    name: str
    ok: bool | None
    detail: str


def examine(as_json: bool, output: Path | None = None) -> None:
    """Print the findings, and write them to a file if one is named.

    Raises:
        SystemExit: with status 1, if something that hlogym requires is missing.
    """
    if output is not None:
        check_output(output)
    findings = [*_system(), *_packages(), *_backends()]
    give_answer([asdict(f) for f in findings], lambda: _print(findings), as_json, output)
    if any(f.ok is False for f in findings):
        sys.exit(1)


def _print(findings: list[Finding]) -> None:
    marks = {True: Text("yes", "green"), False: Text("no", "red"), None: Text("no", "yellow")}
    table = Table("", "", "", "", box=None, show_header=False)
    last = ""
    for f in findings:
        table.add_row(Text(f.group if f.group != last else "", "bold"), f.name, marks[f.ok], f.detail)
        last = f.group
    stdout.print(table)


def _system() -> list[Finding]:
    found = [
        Finding("system", "machine", True, machine_class()),
        Finding("system", "Python", sys.version_info >= (3, 11), platform.python_version()),
    ]
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return [*found, Finding("system", "C compiler", False, "none on the PATH; install gcc for the cpu backend")]
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    first = (done.stdout.splitlines() or ["prints no version"])[0]
    return [*found, Finding("system", "C compiler", done.returncode == 0, first)]


def _packages() -> list[Finding]:
    found: list[Finding] = []
    for names, missing in ((_PACKAGES, False), (_OPTIONAL, None)):
        for name in names:
            try:
                found.append(Finding("packages", name, True, version(name)))
            except PackageNotFoundError:
                detail = "missing: pip install hlogym" if missing is False else "not installed (optional)"
                found.append(Finding("packages", name, missing, detail))
    return found


def _backends() -> list[Finding]:
    return [*(_backend(b.name, None if b.optional else False) for b in BACKENDS.values()), _onednn()]


def _onednn() -> Finding:
    problem = why_no_onednn()
    if problem is not None:
        return Finding("backends", "oneDNN", None, f"{problem}; convolutions run in our own kernels")
    return Finding("backends", "oneDNN", True, f"{WHEEL} {version(WHEEL)}, for convolutions and products on the cpu")


def _backend(name: str, when_missing: bool | None) -> Finding:
    """Compile and run a small program; a backend whose libraries are installed may still not work."""
    problem = _problem(lambda: _try_backend(name))
    detail = "compiled and ran a test program" if problem is None else problem
    return Finding("backends", name, True if problem is None else when_missing, detail)


def _try_backend(backend: str) -> None:
    from compiler.api import compile as compile_hlo

    x = np.arange(64, dtype=np.float32)
    (out,) = compile_hlo(_TEST, backend=backend)(x)
    got = np.asarray(out.get() if hasattr(out, "get") else out)
    if not np.array_equal(got, x + x):
        raise RuntimeError("computed a wrong result")


def _problem(check: Callable[[], None]) -> str | None:
    try:
        check()
    except Exception as error:  # every failure belongs into the report
        return (str(error).splitlines() or [type(error).__name__])[0]
    return None
