"""Untrusted JSON: every problem is one error of the requested class, with its location."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from compiler.errors import HlogymError
from compiler.support.json_reading import MAX_DEPTH, parse_json, parse_object, read_object


class MineError(HlogymError):
    """The error class that the caller requests."""


def test_what_json_says_is_what_is_read(tmp_path: Path) -> None:
    data = {"a": [1, 2.5, None, True, "é\u2028\U0001f600"], "b": {"c": {}}, "": -0.0, "n": 2**127}
    file = tmp_path / "a.json"
    for text in (json.dumps(data), json.dumps(data, ensure_ascii=False), "\ufeff" + json.dumps(data)):
        file.write_text(text, encoding="utf-8")
        assert read_object(file, MineError) == data
    assert parse_json("[1]", "x", MineError) == [1]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "line 1 column 1"),
        (b'{"a": 1,\n "b": }', "line 2 column 7"),
        (b"[" * 100_000, "deeper"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "deeper"),
        (b"[" * 500 + b"]" * 500, "deeper"),
        (b'{"a": 1, "b": 2, "a": 3}', "'a' appears twice"),
        (b'{"x": {"a": 1, "a": 1}}', "'a' appears twice"),
        (b'{"a": NaN}', "not finite"),
        (b'{"a": -Infinity}', "not finite"),
        (b'{"a": [1e999]}', "not finite"),
        (b'{"a": ' + b"9" * 100 + b"}", "too large"),
        (b'{"a": ' + b"9" * 100_000 + b"}", "integer string conversion"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"\\udfff": 1}', "surrogate"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b"[1]", "expected a JSON object, got a list"),
        (b"null", "got null"),
        (b"true", "got a boolean"),
        (b"1", "got a number"),
    ],
)
def test_what_is_wrong_is_one_error(tmp_path: Path, data: bytes, message: str) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(data)
    with pytest.raises(MineError, match=message) as caught:
        read_object(file, MineError)
    assert str(file) in str(caught.value)
    assert len(str(caught.value)) < 300
    with pytest.raises(MineError, match=message):
        parse_object(data, "x", MineError)


def test_nesting_up_to_the_limit_is_read() -> None:
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert json.dumps(parse_json(text, "x", MineError)) == text
    with pytest.raises(MineError, match="deeper"):
        parse_json(f"[{text}]", "x", MineError)


def test_infinity_is_read_where_it_is_allowed() -> None:
    assert parse_json("[Infinity]", "x", MineError, finite=False) == [float("inf")]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.json", tmp_path, tmp_path / "a\0b", tmp_path / ("x" * 300)):
        with pytest.raises(MineError, match="cannot read"):
            read_object(path, MineError)


def test_a_file_without_end_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.support.json_reading.MAX_BYTES", 1000)
    with pytest.raises(MineError, match="longer than"):
        read_object(Path(os.devnull).with_name("zero"), MineError)
