"""`hlogym doctor --calibrate`: measure generated kernels here and fit the cost model's correction to this machine."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from compiler.backends.cpu import toolchain
from compiler.errors import PolicyError
from compiler.learned.features.kernel_costs import COST_FEATURES, cost_features
from compiler.learned.kernel_calibration import Calibration, fit_calibration, store_calibration
from compiler.learned.kernel_cost import LearnedKernelCost, shipped_kernel_cost
from compiler.runtime.kernel_sites import KernelSite
from compiler.session import CompilationSession
from compiler.text import parse
from experiments.answer import give_answer
from experiments.console import error_console, stdout
from experiments.interruption import keeping
from experiments.kernel_times.dataset import ChoiceTime
from experiments.kernel_times.timing import TimingOptions, draw_choices, time_choices
from experiments.noise import LoadWatch, print_noise
from experiments.results import check_output

__all__ = ["SECONDS", "calibrate", "calibration_programs", "measure_calibration", "measured_rows"]

CHOICES = 4
"""Choices per kernel, the default included."""
SECONDS = 60.0
"""Time after which no kernel is measured any more."""
_ADD = "add_f32 { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }"
_OPS = ("add(p, q)", "exponential(p)", "tanh(p)", "divide(p, q)", "sqrt(p)", "cosine(p)")


def calibration_programs() -> Iterator[str]:
    """Yield small programs in HLO text: arithmetic, functions, reductions, transposes and gathers of many sizes."""
    for n in (256, 4096, 65536, 1 << 20, 1 << 22):
        for op in _OPS:
            yield (
                f"ENTRY e {{ p = f32[{n}] parameter(0) q = f32[{n}] parameter(1) a = f32[{n}] {op} "
                f"ROOT r = f32[{n}] multiply(a, q) }}"
            )
    for rows, columns in ((32, 32), (64, 1024), (1024, 64), (1024, 1024), (2048, 2048)):
        shape = f"f32[{rows},{columns}]"
        zero = "z = f32[] constant(0)"
        for kept, dimension in ((rows, 1), (columns, 0)):
            yield (
                f"{_ADD} ENTRY e {{ p = {shape} parameter(0) e0 = {shape} exponential(p) {zero} "
                f"ROOT r = f32[{kept}] reduce(e0, z), dimensions={{{dimension}}}, to_apply=add_f32 }}"
            )
        yield (
            f"{_ADD} ENTRY e {{ p = {shape} parameter(0) {zero} "
            f"s = f32[{rows}] reduce(p, z), dimensions={{1}}, to_apply=add_f32 "
            f"b = {shape} broadcast(s), dimensions={{0}} ROOT r = {shape} divide(p, b) }}"
        )
        yield (
            f"ENTRY e {{ p = {shape} parameter(0) t = f32[{columns},{rows}] transpose(p), dimensions={{1,0}} "
            f"ROOT r = f32[{columns},{rows}] multiply(t, t) }}"
        )
        yield (
            f"ENTRY e {{ p = {shape} parameter(0) i = s32[{rows},1] parameter(1) "
            f"ROOT g = {shape} gather(p, i), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, "
            f"index_vector_dim=1, slice_sizes={{1,{columns}}} }}"
        )


def calibrate(folder: Path | None = None, output: Path | None = None, as_json: bool = False) -> None:
    """Measure kernels, fit and store the correction, and print what it changes.

    Args:
        folder: of the model; None: the one that comes with hlogym.
        output: file that receives the numbers too (JSON).
        as_json: print JSON instead of text.

    Raises:
        PolicyError: there is no model, or the calibration cannot be written.
    """
    model = shipped_kernel_cost() if folder is None else LearnedKernelCost.load(folder)
    if model is None:
        raise PolicyError("no cost model of kernels comes with this version of hlogym; name the folder of one")
    if output is not None:
        check_output(output)
    error_console.print(f"measuring kernels for at most {SECONDS:.0f} s ...")
    watch = LoadWatch()
    with keeping(lambda: "nothing was calibrated; the correction of before is as it was"):
        features, seconds = measured_rows(SECONDS)
    noise = watch.why_noisy()
    found, path = _stored(model, features, seconds)
    text = (
        f"{found.rows} measurements: the median error of the cost model of kernels is {found.before:.0%} without and "
        f"{found.after:.0%} with the correction for this machine, which is in {path}"
    )
    facts = {
        "measurements": found.rows, "error_before": found.before, "error_after": found.after, "file": str(path),
        "noise": noise,
    }  # fmt: skip
    give_answer(facts, lambda: stdout.print(text, soft_wrap=True), as_json, output)
    print_noise(noise)


def measured_rows(seconds: float) -> tuple[npt.NDArray[np.float32], list[float]]:
    """Return the features of measured choices and their times; arguments and errors are those of the measurement."""
    measured = measure_calibration(seconds)
    rows = [cost_features(site, [t.choice for t in times], [1] * len(times)) for site, times in measured]
    features = np.concatenate(rows) if rows else np.zeros((0, len(COST_FEATURES)), np.float32)
    return features, [t.seconds for _, times in measured for t in times]


def _stored(
    model: LearnedKernelCost, features: npt.NDArray[np.float32], seconds: list[float]
) -> tuple[Calibration, Path]:
    try:
        found = fit_calibration(model, features, seconds)
    except ValueError as e:
        raise PolicyError(f"too few kernels could be measured within {SECONDS:.0f} s: {e}") from e
    return found, store_calibration(model, found)


def measure_calibration(seconds: float, seed: int = 0) -> list[tuple[KernelSite, list[ChoiceTime]]]:
    """Return generated kernels with the times of a few choices each on one thread, as many as the time allows.

    Raises:
        BackendError: there is no C compiler.
    """
    start, rng = time.monotonic(), random.Random(seed)
    sites = [site for text in calibration_programs() for site in _sites(text)]
    rng.shuffle(sites)  # an early end leaves kernels of every kind
    options = TimingOptions(rounds=4, kernel_seconds=0.25)
    measured = []
    for at in range(0, len(sites), 10):
        batch = [(site, draw_choices(site, CHOICES, rng)) for site in sites[at : at + 10]]
        specs = [spec for _, choices in batch for spec in choices.values() if spec is not None]
        toolchain.each_object(specs, toolchain.toolchain())
        for site, choices in batch:
            if times := time_choices(site, list(choices), (1,), options):
                measured.append((site, times))
        if time.monotonic() - start > seconds:
            break
    return measured


def _sites(text: str) -> list[KernelSite]:
    from compiler.api import decide
    from compiler.fusion.policies import DEFAULT_POLICY, make_policy

    session = CompilationSession(parse(text), "cpu")
    decide(session, make_policy(DEFAULT_POLICY))
    return session.kernel_sites()
