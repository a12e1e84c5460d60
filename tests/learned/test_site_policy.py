"""Learned choices for sites: the gain must be sure enough, unknown sites keep their default, folders are checked."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compiler.errors import PolicyError
from compiler.expansions import ExpansionSite
from compiler.learned.features.sites import (
    CHOICE_COLUMNS,
    EXPANSION_FEATURES,
    LOOP_FEATURES,
    UNROLLED_COLUMN,
    expansion_rows,
    loop_rows,
)
from compiler.learned.site_policy import Bandit, RuleChooser, SiteExpansions, SiteLoops, load_bandit, save_bandit
from compiler.loops import LoopSite
from compiler.session import CompilationSession
from compiler.text import parse
from tests.env.small_programs import LOOP
from tests.learned.bandits import bandit, column

DOT = """ENTRY e {
  x = f32[3,90] parameter(0)
  y = f32[90,12] parameter(1)
  d = f32[3,12] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = f32[3,12] negate(d)
}"""


def dot_site() -> ExpansionSite:
    session = CompilationSession(parse(DOT))
    session.run_passes()
    (site,) = session.expansions()
    assert site.choices == ("loops", "keep")
    return site


def loop_site() -> tuple[LoopSite, CompilationSession]:
    session = CompilationSession(parse(LOOP))
    session.run_passes()
    (site,) = session.loops()
    return site, session


def test_rows_describe_a_product_in_elements() -> None:
    rows = expansion_rows(dot_site())
    assert rows is not None
    loops, keep = (dict(zip((f.name for f in EXPANSION_FEATURES), row, strict=True)) for row in rows)
    expected = {
        "op is dot": 1, "rows": 3, "columns": 12, "contraction": 90, "batch": 1, "result": 36, "work": 2 * 36 * 90,
        "first operand": 270, "second operand": 1080, "elementwise users": 1, "element": 32, "default is loops": 1,
    }  # fmt: skip
    assert {name: loops[name] for name in expected} == expected
    assert (loops["choice is loops"], loops["choice is keep"]) == (1, 0)
    different = {n for n, f in enumerate(EXPANSION_FEATURES) if loops[f.name] != keep[f.name]}
    assert different <= CHOICE_COLUMNS["expansions"]


def test_rows_describe_a_loop_and_what_a_choice_makes_of_it() -> None:
    site, session = loop_site()
    rows = loop_rows(site, session.module)
    assert rows is not None
    found = [dict(zip((f.name for f in LOOP_FEATURES), row, strict=True)) for row in rows]
    assert {row["trip count"] for row in found} == {100}
    assert {row["expensive ops"] for row in found} == {1}
    assert {row["largest result in the body"] for row in found} == {256}
    by_choice = dict(zip(site.choices, rows, strict=True))
    assert by_choice["unroll-4"][UNROLLED_COLUMN] == 4 * site.size
    assert by_choice["kernel"][column("loops", "choice is kernel")] == 1
    assert loop_rows(replace(site, id="e/gone"), session.module) is None
    assert loop_rows(replace(site, size=10**6), session.module) is None


def test_a_sure_gain_is_taken_and_an_unsure_one_is_not() -> None:
    site = dot_site()

    def choose(made: Bandit) -> str:
        return SiteExpansions(made).choose_expansion(site)

    assert choose(bandit("expansions", "keep", "loops", 1.5)) == "keep"
    assert choose(bandit("expansions", "keep", "loops", 1.04)) == "loops"  # below the margin
    assert choose(bandit("expansions", "keep", "loops", 1.5, deviation=0.4)) == "loops"  # ln 1.5 - 0.4 is below it
    assert choose(bandit("expansions", "keep", "loops", 1.5, deviation=0.3)) == "keep"


def test_a_short_product_keeps_its_default() -> None:
    """Its time is that of a call, whatever a model expects."""
    session = CompilationSession(parse(DOT.replace("90", "8")))
    session.run_passes()
    (site,) = session.expansions()
    policy = SiteExpansions(bandit("expansions", "keep", "loops", 1.5))
    assert policy.choose_expansion(site) == site.default == "loops"
    assert "less than 2500 flops" in policy.explain(site)


def test_a_site_beyond_the_samples_keeps_its_default() -> None:
    site = dot_site()
    made = bandit("expansions", "keep", "loops", 1.5)
    high = made.forest.high.copy()
    high[column("expansions", "contraction")] = 3.0
    unknown = replace(made, forest=replace(made.forest, high=high))
    assert SiteExpansions(unknown).choose_expansion(site) == "loops"
    assert "unknown" in SiteExpansions(unknown).explain(site)
    assert SiteExpansions(made).choose_expansion(replace(site, instruction=None)) == "loops"


def test_reasons_have_predictions_and_conditions_with_units() -> None:
    site = dot_site()
    made = bandit("expansions", "keep", "loops", 1.5)
    reason = SiteExpansions(made).explain(site)
    assert "keep 1.50x (at least 1.50x); needed 1.05x" in reason
    assert "rows is 3, at most 1000 elements" in reason
    assert SiteExpansions(RuleChooser(made.rules)).explain(site).startswith("keep instead of loops if rows is 3")
    loop, session = loop_site()
    loops = bandit("loops", "keep", "kernel", 1.3)
    assert SiteLoops(loops).choose_loop(loop, session.module) == "keep"
    assert "body is" in SiteLoops(loops).explain(loop, session.module)
    never = replace(loops, rules=replace(loops.rules, rules=()))
    assert SiteLoops(RuleChooser(never.rules)).choose_loop(loop, session.module) == "kernel"
    assert "no rule applies" in SiteLoops(RuleChooser(never.rules)).explain(loop, session.module)


def test_folders_are_read_back(tmp_path: Path) -> None:
    made = bandit("loops", "keep", "kernel", 1.3, deviation=0.1)
    save_bandit(tmp_path, "loops", made)
    phase, again = load_bandit(tmp_path)
    assert phase == "loops"
    assert (again.margin, again.errors, again.rules) == (made.margin, made.errors, made.rules)
    rows = np.eye(len(LOOP_FEATURES))
    for a, b in zip(again.forest.predict(rows), made.forest.predict(rows), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"phase": "fusion"}, "phase must be one of expansions, loops"),
        ({"features": ["trip count"]}, "features are not those"),
        ({"margin": -1}, "margin must be"),
        ({"errors": "2"}, "errors must be"),
        ({"rules": 3}, "rules must be a list"),
        ({"feature_version": 99}, "version 99"),
        ({"format": "hlogym-other"}, "hlogym-other"),
    ],
)
def test_damaged_folders_are_refused(tmp_path: Path, change: dict[str, object], problem: str) -> None:
    save_bandit(tmp_path, "loops", bandit("loops", "keep", "kernel", 1.3))
    file = tmp_path / "policy.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(PolicyError, match=problem):
        load_bandit(tmp_path)
