"""What an agent achieves on validation programs, beside the rules of the compiler."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.api import decide_all
from compiler.policy import HEURISTIC
from compiler.session import CompilationSession
from compiler.support.json_reading import read_object
from compiler.text import parse
from env.rewards import OpCount
from env.statistics import Interval, geometric_mean
from env.suites import Program
from experiments.console import duration, factor
from experiments.results import ResultError, write_text

if TYPE_CHECKING:
    from experiments.training_env import Environment

__all__ = ["Outcome", "Rules", "ValidationResult", "read_validation", "write_validation"]

ESTIMATED, MEASURED, OPS = "estimated time", "measured time", "op count"
SHOWN = 8
"""How many programs a summary lists; of more, it lists those that differ most from the rules."""


@dataclass(frozen=True)
class Outcome:
    """The result of one episode on a validation program.

    Attributes:
        rules: what the compiler's own rules achieve: seconds per call, or number of instructions.
        policy: the same of the agent's decisions; None if they failed.
        speedup: how many times better the agent's decisions are; 1 for a measured difference that does not pass the
            gate, None if they failed.
        failure: why there is no result; empty if there is one.
    """

    rules: float | None
    policy: float | None
    speedup: float | None
    failure: str = ""


class Rules:
    """Compares the end of an episode with the compiler's rules, which are asked once per program."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def outcome(self, env: Environment, info: Mapping[str, Any], terminated: bool) -> Outcome:
        """Return the result of an episode that has ended."""
        compilation = env.compilation
        if not terminated:
            return Outcome(None, None, None, "the episode was truncated")
        if env.reward.measured:
            measured = info.get("measurement") or {"failure": "error", "message": "not measured", "seconds": None}
            if measured["failure"]:
                return Outcome(None, None, None, f"{measured['failure']}: {measured['message']}".partition("\n")[0])
            verdict = None if compilation.measurement is None else compilation.measurement.verdict
            if verdict is None:  # the agent has made the default plan
                same = float(measured["seconds"])
                return Outcome(same, same, float(info["speedup"]))
            return Outcome(verdict.default.value, verdict.seconds.value, float(info["speedup"]))
        if isinstance(env.reward, OpCount):
            return Outcome(compilation.baseline.ops, compilation.ops, float(info["speedup"]))
        rules, policy = self._estimate(compilation.program, env.backend), compilation.complete_seconds
        return Outcome(rules, policy, rules / policy)

    def _estimate(self, program: Program, backend: str) -> float:
        if program.name not in self._seconds:
            session = CompilationSession(parse(program.text(), filename=str(program.path)), backend)
            decide_all(session, HEURISTIC)
            self._seconds[program.name] = max(session.cost().seconds, 1e-12)
        return self._seconds[program.name]


def unit_of(env: Environment) -> str:
    """Return what outcomes of an environment are: ESTIMATED or MEASURED seconds, or OPS."""
    return MEASURED if env.reward.measured else OPS if isinstance(env.reward, OpCount) else ESTIMATED


@dataclass(frozen=True)
class ValidationResult:
    """The result of one evaluation on the validation programs.

    Attributes:
        timesteps: environment steps of the training before it.
        mean_return: of the episodes; the best agent has the highest.
        unit: what the outcomes are: "estimated time" or "measured time" in seconds, or "op count".
        programs: the outcome of each program.
    """

    timesteps: int
    mean_return: float
    unit: str
    programs: Mapping[str, Outcome] = field(default_factory=dict)

    @property
    def speedup(self) -> Interval | None:
        """The geometric mean of the speedups over the rules, with its interval; None if every program failed."""
        found = [o.speedup for o in self.programs.values() if o.speedup]
        return geometric_mean(found) if found else None

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        mean = self.mean_return if math.isfinite(self.mean_return) else None
        speedup = None if self.speedup is None else self.speedup.to_json()
        return {**asdict(self), "mean_return": mean, "speedup": speedup}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ValidationResult:
        """Return the result that `to_json` gave.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: it is another object.
        """
        mean = math.nan if data["mean_return"] is None else float(data["mean_return"])
        outcomes = {str(name): Outcome(**o) for name, o in data["programs"].items()}
        return ValidationResult(int(data["timesteps"]), mean, str(data["unit"]), outcomes)

    def __str__(self) -> str:
        """Return the table that `hlogym train` ends with: each program before, with the rules, and after."""
        done = {n: o for n, o in self.programs.items() if o.speedup}
        failed = {n: o for n, o in self.programs.items() if not o.speedup}
        shown = sorted(sorted(done, key=lambda n: -abs(math.log(done[n].speedup or 1)))[:SHOWN])
        width = max((len(n) for n in [_MEAN, *shown, *failed]), default=0)
        lines = [f"{self.unit} before (the compiler's rules) and after (the policy)"]
        lines += [f"{n:{width}}  {self._amounts(done[n])}" for n in shown]
        lines += [f"... and {len(done) - len(shown)} programs that differ less"] if len(done) > len(shown) else []
        lines += [f"{n:{width}}  failed: {o.failure}" for n, o in failed.items()]
        if self.speedup is not None:
            better, worse = (sum(s(o.speedup) for o in done.values()) for s in (_is_faster, _is_slower))
            counts = f"{better} of {len(done)} programs better, {worse} worse"
            lines.append(f"{_MEAN:{width}}  {factor(self.speedup)}; {counts}")
        return "\n".join(lines)

    def _amounts(self, outcome: Outcome) -> str:
        if outcome.rules is None or outcome.policy is None:
            return f"{outcome.speedup:.2f}x"
        before, after = (f"{n:.0f} ops" if self.unit == OPS else duration(n) for n in (outcome.rules, outcome.policy))
        return f"{before} -> {after}: {outcome.speedup:.2f}x"


_MEAN = "geometric mean"
_SAME = 0.005  # shown as 1.00x


def _is_faster(speedup: float | None) -> bool:
    return speedup is not None and speedup >= 1 + _SAME


def _is_slower(speedup: float | None) -> bool:
    return speedup is not None and speedup <= 1 - _SAME


def write_validation(file: Path, best: ValidationResult, last: ValidationResult) -> None:
    """Write the best and the latest result of a run.

    Raises:
        ResultError: the file cannot be written.
    """
    write_text(file, json.dumps({"best": best.to_json(), "last": last.to_json()}, indent=1) + "\n")


def read_validation(file: Path) -> tuple[ValidationResult, ValidationResult] | None:
    """Return the best and the latest result of a run; None if there is none that can be read."""
    if not file.is_file():
        return None
    try:
        data = read_object(file, ResultError)
        return ValidationResult.from_json(data["best"]), ValidationResult.from_json(data["last"])
    except (ResultError, KeyError, TypeError, ValueError, AttributeError):
        return None
