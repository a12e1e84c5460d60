"""Where suites lie: the folders that come with hlogym, and the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder", "programs_folder"]


def cache_folder() -> Path:
    """Return the user's cache folder of hlogym: $HLOGYM_CACHE, or `hlogym` in $XDG_CACHE_HOME or ~/.cache."""
    named = os.environ.get("HLOGYM_CACHE", "")
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(named).expanduser().absolute() if named else Path(home).expanduser().absolute() / "hlogym"


def programs_folder() -> Path:
    """Return the folder that holds the programs of the suite "corpus" once they are built."""
    return cache_folder() / "corpus"
