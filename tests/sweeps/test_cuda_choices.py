"""The sweep that compiles the choices of CUDA kernels: what it finds, samples, continues and reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from env.suites import load_suite
from tests.codegen.nvrtc_errors import has_nvrtc
from tests.sweeps.cuda_choices import DEFAULT, GPUS, Candidate, Progress, Tally, candidates, report, sampled

PROGRAM = "bias_gelu_128x256"


def found() -> tuple[list[Candidate], Tally]:
    suite, tally = load_suite("kernels"), Tally()
    return list(candidates("kernels", [suite.find(PROGRAM)], set(), tally)), tally


def test_candidates_are_the_default_and_its_neighbours_with_distinct_sources() -> None:
    choices, tally = found()
    assert choices[0].choice == DEFAULT and choices[1].choice != DEFAULT
    assert len({c.key for c in choices}) == len(choices) == tally.sources
    assert tally.kernels <= tally.sources <= tally.choices - tally.libraries


def test_a_sample_has_all_defaults_and_each_knob_and_value() -> None:
    choices, _ = found()
    again = [replace(c, kernel=replace(c.kernel, source=c.kernel.source + "// again\n")) for c in choices]

    sample = sampled([*choices, *again], 1)

    assert [c for c in sample if c.choice == DEFAULT] == [c for c in (*choices, *again) if c.choice == DEFAULT]
    others = [c.choice for c in sample if c.choice != DEFAULT]
    assert sorted(others) == sorted({c.choice for c in choices} - {DEFAULT})
    assert sampled(choices, 0) == choices


@pytest.mark.skipif(not has_nvrtc(), reason="NVRTC is not installed")
def test_what_was_compiled_is_kept_and_failures_are_tried_again(tmp_path: Path) -> None:
    choices, tally = found()
    bad = replace(choices[1], kernel=replace(choices[1].kernel, source="not C++", symbol="bad"))
    path = tmp_path / "done.jsonl"

    results = Progress(path).results([choices[0], bad])

    assert all(results[choices[0].key, a].registers and not results[choices[0].key, a].error for a in GPUS)
    assert all("bad" in results[bad.key, a].error for a in GPUS)
    text = report(
        {"kernels": tally}, [choices[0], bad], results, 1, dict.fromkeys(("command", "commit", "machine", "date"))
    )
    assert f"## Failures ({len(GPUS)})" in text and "for sm_80: " in text
    written = path.read_text() + '\n{"key": "cut of'
    path.write_text(written)
    assert Progress(path).results([choices[0]]) == {k: v for k, v in results.items() if k[0] == choices[0].key}
    assert path.read_text() == written  # nothing was compiled again
    assert Progress(path).results([bad]).keys() < results.keys()
    assert path.read_text().startswith(written + "\n{")
