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

_MARK = re.compile(r"^<!-- generated: ([\w.-]+) -->$", re.MULTILINE)


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
    return fill(markdown, listings(), page.file.src_uri)


def fill(markdown: str, known: Mapping[str, Callable[[], str]], where: str) -> str:
    """Return the text with every mark replaced.

    Raises:
        PluginError: a mark names no listing.
    """

    def listing(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in known:
            raise PluginError(f"{where}: there is no generated listing {name!r}; there are {', '.join(sorted(known))}")
        return known[name]()

    return _MARK.sub(listing, markdown)
