"""The thread pool of the runtime with several callers at once, checked by sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sweeps.sanitizers import ADDRESS, THREAD, Sanitizer, stress_pool


@pytest.mark.parametrize("check", ["pool_stress.c", "placement_check.c"])
@pytest.mark.parametrize("sanitizer", [ADDRESS, THREAD], ids=lambda s: s.runtime)
def test_workers_serve_several_callers_and_wake_on_other_cores(
    sanitizer: Sanitizer, check: str, tmp_path: Path
) -> None:
    outcome = stress_pool(tmp_path, sanitizer, check)
    if outcome is None:
        pytest.skip("gcc has no such sanitizer here, or it cannot run with this kernel's address layout")
    assert outcome.problems == []
