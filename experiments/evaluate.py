"""`hlogym evaluate`: compare a policy with baselines on held-out programs, with equal measurement budgets."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from agents.search import STRATEGIES, Found, NoPlanError, Starts, find_plan, is_search, is_strategy
from agents.searches import make_search
from compiler.errors import ArgumentError, HlogymError, UnknownNameError
from compiler.learned.fusion_policy import LearnedFusionPolicy
from compiler.plan import CompilationPlan
from compiler.policy import Policy, load_policy, resolve_policy
from env.measurement import MeasurementError, Measurer, MeasurerOptions, ReferenceFailedError
from env.predicted_measurer import EMULATED, MEASURED, backend_of_reward, predicted_measurer
from env.statistics import Interval, geometric_mean
from env.store import default_store_path
from env.suites import Program, load_suite
from env.summaries import NOISE_FLOOR, paired_ratios
from env.worker_process import WorkerStartError
from env.workers import LOCAL, Workers
from experiments.answer import give_answer, print_fields
from experiments.console import error_console, progress, stdout
from experiments.evaluation_tracking import track_evaluation
from experiments.interruption import keeping
from experiments.mlflow_store import check_store
from experiments.noise import LoadWatch, print_noise, style_of
from experiments.provenance import provenance
from experiments.results import (
    MEAN_ROW,
    REFERENCE,
    Evaluation,
    ProgramResult,
    StrategyResult,
    check_output,
    check_writable,
    evaluation_rows,
    fresh_stem,
    markdown_facts,
    markdown_table,
    rich_table,
    write_text,
)

__all__ = [
    "EvaluationError",
    "compare_strategies",
    "evaluate_policy",
    "print_evaluation",
    "report_failures",
    "reward_of_policy",
    "write_evaluation",
]


class EvaluationError(HlogymError, RuntimeError):
    """An evaluation in which no program could be measured."""


def evaluate_policy(
    given: Path | str,
    suites: Sequence[str],
    baselines: Sequence[str],
    budget: int,
    rounds: int,
    backend: str,
    seed: int,
    results: Path,
    as_json: bool,
    runs: Path | None = None,
    named: str = "",
    workers: Workers = LOCAL,
    output: Path | None = None,
    reward: str = MEASURED,
) -> Evaluation:
    """Run `hlogym evaluate` for a policy of fusion or of a whole compilation; see its `--help`.

    The policy is a folder (Path), or a name as `compile` takes it. It is tracked in the MLflow store of the folder
    `runs`, if that is given, under the name `named` of the policy. The results are also written to `output`: as
    Markdown if it ends in .md, else as JSON. Several workers evaluate different programs at once. The reward says
    whether plans are measured, or their times predicted.
    """
    backend = backend_of_reward(reward, backend)
    if reward != MEASURED and workers != LOCAL:
        raise ArgumentError(f"workers measure plans, which the reward {reward} does not; leave --workers out")

    def fresh() -> LearnedFusionPolicy | Policy:
        """Return the policy, which keeps the state of one compilation."""
        return load_policy(given) if isinstance(given, Path) else resolve_policy(given, backend)

    policy = fresh()
    strategies = _strategies(baselines)
    programs = load_suite(",".join(suites)).programs
    check_writable(results)
    if output is not None:
        check_output(output)
    watch = LoadWatch()
    if runs is not None:
        check_store(runs)
    plans: dict[str, dict[str, CompilationPlan]] = {}
    options = MeasurerOptions(backend=backend, seed=seed, rounds=rounds)
    predicted = predicted_measurer(reward, options)
    with ExitStack() as stack:
        bar = stack.enter_context(progress())
        task = bar.add_task("evaluating", total=len(programs) * (len(strategies) + 1))

        def step(what: str) -> None:
            bar.update(task, advance=1, description=what)

        done: list[ProgramResult] = []

        def compare(measurer: Measurer, program: Program) -> ProgramResult:
            result = _compared(program, strategies, measurer, budget, fresh(), backend, seed, step, plans)
            done.append(result)
            bar.update(task, so_far=_so_far(done))
            return result

        def evaluation_of(rows: Sequence[ProgramResult]) -> Evaluation:
            facts = provenance() | ({} if predicted is None else {"times": meaning(reward)})
            return Evaluation(backend, budget, strategies, tuple(rows), facts, dict(policy.provenance))

        with keeping(lambda: _keep(evaluation_of(done), len(programs), results)):
            if predicted is not None:
                found = [compare(predicted, program) for program in programs]
            elif workers.count == 1:  # in this thread, which Ctrl-C interrupts
                measurer = stack.enter_context(workers.measurer(default_store_path(), options))
                found = [compare(measurer, program) for program in programs]
            else:
                found = stack.enter_context(workers.service(default_store_path(), options)).map(compare, programs)
    evaluation = evaluation_of(found)
    report_failures(evaluation)
    path = write_evaluation(evaluation, results)
    if runs is not None:
        track_evaluation(evaluation, path, named or str(given), programs, plans, runs)
    noise = watch.why_noisy() if predicted is None else None
    if output is not None:
        write_text(output, (path.with_suffix(".md") if output.suffix == ".md" else path).read_text(encoding="utf-8"))

    def show() -> None:
        print_evaluation(evaluation, noise)
        print_fields({"results": path})

    give_answer({**evaluation.to_json(), "noise": noise, "file": str(path)}, show, as_json)
    print_noise(noise)
    return evaluation


def reward_of_policy(provenance: Mapping[str, Any], backend: str) -> str:
    """Return by what a policy is evaluated unless the user says: predicted time of a GPU if that trained it.

    Args:
        provenance: of the policy.
        backend: that the user asked for; a policy that was trained for a GPU is measured on any other.
    """
    trained = provenance.get("reward") == EMULATED or "Emulated" in str(provenance.get("environment", ""))
    return EMULATED if trained and backend in ("auto", "cuda") else MEASURED


def meaning(reward: str) -> str:
    """Return what the times of an evaluation by predictions are."""
    what = {"estimated-time": "estimated by the cost model", EMULATED: "predicted for an H100 by the emulator"}
    return f"{what[reward]}, not measured"


def _so_far(done: Sequence[ProgramResult]) -> str:
    """Return the geometric mean of the policy's speedups so far."""
    found = [r.strategies["learned"].speedup for r in done if "learned" in r.strategies]
    values = [s.value for s in found if s is not None]
    return f"policy {geometric_mean(values).value:.2f}x the default" if values else ""


