"""The check for words to avoid: it finds them, and this project has none."""

from __future__ import annotations

import pytest

from tests.style import check_words


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("# the result hangs on the order", "hangs on"),
        ('"""Seconds a run of the program."""', "Seconds a run"),
        ("agents are PAID in measured time", "PAID"),
        ("a producer is taken into its consumer", ""),
        ("the instruction depends on the order, in seconds per run", ""),
        ("a standalone tool", ""),
        ("MLIR stands for Multi-Level Intermediate Representation", ""),
    ],
)
def test_words_to_avoid_are_found(line: str, found: str) -> None:
    words = check_words.load_words()
    assert [word for _, word, _ in check_words.check_text(f"first\n{line}\n", words)] == ([found] if found else [])


def test_findings_have_line_numbers() -> None:
    findings = list(check_words.check_text("one\ntwo\nit was told\n", check_words.load_words()))
    assert [(line, word) for line, word, _ in findings] == [(3, "told")]


def test_the_project_avoids_them(capsys: pytest.CaptureFixture[str]) -> None:
    files = check_words.tracked_files()
    assert len(files) > 400
    status = check_words.main([])
    assert (status, capsys.readouterr().out) == (0, "")
