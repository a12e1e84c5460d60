"""Choosing kernels by their machine code: measurements of candidates, training, and what it is worth on other families.

The kernels of a dataset of kernel times are compiled with some of CANDIDATES, measured in turns, and kept with the
features of their machine code. Trees are fitted to the gains over the default, and judged on families they never saw.
"""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.backends.cpu.disassembly import why_unreadable
from compiler.codegen.kernel_spec import KernelSpec
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.errors import BackendError, HlogymError
from compiler.learned.boosted_trees import BoostedTrees
from compiler.learned.code_kernels import (
    CodeModel,
    Trees,
    accesses_by_data,
    code_inputs,
    code_rows,
    draft_inputs,
    generated_kernels,
    predict,
)
from compiler.learned.features.kernel_costs import COST_FEATURES, cost_features
from compiler.support.processor import microarchitecture
from experiments.kernel_times.collect import begin_dataset, by_turns
from experiments.kernel_times.dataset import KernelTimes, append_lines, read_dataset, site_of
from experiments.kernel_times.matrices import TimesMatrix
from experiments.kernel_times.timing import TimingOptions, time_choices
from experiments.kernel_times.training import LEAST_SECONDS, GainOptions, fitted_gains
from experiments.yardstick.rows import write_page

__all__ = ["CANDIDATES", "CodeOptions", "CodeRows", "code_matrix", "collect_code", "drawn_kernels", "joined_rows",
           "judged", "model_of", "train_code", "write_code"]  # fmt: skip

_FIRST: tuple[Mapping[str, int], ...] = (
    {"vector": 256}, {"flags": 6}, {"unroll": 2}, {"unroll": 4}, {"vector": 256, "flags": 6},
    {"vector": 256, "unroll": 2},
)  # fmt: skip
"""The changes of the schedule that gained most on training families, of some thousand that were drawn at random."""
_OTHERS: Mapping[str, tuple[int, ...]] = {
    "flags": (1, 4, 5), "unroll": (8,), "narrow": (0,), "accumulators": (1, 2, 8), "cache": (0, 2), "edges": (0,),
    "columns": (32, 64, 96, 128, 512, 1024), "splits": (1, 2, 4), "lanes": (32, 64, 128, 512), "tile": (16, 64),
    "short": (3,), "stages": (0, 4), "hoist": (0,), "product.row_block": (8, 16),
    "product.accumulators": (12, 16, 20, 28),
}  # fmt: skip
"""Values of single fields that suit some kinds of kernels."""
CANDIDATES: tuple[Mapping[str, int], ...] = (
    *_FIRST, {"vector": 256, "flags": 4}, {"vector": 256, "unroll": 4},
    *({name: value} for name, values in _OTHERS.items() for value in values),
)  # fmt: skip
"""The changes of the schedule that may be chosen; a kernel has those that change its code."""
LONGEST = 3e-3
"""Time of kernels that are not measured; they are few, and take long."""
BATCH = 12
MEASURED = 13
"""Greatest number of choices that are measured of a kernel: the default, the first candidates, and others at random.
If fields of the schedule are named, the candidates of these fields are measured alone."""
FOLDS = 8
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


# ---- measurements


