"""The results of an evaluation of pass orders, and their JSON format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from compiler.support.json_reading import read_object
from env.statistics import Interval, geometric_mean
from experiments.results import ResultError, checked, positive

__all__ = ["BASELINE", "DEFAULT", "Contender", "OrderEvaluation", "OrderRow"]

BASELINE = "XLA's order, once"
DEFAULT = "our default, fixed point"


@dataclass(frozen=True)
class Contender:
    """The result of one contender on one program.

    Attributes:
        ops: op count after its passes.
        applications: passes applied during the search, including those that changed nothing.
        completion: passes that the default pipeline applied afterwards.
        passes: the passes that lead to the result.
        seconds: time per call, end to end; None if not measured.
    """

    ops: int
    applications: int
    completion: int = 0
    passes: tuple[str, ...] = ()
    seconds: float | None = None


@dataclass(frozen=True)
class OrderRow:
    """The results of all contenders on one program.

    Attributes:
        program: name of the program.
        suite: its suite.
        split: its split within the suite.
        seen: whether a policy was trained on it.
        written: op count before any pass.
        contenders: results by contender.
        speedups: measured speedup over BASELINE, by contender.
        noise: measured speedup of BASELINE over itself; None if not measured.
        failure: why the measurement failed; empty if it did not.
    """

    program: str
    suite: str
    split: str
    seen: bool
    written: int
    contenders: Mapping[str, Contender]
    speedups: Mapping[str, Interval] = field(default_factory=dict)
    noise: Interval | None = None
    failure: str = ""


@dataclass(frozen=True)
class OrderEvaluation:
    """The results on all programs, with the budgets and the provenance of the numbers."""

    budget: int
    search_budget: int
    rows: tuple[OrderRow, ...]
    provenance: Mapping[str, Any]

    @property
    def names(self) -> list[str]:
        """The contenders in the order in which they were evaluated."""
        return list(self.rows[0].contenders) if self.rows else []

    def ratio(self, name: str, reference: str) -> Interval:
        """Return the geometric mean of op counts divided by those of another contender; a count of 0 is taken as 1."""
        return geometric_mean([max(r.contenders[name].ops, 1) / max(r.contenders[reference].ops, 1) for r in self.rows])

    def worse(self, name: str, reference: str) -> list[str]:
        """Return the programs on which a contender leaves more ops than another."""
        return [r.program for r in self.rows if r.contenders[name].ops > r.contenders[reference].ops]

    def speedup(self, name: str) -> Interval | None:
        """Return the geometric mean of measured speedups over BASELINE, or None if nothing was measured."""
        found = [r.speedups[name].value for r in self.rows if name in r.speedups]
        return geometric_mean(found) if found else None

    @staticmethod
    def read(path: Path) -> OrderEvaluation:
        """Read a results file.

        Raises:
            ResultError: the file cannot be read or is not an evaluation of pass orders.
        """
        data = read_object(path, ResultError, finite=False)
        try:
            rows = tuple(_row(checked(r, dict)) for r in checked(data["rows"], list))
            wanted = {BASELINE, DEFAULT, *(rows[0].contenders if rows else ())}
            for row in rows:
                if row.contenders.keys() != wanted:
                    raise ValueError(f"{row.program} has other contenders than the rest")
            budgets = checked(data["budget"], int), checked(data["search_budget"], int)
            return OrderEvaluation(*budgets, rows, checked(data["provenance"], dict))
        except KeyError as error:
            raise ResultError(f"{path} is not an evaluation of pass orders: {error} is missing") from error
        except (TypeError, ValueError) as error:
            raise ResultError(f"{path} is not an evaluation of pass orders: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that `read` reads."""
        return {
            "budget": self.budget,
            "search_budget": self.search_budget,
            "provenance": dict(self.provenance),
            "rows": [asdict(r) for r in self.rows],
        }


def _row(data: Mapping[str, Any]) -> OrderRow:
    def interval(bounds: Mapping[str, float | None]) -> Interval:
        return Interval.from_json([bounds["value"], bounds["low"], bounds["high"]])

    return OrderRow(
        program=checked(data["program"], str),
        suite=checked(data["suite"], str),
        split=checked(data["split"], str),
        seen=checked(data["seen"], bool),
        written=checked(data["written"], int),
        contenders={n: _read_contender(checked(c, dict)) for n, c in checked(data["contenders"], dict).items()},
        speedups={n: positive(interval(checked(s, dict))) for n, s in checked(data["speedups"], dict).items()},
        noise=None if data["noise"] is None else interval(checked(data["noise"], dict)),
        failure=checked(data["failure"], str),
    )


def _read_contender(data: Mapping[str, Any]) -> Contender:
    seconds = data["seconds"]
    return Contender(
        ops=checked(data["ops"], int),
        applications=checked(data["applications"], int),
        completion=checked(data["completion"], int),
        passes=tuple(checked(p, str) for p in checked(data["passes"], list)),
        seconds=None if seconds is None else float(seconds),
    )
