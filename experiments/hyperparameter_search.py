"""`hlogym tune-agent`: search the hyperparameters of an agent with Optuna."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.backends.registry import find_backend
from compiler.errors import HlogymError, UnknownNameError
from compiler.support.safe_names import shell_command
from experiments.answer import give_answer, print_fields
from experiments.config import FORMER_NAMES, ConfigError, TrainConfig
from experiments.console import error_console, progress
from experiments.hyperparameters import write_hyperparameters
from experiments.interruption import keeping
from experiments.learners import AGENTS, make_learner
from experiments.mlflow_store import check_store, reason_of
from experiments.provenance import provenance
from experiments.results import check_output, check_writable
from experiments.tracking import TrackedRun
from experiments.train import check_programs
from experiments.validation import evaluation_callback

if TYPE_CHECKING:
    from optuna import Study, Trial

__all__ = ["SearchError", "sampled", "search_hyperparameters"]

_RUN_ID, _SETTINGS = "mlflow_run", "settings"
"""Attributes of a study: the id of its run in MLflow, and the settings with which it was begun."""
_OF_A_COMMAND = frozenset({"seed", "workers"})
"""Settings that may differ between the commands that add trials to a study."""


class SearchError(HlogymError, RuntimeError):
    """A search that cannot run, or in which no training was completed."""


def search_hyperparameters(
    config: TrainConfig,
    fixed: Sequence[str],
    trials: int,
    evaluations: int,
    output: Path,
    name: str | None,
    runs: Path,
    as_json: bool = False,
) -> dict[str, Any]:
    """Run `hlogym tune-agent`; see its `--help`. Return the best settings that were found.

    Args:
        config: the settings that all trainings start from.
        fixed: settings, as `name=value`, that override what is searched.
        trials: number of trainings.
        evaluations: evaluations in each of them.
        output: the file of the best settings.
        name: of the study; one that exists is continued.
        runs: the folder of the study and of the local MLflow store.
        as_json: print JSON instead of text.

    Raises:
        SearchError: Optuna is not installed, the study cannot be continued, or no training was completed.
        ProgramError, UnknownNameError: the programs cannot be used, or the agent does not play the environment.
    """
    optuna = _optuna()
    if config.agent not in AGENTS:
        raise UnknownNameError("agent", config.agent, AGENTS)
    config = config.with_backend(find_backend(config.backend).name).changed(fixed)
    config.check()
    check_writable(runs)
    check_output(output)
    check_store(runs)
    learner = make_learner(config)  # before there is a study
    with closing(learner):
        check_programs(learner, config)
    study = _study(optuna, runs, name, config, fixed, evaluations)

    def write_best() -> dict[str, Any]:
        best = {k: v for k, v in study.best_params.items() if k not in _values(config, fixed)}
        found = {"agent": config.agent, **best, **_values(config, fixed)}
        write_hyperparameters(output, config.env, found)
        return found

    def keep() -> str:
        kept = f"the study is in {_database(runs)}; "
        if _completed(study):
            write_best()
            kept += f"the best settings so far are in {output}; "
        return kept + f"to continue it, repeat the command with {shell_command('--name', study.study_name)}"

    with (
        keeping(keep),
        progress() as bar,
        TrackedRun(runs, study.study_name, study.user_attrs.get(_RUN_ID)) as tracked,
    ):
        study.set_user_attr(_RUN_ID, tracked.run_id)
        tracked.params(config.to_json())
        tracked.tags({**provenance(), "kind": "tune-agent"})
        task = bar.add_task("searching", total=trials)

        reached = [-math.inf]

        def objective(trial: Trial) -> float:
            bar.update(task, description=f"trial {trial.number}")
            try:
                value = _train(trial, config, fixed, evaluations, tracked.run_id, runs)
            except ConfigError as error:
                error_console.print(f"trial {trial.number} failed: {error}", soft_wrap=True)
                raise
            tracked.metrics({"value": value}, trial.number)
            reached[0] = max(reached[0], value)
            bar.update(task, advance=1, so_far=f"best mean return {reached[0]:.4g}")
            return value

        # A setting that another one excludes is a failed trial, and the search continues.
        study.optimize(objective, n_trials=trials, catch=(ConfigError,))
        if not _completed(study):
            raise SearchError(f"none of {len(study.trials)} trials was completed; try more --trials or --timesteps")
        found = write_best()
        tracked.artifacts(output)
        tracked.metrics({"best": study.best_value}, len(study.trials))
    number = study.best_trial.number
    command = shell_command("hlogym", "train", "--env", config.env, "--hyperparameters", output)
    facts = {
        "trial": number, "trials": len(study.trials), "mean_return": study.best_value, "best": found,
        "settings": str(output), "study": study.study_name, "next": command,
    }  # fmt: skip
    shown = {
        "best": f"trial {number} of {len(study.trials)}: mean return {study.best_value:.4g}",
        "settings": output,
        "next": command,
    }
    give_answer(facts, lambda: print_fields(shown), as_json)
    return found


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise SearchError("hlogym tune-agent needs Optuna: pip install 'hlogym[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # it prints tracebacks of errors that are reported here
    return optuna


def _values(config: TrainConfig, fixed: Sequence[str]) -> dict[str, Any]:
    """Return the values of the settings that are not searched, by their present names."""
    names = {FORMER_NAMES.get(n, n) for n in (f.partition("=")[0] for f in fixed)}
    return {name: value for name, value in asdict(config).items() if name in names}


def _database(runs: Path) -> Path:
    return runs / "optuna.db"


def _completed(study: Study) -> bool:
    return any(t.state.name == "COMPLETE" for t in study.trials)


def _study(
    optuna: Any, runs: Path, name: str | None, config: TrainConfig, fixed: Sequence[str], evaluations: int
) -> Study:
    """Return a new study, or the one of a name, to which trials can be added.

    Raises:
        SearchError: the file of studies cannot be used, or the study was begun with other settings, so that its values
            cannot be compared.
    """
    runs.mkdir(parents=True, exist_ok=True)
    file = _database(runs)
    try:
        study: Study = optuna.create_study(
            study_name=name or time.strftime("tune-agent-%Y%m%d-%H%M%S"), direction="maximize", load_if_exists=True,
            storage=f"sqlite:///{file.resolve()}", pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
        )  # fmt: skip
    except Exception as error:  # of SQLAlchemy and of Optuna
        raise SearchError(
            f"cannot use the studies in {file}: {reason_of(error, '')}; if the file is damaged, move it away"
        ) from error
    # Another sequence of random numbers, or the trials of a continued study would be those that it has already.
    study.sampler = optuna.samplers.TPESampler(seed=(config.seed + len(study.trials)) % 2**32)
    own = config.to_json() | {"evaluations": evaluations, "fixed": _values(config, fixed)}
    begun: dict[str, Any] = study.user_attrs.get(_SETTINGS, own)
    differing = [
        f"{key}={own[key]} (it has {begun[key]})"
        for key in own.keys() & begun.keys() - _OF_A_COMMAND
        if own[key] != begun[key]
    ]
    if differing:
        raise SearchError(
            f"study {study.study_name!r} was begun with other settings, so that results cannot be compared: "
            f"{', '.join(sorted(differing))}; repeat its settings, or choose another --name"
        )
    study.set_user_attr(_SETTINGS, begun)
    return study


def _train(trial: Trial, base: TrainConfig, fixed: Sequence[str], evaluations: int, parent: str, runs: Path) -> float:
    """Train an agent with settings that a trial suggests; return its last mean return on the validation programs."""
    config = replace(base, **sampled(trial, base.agent, "PassOrder" not in base.env)).changed(fixed)
    config.check()
    import optuna

    learner = make_learner(config)
    try:
        with TrackedRun(runs, f"trial-{trial.number}", parent=parent) as tracked:
            tracked.params(config.to_json())
            pruned = False

            def after(steps: int) -> bool:
                nonlocal pruned
                mean = float(callback.last_mean_reward)
                tracked.metrics({"eval.mean_reward": mean}, steps)
                trial.report(mean, steps)
                pruned = trial.should_prune()
                return not pruned

            callback, env = evaluation_callback(config, learner, -(-config.total_timesteps // evaluations), after)
            try:
                learner.model.learn(config.total_timesteps, callback=callback)
            finally:
                env.close()
            if not math.isfinite(callback.last_mean_reward):
                raise ConfigError("the training ended before its first evaluation")
            if pruned:
                tracked.tags({"pruned": True})
        if pruned:
            raise optuna.TrialPruned
        return float(callback.last_mean_reward)
    finally:
        learner.close()


def sampled(trial: Trial, agent: str, pointer: bool) -> dict[str, Any]:
    """Return the settings that a trial suggests for an agent.

    Args:
        trial: the trial.
        agent: one of AGENTS.
        pointer: whether the agent has a pointer network.
    """
    choose: Callable[[str, Sequence[Any]], Any] = trial.suggest_categorical
    found: dict[str, Any] = {
        "learning_rate": trial.suggest_float("learning_rate", 1e-5, 3e-3, log=True),
        "learning_rate_schedule": choose("learning_rate_schedule", ["constant", "linear"]),
        "gamma": choose("gamma", [0.98, 0.99, 0.995, 1.0]),
        "hidden": choose("hidden", [32, 64, 128, 256]),
    }
    if agent == "dqn":
        found["exploration_fraction"] = trial.suggest_float("exploration_fraction", 0.05, 0.6)
    else:
        found["n_steps"] = choose("n_steps", [128, 256, 512, 1024, 2048])
        found["gae_lambda"] = choose("gae_lambda", [0.9, 0.95, 0.98, 1.0])
        found["ent_coef"] = trial.suggest_float("ent_coef", 1e-5, 0.1, log=True)
        found["max_grad_norm"] = choose("max_grad_norm", [0.3, 0.5, 1.0, 2.0])
    if agent != "a2c":
        found["batch_size"] = choose("batch_size", [32, 64, 128])
    if agent == "maskable-ppo":
        found["n_epochs"] = choose("n_epochs", [1, 4, 8])
        found["clip_range"] = choose("clip_range", [0.1, 0.2, 0.3])
    if pointer:
        found["rounds"] = choose("rounds", [1, 2, 3])
        found["prior"] = choose("prior", [0.0, 1.0, 4.0, 8.0])
    return found