def collect_code(
    source: Path, out: Path, seconds: float | None, real_time: bool, names: Collection[str] = ()
) -> Iterator[tuple[int, int]]:
    """Measure the candidates of the kernels of a dataset; yield how many kernels were looked at and measured so far.

    A collection that was interrupted continues. Each family occurs once before any occurs twice.

    Args:
        source: the dataset.
        out: dataset to write or to continue.
        seconds: time limit.
        real_time: whether kernels run at real-time priority.
        names: fields of the schedule; their candidates alone are measured, and of kernels whose code they change. None:
            all fields and kernels.

    Raises:
        DatasetError: one of the files is no dataset.
        BackendError: machine code cannot be read on this machine.
    """
    reason = why_unreadable()
    if reason is not None:
        raise BackendError(f"nothing can be learned from machine code here: {reason}")
    _, kernels, _ = read_dataset(source)
    long = [k for k in kernels if k.times and LEAST_SECONDS <= k.times[0].seconds <= LONGEST]
    done: set[str] = set()
    if out.exists():
        _, _, done = read_dataset(out)
    else:
        begin_dataset(out, cores=1, processor=microarchitecture())
    waiting = [k for k in by_turns(long, 0) if k.fingerprint not in done]
    options = TimingOptions(rounds=25, sample=2e-4, kernel_seconds=0.6, real_time=real_time)
    start, measured = time.monotonic(), 0
    for first in range(0, len(waiting), BATCH):
        if seconds is not None and time.monotonic() - start > seconds:
            return
        batch = waiting[first : first + BATCH]
        rows = [row for k in batch if (row := _measured(k, options, names)) is not None]
        append_lines(out, [*(r.to_json() for r in rows), {"done": [k.fingerprint for k in batch]}])
        measured += len(rows)
        yield first + len(batch), measured


def _measured(kernel: KernelTimes, options: TimingOptions, names: Collection[str]) -> KernelTimes | None:
    """Return the kernel with the times and the code of its candidates; None if there are none, or something fails."""
    try:
        site = site_of(kernel)
        if accesses_by_data(cost_features(site, [site.default], [1]))[0]:
            return None
        candidates = [c for c in CANDIDATES if not names or not c.keys().isdisjoint(names)]
        found = drawn_kernels(generated_kernels(site, candidates), kernel.fingerprint, bool(names))
        if len(found) < 2:
            return None
        code = code_rows(list(found.values()))
        choices = [c for c, k in found.items() if k.symbol in code]
        times = time_choices(site, choices, (1,), options)
    except HlogymError:
        return None
    if len(times) < 2 or times[0].choice != site.default:
        return None
    rows = tuple(tuple(round(x, 3) for x in code[found[t.choice].symbol]) for t in times)
    return replace(kernel, cores=1, times=tuple(times), code=rows)


def drawn_kernels(
    kernels: Mapping[KernelChoice, KernelSpec], seed: str, in_order: bool = False
) -> dict[KernelChoice, KernelSpec]:
    """Return the default, the kernels of some candidates, and others at random, MEASURED together.

    The former are the first candidates, or, in order, as many as possible.
    """
    if in_order:
        return dict(list(kernels.items())[:MEASURED])
    first = [c for n, c in enumerate(kernels) if n == 0 or c.schedule in _FIRST]
    others = [c for c in kernels if c not in first]
    drawn = random.Random(seed).sample(others, min(len(others), MEASURED - len(first)))
    return {c: kernels[c] for c in (*first, *drawn)}


# ---- rows


@dataclass(frozen=True)
class CodeRows:
    """Measured candidates as rows, the default of a kernel before its candidates.

    Attributes:
        draft: rows x DRAFT_INPUTS.
        code: rows x CODE_INPUTS.
        gains: rows x 2, logarithms of the speedup over the default by two measurements.
        kernel: number of the kernel of each row, ascending.
        default: for each row, the row of the default of its kernel.
        families: of each row.
        training: whether each row is of a training family.
        usual: whether each row is of a kernel that the default fusions make.
        by_data: whether each row is of a kernel whose accesses depend on data, which keeps its default.
    """

    draft: Floats
    code: Floats
    gains: Doubles
    kernel: Integers
    default: Integers
    families: npt.NDArray[np.str_]
    training: npt.NDArray[np.bool_]
    usual: npt.NDArray[np.bool_]
    by_data: npt.NDArray[np.bool_]

    @property
    def is_candidate(self) -> npt.NDArray[np.bool_]:
        """Which rows are no defaults."""
        return np.asarray(np.arange(len(self.default)) != self.default)


