"""The checks of the sweep over HLO from other projects: what they accept, skip and reject."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from compiler.ir import HloModule
from tests.sweeps import real_text_checks
from tests.sweeps.real_text_checks import FAILED, OK, SKIPPED, check
from tests.sweeps.real_texts import read_texts
from tests.sweeps.xla_texts import source_texts

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
    assert why in found.reason


def test_a_pass_that_changes_results_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def doubles(module: HloModule, passes: list[str]) -> None:
        del passes
        root = module.entry.root
        module.entry.root = module.entry.add(root.opcode, [root, root])

    monkeypatch.setattr(real_text_checks, "apply", doubles)
    found = check("passes", TEXT)
    assert found.result == FAILED
    assert "results differ" in found.reason


def test_texts_are_read_as_the_finder_writes_them(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "one.hlo").write_text("HloModule one\nENTRY e { ROOT x = f32[] parameter(0) }\n")
    found = list(source_texts(tmp_path / "source"))
    written = tmp_path / "found.jsonl"
    written.write_text("".join(json.dumps(asdict(t)) + "\n" for t in found))
    assert [t.place for t in read_texts(written, "", 1)] == ["one.hlo:1"]
