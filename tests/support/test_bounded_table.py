"""Tests of tables of bounded size."""

from compiler.support.bounded_table import BoundedTable


def test_a_full_table_drops_everything_but_what_is_added() -> None:
    table = BoundedTable[str, int](2)
    table["a"], table["b"] = 1, 2
    assert table == {"a": 1, "b": 2}
    table["c"] = 3
    assert table == {"c": 3}


def test_a_table_of_one_entry_keeps_the_last() -> None:
    table = BoundedTable[int, int](1)
    for n in range(5):
        table[n] = n * n
        assert dict(table) == {n: n * n}


def test_lookups_are_those_of_a_dict() -> None:
    table = BoundedTable[str, int](3)
    table["a"] = 1
    assert table.get("a") == 1
    assert table.get("b") is None
    assert "b" not in table
