"""The list of files with the mark `thorough`."""

from tests.conftest import TESTS, THOROUGH


def test_thorough_files_exist_once() -> None:
    assert [name for name in THOROUGH if not (TESTS / name).is_file()] == []
    assert sorted(set(THOROUGH)) == list(THOROUGH)
