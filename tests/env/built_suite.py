"""A suite "corpus" of three small programs, as a build leaves it in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from env.suites import built
from env.suites.programs.listing import Listed, frozen_hash
from env.suites.sealing import MARKER

TEXT = "HloModule m\nENTRY e {\n  x = f32[8]{0} parameter(0)\n  ROOT y = f32[8]{0} cosine(x)\n}\n"
PRINT = hashlib.sha256(TEXT.encode()).hexdigest()[:32]
FROZEN = frozen_hash([("waves", "waves-test", PRINT)])


def write_built_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the suite, make its test program the frozen one, and return its folder."""
    monkeypatch.setenv("HLOGYM_CACHE", str(tmp_path / "cache"))
    where = tmp_path / "cache" / "corpus"
    for split in ("train", "validation", "test"):
        (where / split).mkdir(parents=True)
        name = f"waves-{split}" if split == "test" else f"family_{split}-one"
        (where / split / f"{name}.hlo").write_text(TEXT)
        entry: dict[str, Any] = {
            "name": name, "file": f"{name}.hlo", "split": split, "family": name.partition("-")[0], "description": "",
            "inputs": [{"kind": "uniform", "low": 1, "high": 2}], "fingerprint": PRINT,
        }  # fmt: skip
        (where / split / "manifest.json").write_text(json.dumps({"programs": [entry]}))
    (where / "test" / MARKER).write_text("sealed")
    listing: tuple[dict[str, Listed], str, dict[str, str]] = ({}, FROZEN, {"jax": "1.0"})
    monkeypatch.setattr(built, "read_listing", lambda: listing)
    return where
