"""The command line of the scripts that write suites."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["run_lowering"]


def run_lowering(description: str | None, folder: Path, write_suite: Callable[[Path], object]) -> int:
    """Parse the arguments, write the suite and return the exit status.

    Args:
        description: docstring of the script; `--help` shows its first line.
        folder: default of `--out`.
        write_suite: writes the programs and the manifest to a folder; imports JAX.
    """
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=folder, help="folder to write to (default: the suite's own)")
    out = parser.parse_args().out
    try:
        write_suite(out)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("jax", "jaxlib"):
            raise
        print("error: lowering needs JAX: pip install 'hlogym[jax]'", file=sys.stderr)
        return 1
    print(f"wrote the suite to {out}")
    return 0
