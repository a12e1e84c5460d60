"""Names for each destination are valid there, and different names stay different."""

from __future__ import annotations

import re
import shlex
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.support.safe_names import (
    file_name,
    html_text,
    markdown_cell,
    metric_name,
    one_line,
    plot_label,
    printable,
    shell_command,
    why_no_file_name,
    why_no_name,
)

AWKWARD = (
    "a[b]|c<d>$x$", "../../evil", "..", ".", "", "/etc/passwd", "con", "NUL.txt", "é", "e\u0301", "a b", "a_b", "A_b",
    "x" * 300, "x" * 301, "a\nb", "a\x1b[2Jb", "a\x9b2Jb", "a\u202eb", "-rf", ".hidden", "a.", "a ", "名前", "a/b",
    "a\\b", "a//b", "a:b", "\udc80", "_hidden", "a\x00b", "`x`", "[x](http://y)", "<script>alert(1)</script>", "&amp;",
    "\\", "\\|", "evil-0fbfd372a4", "a_b__c_d__x-70526738b1",
)  # fmt: skip
STRINGS = st.one_of(st.text(), st.text("aA.-_/\\ $|\n:e\u0301é"), st.sampled_from(AWKWARD))


@settings(deadline=None)
@given(STRINGS)
def test_a_shell_reads_back_the_words_of_a_command(name: str) -> None:
    assert shlex.split(shell_command("run", name, "--plan", Path("p.json"))) == ["run", name, "--plan", "p.json"]


@settings(deadline=None)
@given(STRINGS)
def test_a_file_name_is_one_on_every_system(name: str) -> None:
    made = file_name(name, ".json")
    assert re.fullmatch(r"[a-z0-9_][a-z0-9._+-]*\.json", made)
    assert len(made) <= 130
    assert why_no_file_name(made) is None


@settings(deadline=None)
@given(st.lists(STRINGS, unique=True, max_size=20))
def test_different_names_have_different_files_and_metrics(names: list[str]) -> None:
    # File systems that fold case and accents treat these as the same file.
    files = {unicodedata.normalize("NFD", file_name(n)).casefold() for n in names}
    assert len(files) == len(names)
    assert len({metric_name(n) for n in names}) == len(names)


def test_awkward_names_have_different_files_and_metrics() -> None:
    assert len({file_name(n).casefold() for n in AWKWARD}) == len(AWKWARD)
    assert len({metric_name(n) for n in AWKWARD}) == len(AWKWARD)
    # A name chosen to collide with the file name of another one does not.
    assert len({file_name(n) for n in ("a|b", file_name("a|b"), file_name(file_name("a|b")))}) == 3
    assert len({metric_name(n) for n in ("a|b", metric_name("a|b"), metric_name(metric_name("a|b")))}) == 3


@pytest.mark.parametrize("name", ["softmax", "layer_norm_forward", "gpt2.block-3"])
def test_plain_names_stay_as_they_are(name: str) -> None:
    assert file_name(name, ".json") == f"{name}.json"
    assert metric_name(name) == name
    assert markdown_cell(name) == html_text(name) == plot_label(name) == one_line(name) == name


@settings(deadline=None)
@given(STRINGS)
def test_mlflow_takes_every_metric_name(name: str) -> None:
    from mlflow.utils.validation import MAX_ENTITY_KEY_LENGTH, _validate_metric_name

    for made in (metric_name(name), metric_name(f"speedup.{name}")):
        _validate_metric_name(made)  # type: ignore[no-untyped-call]
        assert 0 < len(made) <= MAX_ENTITY_KEY_LENGTH


@settings(deadline=None)
@given(STRINGS)
def test_a_terminal_gets_nothing_to_act_on(name: str) -> None:
    shown = one_line(name)
    assert not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in shown)
    shown.encode()
    kept = printable(f"{name}\tb\n")
    assert kept.endswith("\tb\n")
    assert not any(unicodedata.category(c) == "Cc" for c in kept if c not in "\t\n")


@settings(deadline=None)
@given(STRINGS)
def test_a_markdown_row_keeps_its_cells(name: str) -> None:
    row = f"| {markdown_cell(name)} | 1 |"
    cells = re.split(r"(?<!\\)(?:\\\\)*\|", row)
    assert len(cells) == 4
    assert "\n" not in row
    bare = re.sub(r"\\.", "", markdown_cell(name))
    assert not set("`*|<>&$~") & set(bare)
    assert "](" not in bare


@settings(deadline=None)
@given(STRINGS)
def test_html_has_no_tag_or_end_of_attribute(name: str) -> None:
    shown = html_text(name)
    assert not set("<>\"'") & set(shown)
    assert re.sub(r"&(lt|gt|amp|quot|#x27);", "", shown).count("&") == 0


def test_plots_show_names_as_they_are() -> None:
    from matplotlib.cbook import is_math_text
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    for name in AWKWARD:
        label = plot_label(name)
        assert not is_math_text(label)
        assert not label.startswith("_")
        assert "\n" not in label
        drawn, math = axes.text(0, 0, label)._preprocess_math(label)  # type: ignore[attr-defined]
        assert math is False
        if "$" in name:
            assert drawn == name


@pytest.mark.parametrize("name", ["softmax", "a[b]|c<d>$x$", "é", "a b", "a/b", "con", "x" * 250])
def test_what_can_be_a_name(name: str) -> None:
    assert why_no_name(name) is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"), ("  ", "empty"), (None, "string"), (3, "string"), (["a"], "string"), ("x" * 251, "at most 250"),
        ("../../evil", "absolute path"), ("..", "absolute path"), (".", "absolute path"),
        ("/etc", "absolute path"), ("a\\..\\b", "absolute path"), ("a\nb", "control"), ("a\x1b[2J", "control"),
        ("a\u202eb", "control"), ("\udc80", "control"), (" a", "space"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_name_is_said_in_plain_characters(name: object, reason: str) -> None:
    why = why_no_name(name)
    assert why is not None
    assert reason in why
    assert why == printable(why)


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "a\\b", "", ".", "..", ".hidden", "-x", "a:b", "con", "LPT1.txt", "a*", "x" * 201]
)
def test_what_cannot_be_a_folder(name: str) -> None:
    assert why_no_file_name(name) is not None


def test_what_can_be_a_folder() -> None:
    for name in ("run", "Run 2", "é", "a[b]$x$", "fusion-20250101-000000"):
        assert why_no_file_name(name) is None
