"""The checks of the sweep over foreign texts: what they let through, skip and notice."""

import pytest

from compiler.ir import HloModule
from tests.sweeps import real_text_checks
from tests.sweeps.real_text_checks import FAILED, OK, SKIPPED, check

TEXT = """HloModule m
ENTRY main {
  x = f32[4] parameter(0)
  two = f32[] constant(2)
  twos = f32[4] broadcast(two), dimensions={}
  a = f32[4] multiply(x, twos)
  ROOT b = f32[4] multiply(a, twos)
}
"""


def test_a_text_on_which_all_is_well() -> None:
    found = check("passes", TEXT)
    assert found.result == OK
    assert found.counts["sequences with an effect"] > 0
    assert check("native", TEXT).result == OK


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (TEXT.replace("HloModule m", "HloModule m, num_partitions=4"), "several devices"),
        (TEXT.replace("multiply(a, twos)", "multiply(a, two)"), "does not verify"),
        (TEXT.replace("[4]", "[4000000]"), "too large"),
        ("nothing of the kind", "does not parse"),
    ],
)
def test_texts_that_are_not_tried(text: str, why: str) -> None:
    found = check("passes", text)
    assert found.result == SKIPPED
    assert why in found.told


def test_a_pass_that_changes_results_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def doubles(module: HloModule, passes: list[str]) -> None:
        del passes
        root = module.entry.root
        module.entry.root = module.entry.add(root.opcode, [root, root])

    monkeypatch.setattr(real_text_checks, "apply", doubles)
    found = check("passes", TEXT)
    assert found.result == FAILED
    assert "results differ" in found.told
