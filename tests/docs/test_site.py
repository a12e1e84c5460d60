"""The documentation builds strictly, its links resolve, it loads nothing from elsewhere and mentions what there is."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.pages import DOCS

pytest.importorskip("mkdocs", reason="MkDocs is not installed; it is in the extra `dev`")


class Page(HTMLParser):
    """The ids, links and loaded resources of an HTML page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and found.get("rel") != "canonical":
            self.loaded.append(found.get("href", ""))
        elif "src" in found:
            self.loaded.append(found["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=DOCS.parent, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> Mapping[str, Page]:
    found = {p.relative_to(site).as_posix(): Page(p.read_text(encoding="utf-8")) for p in site.rglob("*.html")}
    assert len(found) > 35
    return found


@pytest.fixture(scope="module")
def words(site: Path) -> str:
    """All text of the pages, without tags."""
    pages = (p.read_text(encoding="utf-8") for p in site.rglob("*.html"))
    return html.unescape(re.sub(r"<[^>]+>", "", "\n".join(pages)))


def test_no_table_falls_apart(site: Path) -> None:
    """A cell with a line break ends a table, and what follows is printed with its bars."""
    rows = [
        f"{page.name}: {text[:80]}"
        for page in site.rglob("*.html")
        for text in re.findall(r"<p>(.*?)</p>", page.read_text(encoding="utf-8"), re.DOTALL)
        if re.search(r"^\s*\||\|\s*$|\|\|", re.sub(r"<code>.*?</code>", "", text, flags=re.DOTALL), re.MULTILINE)
    ]
    assert rows == []


def broken(pages: Mapping[str, Page], site: Path) -> Iterator[str]:
    for name, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if name == "404.html" or parts.scheme or parts.netloc:
                continue
            target = (site / name).parent / unquote(parts.path) if parts.path else site / name
            inner = target.resolve().relative_to(site.resolve()).as_posix()
            if not target.exists():
                yield f"{name}: {link} is not there"
            elif parts.fragment and inner in pages and unquote(parts.fragment) not in pages[inner].ids:
                yield f"{name}: {link} has no such anchor"


def test_links_resolve(pages: Mapping[str, Page], site: Path) -> None:
    assert sum(len(p.links) for p in pages.values()) > 1000
    assert sorted(broken(pages, site)) == []


def test_nothing_is_loaded_from_other_hosts(pages: Mapping[str, Page], site: Path) -> None:
    loaded = {(name, what) for name, page in pages.items() for what in page.loaded}
    assert loaded
    assert [(name, what) for name, what in loaded if urlsplit(what).netloc] == []
    styles = "\n".join(p.read_text(encoding="utf-8") for p in site.rglob("*.css"))
    assert re.findall(r"url\(\s*['\"]?(?:https?:)?//[^)]*", styles) == []


def test_every_listing_was_generated(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert "generated: " not in text, page
        assert "--8" not in text, page


def test_every_environment_command_and_pass_is_mentioned(words: str) -> None:
    import typer.main

    from compiler.fusion.policies import POLICIES
    from compiler.passes import PASSES
    from docs.tools.tables import environment_ids
    from experiments.cli import app

    commands: Mapping[str, object] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert len(environment_ids()) >= 8
    expected = [*environment_ids(), *PASSES, *(f"hlogym {c}" for c in commands), *(f"{p}" for p in POLICIES)]
    assert [name for name in expected if name not in words] == []


def test_every_environment_has_its_own_section() -> None:
    from docs.tools.tables import environment_ids

    written = "\n".join(p.read_text(encoding="utf-8") for p in (DOCS / "environments").glob("*.md"))
    assert [name for name in environment_ids() if f"`{name}`" not in written] == []
    for page in (DOCS / "environments").glob("[!i]*.md"):
        text = page.read_text(encoding="utf-8")
        headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
        for wanted in ("Action", "Observation", "Reward", "Episode end", "Info", "Version history"):
            assert wanted in headings, f"{page.name} has no section {wanted}"


def test_figures_are_those_that_the_script_draws() -> None:
    from docs.figures.draw import FIGURES

    folder = DOCS / "figures"
    assert {p.stem for p in folder.glob("*.svg")} == set(FIGURES)
    for name, make in FIGURES.items():
        assert (folder / f"{name}.svg").read_text(encoding="utf-8") == make().svg(), "python -m docs.figures.draw"


def test_listings_follow_the_program_through_every_stage() -> None:
    from docs.tools.listings import listings

    made = {name: make() for name, make in listings().items()}
    assert "divide" in made["flow.source"]
    assert "divide" not in made["flow.fused"]
    assert "`cse`" in made["flow.passes"]
    assert "`kernel`" in made["flow.loops"]
    assert "producer-consumer" in made["flow.actions"]
    assert "reduction kernel" in made["flow.nest"]
    assert "#pragma omp simd" in made["flow.c"]
    assert "for (index_t" in made["flow.loop-c"]
    assert "temporary 512" in made["flow.thunks"]  # away from where arrays of other libraries begin
    assert "False" not in made["flow.run"]
