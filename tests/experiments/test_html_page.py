"""The style of HTML pages, in a browser."""

import re
from pathlib import Path

import pytest

from experiments.benchmarks.headless import Chromium, find_chromium
from experiments.html_page import html_page


@pytest.mark.skipif(find_chromium() is None, reason="there is no Chromium here")
def test_words_in_headings_of_crowded_tables_are_not_broken(tmp_path: Path) -> None:
    headings = ["contender", "ops / XLA's order once", *["completion passes"] * 4, *["ops / default"] * 7]
    cells = ["XLA's order, once, without unrolling", "0.707 [0.354, 1.000]", *["78"] * 4, *["1.000 [1.000, 1.000]"] * 7]
    rows = f"<tr>{''.join(f'<th>{h}</th>' for h in headings)}</tr><tr>{''.join(f'<td>{c}</td>' for c in cells)}</tr>"
    page = html_page("t", f"<h1>t</h1><div class='scroll'><table>{rows}</table></div>")
    (tmp_path / "page.html").write_text(page.replace("<html ", "<html data-ready='yes' ", 1))  # `open` waits for this
    lines = """(() => {
        const text = document.querySelectorAll('th')[3].firstChild, range = document.createRange();
        range.setStart(text, 0); range.setEnd(text, 'completion'.length);
        return new Set([...range.getClientRects()].map(r => r.top)).size;
    })()"""
    with Chromium() as browser:
        browser.open(tmp_path / "page.html")
        assert browser.evaluate(lines) == 1
        assert browser.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0


def _luminance(color: str) -> float:
    """Return the relative luminance of `rgb(r, g, b)`, as WCAG 2 defines it."""
    parts = [int(c) / 255 for c in re.findall(r"\d+", color)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.skipif(find_chromium() is None, reason="there is no Chromium here")
def test_text_can_be_read_in_light_and_dark(tmp_path: Path) -> None:
    body = "<p class='soft'>a</p><div class='card'><b class='green'>1</b><b class='red'>2</b><span>3</span></div>"
    table = "<table><tr><th>h</th></tr><tr><td class='bad'>x</td></tr></table>"
    page = html_page("t", body + table).replace("<html ", "<html data-ready='yes' ", 1)
    (tmp_path / "page.html").write_text(page)
    colors = """[...document.querySelectorAll('p, .card b, .card span, th, td')].map(e => getComputedStyle(e).color)"""
    with Chromium() as browser:
        for scheme in ("light", "dark"):
            browser.prefer(scheme)
            browser.open(tmp_path / "page.html")
            paper = _luminance(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert paper < 0.05 if scheme == "dark" else paper > 0.9
            for color in browser.evaluate(colors):
                low, high = sorted((paper, _luminance(color)))
                assert (high + 0.05) / (low + 0.05) >= 4.5, (scheme, color)
