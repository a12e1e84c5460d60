"""The thread pool of the runtime with several callers at once, checked by sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sweeps.sanitizers import ADDRESS, THREAD, Sanitizer, stress_pool


@pytest.mark.parametrize("sanitizer", [ADDRESS, THREAD], ids=lambda s: s.runtime)
def test_several_callers_may_use_the_pool_at_once(sanitizer: Sanitizer, tmp_path: Path) -> None:
    outcome = stress_pool(tmp_path, sanitizer)
    if outcome is None:
        pytest.skip("gcc has no such sanitizer here, or it cannot run with this kernel's address layout")
    assert outcome.problems == []
