"""Hooks of MkDocs: they add the generated pages, and put generated listings into the written ones.

A line `<!-- generated: NAME -->` of a page is replaced by the listing of that name; an unknown name is an error.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # so that `mkdocs build` documents this checkout, whatever is installed

from docs.tools.command_line import command_line_page  # noqa: E402 - after the path above
from docs.tools.hlo_lexer import register_lexer  # noqa: E402
from docs.tools.listings import listings  # noqa: E402
from docs.tools.passes import pass_pages  # noqa: E402

_FIGURE = re.compile(r"^!\[([^\]]*)\]\((?:\.\./)*figures/(\w+)\.svg\)$", re.MULTILINE)
_MARK = re.compile(r"^( *)<!-- generated: ([\w.-]+) -->$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Teach the highlighter HLO."""
    register_lexer()
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are generated as a whole."""
    pages = {"command_line.md": command_line_page(), **{f"passes/{n}": text for n, text in pass_pages().items()}}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the marks of a page by their listings."""
    del config, files
    return inline_figures(fill(markdown, listings(), page.file.src_uri))


def inline_figures(markdown: str) -> str:
    """Return the text with images of figures replaced by the drawings, which then follow the theme of the page."""
    return _FIGURE.sub(lambda m: _figure(m.group(1), m.group(2)), markdown)


def _figure(title: str, name: str) -> str:
    drawing = (ROOT / "docs" / "figures" / f"{name}.svg").read_text(encoding="utf-8").replace("\n", "")
    return f'<figure class="drawing" role="group" aria-label="{title}">{drawing}</figure>'


def fill(markdown: str, known: Mapping[str, Callable[[], str]], where: str) -> str:
    """Return the text with every mark replaced.

    Raises:
        PluginError: a mark names no listing.
    """

    def listing(match: re.Match[str]) -> str:
        indent, name = match.groups()
        if name not in known:
            raise PluginError(f"{where}: there is no generated listing {name!r}; there are {', '.join(sorted(known))}")
        return "\n".join(indent + line if line else "" for line in known[name]().splitlines())

    return _MARK.sub(listing, markdown)
