"""Chains of long functions over short rows, in blocks of rows."""

import pytest

from compiler.codegen.schedules.schedule import Schedule
from tests.codegen.test_stages import checked


def chain(rows: int, columns: int, links: int) -> str:
    """Return a chain of hyperbolic tangents, each of which is scaled by a value for each column."""
    lines = [f"x0 = f32[{rows},{columns}] parameter(0)", f"w = f32[{columns}] parameter(1)"]
    lines.append(f"b = f32[{rows},{columns}] broadcast(w), dimensions={{1}}")
    for k in range(links):
        lines.append(f"t{k} = f32[{rows},{columns}] tanh(x{k})")
        lines.append(f"x{k + 1} = f32[{rows},{columns}] multiply(t{k}, b)")
    return "\n".join([*lines, f"ROOT r = f32[{rows},{columns}] negate(x{links})"])


@pytest.mark.parametrize("rows", [16, 100, 6])
@pytest.mark.parametrize("columns", [8, 16, 24, 40])
def test_stages_of_short_rows_run_for_a_block_of_rows(rows: int, columns: int) -> None:
    assert "_block[" in checked(chain(rows, columns, 3), Schedule())


@pytest.mark.parametrize(
    ("rows", "columns", "links"),
    [(100, 10, 3), (101, 16, 3), (3, 16, 3), (100, 16, 1)],
    ids=["rows that are no whole vectors", "a prime number of rows", "few rows", "one function"],
)
def test_rows_stay_whole(rows: int, columns: int, links: int) -> None:
    assert "_block[" not in checked(chain(rows, columns, links), Schedule())


def test_no_stages_without_vectors() -> None:
    assert "_block[" not in checked(chain(100, 16, 3), Schedule(vector=0))
