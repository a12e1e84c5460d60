"""What is known of the processor."""

import platform
from collections.abc import Callable, Iterator

import pytest

from compiler.support import processor
from compiler.support.processor import AVX2, AVX512, NEON, VectorUnit

Reads = Callable[[dict[str, str]], None]


@pytest.fixture
def linux_says(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reads]:
    """Yield a function that sets what Linux says of the processor."""
    functions = (processor.processor, processor.microarchitecture, processor.vector_unit)

    def clear() -> None:
        for f in functions:
            f.cache_clear()

    def says(facts: dict[str, str]) -> None:
        clear()
        monkeypatch.setattr(processor, "facts", lambda: facts)

    yield says
    clear()


@pytest.mark.parametrize(
    ("facts", "name", "unit"),
    [
        ({"vendor_id": "AuthenticAMD", "cpu family": "25", "model": "17", "flags": "avx2 avx512f"},
         "AuthenticAMD 25 avx512f", AVX512),
        ({"vendor_id": "AuthenticAMD", "cpu family": "25", "model": "1", "flags": "sse avx2"},
         "AuthenticAMD 25 avx2", AVX2),
        ({"vendor_id": "GenuineIntel", "cpu family": "6", "model": "143", "flags": "avx512f"},
         "GenuineIntel 6 143 avx512f", AVX512),
    ],
)  # fmt: skip
def test_what_linux_says(facts: dict[str, str], name: str, unit: VectorUnit, linux_says: Reads) -> None:
    linux_says(facts)
    assert processor.microarchitecture() == name
    assert processor.vector_unit() == unit


@pytest.mark.parametrize(
    ("machine", "facts", "unit"),
    [("aarch64", {"Features": "fp asimd"}, NEON), ("arm64", {}, NEON), ("x86_64", {}, AVX2)],
)
def test_other_systems(
    machine: str, facts: dict[str, str], unit: VectorUnit, linux_says: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    linux_says(facts)
    assert processor.vector_unit() == unit


def test_the_name_of_a_processor_depends_on_its_features(linux_says: Reads) -> None:
    names = set()
    for flags in ("avx2", "avx2 avx512f"):
        linux_says({"model name": "CPU", "flags": flags})
        names.add(processor.processor())
    assert len(names) == 2
    assert all(n.startswith("CPU ") for n in names)
