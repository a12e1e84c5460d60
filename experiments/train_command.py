"""`hlogym train`: start or resume a run, and say at its end what was learned, where it is and what to type next."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from agents.checkpoint import latest_checkpoint
from compiler.backends.registry import find_backend
from compiler.errors import ArgumentError, HlogymError, UnknownNameError
from compiler.learned.policy_folder import check_policy_target
from compiler.support.safe_names import shell_command
from env.predicted_measurer import EMULATED, backend_of_reward
from experiments.answer import give_answer, print_fields
from experiments.config import TrainConfig
from experiments.console import clock, error_console
from experiments.export import write_policy
from experiments.learners import AGENTS, make_learner
from experiments.mlflow_store import without_password
from experiments.noise import LoadWatch, print_noise
from experiments.report import meaning_of_speedup
from experiments.results import check_writable
from experiments.run_folder import (
    RunFolder,
    check_free,
    check_run_name,
    finished_run,
    new_run,
    read_progress,
    unfinished_run,
)
from experiments.tracking import check_store, tracking_uri
from experiments.train import check_plan_store, check_programs, closed_on_error, train
from experiments.validation_results import read_validation

__all__ = ["start_or_resume"]


def start_or_resume(
    config: TrainConfig, runs: Path, name: str | None, resume: bool, output: Path | None = None, as_json: bool = False
) -> RunFolder:
    """Run `hlogym train`; see its `--help`. Return the run's folder and print what it holds.

    Args:
        config: the settings of a new run.
        runs: folder of training runs.
        name: of the run; None: a new one, or with `resume` the newest that is unfinished.
        resume: continue a run.
        output: folder to which the policy is exported at the end; None: it is in the run's folder only.
        as_json: print JSON instead of text.
    """
    if config.agent not in AGENTS:
        raise UnknownNameError("agent", config.agent, AGENTS)
    check_run_name(name)
    config.check()
    if output is not None:
        check_policy_target(output)
    asked, emulated = config, config.plan_reward == EMULATED
    backend = find_backend(backend_of_reward(EMULATED, config.backend) if emulated else config.backend)
    if backend.language is None:
        raise ArgumentError(f"backend {backend.name!r} compiles no kernels, so an agent cannot learn on it; use cpu")
    config = config.with_backend(backend.name)
    run = unfinished_run(runs, name) if resume else None
    if resume and run is None:
        done = None if name is None else finished_run(runs, name)
        if done is not None:  # a success, so that a script that resumes until success terminates
            error_console.print(f"run {done.name} is finished", soft_wrap=True)
            _say_what_is_kept(asked, done.config())
            _give(done, output, as_json, None)
            return done
        error_console.print(what_starts(runs, name), soft_wrap=True)
    if run is None:
        # Check names, programs, folders and servers before creating the run's folder.
        check_writable(runs)
        if name is not None:
            check_free(runs, name)
        learner = make_learner(config)
        with closed_on_error(learner):
            check_plan_store(learner)
            check_store(runs)
            check_programs(learner, config)
            run = new_run(runs, name, config)
    else:
        config = run.config()
        config.check()
        check_writable(run.path)
        error_console.print(f"resuming run {run.name}", soft_wrap=True)
        _say_what_is_kept(asked, config)
        learner = make_learner(config)
        with closed_on_error(learner):
            check_programs(learner, config)
    watch, measured = LoadWatch(), learner.measured
    try:
        train(run, config, learner)
    except KeyboardInterrupt as error:
        error_console.print(f"stopped; {_how_to_resume(run)}", soft_wrap=True)
        number = error.args[0] if error.args else signal.SIGINT
        raise SystemExit(128 + number) from None
    except HlogymError as error:
        error.add_note(f"After fixing the cause, {_how_to_resume(run)}.")
        raise
    _give(run, output, as_json, watch.why_noisy() if measured else None)
    return run


def what_starts(runs: Path, name: str | None) -> str:
    """Return that nothing was found to resume, with a run that could be, because a name may be misspelt."""
    if name is None:
        return "there is no run to resume; starting a new one"
    newest = unfinished_run(runs, None)
    listed = f" (the newest unfinished one is {newest.name!r})" if newest is not None else ""
    return f"there is no run {name!r} to resume in {runs}{listed}; starting it as a new one"


def _say_what_is_kept(asked: TrainConfig, kept: TrainConfig) -> None:
    """Print which settings of a command differ from those that the run began with, because these are kept."""
    given, usual, own = asked.to_json(), TrainConfig.defaults_for(asked.env).to_json(), kept.to_json()
    usual["env"] = TrainConfig().env
    other = [f"{n}={v} (it has {own[n]})" for n, v in given.items() if v not in (usual[n], own[n])]
    if other:
        error_console.print(
            f"warning: a run keeps the settings with which it began; not used: {', '.join(other)}", soft_wrap=True
        )


def _how_to_resume(run: RunFolder) -> str:
    """Return the command that continues a run, where from, and what can be used of it already."""
    kept = latest_checkpoint(run.checkpoints)
    best = f"; the best policy so far is {run.best}" if run.recommended == run.best else ""
    where = f"from {kept}" if kept is not None else "from the beginning, because it has no checkpoint yet"
    command = shell_command("hlogym", "train", "--resume", "--name", run.name, *run.runs_option)
    return f"{command} continues it {where}{best}"


# ---- what a run has learned


def _give(run: RunFolder, output: Path | None, as_json: bool, noise: str | None) -> None:
    """Export the policy of a finished run if an output is named, and print the run.

    Args:
        run: the run.
        output: the folder to export to, or None.
        as_json: print JSON instead of text.
        noise: why the machine was noisy while times were measured, or None.
    """
    if output is not None:
        write_policy(run.recommended, output)
    facts = _facts(run, output) | {"noise": noise}
    give_answer(facts, lambda: _print(run, facts), as_json)
    print_noise(noise)


def _facts(run: RunFolder, output: Path | None) -> dict[str, Any]:
    points, state, validation = read_progress(run.progress), run.state(), read_validation(run.validation)
    last = points[-1] if points else {"timesteps": 0}
    speedups = [p["speedup"] for p in points if p["speedup"] is not None]
    return {
        "run": str(run.path),
        "policy": str(output or run.recommended),
        "last_policy": str(run.policy),
        "mlflow_run": state.get("run_id"),
        "mlflow_store": without_password(tracking_uri(run.path.parent)),
        "registered": state.get("registered"),
        "timesteps": last["timesteps"],
        "episodes": last.get("episodes") or 0,
        "seconds": last.get("seconds"),
        "speedup": speedups[-1] if speedups else None,
        "validation": None
        if validation is None
        else {n: r.to_json() for n, r in zip(("best", "last"), validation, strict=True)},
        "next": _next_commands(run, output),
    }


def _next_commands(run: RunFolder, output: Path | None) -> list[str]:
    policy = output or run.recommended
    suite = "jax/test" if "PassOrder" in run.config().env else "test"
    commands = [shell_command("hlogym", "evaluate", policy, "--suite", suite)]
    export = shell_command("hlogym", "export", run.name, *run.runs_option, "-o", "my-policy")
    return commands if output is not None else [*commands, export]


def _print(run: RunFolder, facts: dict[str, Any]) -> None:
    done = f"{facts['episodes']} episodes, {facts['timesteps']} steps"
    done += f" in {clock(facts['seconds'])}" if facts["seconds"] else ""
    if facts["speedup"] is not None:
        done += f"; {meaning_of_speedup(run.config())} in the last rollout: {facts['speedup']:.2f}x"
    else:
        done += "; no complete episode"
    validation = read_validation(run.validation)
    policy = facts["policy"]
    if validation is not None and policy != facts["last_policy"]:
        policy += f" (after {validation[0].timesteps} steps, the best on the validation programs)"
    registered = "" if facts["registered"] is None else f", registered as {facts['registered']}"
    print_fields(
        {
            "run": run.path,
            "training": done,
            "MLflow": f"run {facts['mlflow_run']} in {facts['mlflow_store']}{registered}",
            "validation": None if validation is None else validation[0],
            "policy": policy,
            "next": "\n".join(facts["next"]),
        }
    )
