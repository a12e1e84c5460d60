"""The graph page: one HTML file that contains its data, its scripts and the libraries that it uses.

Nothing of the program is HTML in the page: the data is compressed JSON in base64, and the scripts show it as text. A
content security policy allows the page's own scripts alone, by their hashes, and no access to any network.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from importlib.resources import files
from typing import Any

from compiler.support.safe_names import html_text

__all__ = ["make_page"]

_LIBRARIES = ("cytoscape", "dagre")
_SCRIPTS = ("model.js", "tree.js", "draw.js", "panels.js", "main.js")


def make_page(title: str, data: dict[str, Any], passes: list[Any], hlo: dict[str, str]) -> str:
    """Return the page.

    Args:
        title: shown by the browser until the data is read.
        data: see `graph_data`.
        passes: what each pass changed, as plain data.
        hlo: HLO text by title.
    """
    # The licences must go with the libraries.
    notices = "\n".join(f"/*\n{name}\n{_read(f'vendor/{name}.LICENSE.txt')}*/" for name in _LIBRARIES)
    scripts = {
        "cytoscape": _read("vendor/cytoscape.min.js"),
        "dagre": _read("vendor/dagre.min.js"),
        "page": "\n".join(map(_read, _SCRIPTS)),
    }
    hashes = " ".join(f"'sha256-{_hash(text)}'" for text in scripts.values())
    policy = (
        f"default-src 'none'; script-src {hashes} blob:; worker-src blob:; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    blobs = {"data": data, "passes": passes, "hlo": hlo}
    return "\n".join(
        [
            "<!doctype html>",
            "<html lang='en'><head><meta charset='utf-8'>",
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            "<meta name='viewport' content='width=device-width, initial-scale=1'>",
            f"<title>{html_text(title)}</title>",
            f"<!--\n{notices}\n-->",
            f"<style>{_read('page.css')}</style></head><body>",
            _read("page.html"),
            *(f"<script type='text/plain' id='{name}'>{_pack(value)}</script>" for name, value in blobs.items()),
            *(f"<script id='{name}'>{text}</script>" for name, text in scripts.items() if name != "page"),
            f"<script>{scripts['page']}</script>",
            "</body></html>\n",
        ]
    )


def _read(name: str) -> str:
    return files("experiments.view").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _pack(value: Any) -> str:
    """Return JSON, compressed and in base64; equal values give equal text."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()