def code_matrix(kernels: Sequence[KernelTimes], matrix: TimesMatrix) -> CodeRows:
    """Return the rows of kernels.

    Args:
        kernels: with code.
        matrix: `times_matrix` of all of their times.
    """
    code = np.array([row for k in kernels for row in k.code], np.float32)
    draft, joint = [], []
    for rows in np.split(np.arange(len(matrix.kernel)), np.flatnonzero(np.diff(matrix.kernel)) + 1):
        inputs = draft_inputs(matrix.features[rows])
        draft.append(inputs)
        joint.append(code_inputs(inputs, code[rows]))
    owners = [kernels[n] for n in matrix.kernel]
    return CodeRows(
        np.concatenate(draft), np.concatenate(joint), matrix.halves[matrix.default] - matrix.halves, matrix.kernel,
        matrix.default, np.array([k.family for k in owners]), np.array([k.split == "train" for k in owners]),
        np.array([k.fusion == "default" for k in owners]), accesses_by_data(matrix.features[matrix.default]),
    )  # fmt: skip


def joined_rows(parts: Sequence[CodeRows]) -> CodeRows:
    """Return the rows of several datasets, whose kernels count as different ones."""
    rows = np.cumsum([0, *(len(p.kernel) for p in parts)])
    kernels = np.cumsum([0, *(p.kernel.max(initial=-1) + 1 for p in parts)])
    arrays = {f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(CodeRows)}
    arrays["kernel"] += np.repeat(kernels[:-1], np.diff(rows))
    arrays["default"] += np.repeat(rows[:-1], np.diff(rows))
    return CodeRows(**arrays)


# ---- training


@dataclass(frozen=True)
class CodeOptions(GainOptions):
    """The hyperparameters of the trees, and what decides when they are used.

    Attributes:
        margin, draft_margin, compiled, least_seconds: see `CodeModel`.
        opened: share of kernels, of families that the models have not seen, whose candidates are looked at.
    """

    trees: int = 500
    least: int = 20
    learning_rate: float = 0.03
    damping: float = 5.0
    margin: float = 0.03
    draft_margin: float = -0.03
    compiled: int = 3
    least_seconds: float = 1.5e-6
    opened: float = 0.3


def train_code(rows: CodeRows, keep: npt.NDArray[np.bool_], options: CodeOptions) -> Trees:
    """Return trees that are fitted to some of the rows."""
    kept = keep & rows.is_candidate
    gains = rows.gains.mean(1)[kept]
    prospects, least = _prospects(rows, keep, options)
    return Trees(
        prospects, fitted_gains(rows.draft[kept], gains, options), fitted_gains(rows.code[kept], gains, options), least
    )


def _prospects(rows: CodeRows, keep: npt.NDArray[np.bool_], options: CodeOptions) -> tuple[BoostedTrees, float]:
    """Return trees that predict the gain of a kernel's best candidate, and what the kernels to open have at least."""
    defaults = np.flatnonzero(keep & ~rows.is_candidate)
    inputs, best = default_inputs(rows)[defaults], np.array([_best(rows, int(n)) for n in defaults])
    folds = folds_of(rows)[defaults]
    found = np.zeros(len(defaults))
    for fold in np.unique(folds):
        trees = fitted_gains(inputs[folds != fold], best[folds != fold], options)
        found[folds == fold] = predict(trees, inputs[folds == fold])
    usual = found[rows.usual[defaults]]
    least = float(np.quantile(usual if len(usual) else found, 1 - options.opened))
    return fitted_gains(inputs, best, options), least


def _best(rows: CodeRows, default: int) -> float:
    """Return the gain of the best candidate of a kernel, chosen by one measurement and valued by the other, both ways.

    Args:
        rows: the measurements.
        default: the row of the kernel's default.
    """
    others = (rows.default == default) & rows.is_candidate
    gains = rows.gains[others]
    return float(np.mean([_valued(gains, by) for by in (0, 1)])) if len(gains) else 0.0


