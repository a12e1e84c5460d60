"""`hlogym demo`: compile, check, train, evaluate, export and report in one command."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

from rich.text import Text

from agents.search import Starts
from compiler.backends.registry import find_backend
from compiler.errors import HlogymError
from compiler.learned.fusion_policy import load_policy
from compiler.support.safe_names import shell_command
from env.isolated import NEUTRAL_FOLDER, child_environment, python_command
from env.measurement import Measurer, MeasurerOptions
from env.store import PlanStore
from env.suites import Program, load_suite
from experiments.answer import give_answer, print_fields
from experiments.config import TrainConfig
from experiments.console import PlainConsole, error_console, progress, stdout
from experiments.evaluate import compare_strategies, print_evaluation, report_failures, write_evaluation
from experiments.evaluation_tracking import track_evaluation
from experiments.interruption import keeping
from experiments.noise import LoadWatch, print_noise
from experiments.provenance import machine_class, provenance
from experiments.report import build_report
from experiments.results import Evaluation, ResultError, check_output, check_writable
from experiments.run_folder import RunFolder, new_run, read_progress
from experiments.train import train

__all__ = ["run_demo"]

STRATEGIES = ("none", "priority", "random", "learned", "learned+search")

_FRESH = """
import json, sys
from compiler import compile, load_policy
policy = load_policy(sys.argv[1])
kernels = {}
for path in sys.argv[3:]:
    with open(path, encoding="utf-8") as file:
        kernels[path] = len(compile(file.read(), backend=sys.argv[2], fusion_policy=policy).kernels)
print(json.dumps({"torch": "torch" in sys.modules, "kernels": list(kernels.values())}))
"""


class DemoError(HlogymError, RuntimeError):
    """A step of the demo that failed."""


def run_demo(
    minutes: float,
    backend: str,
    folder: Path,
    seed: int,
    budget: int,
    output: Path | None = None,
    as_json: bool = False,
) -> None:
    """Run `hlogym demo`; see its `--help`."""
    backend = find_backend(backend).name
    check_writable(folder)
    if output is not None:
        check_output(output)
    say = error_console if as_json else stdout
    watch = LoadWatch()
    say.print(Text.assemble(("hlogym", "bold"), f" on {backend}: {machine_class()}"))
    store = PlanStore(folder / "plan_times.sqlite")
    with Measurer(store, MeasurerOptions(backend=backend, seed=seed)) as measurer:
        _compile_suite(measurer, backend, say)
        run, uri, run_id = _train(minutes, backend, folder, seed, say)
        with keeping(lambda: f"{shell_command('hlogym', 'evaluate', run.policy)} compares the trained policy"):
            evaluation = _evaluate(run, measurer, backend, budget, seed, say)
    kernels = _compile_in_fresh_process(run.policy, backend)
    path = write_evaluation(evaluation, folder / "results")
    track_evaluation(evaluation, path, str(run.policy), _evaluated(), {}, folder)
    page = folder / "report.html"
    build_report(evaluation, read_progress(run.progress), page, run=run.name)
    noise = watch.why_noisy()
    facts = {
        "mlflow_run": run_id, "mlflow_store": uri, "policy": str(run.policy), "results": str(path),
        "report": str(page), "kernels": kernels, "noise": noise,
    }  # fmt: skip

    def show() -> None:
        print_evaluation(evaluation, noise)
        stdout.print(
            f"A fresh process without torch compiled the held-out programs with the policy ({kernels} kernels in all)."
            "\n"
        )
        tracked = f"{run_id} in {uri}\nview it with: mlflow ui --backend-store-uri {uri}"
        print_fields({"MLflow run": tracked, "policy": run.policy, "results": path, "report": page})

    give_answer(facts, show, as_json, output)
    print_noise(noise)


def _compile_suite(measurer: Measurer, backend: str, say: PlainConsole) -> None:
    """Compile each program without fusion and by default, and compare its outputs with the interpreter's.

    Raises:
        DemoError: a program does not compile, or its outputs differ.
    """
    programs = load_suite("quickstart").programs
    starts = Starts(backend)
    begin = time.monotonic()
    say.print(f"compiling {len(programs)} programs ...")
    faults: list[str] = []
    with progress() as bar:
        task = bar.add_task("compiling the suite", total=len(programs))
        for program in programs:
            bar.update(task, description=f"compiling {program.name}")
            finding = measurer.check(program, starts.session(program).plan) or measurer.check(program, None)
            if finding is not None:
                faults.append(f"{program.name}: {finding}")
            bar.update(task, advance=1)
    if faults:
        raise DemoError("\n  - ".join([f"{len(faults)} of {len(programs)} programs failed:", *faults]))
    say.print(
        f"compiled {len(programs)} programs, unfused and by default, in {time.monotonic() - begin:.0f} s; "
        "all outputs agree with the interpreter's"
    )


def _train(minutes: float, backend: str, folder: Path, seed: int, say: PlainConsole) -> tuple[RunFolder, str, str]:
    config = TrainConfig(backend=backend, minutes=minutes, seed=seed, total_timesteps=1_000_000)
    say.print(f"training for {minutes:g} minutes, rewarded by measured kernel time ...")
    run = new_run(folder, time.strftime("train-%Y%m%d-%H%M%S"), config)
    resume = shell_command("hlogym", "train", "--resume", "--name", run.name, "--runs", folder)
    with keeping(lambda: f"{resume} continues the training; hlogym demo starts again"):
        uri, run_id = train(run, config)
    points = read_progress(run.progress)
    if not points:
        raise ResultError("training ended before its first update; increase --minutes")
    last = points[-1]
    say.print(f"trained for {last['seconds']:.0f} s: {last['timesteps']} decisions, {last['episodes']} compilations")
    return run, uri, run_id


def _evaluated() -> list[Program]:
    return [p for name in ("test", "validation", "train") for p in load_suite(name).programs]


def _evaluate(
    run: RunFolder, measurer: Measurer, backend: str, budget: int, seed: int, say: PlainConsole
) -> Evaluation:
    policy = load_policy(run.policy)
    programs = _evaluated()
    say.print(f"evaluating on {len(programs)} programs; each search measures {budget} plans per program ...")
    with progress() as bar:
        task = bar.add_task("evaluating", total=len(programs) * (len(STRATEGIES) + 1))

        def step(what: str) -> None:
            bar.update(task, advance=1, description=what)

        found = tuple(
            compare_strategies(p, STRATEGIES, measurer, budget, policy, backend, seed, step) for p in programs
        )
    evaluation = Evaluation(backend, budget, STRATEGIES, found, provenance(), dict(policy.provenance))
    report_failures(evaluation)
    return evaluation


def _compile_in_fresh_process(policy: Path, backend: str) -> int:
    """Compile the held-out programs with the exported policy in a process without torch; return the kernel count.

    Raises:
        DemoError: compilation failed, or torch was imported.
    """
    held_out: tuple[Program, ...] = load_suite("test").programs
    command = python_command(_FRESH, str(policy.resolve()), backend, *(str(p.path) for p in held_out))
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=NEUTRAL_FOLDER, env=child_environment()
    )
    if done.returncode:
        raise DemoError(f"compiling with the policy in a fresh process failed:\n{done.stderr.strip()[-2000:]}")
    reply = json.loads(done.stdout)
    if reply["torch"]:
        raise DemoError("the compiler loaded torch to use the policy")
    return int(sum(reply["kernels"]))
