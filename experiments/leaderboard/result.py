"""The verified result of an entry: speedups over the default plan, in a file that the verifying machine has signed.

The signature is a keyed hash with a secret of this machine (`leaderboard.key` in the user's cache folder). It shows
that a file was written by `hlogym leaderboard verify` here and not edited since. It protects from other people's files,
not from the owner of the machine.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from compiler.support.json_reading import read_object
from compiler.support.safe_names import file_name
from env.statistics import Interval
from env.suites.locations import cache_folder
from env.summaries import SpeedupSummary, summarise
from experiments.leaderboard.entry import Entry
from experiments.results import ResultError, checked, positive, write_text

__all__ = ["FORMAT", "SLOWER", "ProgramRow", "Verified", "ranked", "read_result", "result_file", "write_result"]

FORMAT, FORMAT_VERSION = "hlogym-leaderboard-result", 1
SLOWER = 0.03
"""A program counts as slower if it takes this share more time than with the default plan."""
KEY_FILE = "leaderboard.key"
_SIGNATURE = "signature"


@dataclass(frozen=True)
class ProgramRow:
    """An entry on one program.

    Attributes:
        program: its name.
        text: SHA-256 of its HLO text.
        seconds: time per call of the default plan.
        processes: the speedup over the default plan in each fresh process, with its 95% interval.
        counts: whether the difference passed the gate in every process, in the same direction.
        noise: the default plan against itself (A/A).
        seen: whether the program is known to have been in the training of the policy.
    """

    program: str
    text: str
    seconds: float
    processes: tuple[Interval, ...]
    counts: bool
    noise: Interval
    seen: bool = False

    @property
    def ratio(self) -> Interval:
        """The geometric mean of the processes, with bounds that contain all of their intervals."""
        low, high = min(p.low for p in self.processes), max(p.high for p in self.processes)
        return Interval(geometric_mean(p.value for p in self.processes), low, high)

    @property
    def slower(self) -> bool:
        """Whether the entry takes over 3% more time than the default plan."""
        return self.ratio.value < 1 / (1 + SLOWER)

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return {
            "program": self.program, "text": self.text, "seconds": self.seconds,
            "processes": [p.to_json() for p in self.processes], "counts": self.counts,
            "noise": self.noise.to_json(), "seen": self.seen, "ratio": self.ratio.to_json(),
        }  # fmt: skip

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ProgramRow:
        """Return the row of plain data; its ratio is computed again.

        Raises:
            ValueError, KeyError, TypeError: it is none.
        """
        processes = tuple(positive(Interval.from_json(checked(p, list))) for p in checked(data["processes"], list))
        if not processes:
            raise ValueError("a program without measurements")
        return ProgramRow(
            checked(data["program"], str), checked(data["text"], str),
            positive(Interval(float(data["seconds"]), 0.0, 0.0)).value, processes, checked(data["counts"], bool),
            positive(Interval.from_json(checked(data["noise"], list))), checked(data["seen"], bool),
        )  # fmt: skip


@dataclass(frozen=True)
class Verified:
    """A verified entry.

    Attributes:
        entry: the facts of the entry (`Entry.facts`), with its checksum.
        measured: how it was measured: gate, blocks, seconds, processes.
        provenance: command, commit, machine and date.
        rows: one per program of the suite.
    """

    entry: Mapping[str, Any]
    measured: Mapping[str, Any]
    provenance: Mapping[str, Any]
    rows: tuple[ProgramRow, ...]

    @cached_property
    def summary(self) -> SpeedupSummary:
        """The summary over the programs, bootstrapped over programs and processes."""
        return summarise({r.program: [[p.value] for p in r.processes] for r in self.rows}, SLOWER)

    @property
    def slower(self) -> float:
        """The share of the programs that are over 3% slower than with the default plan."""
        return sum(r.slower for r in self.rows) / len(self.rows)

    @property
    def noisy(self) -> int:
        """The number of programs whose default plan differs from itself by over 3%, or whose interval is that wide."""
        low, high = 1 / (1 + SLOWER), 1 + SLOWER
        return sum(not low <= r.noise.low <= r.noise.high <= high for r in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data, without a signature."""
        s = self.summary
        return {
            "format": FORMAT, "format_version": FORMAT_VERSION, "entry": dict(self.entry),
            "measured": dict(self.measured), "provenance": dict(self.provenance),
            "geometric_mean": s.mean.to_json(), "median": s.median.to_json(), "worst": s.worst, "best": s.best,
            "slower_by_over_3_percent": self.slower, "programs": [r.to_json() for r in self.rows],
        }  # fmt: skip


def result_file(folder: Path, name: str, checksum: str) -> Path:
    """Return the file of the result of an entry; entries with the same name and other files have other results."""
    return folder / file_name(f"{name}-{checksum[:12]}", ".json")


def write_result(result: Verified, path: Path) -> None:
    """Write a result with the signature of this machine.

    Raises:
        ResultError: the file or the key cannot be written.
    """
    data = result.to_json()
    write_text(path, json.dumps({**data, _SIGNATURE: _signature(data)}, indent=1) + "\n")


def read_result(path: Path, entry: Entry) -> Verified:
    """Return a result that was verified on this machine.

    Args:
        path: its file.
        entry: the entry as it is now.

    Raises:
        ResultError: it cannot be read, was not written by `verify` on this machine, was edited, or belongs to other
            files of the entry.
    """
    data = read_object(path, ResultError)
    if data.get("format") != FORMAT or data.get("format_version") != FORMAT_VERSION:
        raise ResultError(f"{path} is no result of this version of `hlogym leaderboard verify`")
    signature = data.pop(_SIGNATURE, "")
    if not isinstance(signature, str) or not hmac.compare_digest(signature.encode(), _signature(data).encode()):
        raise ResultError(
            f"{path} was not verified on this machine, or was edited afterwards; run `hlogym leaderboard verify` again"
        )
    try:
        rows = tuple(ProgramRow.from_json(checked(r, dict)) for r in checked(data["programs"], list))
        parts = [checked(data[key], dict) for key in ("entry", "measured", "provenance")]
        found = Verified(parts[0], parts[1], parts[2], rows)
    except (ValueError, KeyError, TypeError) as error:
        raise ResultError(f"{path} is no result: {error}") from error
    if not rows:
        raise ResultError(f"{path} has no programs")
    if found.entry != entry.facts():
        raise ResultError(
            f"{path} belongs to other files than those of {entry.folder}: the entry was changed after it was verified; "
            "run `hlogym leaderboard verify` again"
        )
    return found


def _signature(data: Mapping[str, Any]) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hmac.new(_key(), text.encode(), hashlib.sha256).hexdigest()


def _key() -> bytes:
    """Return the secret of this machine, which is made when it is first needed."""
    path = cache_folder() / KEY_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            key = path.read_bytes()
        else:
            key = secrets.token_hex(32).encode()
            with os.fdopen(descriptor, "wb") as file:
                file.write(key)
    except OSError as error:
        raise ResultError(f"cannot use {path}, the key of this machine: {error.strerror}") from error
    if len(key) != 64:
        raise ResultError(f"{path} is damaged; remove it, and verify the entries again")
    return key


def ranked(results: Sequence[Verified]) -> list[Verified]:
    """Return results by their geometric mean, the fastest first."""
    return sorted(results, key=lambda r: (-r.summary.mean.value, str(r.entry.get("name"))))
