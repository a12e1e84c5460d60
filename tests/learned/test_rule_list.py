"""Rules decide by their conditions and print why."""

import pytest

from compiler.errors import PolicyError
from compiler.learned.features.sites import Feature
from compiler.learned.rule_list import Condition, Rule, RuleList

FEATURES = (Feature("rows", "elements"), Feature("kernel is possible"))
RULES = RuleList(
    (
        Rule("keep", "loops", (Condition(0, False, 4.0), Condition(1, False, 0.5)), 1.5, 12),
        Rule("keep", "loops", (Condition(0, False, 64.0),), 1.2, 9),
        Rule("patches", "keep", (), 1.1, 3),
    ),
    FEATURES,
)


@pytest.mark.parametrize(
    ("row", "expected"),
    [([4.0, 1.0], "loops"), ([5.0, 1.0], "keep"), ([5.0, 0.0], "loops"), ([65.0, 0.0], "keep")],
)
def test_a_rule_applies_where_all_its_conditions_hold(row: list[float], expected: str) -> None:
    choices = ("loops", "keep")
    n, rule = RULES.find(choices, "loops", [row, row])
    assert choices[n] == expected
    assert (rule is None) == (expected == "loops")


def test_rules_for_another_default_do_not_apply() -> None:
    assert RULES.find(("keep", "loops"), "keep", [[100.0, 1.0]] * 2) == (0, None)


def test_a_rule_prints_its_conditions_with_units_and_values() -> None:
    rule = RULES.rules[0]
    assert rule.text(FEATURES) == (
        "keep instead of loops if rows above 4 elements and kernel is possible (expected 1.50x, 12 samples)"
    )
    assert "rows is 7, above 4 elements" in rule.text(FEATURES, [7.0, 1.0])
    assert Condition(1, True, 0.5).text(FEATURES) == "not kernel is possible"
    assert "always" in RULES.rules[2].text(FEATURES)
    assert str(RULES).count("\n") == 2
    assert "always the default" in str(RuleList((), FEATURES))


def test_rules_are_read_back_from_json() -> None:
    assert RuleList.from_json(RULES.to_json(), FEATURES) == RULES


GOOD = {"choice": "keep", "instead_of": "loops", "if": [["rows", ">", 4]], "speedup": 1.5, "samples": 2}


@pytest.mark.parametrize(
    "wrong",
    [
        "rules", [3], [{**GOOD, "more": 1}], [{**GOOD, "choice": 1}], [{**GOOD, "speedup": -1}],
        [{**GOOD, "samples": 1.5}],
        [{**GOOD, "if": "rows"}], [{**GOOD, "if": [["columns", ">", 4]]}], [{**GOOD, "if": [["rows", "<", 4]]}],
        [{**GOOD, "if": [["rows", ">", "4"]]}], [{**GOOD, "if": [["rows", ">"]]}], [GOOD] * 1001,
    ],
)  # fmt: skip
def test_malformed_rules_are_refused(wrong: object) -> None:
    assert RuleList.from_json([GOOD], FEATURES).rules[0].samples == 2
    with pytest.raises(PolicyError):
        RuleList.from_json(wrong, FEATURES)
