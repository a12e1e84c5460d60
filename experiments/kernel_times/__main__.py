"""Measure kernels, train the cost model of kernels, and report how good it is.

Examples:
    python -m experiments.kernel_times collect --suite corpus/train,corpus/validation --out kernel_times.jsonl
    python -m experiments.kernel_times train kernel_times.jsonl --out cost_model
    python -m experiments.kernel_times report kernel_times.jsonl cost_model --out results/learning/cost_model.md
    python -m experiments.kernel_times code-times kernel_times.jsonl --out code_times.jsonl --real-time
    python -m experiments.kernel_times code code_times.jsonl --out code_model
    python -m experiments.kernel_times gains kernel_times.jsonl other_machine.jsonl --out choice_gains
    python -m experiments.kernel_times transfer kernel_times.jsonl --out results/learning/transfer.md
    python -m experiments.kernel_times choosing kernel_times.jsonl --out results/learning/choosing_kernels.md
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compiler.codegen.schedules.schedule import FIELD_RANGES
from compiler.learned.kernel_cost import LearnedKernelCost, shipped_kernel_cost
from env.suites import load_suite
from experiments.console import stdout
from experiments.kernel_times.choosing import measured_kernels, write_choosing
from experiments.kernel_times.code import (
    CodeOptions,
    CodeRows,
    code_matrix,
    collect_code,
    joined_rows,
    model_of,
    train_code,
    write_code,
)
from experiments.kernel_times.collect import CollectOptions, collect
from experiments.kernel_times.dataset import DatasetError, KernelTimes, read_dataset
from experiments.kernel_times.gains import write_gains
from experiments.kernel_times.matrices import TimesMatrix, joined, times_matrix
from experiments.kernel_times.report import write_report
from experiments.kernel_times.timing import TimingOptions
from experiments.kernel_times.training import GainOptions, TrainingOptions, train, train_gains
from experiments.kernel_times.transfer import transferred, write_transfer
from experiments.module_command import plain_errors

MOST_NOISE = 0.1
"""The second fastest sample of a time that is used is at most this much slower than the fastest."""


def _collect(o: argparse.Namespace) -> None:
    programs = load_suite(o.suite).programs
    timing = TimingOptions(real_time=o.real_time)
    options = CollectOptions(o.choices, threads=_numbers(o.threads), seconds=o.seconds, seed=o.seed, timing=timing)
    for seen, kernels in collect(programs[: o.programs], o.out, options):
        stdout.print(f"{seen} programs, {kernels} kernels")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(","))


def _train(o: argparse.Namespace) -> None:
    header, kernels, matrix, training = _rows(o, o.data)
    options = TrainingOptions(members=o.members, trees=o.trees, seed=o.seed)
    facts = _facts("train", [header], kernels)
    model = train(matrix.rows(training), options, facts, max(_numbers(o.threads)))
    model.save(o.out)
    stdout.print(f"trained on {int(training.sum())} times of {len(facts['families'])} families; wrote {o.out}")


def _facts(command: str, headers: Sequence[Mapping[str, object]], kernels: Sequence[KernelTimes]) -> dict[str, Any]:
    """Return what a model says of its training."""
    data = [{n: header.get(n) for n in _FACTS} for header in headers]
    return {
        "command": f"python -m experiments.kernel_times {command}", "data": data[0] if len(data) == 1 else data,
        "kernels": int(sum(k.split == "train" for k in kernels)),
        "families": sorted({k.family for k in kernels if k.split == "train"}), "programs": [],
    }  # fmt: skip


_FACTS = ("command", "commit", "date", "machine", "c_compiler")


def _gains(o: argparse.Namespace) -> None:
    costs = _model(o.model)
    parts = [_rows(o, path) for path in o.data]
    headers = [header for header, *_ in parts]
    facts = _facts("gains", headers, [k for _, kernels, *_ in parts for k in kernels])
    seen = joined([matrix.rows(training) for *_, matrix, training in parts])
    model = train_gains(seen, costs, GainOptions(trees=o.trees, seed=o.seed), facts)
    model.save(o.out)
    command = "python -m experiments.kernel_times gains"
    judged = [(header, matrix.rows(~training)) for header, _, matrix, training in parts]
    sys.stdout.write(write_gains(o.page, command, judged, costs, model))


def _model(folder: Path | None) -> LearnedKernelCost:
    """Return the cost model of a folder, or the one that ships."""
    model = shipped_kernel_cost() if folder is None else LearnedKernelCost.load(folder)
    if model is None:
        raise DatasetError("no cost model of kernels comes with this version of hlogym; name the folder of one")
    return model


def _report(o: argparse.Namespace) -> None:
    header, kernels, matrix, training = _rows(o, o.data)
    command = "python -m experiments.kernel_times report"
    page = write_report(o.out, command, header, kernels, matrix, training, LearnedKernelCost.load(o.model))
    sys.stdout.write(page)


def _transfer(o: argparse.Namespace) -> None:
    header, kernels, matrix, training = _rows(o, o.data)
    model = _model(o.model)
    found = transferred(model, matrix, training, o.draws)
    families = len({k.family for k in kernels if k.split != "train"})
    command = f"python -m experiments.kernel_times transfer --draws {o.draws}"
    sys.stdout.write(write_transfer(o.out, command, header, model, found, families, o.draws))


def _code_times(o: argparse.Namespace) -> None:
    names = [name for name in o.fields.split(",") if name]
    unknown = next((name for name in names if name not in FIELD_RANGES), None)
    if unknown is not None:
        raise DatasetError(f"--fields: a schedule has no field {unknown}; it has {', '.join(FIELD_RANGES)}")
    for seen, measured in collect_code(o.data, o.out, o.seconds, o.real_time, names):
        stdout.print(f"{seen} kernels, of which {measured} have candidates")


def _code(o: argparse.Namespace) -> None:
    headers: list[dict[str, object]] = []
    parts: list[CodeRows] = []
    seen: list[KernelTimes] = []
    for path in o.data:
        header, found, _ = read_dataset(path)
        kernels = [k for k in found if k.code]
        if not any(k.split == "train" for k in kernels):
            raise DatasetError(f"{path} has no machine code of kernels of training programs; code-times collects it")
        if headers and header.get("processor") != headers[0].get("processor"):
            raise DatasetError(f"{path} was measured on another processor than {o.data[0]}; name files of one only")
        headers.append(header)
        parts.append(code_matrix(kernels, times_matrix(kernels, path.with_suffix(".features.npz"))))
        seen += kernels
    rows, options = joined_rows(parts), CodeOptions(seed=o.seed)
    trees = train_code(rows, rows.training, options)
    model_of({str(headers[0].get("processor")): trees}, options, _facts("code", headers, seen)).save(o.out)
    sys.stdout.write(write_code(o.page, "python -m experiments.kernel_times code", headers, parts, trees, options))


def _choosing(o: argparse.Namespace) -> None:
    header, found, _ = read_dataset(o.data)
    kernels = [k for k in found if k.with_threads((1,)).times]
    matrix = times_matrix([k.with_threads((1,)) for k in kernels], o.data.with_suffix(".features.npz"), MOST_NOISE)
    measured = measured_kernels(kernels, matrix, MOST_NOISE)
    if not any(k.times.split == "train" for k in measured):
        raise DatasetError(f"{o.data} has no kernels of training programs that were measured with several choices")
    command = f"python -m experiments.kernel_times choosing {o.data}"
    sys.stdout.write(write_choosing(o.out, command, header, measured, o.seed))


def _rows(o: argparse.Namespace, path: Path) -> tuple[dict[str, object], list[KernelTimes], TimesMatrix, np.ndarray]:
    """Return the header and the kernels of a dataset, its rows, and which of them are for training."""
    header, kernels, _ = read_dataset(path)
    wanted = _numbers(o.threads)
    kept = [k.with_threads(wanted) for k in kernels]
    kernels = [k for k in kept if k.times]
    if not any(k.split == "train" for k in kernels):
        raise DatasetError(f"{path} has no kernels of training programs")
    matrix = times_matrix(kernels, path.with_suffix(".features.npz"), o.noise)
    training = np.array([k.split == "train" for k in kernels])[matrix.kernel]
    return header, kernels, matrix, training


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("collect", help="measure kernels of programs")
    add = command.add_argument
    add("--suite", default="corpus/train,corpus/validation", help="comma-separated suites (default: %(default)s)")
    add("--out", type=Path, required=True, help="dataset to write or to continue")
    add("--choices", type=int, default=8, help="choices per kernel (default: %(default)s)")
    add("--threads", default="1", help="comma-separated numbers of threads; more than 1 only on a quiet machine")
    add("--real-time", action="store_true", help="run kernels at real-time priority")
    add("--programs", type=int, default=None, help="number of programs (default: all)")
    add("--seconds", type=float, default=None, help="time limit (default: none)")
    add("--seed", type=int, default=0, help="seed of random fusions and choices (default: %(default)s)")
    command.set_defaults(run=_collect)
    command = commands.add_parser("train", help="train a model on the kernels of training programs")
    add = command.add_argument
    add("data", type=Path, help="dataset that collect wrote")
    add("--out", type=Path, required=True, help="folder of the model")
    add("--threads", default="1", help="numbers of threads whose times are used (default: %(default)s)")
    add("--noise", type=float, default=MOST_NOISE, help="times with more noise are ignored (default: %(default)s)")
    add("--members", type=int, default=TrainingOptions.members, help="members of the ensemble (default: %(default)s)")
    add("--trees", type=int, default=TrainingOptions.trees, help="trees of each member (default: %(default)s)")
    add("--seed", type=int, default=0, help="seed of all draws (default: %(default)s)")
    command.set_defaults(run=_train)
    command = commands.add_parser("report", help="write how good a model is on kernels of validation programs")
    add = command.add_argument
    add("data", type=Path, help="dataset that collect wrote")
    add("model", type=Path, help="folder of the model")
    add("--out", type=Path, default=Path("results/learning/cost_model.md"), help="page (default: %(default)s)")
    add("--threads", default="1", help="numbers of threads whose times are used (default: %(default)s)")
    add("--noise", type=float, default=MOST_NOISE, help="times with more noise are ignored (default: %(default)s)")
    command.set_defaults(run=_report)
    command = commands.add_parser(
        "gains", help="train a model of what choices of kernels may gain, and say how good it is"
    )
    add = command.add_argument
    add("data", type=Path, nargs="+", help="datasets that collect wrote, each on another machine")
    add("--out", type=Path, required=True, help="folder of the model of gains")
    add("--model", type=Path, default=None, help="folder of the cost model (default: the one that comes with hlogym)")
    add("--page", type=Path, default=Path("results/learning/choice_gains.md"), help="page (default: %(default)s)")
    add("--threads", default="1", help="numbers of threads whose times are used (default: %(default)s)")
    add("--noise", type=float, default=MOST_NOISE, help="times with more noise are ignored (default: %(default)s)")
    add("--trees", type=int, default=GainOptions.trees, help="trees (default: %(default)s)")
    add("--seed", type=int, default=0, help="seed of all draws (default: %(default)s)")
    command.set_defaults(run=_gains)
    command = commands.add_parser("code-times", help="measure candidates of the kernels of a dataset, with their code")
    add = command.add_argument
    add("data", type=Path, help="dataset that collect wrote")
    add("--out", type=Path, required=True, help="dataset to write or to continue")
    add("--real-time", action="store_true", help="run kernels at real-time priority")
    add("--seconds", type=float, default=None, help="time limit (default: none)")
    add(
        "--fields",
        default="",
        help="measure candidates of these fields of the schedule alone, for example columns,lanes",
    )
    command.set_defaults(run=_code_times)
    command = commands.add_parser(
        "code", help="train a model that chooses kernels by their code, and say how good it is"
    )
    add = command.add_argument
    add("data", type=Path, nargs="+", help="datasets that code-times wrote, of which the first is judged")
    add("--out", type=Path, required=True, help="folder of the model")
    add("--page", type=Path, default=Path("results/learning/code_kernels.md"), help="page (default: %(default)s)")
    add("--seed", type=int, default=0, help="seed of all draws (default: %(default)s)")
    command.set_defaults(run=_code)
    command = commands.add_parser("transfer", help="write how good a model of another machine is here")
    add = command.add_argument
    add("data", type=Path, help="dataset that collect wrote on this machine")
    add("--model", type=Path, default=None, help="folder of the model (default: the one that comes with hlogym)")
    add("--out", type=Path, default=Path("results/learning/transfer.md"), help="page (default: %(default)s)")
    add("--threads", default="1", help="numbers of threads whose times are used (default: %(default)s)")
    add("--noise", type=float, default=MOST_NOISE, help="times with more noise are ignored (default: %(default)s)")
    add("--draws", type=int, default=20, help="draws of the kernels of a calibration (default: %(default)s)")
    command.set_defaults(run=_transfer)
    command = commands.add_parser("choosing", help="write what choosing kernels by measured choices is worth")
    add = command.add_argument
    add("data", type=Path, help="dataset that collect wrote, with times on one and on two threads")
    add("--out", type=Path, default=Path("results/learning/choosing_kernels.md"), help="page (default: %(default)s)")
    add("--seed", type=int, default=0, help="seed of the forest (default: %(default)s)")
    command.set_defaults(run=_choosing)
    o = parser.parse_args(arguments)
    o.run(o)


if __name__ == "__main__":
    with plain_errors():
        main()
