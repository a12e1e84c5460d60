"""Chains of long functions over short rows, in blocks of rows."""

import re

import pytest

from compiler.codegen.schedules.schedule import Schedule
from tests.codegen.test_stages import checked


def chain(rows: int, columns: int, links: int) -> str:
    """Return a chain of hyperbolic tangents, each of which is scaled by a value for each column."""
    return "\n".join([*links_of(rows, columns, links), f"ROOT r = f32[{rows},{columns}] negate(x{links})"])


def links_of(rows: int, columns: int, links: int) -> list[str]:
    lines = [f"x0 = f32[{rows},{columns}] parameter(0)", f"w = f32[{columns}] parameter(1)"]
    lines.append(f"b = f32[{rows},{columns}] broadcast(w), dimensions={{1}}")
    for k in range(links):
        lines.append(f"t{k} = f32[{rows},{columns}] tanh(x{k})")
        lines.append(f"x{k + 1} = f32[{rows},{columns}] multiply(t{k}, b)")
    return lines


@pytest.mark.parametrize("rows", [16, 100, 6])
@pytest.mark.parametrize("columns", [8, 16, 24, 40])
def test_stages_of_short_rows_run_for_a_block_of_rows(rows: int, columns: int) -> None:
    assert "_block[" in checked(chain(rows, columns, 3), Schedule())


@pytest.mark.parametrize(
    ("rows", "columns", "links"),
    [(50, 10, 3), (101, 16, 3), (3, 16, 3), (100, 16, 1)],
    ids=["rows that are no whole vectors", "a prime number of rows", "few rows", "one function"],
)
def test_rows_stay_whole(rows: int, columns: int, links: int) -> None:
    assert "_block[" not in checked(chain(rows, columns, links), Schedule())


ADD = "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }"


def reduced(rows: int, columns: int, dimensions: str) -> str:
    """Return a chain whose results are stored, and added up over rows, columns or both."""
    kept = {"0": f"{columns}", "1": f"{rows}", "0,1": ""}[dimensions]
    return "\n".join(
        [
            *links_of(rows, columns, 3),
            "zero = f32[] constant(0)",
            f"s = f32[{kept}] reduce(x3, zero), dimensions={{{dimensions}}}, to_apply=add",
            f"ROOT r = (f32[{rows},{columns}], f32[{kept}]) tuple(x3, s)",
        ]
    )


@pytest.mark.parametrize("dimensions", ["0", "0,1"])
@pytest.mark.parametrize(("rows", "columns"), [(64, 32), (64, 16), (100, 24), (960, 40)])
@pytest.mark.parametrize("splits", [0, 1])
def test_rows_that_are_added_up_run_in_blocks(rows: int, columns: int, dimensions: str, splits: int) -> None:
    source = checked(reduced(rows, columns, dimensions), Schedule(splits=splits), ADD)
    block = re.search(r"_block\[(\d+)\]", source)
    assert block is not None
    assert int(block[1]) >= 4 * columns


@pytest.mark.parametrize("columns", [128, 10])
def test_long_rows_that_are_added_up_stay_whole(columns: int) -> None:
    found = re.findall(r"_block\[(\d+)\]", checked(reduced(60, columns, "0"), Schedule(), ADD))
    assert all(int(n) == columns for n in found)


def test_no_stages_without_vectors() -> None:
    assert "_block[" not in checked(chain(100, 16, 3), Schedule(vector=0))
