"""What choosing kernels by measured choices is worth: the best choices, a forest by cross-validation, and threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.codegen.schedules.kernel_choice import GENERATED, KernelChoice
from compiler.learned.features.kernel_costs import COST_FEATURES
from compiler.learned.kernel_model import priced_amounts
from experiments.kernel_times.dataset import KernelTimes
from experiments.kernel_times.matrices import TimesMatrix
from experiments.kernel_times.training import fit_prices
from experiments.learning.fitting import family_folds
from experiments.learning.trees import grow_forest
from experiments.results import markdown_table
from experiments.yardstick.rows import write_page

__all__ = ["MeasuredKernel", "best_choices", "chosen_by_forest", "measured_kernels", "threads_by_estimate",
           "write_choosing"]  # fmt: skip

Doubles = npt.NDArray[np.float64]
LEAST_SECONDS = 1e-6
"""Default time from which a kernel counts: the clock resolves the choices of shorter ones badly."""
LARGEST_LOG = 0.5
"""Logs of gains are clipped to this for the fit: choices that are many times slower must not dominate it."""
NOTABLE = 0.02
"""Log of a gain or a loss that counts as one."""
FOLDS, TREES, DEPTH, LEAF = 8, 64, 14, 3
ERRORS, MARGINS = (0.0, 0.25, 0.5), (0.0, 0.02, 0.05)
NEEDED = 1.015
"""Gain over the kernels of default fusions from which a forest is worth being a part of a policy."""
THRESHOLDS = (2e-6, 2.5e-6, 3e-6, 4e-6, 5e-6)
"""Estimated seconds on one thread from which a kernel runs on several threads."""
STATEMENT_SECONDS = 2.3e-11
"""Time of a statement of a vector loop on the machine that measured, by which amounts of work become times."""


@dataclass(frozen=True)
class MeasuredKernel:
    """A kernel with the times of its choices, the default first.

    Attributes:
        times: what was measured.
        choices: those without noise.
        one, two: seconds of each choice on one and on two threads; nan for two where a choice uses one thread.
        features: [choices, COST_FEATURES] on one thread.
    """

    times: KernelTimes
    choices: tuple[KernelChoice, ...]
    one: Doubles
    two: Doubles
    features: npt.NDArray[np.float32]

    @property
    def seconds(self) -> Doubles:
        """The time of each choice in a program: on two threads if it uses them."""
        return np.where(np.isnan(self.two), self.one, self.two)

    @property
    def gains(self) -> Doubles:
        """The logarithm of how much faster each choice is than the default."""
        return np.asarray(np.log(self.seconds[0] / self.seconds))

    @property
    def kind(self) -> str:
        """The kind of the generated kernel."""
        kinds = [n for n, name in enumerate(COST_FEATURES) if name.startswith("kernel: kind ")]
        return COST_FEATURES[kinds[int(self.features[0, kinds].argmax())]].removeprefix("kernel: kind ")


def measured_kernels(kernels: Sequence[KernelTimes], data: TimesMatrix, most_noise: float) -> list[MeasuredKernel]:
    """Return the kernels whose default takes `LEAST_SECONDS` and that were measured with other choices.

    Args:
        kernels: with times on one and on two threads.
        data: the rows of the same kernels on one thread, without those of more noise.
        most_noise: times with more noise are not known.
    """
    found = []
    for n, kernel in enumerate(kernels):
        features = data.features[data.kernel == n]
        ones = [t for t in kernel.times if t.threads == 1 and t.noise <= most_noise]
        pairs = {t.choice: t for t in kernel.times if t.threads == 2}
        sure = [t.choice not in pairs or pairs[t.choice].noise <= most_noise for t in ones]
        if sum(sure) < 2 or len(features) != len(ones) or not sure[0] or ones[0].choice != kernel.times[0].choice:
            continue
        kept = [t for t, is_sure in zip(ones, sure, strict=True) if is_sure]
        two = np.array([pairs[t.choice].seconds if t.choice in pairs else np.nan for t in kept])
        measured = MeasuredKernel(
            kernel, tuple(t.choice for t in kept), np.array([t.seconds for t in kept]), two, features[sure]
        )
        if measured.seconds[0] >= LEAST_SECONDS:
            found.append(measured)
    return found


# ---- the best of the measured choices


def best_choices(kernels: Sequence[MeasuredKernel]) -> list[list[str]]:
    """Return a table of the gains of the best measured choices by kind of kernel.

    The best of several noisy times looks better than it is. Where choices were measured both on one and on two threads,
    the best by either is therefore valued by the other.
    """
    table = [["kind", "kernels", "choices", "best measured", "chosen by other times", "kernels of these",
              "gain 3%", "lose 3%"]]  # fmt: skip
    kinds = sorted({k.kind for k in kernels}, key=lambda kind: -sum(k.kind == kind for k in kernels))
    for kind in ("all", *kinds):
        part = [k for k in kernels if kind in ("all", k.kind)]
        crossed = [g for k in part for g in _crossed(k)]
        choices = sum(len(k.one) - 1 for k in part)
        best = [float(k.gains.max()) for k in part]
        table.append([kind, str(len(part)), str(choices), _factor(best), *_crossed_cells(crossed)])
    return table


def _crossed_cells(gains: Sequence[float]) -> list[str]:
    if not gains:
        return ["", "0", "", ""]
    faster, slower = (float(np.mean([sign * g > 0.03 for g in gains])) for sign in (1, -1))
    return [_factor(gains), str(len(gains) // 2), f"{faster:.0%}", f"{slower:.0%}"]


def _crossed(kernel: MeasuredKernel) -> Iterator[float]:
    known = ~np.isnan(kernel.two)
    if not known[0] or known.sum() < 2:
        return
    one, two = kernel.one[known], kernel.two[known]
    for chosen_by, valued_by in ((one, two), (two, one)):
        yield float(np.log(valued_by[0] / valued_by[chosen_by.argmin()]))


# ---- a forest


def chosen_by_forest(kernels: Sequence[MeasuredKernel], seed: int) -> list[list[str]]:
    """Return a table of what a forest gains that chooses among the measured choices of kernels it was not grown on.

    Training families are judged by cross-validation over families, the others by a forest grown on all training ones.
    """
    training = [k for k in kernels if k.times.split == "train"]
    others = [k for k in kernels if k.times.split != "train"]
    folds = family_folds([k.times.family for k in training], FOLDS)
    judged: list[tuple[MeasuredKernel, Doubles, Doubles]] = []
    for fold in folds:
        grown = [k for k in training if k.times.family not in fold]
        judged += _predicted(grown, [k for k in training if k.times.family in fold], seed)
    groups = {
        "training, default fusions": [j for j in judged if j[0].times.fusion == "default"],
        "training, random fusions": [j for j in judged if j[0].times.fusion != "default"],
        "validation, default fusions": [
            j for j in _predicted(training, others, seed) if j[0].times.fusion == "default"
        ],
    }
    table = [["families, kernels", "errors", "margin", "kernels", "changed", "gain", "slower", "gain by time"]]
    for (name, part), errors, margin in product(groups.items(), ERRORS, MARGINS):
        if part:
            table.append([name, f"{errors:g}", f"{margin:g}", *_outcome(part, errors, margin)])
    return table


def _rows(kernel: MeasuredKernel) -> Doubles:
    """Return a row for each choice but the default: the kernel with the default, and what the choice changes."""
    changed = kernel.features[1:] - kernel.features[0]
    return np.hstack([np.tile(kernel.features[0], (len(changed), 1)), changed]).astype(np.float64)


def _predicted(
    grown: Sequence[MeasuredKernel], asked: Sequence[MeasuredKernel], seed: int
) -> list[tuple[MeasuredKernel, Doubles, Doubles]]:
    """Return kernels with the predicted gains of their choices and the standard deviations, by a forest on others."""
    if not asked:
        return []
    rows = np.concatenate([_rows(k) for k in grown])
    targets = np.concatenate([np.clip(k.gains[1:], -LARGEST_LOG, LARGEST_LOG) for k in grown])
    groups = [k.times.program for k in grown for _ in k.gains[1:]]
    forest = grow_forest(rows, targets, np.ones(len(targets)), groups, TREES, DEPTH, LEAF, seed)
    return [(k, *forest.predict(_rows(k))) for k in asked]


def _outcome(part: Sequence[tuple[MeasuredKernel, Doubles, Doubles]], errors: float, margin: float) -> list[str]:
    gains, before, after = [], 0.0, 0.0
    changed = 0
    for kernel, mean, deviation in part:
        bound = mean - errors * deviation
        taken = bound.max() > np.log1p(margin)
        changed += int(taken)
        gains.append(float(kernel.gains[1:][bound.argmax()]) if taken else 0.0)
        before += float(kernel.seconds[0])
        after += float(kernel.seconds[0] * np.exp(-gains[-1]))
    slower = np.mean([g < -NOTABLE for g in gains])
    return [str(len(part)), str(changed), _factor(gains, 4), f"{slower:.1%}", f"{before / after:.4f}x"]


# ---- threads


def threads_by_estimate(kernels: Sequence[MeasuredKernel]) -> list[list[str]]:
    """Return a table of what it gains that kernels on one thread by default run on two from an estimated time on.

    The gain of threads is that of the same choice on two threads over one, for choices that change the grain. Estimates
    are the work of the nest, which decides by default, linear prices of the counts of the bound nest, fitted on other
    families, and the measured time itself.
    """
    generated = [k for k in kernels if k.choices[0].implementation == GENERATED]
    serial = [k for k in generated if np.isnan(k.two[0])]
    estimates = {"work": _by_work(serial), "linear prices": _by_prices(generated, serial),
                 "measured": np.array([k.one[0] for k in serial])}  # fmt: skip
    speedups = [_of_threads(k) for k in serial]
    table = [["estimate", "from", "changed", "measured of these", "gain of these", "faster", "slower"]]
    for (name, seconds), least in product(estimates.items(), THRESHOLDS):
        moved = [s for s, estimate in zip(speedups, seconds, strict=True) if estimate >= least]
        known = [s for s in moved if s is not None]
        counts = [str(sum(s > NOTABLE for s in known)), str(sum(s < -NOTABLE for s in known))]
        row = [name, f"{least * 1e6:g} us", str(len(moved)), str(len(known)), _factor(known) if known else ""]
        table.append([*row, *counts])
    return table


def _of_threads(kernel: MeasuredKernel) -> float | None:
    """Return the mean log of the speedup by two threads over the choices that change the grain; None without any."""
    logs = np.log(kernel.one / kernel.two)
    wanted = ["grain" in c.schedule for c in kernel.choices] & ~np.isnan(logs)
    return float(logs[wanted].mean()) if wanted.any() else None


def _by_work(kernels: Sequence[MeasuredKernel]) -> Doubles:
    places = [COST_FEATURES.index(f"nest: {name} work") for name in ("parallel", "serial")]
    return np.array([float(np.exp2(k.features[0, places]).sum() - 2) * STATEMENT_SECONDS for k in kernels])


def _by_prices(generated: Sequence[MeasuredKernel], asked: Sequence[MeasuredKernel]) -> Doubles:
    found = {}
    for fold in family_folds([k.times.family for k in generated], FOLDS):
        known = [k for k in generated if k.times.family not in fold]
        rows = np.stack([k.features[0] for k in known])
        logs, at = np.log([k.one[0] for k in known]), np.arange(len(known))
        y = np.asarray(logs)
        prices = fit_prices(TimesMatrix(rows, y, np.zeros(len(known), np.float32), np.stack((y, y), 1), at, at))
        for k in asked:
            if k.times.family in fold:
                found[id(k)] = float((priced_amounts(k.features[:1]) @ prices.astype(np.float64))[0])
    return np.array([found[id(k)] for k in asked])


# ---- the page


def _factor(logs: Sequence[float], digits: int = 3) -> str:
    return f"{np.exp(np.mean(logs)):.{digits}f}x"


def write_choosing(
    out: Path, command: str, header: Mapping[str, Any], kernels: Sequence[MeasuredKernel], seed: int
) -> str:
    """Write the page of what choosing kernels is worth and return it.

    Args:
        out: the file.
        command: the command, for the page.
        header: of the dataset.
        kernels: of training and validation families.
        seed: of the forest.
    """
    training = [k for k in kernels if k.times.split == "train"]
    lines = [
        f"{len(training)} kernels of training families and {len(kernels) - len(training)} of validation families whose "
        f"default takes {LEAST_SECONDS * 1e6:g} us or more, measured with the default and with random choices, each "
        f"alone and again and again: commit {header.get('commit')}, {header.get('date')}, {header.get('machine')}. The "
        "dataset has the least time of each choice and no repeated measurements. Gains are geometric means.",
        "",
        "## The best of the measured choices, training families",
        "",
        "Chosen by other times: the best choice on one thread, valued on two threads, and the reverse, for kernels "
        "whose default and other choices use threads. The difference to the best measured is luck, and choices that "
        "matter on one thread only.",
        "",
        markdown_table(best_choices(training)),
        "## Threads from an estimated time on, training families",
        "",
        "Kernels that run on one thread by default and would run on two. Of some of them, choices with a smaller grain "
        "were measured; threads sleep after a pause of 50 us between runs, which these measurements do not have.",
        "",
        markdown_table(threads_by_estimate(training)),
        "## A forest",
        "",
        "It predicts the gain of a choice from the kernel and from what the choice changes. The choice with the "
        "greatest prediction, less a number of standard deviations (errors), is taken if it exceeds the margin. "
        f"Training families by cross-validation over {FOLDS} parts of the families, validation families by a forest "
        f"grown on all training families. Slower: share of all kernels that lose {NOTABLE:.0%}. To be a part "
        f"of a policy it has to gain {NEEDED:g}x on kernels of default fusions, which programs have.",
        "",
    ]  # fmt: skip
    return write_page(out, "What choosing kernels is worth", command, lines, chosen_by_forest(kernels, seed))
