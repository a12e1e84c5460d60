"""Candidates that are alike have the rows that each of them has by itself."""

import numpy as np
import numpy.typing as npt
import pytest

from compiler.codegen.schedules.kernel_choice import GENERATED
from compiler.codegen.schedules.schedule import FIELD_RANGES
from compiler.learned.features.candidates import (
    CANDIDATE_FEATURES,
    MAX_CANDIDATES,
    STOP,
    AlikeCandidates,
    Candidate,
    alike_passes,
    candidate_row,
)
from compiler.learned.features.kernels import kernel_candidates
from compiler.learned.features.programs import EndpointNumbers, ModuleFeatures
from compiler.learned.features.rounding import halved, rounded
from compiler.passes.infrastructure.registry import PASSES
from compiler.session import CompilationSession
from compiler.text import parse
from env.suites import find_program


def _rows(alike: AlikeCandidates, endpoints: EndpointNumbers, total: float) -> npt.NDArray[np.float32]:
    columns, features = alike.rows(halved(np.array(candidate_row(alike.like, endpoints, total), np.float32)))
    assert list(columns) == sorted(set(columns.tolist()))
    rows = np.zeros((len(features), CANDIDATE_FEATURES), np.float32)
    rows[:, columns] = features
    assert rows[:, columns].any(axis=0).all()
    return rows


def test_passes_and_the_stop() -> None:
    session = CompilationSession(parse(find_program("softmax").text()))
    facts = ModuleFeatures(session.module, session.fusion.cost_model)
    endpoints, total = EndpointNumbers(facts, 1.0), 1.0
    names = [*sorted(PASSES)[::3], "a pass without a slot"]
    wanted = [candidate_row(c, endpoints, total) for c in (*(Candidate("pass", pass_name=n) for n in names), STOP)]
    rows = _rows(alike_passes(names), endpoints, total)
    np.testing.assert_array_equal(rows, rounded(np.array(wanted, np.float32)))


@pytest.mark.parametrize("program", ["softmax", "layer_norm_backward"])
def test_choices_of_a_kernel(program: str) -> None:
    slots = list(FIELD_RANGES)
    for _ in range(2):  # the second time by what is known of equal kernels
        session = CompilationSession(parse(find_program(program).text()))
        session.run_passes()
        sites = [s for s in session.kernel_sites() if len(s.choices) > 1]
        facts = ModuleFeatures(session.module, session.fusion.cost_model)
        total = facts.total_seconds()
        endpoints = EndpointNumbers(facts, total)
        for site in sites[:4]:
            offered = site.shared_offer(MAX_CANDIDATES)
            assert list(offered) == site.offered(MAX_CANDIDATES)
            assert offered.lines.split("\n") == [str(c) for c in offered]
            preset = site.default_schedule
            wanted = [
                Candidate(
                    "kernel",
                    site.instruction,
                    keeps=c == site.default,
                    generated=c.implementation == GENERATED,
                    knobs=tuple((slots.index(k), preset.value(k), v) for k, v in c.schedule.items()),
                )
                for c in offered
            ]
            expected = rounded(np.array([candidate_row(c, endpoints, total) for c in wanted], np.float32))
            for choices in (offered, list(offered)):
                alike = kernel_candidates(site, choices)
                assert alike.like.producer is site.instruction
                np.testing.assert_array_equal(_rows(alike, endpoints, total), expected)