def _keep(evaluation: Evaluation, number: int, results: Path) -> str:
    """Write the programs that an interrupted evaluation has compared; return what was written."""
    if not evaluation.programs:
        return "no program was compared, so nothing was written"
    path = write_evaluation(evaluation, results)
    return f"{len(evaluation.programs)} of {number} programs were compared; results {path}"


def _strategies(baselines: Sequence[str]) -> tuple[str, ...]:
    wanted = [b for b in dict.fromkeys(baselines) if b]
    for name in wanted:
        if not is_strategy(name):
            raise UnknownNameError("strategy", name, STRATEGIES)
        if is_search(name):
            make_search(name)  # reports bad options before any work is done
    return tuple(dict.fromkeys([REFERENCE, *wanted, "learned", "learned+search"]))


def _compared(
    program: Program,
    strategies: Sequence[str],
    measurer: Measurer,
    budget: int,
    policy: LearnedFusionPolicy | Policy,
    backend: str,
    seed: int,
    step: Callable[[str], None],
    plans: dict[str, dict[str, CompilationPlan]],
) -> ProgramResult:
    """Call `compare_strategies`; if the program cannot be used, return a result in which all strategies failed."""
    try:
        kept = plans.setdefault(program.name, {})
        return compare_strategies(program, strategies, measurer, budget, policy, backend, seed, step, kept)
    except (MeasurementError, WorkerStartError):  # would also fail for all other programs
        raise
    except (HlogymError, OSError, UnicodeError) as error:
        failed = StrategyResult(None, None, failure=str(error).splitlines()[0])
        unknown = Interval(1.0, 0.0, float("inf"))
        return ProgramResult(program.name, program.split, False, unknown, dict.fromkeys(strategies, failed))


def report_failures(evaluation: Evaluation) -> None:
    """Print each strategy that failed on a program, with the reason.

    Raises:
        EvaluationError: all strategies failed on all programs.
    """
    failures = [
        f"{p.program}: {name}: {result.failure.splitlines()[0] if result.failure else 'not measured'}"
        for p in evaluation.programs
        for name, result in p.strategies.items()
        if result.seconds is None
    ]
    if len(failures) == sum(len(p.strategies) for p in evaluation.programs):
        listed = "\n  - ".join(["", *failures[:10]])
        raise EvaluationError(f"nothing could be measured on any of {len(evaluation.programs)} programs:{listed}")
    for line in failures:
        error_console.print(f"failed: {line}", markup=False, soft_wrap=True)


