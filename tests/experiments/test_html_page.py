"""The style of HTML pages, in a browser."""

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
