"""Find the HLO programs in XLA's source tree: in string literals of its tests, and in .hlo files.

    python -m tests.sweeps.xla_texts --source PATH --out programs.jsonl

PATH is a checkout, or a git directory if --revision is given. Each line of the output is an object with "path", "line",
"text" and "revision".
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path

SUFFIXES = (".cc", ".h", ".inc", ".py", ".hlo", ".txt")
LARGEST = 600_000
"""Maximum number of characters. Longer files are dumps of whole programs, which `xla_benchmarks` covers."""

_CPP = re.compile(
    r"""(?P<skip>//[^\n]*|/\*.*?\*/|'(?:\\.|[^'\\\n])+')"""
    r"""|R"(?P<tag>[^()\\\s]{0,16})\((?P<raw>.*?)\)(?P=tag)\""""
    r"""|"(?P<plain>(?:\\.|[^"\\\n])*)\"""",
    re.DOTALL,
)
_PYTHON = re.compile(r"""(?P<skip>\#[^\n]*)|(?P<quotes>\"{3}|'{3})(?P<raw>.*?)(?P=quotes)""", re.DOTALL)
_COMMENTS = re.compile(r"(?:\s|//[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)
_COMPUTATION = re.compile(
    r"(?:ENTRY\s+)?%?[\w.-]+\s*(?:\([^{]*\)\s*->[^{]*(?:\{[\d,]*\}[^{]*)*)?\{\s*(?:ROOT\s+)?%?[\w.-]+\s*="
)
_PLACEHOLDER = re.compile(r"\$(?:\d|\{)")
_TYPE_PLACEHOLDER = re.compile(r"\$\d(?=\[)")
_FORMATTED = re.compile(r"(?:StrFormat|StrReplaceAll|Substitute|\.format)\(\s*$")
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "'": "'"}


@dataclass(frozen=True)
class SourceText:
    """HLO text and the position of its first line."""

    path: str
    line: int
    text: str
    revision: str = ""

    @property
    def digest(self) -> str:
        """A hash that identifies the HLO text."""
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()[:12]

    @property
    def place(self) -> str:
        """The path and line in the source tree."""
        return f"{self.path}:{self.line}"


def source_texts(source: Path, revisions: Sequence[str] = ()) -> Iterator[SourceText]:
    """Yield the HLO programs of a source tree, or of some git revisions, sorted by path and without duplicates."""
    seen: set[str] = set()
    trees = [(r, _git_files(source, r)) for r in revisions] or [("", _tree_files(source))]
    for revision, files in trees:
        for text in chain.from_iterable(texts_of(path, content) for path, content in files):
            if text.text.strip() not in seen:
                seen.add(text.text.strip())
                yield replace(text, revision=revision)


def texts_of(path: str, content: str) -> Iterator[SourceText]:
    """Yield the HLO programs of one file."""
    if "HloModule" not in content and "ROOT" not in content:
        return
    if path.endswith((".hlo", ".txt")):
        found = _split(content)
    elif path.endswith(".py"):
        found = _python_literals(content)
    else:
        found = _cpp_literals(content)
    for at, text in found:
        filled = _TYPE_PLACEHOLDER.sub("f32", text)
        if len(text) <= LARGEST and not _PLACEHOLDER.search(filled) and _is_hlo(filled):
            yield SourceText(path, content.count("\n", 0, at) + 1, filled)


def _is_hlo(text: str) -> bool:
    start = _COMMENTS.match(text)
    assert start is not None
    return text.startswith("HloModule", start.end()) or bool(_COMPUTATION.match(text, start.end()))


def _split(content: str) -> Iterator[tuple[int, str]]:
    """Yield the modules of a file, which are separated by lines with `// -----`, with their offsets."""
    at = 0
    for part in content.split("// -----"):
        yield at, part
        at += len(part) + len("// -----")


def _cpp_literals(content: str) -> Iterator[tuple[int, str]]:
    """Yield string literals, adjacent ones concatenated, with their offsets; format strings are skipped."""
    start, parts, end = 0, list[str](), -1
    formatted = False
    for token in _CPP.finditer(content):
        if token["skip"] is not None:
            continue
        if parts and content[end : token.start()].strip():
            if not formatted:
                yield start, "".join(parts)
            parts = []
        if not parts:
            start = token.start()
            formatted = _FORMATTED.search(content[max(0, start - 80) : start]) is not None
        parts.append(token["raw"] if token["raw"] is not None else _unescape(token["plain"]))
        formatted = formatted and "$" not in parts[-1]
        end = token.end()
    if parts and not formatted:
        yield start, "".join(parts)


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), text, flags=re.DOTALL)


def _python_literals(content: str) -> Iterator[tuple[int, str]]:
    for token in _PYTHON.finditer(content):
        if token["raw"] is not None:
            yield token.start(), token["raw"]


def _tree_files(source: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(source.rglob("*")):
        if path.suffix in SUFFIXES and path.is_file():
            yield path.relative_to(source).as_posix(), path.read_text(encoding="utf-8", errors="replace")


def _git_files(source: Path, revision: str) -> Iterator[tuple[str, str]]:
    """Yield the path and content of a revision's files; objects missing in a partial clone are skipped."""
    git = ["git", "-C", str(source)]
    listing = subprocess.run([*git, "ls-tree", "-r", "-l", revision], capture_output=True, text=True, check=False)
    if listing.returncode:
        raise SystemExit(f"cannot read revision {revision} in {source}: {listing.stderr.strip()}")
    with subprocess.Popen(
        [*git, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as cat:
        assert cat.stdin is not None and cat.stdout is not None
        for line in listing.stdout.splitlines():
            described, _, path = line.partition("\t")
            _, kind, name, _ = described.split()
            if kind != "blob" or not path.endswith(SUFFIXES):
                continue
            cat.stdin.write(name.encode() + b"\n")
            cat.stdin.flush()
            answer = cat.stdout.readline().split()
            if answer[-1] == b"missing":
                continue
            content = cat.stdout.read(int(answer[2]) + 1)[:-1]
            yield path, content.decode("utf-8", errors="replace")
        cat.stdin.close()


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that select XLA's source."""
    parser.add_argument("--source", type=Path, required=True, help="a checkout of XLA, or a git directory")
    parser.add_argument("--revision", nargs="*", default=[], help="read these git revisions instead of the files")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_source_options(parser)
    parser.add_argument("--out", type=Path, required=True, help="file to write (JSON lines)")
    options = parser.parse_args()
    programs = list(source_texts(options.source, options.revision))
    options.out.write_text("".join(json.dumps(asdict(t)) + "\n" for t in programs), encoding="utf-8")
    print(f"{len(programs)} programs from {len({t.path for t in programs})} files")


if __name__ == "__main__":
    main()
