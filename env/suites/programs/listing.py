"""The list of all programs of the suite "corpus", which comes with hlogym, and the hash of its test programs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from compiler.errors import HlogymError
from compiler.support.json_reading import read_object

__all__ = ["LISTING", "Listed", "ListingError", "frozen_hash", "listing_text", "read_listing"]

LISTING = Path(__file__).parent / "manifest.json"
FORMAT = 1


class ListingError(HlogymError, ValueError):
    """A list of programs that cannot be read."""


@dataclass(frozen=True)
class Listed:
    """One program of the list: its family, split and fingerprint, and what it was made from.

    Attributes:
        name: its name.
        family: its family.
        split: the split of the family.
        fingerprint: the first 32 digits of the SHA-256 of its canonical text.
        source: the function that made its family.
    """

    name: str
    family: str
    split: str
    fingerprint: str
    source: str


def frozen_hash(programs: Iterable[tuple[str, str, str]]) -> str:
    """Return a hash over test programs, each given by its family, name and fingerprint, in any order."""
    return hashlib.sha256("\n".join(" ".join(p) for p in sorted(programs)).encode()).hexdigest()


def listing_text(manifest: Mapping[str, Any], sources: Mapping[str, str]) -> str:
    """Return the text of the list for the manifest of a whole build.

    Args:
        manifest: the manifest.
        sources: the function that makes each family.
    """
    families: dict[str, dict[str, Any]] = {}
    for entry in manifest["programs"]:
        family = families.setdefault(
            entry["family"], {"split": entry["split"], "source": sources[entry["family"]], "programs": {}}
        )
        family["programs"][entry["name"].removeprefix(f"{entry['family']}-")] = entry["fingerprint"]
    test = frozen_hash((e["family"], e["name"], e["fingerprint"]) for e in manifest["programs"] if e["split"] == "test")
    head = json.dumps({"format": FORMAT, "lowered_with": manifest["lowered_with"], "frozen_test": test}).removesuffix(
        "}"
    )
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(family)}" for name, family in families.items())
    return f'{head}, "families": {{\n{lines}\n}}}}\n'


@cache
def read_listing(path: Path = LISTING) -> tuple[dict[str, Listed], str, dict[str, str]]:
    """Return the listed programs by name, the hash of the test programs, and the versions that lowered them.

    Raises:
        ListingError: the file cannot be read, or has another format.
    """
    data = read_object(path, ListingError)
    if data.get("format") != FORMAT:
        raise ListingError(f"{path} has format {data.get('format')!r}, this version of hlogym reads {FORMAT}")
    programs = {
        f"{family}-{member}": Listed(f"{family}-{member}", family, facts["split"], fingerprint, facts["source"])
        for family, facts in data["families"].items()
        for member, fingerprint in facts["programs"].items()
    }
    return programs, data["frozen_test"], data["lowered_with"]
