"""Errors of commands that are run as modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from env.isolated import ROOT

COMMANDS = (
    ("experiments.learning.validate", "--suite", "corpus/validation"),
    ("experiments.headroom", "--suite", "corpus/train"),
    ("experiments.kernel_times", "collect", "--suite", "corpus/train", "--out", "kernels.jsonl"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
def test_a_missing_corpus_is_one_message(command: tuple[str, ...], tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HLOGYM_CACHE": str(tmp_path)}
    run = [sys.executable, "-m", *command]
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "build it with: hlogym suites build" in done.stderr
    assert len(done.stderr.splitlines()) == 1
