"""Interrupted, failing or concurrent commands lose no data; `tests.sweeps.abuse` runs more of these scenarios."""

from pathlib import Path

import pytest

from tests.sweeps.abuse import scenarios
from tests.sweeps.abuse_machine import can_mount

NAMES = tuple(scenarios(count=3, seed=0))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", NAMES)
def test_no_data_is_lost(name: str, tmp_path: Path) -> None:
    if name.startswith(("full", "read-only")) and not can_mount(tmp_path / "probe"):
        pytest.skip("mounting is not permitted")
    findings = scenarios(count=3, seed=0)[name](tmp_path)
    assert findings.faults == []
    assert findings.counts.get("checks", 0) > 0
