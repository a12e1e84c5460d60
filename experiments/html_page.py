"""Self-contained HTML pages of results: one style, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compiler.support.safe_names import html_text as escape

__all__ = ["html_facts", "html_page"]

_STYLE = """
:root { --ink: #1d2329; --soft: #5d6872; --line: #dfe3e7; --paper: #ffffff; --panel: #f6f8f9; --accent: #1f7a4d;
  --bad: #b3261e; color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7ea; --soft: #a3abb3; --line: #3a3f44; --paper: #191919; --panel: #232527; --accent: #5cc08d;
    --bad: #ff8a80; }
  figure svg { filter: invert(.9) hue-rotate(180deg); }  /* white becomes the paper, and hues stay */
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; }
p { margin: .4rem 0; max-width: 52rem; } .soft { color: var(--soft); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .75rem; margin: 1.25rem 0; }
.card { background: var(--panel); border: 1px solid var(--line); border-radius: .5rem; padding: .8rem 1rem; }
.card b { display: block; font-size: 1.5rem; font-variant-numeric: tabular-nums; }
.card b.green { color: var(--accent); } .card b.red, td.bad { color: var(--bad); }
.card { overflow-wrap: anywhere; } .card span { color: var(--soft); font-size: .85rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: .5rem; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { background: var(--panel); font-weight: 600; } th:first-child, td:first-child { text-align: left; }
td:first-child { white-space: normal; overflow-wrap: anywhere; min-width: 12rem; max-width: 24rem; }
th { white-space: normal; overflow-wrap: break-word; min-width: 5rem; max-width: 14rem; }
th:nth-child(2), td:nth-child(2) { text-align: left; color: var(--soft); }
tr:last-child td { border-bottom: 0; } tr.sum td { background: var(--panel); font-weight: 600; }
table.entries td { white-space: normal; overflow-wrap: anywhere; } table.entries td:first-child { width: 34%; }
table.entries td:nth-child(2) { min-width: 11rem; }
table.entries td:nth-child(n+3) { white-space: nowrap; } table.entries th { overflow-wrap: break-word; }
table.programs th:nth-child(2), table.programs td:nth-child(2) { text-align: right; color: inherit; }
table.prose th, table.prose td { text-align: left; white-space: normal; overflow-wrap: anywhere; vertical-align: top; }
table.entries small { display: inline-block; } details { margin: .5rem 0; }
small { color: var(--soft); font-weight: 400; }
figure { margin: 0; overflow-x: auto; } svg { max-width: 100%; height: auto; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; font-size: .85rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
"""


def html_page(title: str, body: str) -> str:
    """Return a page with a title, which is escaped, and a body of HTML."""
    # The policy forbids whatever a page might still contain by mistake: scripts, and anything from another host.
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<style>{_STYLE}</style></head><body><main>{body}</main></body></html>\n"
    )


def html_facts(entries: Mapping[str, Any]) -> str:
    """Return facts as a list of terms and escaped values."""
    items = "".join(f"<dt>{escape(str(k))}</dt><dd>{escape(str(v))}</dd>" for k, v in entries.items())
    return f"<dl>{items}</dl>"