def default_inputs(rows: CodeRows) -> Floats:
    """Return rows of COST_FEATURES."""
    return rows.draft[:, : len(COST_FEATURES)]


def folds_of(rows: CodeRows) -> Integers:
    """Return the fold of each row; a family is in one."""
    return np.array([zlib.crc32(f.encode()) % FOLDS for f in rows.families], np.int64)


# ---- what it is worth


@dataclass(frozen=True)
class Judged:
    """What choosing is worth on kernels, as logarithms of the speedup of each.

    Attributes:
        gains: of the choices taken; 0 for kernels that keep their default.
        best: of the best candidate, chosen by one measurement and valued by the other, both ways.
        compiled: number of candidates that were compiled for each kernel.
    """

    gains: Doubles
    best: Doubles
    compiled: Doubles


@dataclass(frozen=True)
class Predicted:
    """Predicted gains of rows, as logarithms.

    Attributes:
        is_open: whether the candidates of a row's kernel are looked at.
        draft: by the draft.
        code: by the last model.
    """

    is_open: npt.NDArray[np.bool_]
    draft: Doubles
    code: Doubles


def judged(rows: CodeRows, found: Predicted, keep: npt.NDArray[np.bool_], o: CodeOptions) -> Judged:
    """Return what is taken by predicted gains, and what that is worth.

    Args:
        rows: the measurements.
        found: the predictions.
        keep: the rows of the kernels that count; those whose accesses depend on data do not.
        o: when a candidate is compiled and taken.
    """
    gains, best, compiled = [], [], []
    for kernel in np.unique(rows.kernel[keep & ~rows.by_data]):
        others = np.flatnonzero((rows.kernel == kernel) & rows.is_candidate)
        if not len(others):
            continue
        ranked = others[np.argsort(-found.draft[others], kind="stable")]
        ranked = ranked[(found.draft[ranked] > o.draft_margin) & found.is_open[ranked]][: o.compiled]
        compiled.append(len(ranked))
        taken = ranked[np.argmax(found.code[ranked])] if len(ranked) else -1
        gains.append(rows.gains[taken].mean() if len(ranked) and found.code[taken] > o.margin else 0.0)
        best.append(_best(rows, int(rows.default[others[0]])))
    return Judged(np.array(gains), np.array(best), np.array(compiled, np.float64))


def _valued(gains: Doubles, by: int) -> float:
    """Return the gain of the choice that is best by one measurement, by the other; 0 if it is not above 1%."""
    n = int(np.argmax(gains[:, by]))
    return float(gains[n, 1 - by]) if gains[n, by] > 0.01 else 0.0


def predicted(trees: Trees, rows: CodeRows, keep: npt.NDArray[np.bool_]) -> Predicted:
    """Return what the models predict of all rows; those that are not kept are not open, and have the gain 0."""
    prospects, draft, code = np.full(len(keep), -np.inf), np.zeros(len(keep)), np.zeros(len(keep))
    prospects[keep] = predict(trees.prospects, default_inputs(rows)[rows.default[keep]])
    draft[keep], code[keep] = predict(trees.draft, rows.draft[keep]), predict(trees.code, rows.code[keep])
    return Predicted(prospects >= trees.least_prospect, draft, code)


def cross_validated(rows: CodeRows, options: CodeOptions) -> Predicted:
    """Return predictions of the rows of training families by trees that were fitted to other families."""
    folds = folds_of(rows)
    out = Predicted(np.zeros(len(folds), np.bool_), np.zeros(len(folds)), np.zeros(len(folds)))
    for fold in range(FOLDS):
        held = rows.training & (folds == fold)
        found = predicted(train_code(rows, rows.training & (folds != fold), options), rows, held)
        for array, of_fold in ((out.is_open, found.is_open), (out.draft, found.draft), (out.code, found.code)):
            array[held] = of_fold[held]
    return out


