"""The LRU dictionary evicts the least recently used entries."""

from compiler.support.lru_dict import LruDict


def test_what_was_not_used_for_the_longest_time_goes_first() -> None:
    kept: LruDict[str, int] = LruDict(2)
    kept["a"], kept["b"] = 1, 2
    assert kept["a"] == 1
    kept["c"] = 3
    assert (list(kept), kept.get("b"), len(kept), "a" in kept) == (["a", "c"], None, 2, True)
    assert (kept.total, kept.dropped) == (2, 1)


def test_sizes_count_and_the_last_entry_stays_whatever_its_size() -> None:
    kept: LruDict[str, str] = LruDict(10, lambda key, value: len(key) + len(value))
    kept["a"] = "xxx"
    kept["b"] = "xxxx"
    assert kept.total == 9
    kept["c"] = "x" * 50
    assert (list(kept), kept.total) == (["c"], 51)
    kept["c"] = "x"
    assert (list(kept), kept.total) == (["c"], 2)
    assert kept.pop("c") == "x"
    assert kept.pop("c") is None
    assert kept.total == 0


def test_what_is_to_be_kept_is_spared() -> None:
    kept: LruDict[str, int] = LruDict(2)
    for name in "abc":
        kept.put(name, 1, kept=("a", "b"))
    assert list(kept) == ["a", "b", "c"]
    kept.put("d", 1, kept=("b",))
    assert list(kept) == ["b", "d"]
