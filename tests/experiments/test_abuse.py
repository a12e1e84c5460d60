"""Everyday accidents lose nothing: a few of each kind; `tests.sweeps.abuse` has more of them."""

from pathlib import Path

import pytest

from tests.sweeps.abuse import scenarios
from tests.sweeps.abuse_machine import can_mount

NAMES = tuple(scenarios(count=3, seed=0))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", NAMES)
def test_an_accident_breaks_no_promise(name: str, tmp_path: Path) -> None:
    if name.startswith(("full", "read-only")) and not can_mount(tmp_path / "probe"):
        pytest.skip("no right to mount")
    findings = scenarios(count=3, seed=0)[name](tmp_path)
    assert findings.faults == []
    assert findings.counts.get("checks", 0) > 0
