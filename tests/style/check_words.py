"""Find words that make this project's English hard to read; `words.toml` lists them with better ones.

Run as a program, it prints `file:line: found -> write instead` for each one and exits with status 1 if there are any.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).parent.parent.parent
SUFFIXES = (".py", ".md", ".toml", ".yml", ".yaml", ".c", ".h")
SKIPPED = ("results/", "tests/style/", "constraints.txt")


Words: TypeAlias = tuple[tuple[re.Pattern[str], str], ...]


def load_words() -> Words:
    """Return the forbidden patterns and what to write instead."""
    table = tomllib.loads((ROOT / "tests/style/words.toml").read_text(encoding="utf-8"))["words"]
    return tuple((re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), instead) for pattern, instead in table.items())


@functools.cache
def _any_of(words: Words) -> re.Pattern[str]:
    return re.compile("|".join(pattern.pattern for pattern, _ in words), re.IGNORECASE)


def check_text(text: str, words: Words) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, what was found, what to write instead)."""
    if _any_of(words).search(text) is None:  # ten times faster than one pattern after the other
        return
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, instead in words:
            for match in pattern.finditer(line):
                yield number, match.group(), instead


def tracked_files() -> list[Path]:
    """Return the project's own text files: tracked by git, or new and not ignored."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    kept = (name for name in listing if name.endswith(SUFFIXES) and not name.startswith(SKIPPED))
    return [ROOT / name for name in kept if (ROOT / name).is_file()]


def main(arguments: list[str]) -> int:
    """Check the files or folders named, or all of the project; return the exit status."""
    wanted = tuple(str(Path(a).resolve()) for a in arguments)
    words = load_words()
    found = 0
    for file in tracked_files():
        if wanted and not str(file).startswith(wanted):
            continue
        for number, word, instead in check_text(file.read_text(encoding="utf-8"), words):
            print(f"{file.relative_to(ROOT)}:{number}: {word!r} -> {instead}")
            found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
