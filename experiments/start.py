"""The start of the command `hlogym`: an interruption while its modules are imported ends it in one line."""

from __future__ import annotations

from experiments.quiet_imports import quiet_interruption

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    quiet_interruption()
    from experiments.cli import main as run

    run()