def compare_strategies(
    program: Program,
    strategies: Sequence[str],
    measurer: Measurer,
    budget: int,
    policy: LearnedFusionPolicy | Policy | None,
    backend: str,
    seed: int = 0,
    step: Callable[[str], None] = lambda _: None,
    found_plans: dict[str, CompilationPlan] | None = None,
) -> ProgramResult:
    """Let each strategy find its plan, then time all plans end to end and interleaved, after checking their outputs.

    Strategies that found the same plan share its timings.

    Args:
        program: the program to compile.
        strategies: names in `agents.search.STRATEGIES`.
        measurer: measures candidate plans and the final comparison.
        budget: the number of plans that each search may measure.
        policy: the policy of the learned strategies.
        backend: the backend to compile for.
        seed: the seed of the searches.
        step: called with a description before each stage.
        found_plans: receives the plan of each strategy that found one.
    """
    starts = Starts(backend)
    found: dict[str, Found] = {}
    failures: dict[str, str] = {}
    for name in strategies:
        step(f"{program.name}: {name}")
        try:
            found[name] = find_plan(name, starts, program, measurer, budget, policy, seed)
        except (NoPlanError, ReferenceFailedError) as error:
            failures[name] = " ".join(str(error).split())
    if found_plans is not None:
        found_plans.update({name: f.plan for name, f in found.items()})
    step(f"{program.name}: comparing")
    plans = {f.plan.to_json(): f.plan for f in found.values()}
    labels = {text: f"plan {i}" for i, text in enumerate(plans)}
    reference = found.get(REFERENCE)
    candidates: dict[str, Any] = {labels[text]: plan for text, plan in plans.items()}
    if reference is not None:
        candidates["again"] = reference.plan
    compared = measurer.compare(program, candidates)
    base = labels[reference.plan.to_json()] if reference is not None else ""

    def result(name: str) -> StrategyResult:
        f = found.get(name)
        if f is None:
            return StrategyResult(None, None, failure=failures[name])
        label = labels[f.plan.to_json()]
        if label not in compared.samples:
            return StrategyResult(None, None, 0, f.measurements, compared.failures.get(label, "not measured"))
        speedup = compared.speedup(label, base) if base in compared.samples else None
        if label == base:
            speedup = Interval(1.0, 1.0, 1.0)
        ratios = paired_ratios(compared.samples[base], compared.samples[label]) if speedup is not None else []
        kernels = compared.kernels.get(label, 0)
        return StrategyResult(compared.seconds(label), speedup, kernels, f.measurements, ratios=tuple(ratios))

    whole = base in compared.samples and "again" in compared.samples
    noise = compared.speedup("again", base) if whole else Interval(1.0, 0.0, float("inf"))
    # A policy without a record of its training programs is assumed to have seen the training split.
    learned_on = policy.provenance.get("programs") if policy is not None else None
    seen = program.split == "train" if learned_on is None else program.name in learned_on
    return ProgramResult(program.name, program.split, seen, noise, {n: result(n) for n in strategies})


def write_evaluation(evaluation: Evaluation, results: Path) -> Path:
    """Write an evaluation as JSON and as a Markdown table; return the path of the JSON file."""
    stem = fresh_stem(results, time.strftime("evaluation-%Y%m%d-%H%M%S"), ".json")
    path = results / f"{stem}.json"
    write_text(path, json.dumps(evaluation.to_json(), indent=1) + "\n")
    facts = "\n".join(markdown_facts(evaluation.provenance))
    table = markdown_table(evaluation_rows(evaluation))
    write_text(results / f"{stem}.md", f"# Evaluation\n\n{facts}\n\n{table}")
    return path


def print_evaluation(evaluation: Evaluation, noise: str | None = None) -> None:
    """Print the table of times to stdout, with mean speedups beyond the noise floor in color.

    Args:
        evaluation: the results.
        noise: why the machine was noisy meanwhile; then nothing has a color.
    """
    times = evaluation.provenance.get("times")
    title = (
        f"Time per call on {evaluation.backend}{'' if times is None else f', {times}'}, speedups over "
        f"{evaluation.reference}; searches tried {evaluation.budget} plans per program"
    )
    rows = evaluation_rows(evaluation)
    styles = {}
    for number, row in enumerate(rows[1:]):
        for column, strategy in enumerate(evaluation.strategies, 2):
            if row[0] == MEAN_ROW:
                found = evaluation.summary(strategy, seen=row[1] == "seen")
                styles[number, column] = style_of(None if found is None else found.mean, noise)
    stdout.print(rich_table(rows, title, styles))
    doubtful = [p.program for p in evaluation.programs if p.noise.is_known and style_of(p.noise)]
    if doubtful:
        stdout.print(
            f"noisy: the default plan differs from itself by more than {NOISE_FLOOR:.0%} on {', '.join(doubtful)}",
            soft_wrap=True,
        )
