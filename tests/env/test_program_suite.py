"""The suite "corpus": its list, its splits, what freezes its test programs, and builds that can be repeated."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from compiler.errors import UnknownNameError
from compiler.text import parse
from env.suites import load_suite
from env.suites.programs.listing import LISTING, ListingError, frozen_hash, read_listing
from env.suites.programs.splits import TEST_FAMILIES, VALIDATION_FAMILIES, split_of_family

PROGRAMS, FROZEN, VERSIONS = read_listing()


def test_the_list_has_the_programs_that_it_promises() -> None:
    families = Counter(p.family for p in PROGRAMS.values())
    assert len(PROGRAMS) >= 3000
    assert len(families) >= 60
    assert min(families.values()) >= 10
    assert LISTING.stat().st_size < 1_000_000
    assert set(VERSIONS) == {"jax", "torch"}


def test_no_two_splits_share_a_family_or_a_fingerprint() -> None:
    families: dict[str, set[str]] = {}
    for program in PROGRAMS.values():
        families.setdefault(program.family, set()).add(program.split)
        assert program.split == split_of_family(program.family)
    assert all(len(splits) == 1 for splits in families.values())
    assert max(Counter(p.fingerprint for p in PROGRAMS.values()).values()) == 1
    assert set(families) >= TEST_FAMILIES | VALIDATION_FAMILIES
    assert not TEST_FAMILIES & VALIDATION_FAMILIES


def test_each_split_has_enough_programs() -> None:
    counts = Counter(p.split for p in PROGRAMS.values())
    assert set(counts) == {"train", "validation", "test"}
    assert counts["train"] >= 2000
    assert min(counts["validation"], counts["test"]) >= 500


def test_the_test_programs_are_frozen() -> None:
    """The hash is repeated here, so that the test programs only change together with this test."""
    found = frozen_hash((p.family, p.name, p.fingerprint) for p in PROGRAMS.values() if p.split == "test")
    assert found == FROZEN
    assert FROZEN == "fcd8abed8e955f44e3ea3b543a0b1aa769fbf674b967c6526bd0b6863793ddd3"


def test_the_frozen_hash_depends_on_every_program_and_not_on_their_order() -> None:
    programs = [("a", "a-1", "0"), ("a", "a-2", "1"), ("b", "b-1", "2")]
    assert frozen_hash(programs) == frozen_hash(reversed(programs))
    assert len({frozen_hash(programs), frozen_hash(programs[:2]), frozen_hash([*programs[:2], ("b", "b-1", "3")])}) == 3


def test_a_list_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": 99, "families": {}}')
    with pytest.raises(ListingError, match="format 99"):
        read_listing(tmp_path / "manifest.json")


def test_splits_of_the_built_in_suites_share_no_family() -> None:
    splits: dict[str, set[str]] = {}
    for program in load_suite("jax").programs:
        splits.setdefault(program.family, set()).add(program.split)
    assert all(len(found) == 1 for found in splits.values())
    named = {p.name: p for p in load_suite("jax").programs}
    assert {p.family for name, p in named.items() if name.startswith("random_")} == {"random"}
    assert {p.family for name, p in named.items() if name.startswith("special_")} == {"special"}


# ---- builds: these need JAX


def test_every_listed_family_is_made_by_a_function_of_the_source() -> None:
    pytest.importorskip("jax")
    from env.suites.build import families

    known = families()
    assert {p.family for p in PROGRAMS.values()} == set(known)
    assert all(p.source == known[p.family][0].source for p in PROGRAMS.values())


def test_a_build_gives_the_same_programs_every_time(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    from env.suites.build import build_suite

    notes: list[str] = []
    first = build_suite(tmp_path / "one", ["conversions"], notes.append)
    again = build_suite(tmp_path / "two", ["conversions"])
    prints = {e["name"]: e["fingerprint"] for e in first["programs"]}
    assert prints == {e["name"]: e["fingerprint"] for e in again["programs"]}
    assert any("-cut-" in name for name in prints)
    assert "conversions: " in notes[0]
    if first["lowered_with"] == VERSIONS:
        assert prints == {name: p.fingerprint for name, p in PROGRAMS.items() if p.family == "conversions"}
    for entry in first["programs"]:
        one, two = ((tmp_path / n / entry["split"] / entry["file"]).read_text() for n in ("one", "two"))
        assert one == two
        assert parse(one).fingerprint().startswith(entry["fingerprint"])
        assert len(entry["inputs"]) == len(parse(one).entry.parameters)


def test_a_build_continues_where_it_stopped(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    from env.suites.build import build_suite

    build_suite(tmp_path, ["bit_operations"])
    part = tmp_path / "parts" / "bit_operations.json"
    marked = json.loads(part.read_text())
    marked["programs"] = marked["programs"][:1]  # what is read from the part, and not lowered again
    part.write_text(json.dumps(marked))
    assert len(build_suite(tmp_path, ["bit_operations"])["programs"]) == 1
    part.write_text(json.dumps(marked | {"key": "made from another source"}))
    assert len(build_suite(tmp_path, ["bit_operations"])["programs"]) > 10


def test_an_unknown_family_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    from env.suites.build import BuildError, build_suite

    with pytest.raises((BuildError, UnknownNameError), match="unknown family 'softmac'"):
        build_suite(tmp_path, ["softmac"])


def test_drawn_programs_depend_on_their_seed_alone() -> None:
    pytest.importorskip("jax")
    import jax

    from env.suites.lowering import lower_to_text
    from env.suites.programs.generator import GRAMMARS, draw

    def prints(name: str, seed: int) -> str:
        member = draw(name, seed)
        shapes = [jax.ShapeDtypeStruct(a.dims, a.dtype) for a in member.arguments]  # type: ignore[no-untyped-call]
        return parse(lower_to_text(member.function, *shapes)).fingerprint()

    for name in GRAMMARS:
        assert prints(name, 3) == prints(name, 3)
    assert prints("drawn_pointwise", 3) != prints("drawn_pointwise", 4)


def test_equal_programs_of_two_families_are_kept_once(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    from env.suites.build import joined_manifest

    parts = [
        {"programs": [{"name": "a-1", "fingerprint": "0"}, {"name": "a-2", "fingerprint": "1"}]},
        {"programs": [{"name": "b-1", "fingerprint": "1"}, {"name": "b-2", "fingerprint": "2"}]},
    ]
    assert [e["name"] for e in joined_manifest(parts)["programs"]] == ["a-1", "a-2", "b-2"]