def write_code(
    out: Path,
    command: str,
    headers: Sequence[Mapping[str, Any]],
    parts: Sequence[CodeRows],
    trees: Trees,
    options: CodeOptions,
) -> str:
    """Write the page and return it.

    Args:
        out: the file.
        command: the command, for the page.
        headers: of the datasets.
        parts: their rows; those of the first are judged.
        trees: fitted to all training families.
        options: with which they were fitted.
    """
    header, rows = headers[0], joined_rows(parts)
    is_judged = np.arange(len(rows.kernel)) < len(parts[0].kernel)
    table = [["families", "kernels", "chosen by", "kernels", "compiled", "speedup", "best", "changed", "slower"]]
    sets = (
        ("training, cross-validation", is_judged & rows.training, cross_validated(rows, options)),
        ("validation", is_judged & ~rows.training, predicted(trees, rows, ~rows.training)),
    )
    for name, keep, found in sets:
        for kind, wanted in (("of default fusions", keep & rows.usual), ("of random fusions", keep & ~rows.usual)):
            if not wanted.any():
                continue
            everything = replace(options, draft_margin=-9.0, compiled=99)
            every_kernel = replace(found, is_open=np.ones_like(found.is_open))
            ways = (
                ("the code of those that the draft names, of kernels with prospects", found, options),
                ("the same of all kernels", every_kernel, options),
                ("the code of all candidates", every_kernel, everything),
                ("the draft alone", replace(every_kernel, code=found.draft), everything),
            )
            for label, predictions, o in ways:
                worth = judged(rows, predictions, wanted, o)
                compiled = "0" if predictions.code is predictions.draft else f"{worth.compiled.mean():.1f}"
                changed = worth.gains != 0
                table.append([
                    name, kind, label, str(len(worth.gains)), compiled, f"{np.exp(worth.gains.mean()):.4f}x",
                    f"{np.exp(worth.best.mean()):.4f}x", f"{changed.mean():.0%}",
                    f"{(worth.gains < -0.02).mean():.1%}",
                ])  # fmt: skip
    lines = [
        f"Kernels of {header.get('processor')} were measured with up to {MEASURED - 1} of {len(CANDIDATES)} "
        f"candidates, as far as these change their code: {', '.join(map(_text, _FIRST))}, and others drawn at random "
        f"among {', '.join(map(_text, CANDIDATES[len(_FIRST) :]))}. `{header.get('command')}` measured them: commit "
        f"{header.get('commit')}, {header.get('date')}, {header.get('machine')}, {header.get('c_compiler')}."
        + "".join(
            f" The training also saw kernels that `{h.get('command')}` measured: commit {h.get('commit')}, "
            f"{h.get('date')}."
            for h in headers[1:]
        ),
        "",
        "- chosen by: the candidate with the greatest predicted gain is taken if that exceeds "
        f"{np.expm1(options.margin):.0%}. The code is what the C compiler made of a candidate. The draft sees the "
        f"kernel and its loop nest only, and names at most {options.compiled}. Prospects are predicted from the "
        f"default alone; {options.opened:.0%} of kernels have them.",
        "- kernels: those whose accesses depend on data are left out, because they keep their default.",
        "- compiled: mean number of candidates that the C compiler has to compile for a kernel, beside the default.",
        "- speedup: geometric mean over all kernels; those that keep their default count as 1.",
        "- best: the best candidate, chosen by one half of the measurements and valued by the other, both ways.",
        "- changed: share of kernels that do not keep their default. Slower: share of all that lose more than 2%.",
    ]
    return write_page(out, "Choosing kernels by their machine code", command, lines, table)


def _text(candidate: Mapping[str, int]) -> str:
    return " ".join(f"{k}={v}" for k, v in candidate.items())


def model_of(parts: Mapping[str, Trees], options: CodeOptions, facts: Mapping[str, Any]) -> CodeModel:
    """Return the model of trees for processors."""
    return CodeModel(
        CANDIDATES, parts, options.margin, options.draft_margin, options.compiled, options.least_seconds, facts
    )
