"""A candidate of a decision (fuse these two, unroll this loop by four, run this pass, stop) and its features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from compiler.fusion.actions import KINDS, FusionKind
from compiler.ir import HloInstruction
from compiler.learned.features.pass_slots import PASS_SLOTS, PASS_SLOTS_BY_NAME, pass_slots
from compiler.learned.features.programs import EndpointNumbers, log_size, signed_log
from compiler.learned.features.rounding import halved

__all__ = [
    "CANDIDATE_FEATURES",
    "KERNEL_LOOP_COLUMN",
    "KIND_COLUMNS",
    "MAX_CANDIDATES",
    "MAX_KNOBS",
    "SAVING_COLUMN",
    "STOP",
    "AlikeCandidates",
    "Candidate",
    "CandidateColumns",
    "candidate_row",
]

MAX_CANDIDATES = 256
"""Size of the action space; of more fusions, those with the greatest expected saving become candidates; of more choices
for a kernel, a sample."""

CandidateKind: TypeAlias = FusionKind | Literal["loop", "pass", "stop", "kernel", "expansion"]
_KINDS: tuple[CandidateKind, ...] = (*(k for k in KINDS if k != "move"), "loop", "pass", "stop", "kernel", "expansion")

KIND_COLUMNS = {kind: n for n, kind in enumerate(_KINDS)}
KIND_COLUMNS["move"] = KIND_COLUMNS["fission"]
"""The column of each kind; a move is a fission with two consumers, so that policies can still be read."""
SAVING_COLUMN = len(_KINDS)
"""The candidate feature that holds the cost model's expected saving as a share of the program's time."""
KERNEL_LOOP_COLUMN = len(_KINDS) + 19
"""The candidate feature that says that a loop would run inside one kernel."""
EXPANSION_SLOTS = ("keep", "slices", "prefix-sums", "product", "patches", "loop", "sort", "loops")
"""The choices of expansions that have features; new ones belong at the end."""
MAX_KNOBS = 40
"""Number of knobs of a kernel that have features."""
_KEEPS_COLUMN = len(_KINDS) + 24
_PASS_COLUMN = _KEEPS_COLUMN + 2 + MAX_KNOBS + len(EXPANSION_SLOTS)
CANDIDATE_FEATURES = _PASS_COLUMN + len(PASS_SLOTS)
"""Length of `candidate_row`."""
Knobs: TypeAlias = tuple[tuple[int, int, int], ...]
"""Slot, default and value of the knobs of a kernel that differ from their defaults."""


@dataclass(frozen=True)
class Candidate:
    """One of the things that can be done.

    Attributes:
        kind: what it does.
        producer, consumer: the instructions it is about, if any; for a loop, the while is the producer.
        saving: seconds of the program that the cost model expects to save; negative when it expects a loss.
        consumers: how many instructions the producer is fused into.
        stays: whether the producer is still computed on its own afterwards.
        copies: how often the consumer would compute each element of the producer.
        factor: unroll factor of a loop; 1 keeps it, 0 unrolls it fully.
        in_kernel: whether the loop is to run inside one kernel.
        trips: trip count of the loop, when known.
        pass_name: name of the pass to run.
        keeps: whether a kernel or an expansion keeps its default.
        generated: whether a kernel is generated code.
        knobs: of a kernel, see `Knobs`.
        expansion: the choice of an expansion.
    """

    kind: CandidateKind
    producer: HloInstruction | None = None
    consumer: HloInstruction | None = None
    saving: float = 0.0
    consumers: int = 1
    stays: bool = False
    copies: int = 1
    factor: int = 1
    in_kernel: bool = False
    trips: int | None = None
    pass_name: str = ""
    keeps: bool = False
    generated: bool = False
    knobs: Knobs = ()
    expansion: str = ""


STOP = Candidate("stop")


def candidate_row(c: Candidate, endpoints: EndpointNumbers, total: float) -> list[float]:
    """Return the features of a candidate.

    Args:
        c: the candidate.
        endpoints: numbers of the instructions it is about.
        total: seconds of the whole program.
    """
    kind = [0.0] * len(_KINDS)
    kind[KIND_COLUMNS[c.kind]] = 1.0
    producer, consumer = endpoints.of(c.producer), endpoints.of(c.consumer)
    return [
        *kind,
        signed_log(c.saving / total, 1e-3, 10),
        signed_log(c.saving, 1e-7, 16),
        *producer[:5],
        *consumer[:5],
        float(_same_dimensions(c)),
        producer[5],
        log_size(c.consumers, 4),
        producer[6],
        float(c.stays),
        log_size(c.copies, 4),
        float(c.kind == "loop" and c.factor == 1 and not c.in_kernel),
        float(c.in_kernel),
        float(c.kind == "loop" and c.factor == 0),
        log_size(c.factor, 8),
        log_size(c.trips or 0, 14),
        float(c.kind == "loop" and c.trips is None),
        float(c.keeps),
        float(c.generated),
        *_knob_row(c.knobs),
        *(float(c.expansion == name) for name in EXPANSION_SLOTS),
        *pass_slots(c.pass_name),
    ]


@dataclass(frozen=True)
class AlikeCandidates:
    """Candidates of which most features are the same, so that their rows are made at once.

    Attributes:
        like: has the features that all share; its saving is that of all.
        columns: [k] features that differ.
        values: [c, k] these features of each candidate.
    """

    like: Candidate
    columns: npt.NDArray[np.int64]
    values: npt.NDArray[np.float16]

    def __len__(self) -> int:
        return len(self.values)

    def rows(self, shared: npt.NDArray[np.float16]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float16]]:
        """Return the features that are not zero for all candidates, and these of each candidate.

        Args:
            shared: [CANDIDATE_FEATURES] `candidate_row` of `like`.
        """
        same = shared != 0
        same[self.columns] = False
        different = self.values.any(axis=0)
        used = np.flatnonzero(same)
        columns = np.concatenate([used, self.columns[different]])
        order = np.argsort(columns)
        found = np.empty((len(self), len(columns)), np.float16)
        found[:, : len(used)] = shared[used]
        found[:, len(used) :] = self.values[:, different]
        return columns[order], found[:, order]


def alike_passes(names: Sequence[str]) -> AlikeCandidates:
    """Return the candidates that run passes, and the one to stop at the end.

    Args:
        names: of the passes, without options.
    """
    columns = [KIND_COLUMNS["pass"], KIND_COLUMNS["stop"], *range(_PASS_COLUMN, CANDIDATE_FEATURES)]
    values = np.zeros((len(names) + 1, len(columns)), np.float16)
    values[:-1, 0] = values[-1, 1] = 1.0
    for n, name in enumerate(names):
        if (slot := PASS_SLOTS_BY_NAME.get(name)) is not None:
            values[n, 2 + slot] = 1.0
    return AlikeCandidates(Candidate("pass"), np.array(columns), values)


def alike_kernels(
    instruction: HloInstruction, keeps: Sequence[bool], generated: Sequence[bool], knobs: Sequence[Knobs]
) -> AlikeCandidates:
    """Return the candidates that compute an instruction in different ways.

    Args:
        instruction: becomes the kernel.
        keeps: see `Candidate`, for each candidate.
        generated: the same.
        knobs: the same.
    """
    values = np.zeros((len(knobs), 2 + MAX_KNOBS), np.float32)
    values[:, 0], values[:, 1] = keeps, generated
    for n, k in enumerate(knobs):
        values[n, 2:] = _knob_row(k)
    columns = np.arange(_KEEPS_COLUMN, _KEEPS_COLUMN + 2 + MAX_KNOBS)
    return AlikeCandidates(Candidate("kernel", instruction), columns, halved(values))


FUSION_COLUMNS = len(_KINDS) + 22
"""The number of the first columns of `candidate_row` that are not zero for all fusions and stopping."""


class CandidateColumns:
    """The rows of `candidate_row` for many fusions at once, the last one for stopping.

    Attributes:
        rows: [count, FUSION_COLUMNS]; the other columns are zero.
    """

    def __init__(self, count: int) -> None:
        self.rows = np.zeros((count, FUSION_COLUMNS), np.float32)

    def set_fusions(
        self,
        features: npt.NDArray[Any],
        savings: npt.NDArray[Any],
        total: float,
        own: npt.NDArray[Any],
        endpoints: npt.NDArray[Any],
        users: npt.NDArray[Any],
        is_root: npt.NDArray[Any],
    ) -> None:
        """Set the rows of fusions.

        Args:
            features: [c, 4]: the column of the kind, whether both have the same dimensions, number of consumers,
                logarithm of the copies.
            savings: [c] seconds.
            total: seconds of the whole program.
            own: [n, ENDPOINT_NUMBERS] of the nodes.
            endpoints: [c, 2] numbers of nodes, -1 for one that is not among them.
            users: [n] numbers of consumers of the nodes.
            is_root: [n].
        """
        c, k = len(savings), len(_KINDS)
        rows, there = self.rows[:c], (endpoints >= 0)[:, :, None]
        producer, consumer = own[endpoints[:, 0]] * there[:, 0], own[endpoints[:, 1]] * there[:, 1]
        consumers = features[:, 2]
        rows[np.arange(c), features[:, 0].astype(np.int64)] = 1.0
        rows[:, k] = _signed_logs(savings / total, 1e-3, 10)
        rows[:, k + 1] = _signed_logs(savings, 1e-7, 16)
        rows[:, k + 2 : k + 7] = producer[:, :5]
        rows[:, k + 7 : k + 12] = consumer[:, :5]
        rows[:, k + 12] = features[:, 1]
        rows[:, k + 13] = producer[:, 5]
        rows[:, k + 14] = np.log2(1.0 + consumers) / 4
        rows[:, k + 15] = producer[:, 6]
        rows[:, k + 16] = (users[endpoints[:, 0]] > consumers) | is_root[endpoints[:, 0]]
        rows[:, k + 17] = features[:, 3]
        self._set_constants(rows)

    def set_stop(self) -> None:
        """Set the last row: to stop."""
        row = self.rows[-1:]
        row[0, KIND_COLUMNS["stop"]] = 1.0
        row[0, len(_KINDS) + 14] = log_size(1, 4)
        row[0, len(_KINDS) + 17] = log_size(1, 4)
        self._set_constants(row)

    @staticmethod
    def _set_constants(rows: npt.NDArray[Any]) -> None:
        rows[:, len(_KINDS) + 21] = log_size(1, 8)  # the unroll factor of what is no loop


def _signed_logs(values: npt.NDArray[Any], unit: float, scale: float) -> npt.NDArray[Any]:
    """Return `signed_log` of each value."""
    found: npt.NDArray[Any] = np.copysign(np.log2(1.0 + np.abs(values) / unit) / scale, values)
    return found


def _knob_row(knobs: Knobs) -> list[float]:
    """Return for each knob how much greater it is than its default, as a logarithm."""
    row = [0.0] * MAX_KNOBS
    for slot, default, value in knobs:
        row[slot] = _steps_from(default, value)
    return row


@lru_cache(maxsize=4096)
def _steps_from(default: int, value: int) -> float:
    """Return the logarithm of how much greater a value of a knob is than its default; knobs have few values."""
    return log_size(value, 8) - log_size(default, 8)


def _same_dimensions(c: Candidate) -> bool:
    if c.producer is None or c.consumer is None:
        return False
    return c.producer.shape.dimensions == c.consumer.shape.dimensions
