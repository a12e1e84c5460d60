"""Tracking of runs in MLflow: in a local SQLite store, or on the server that MLFLOW_TRACKING_URI names.

A store that cannot be used at the start is an error. If it fails later, the run continues: unsent data is kept and
retried from time to time, and a warning at the end lists what is missing.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.support.safe_names import metric_name
from experiments.console import error_console
from experiments.mlflow_store import (
    EXPERIMENT,
    TrackingError,
    answered,
    check_store,
    existing_client,
    open_client,
    open_run,
    reason_of,
    short_requests,
    tracking_uri,
    without_password,
)
from experiments.program_dataset import describe_programs
from experiments.registry import register_policy

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

    from env.suites import Program

__all__ = ["EXPERIMENT", "TrackedRun", "TrackingError", "check_store", "download_policy", "tracking_uri"]

RETRY_SECONDS, MAX_RETRY_SECONDS = 30.0, 300.0
MAX_WAITING = 2000
BATCH = 500  # MLflow accepts 1000 metrics at once


class TrackedRun:
    """A context manager for one MLflow run, new or continued, that also records how the run ended.

    Names of metrics, parameters and tags may be arbitrary strings.

    MLflow cannot remove values of a metric. A run that is continued from before its last values, because it was killed
    after its checkpoint, therefore keeps these, and logs new ones from the next step on.

    Args:
        folder: the folder of the local store; not used if MLFLOW_TRACKING_URI is set.
        name: the name of a new run.
        run_id: the id of a run to continue; if the store does not have it, a new run is started.
        parent: the id of the run that a new one belongs to.

    Attributes:
        uri: the URI of the store, without its password.
        run_id: the id of the run in MLflow.
        registered: the URI of the model that was registered last; None if there is none, or it was not sent yet.

    Raises:
        TrackingError: the store cannot be used, or does not answer in time.
    """

    def __init__(self, folder: Path, name: str, run_id: str | None = None, parent: str | None = None) -> None:
        uri = self._uri = tracking_uri(folder)
        self.uri = without_password(uri)

        def begin() -> tuple[MlflowClient, Run, bool]:
            from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

            client = open_client(folder, uri)
            tags = {} if parent is None else {MLFLOW_PARENT_RUN_ID: parent}
            return client, *open_run(client, folder, uri, name, run_id, tags)

        self._client, self._run, self._is_new = answered(uri, begin)
        self.run_id: str = self._run.info.run_id
        self._last_steps: dict[str, int] = {}  # of metrics, when the run was continued
        self.registered: str | None = None
        self._waiting: deque[tuple[str, Callable[[], object]]] = deque()
        self._lost: Counter[str] = Counter()
        self._warned = False
        self._retry_at, self._pause = -math.inf, RETRY_SECONDS

    def params(self, values: Mapping[str, Any]) -> None:
        """Log parameters; those that a continued run has already logged are not changed."""

        def send() -> None:
            known = self._client.get_run(self.run_id).data.params
            for key, value in values.items():
                if metric_name(key) not in known:
                    self._client.log_param(self.run_id, metric_name(key), str(value)[:500])

        self._send("parameters", send)

    def tags(self, values: Mapping[str, Any]) -> None:
        """Set tags."""

        def send() -> None:
            for key, value in values.items():
                self._client.set_tag(self.run_id, metric_name(key), str(value)[:500])

        self._send("tags", send)

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Log metrics at a step; values that are not finite are skipped, and those that a continued run has already."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        found = [(metric_name(k), float(v)) for k, v in values.items() if math.isfinite(v)]

        def send() -> None:
            new = [Metric(k, v, now, step) for k, v in found if step > self._last_step(k)]
            for start in range(0, len(new), BATCH):
                self._client.log_batch(self.run_id, metrics=new[start : start + BATCH])

        self._send("metric updates", send)

    def _last_step(self, key: str) -> int:
        """Return the last step that the run had of a metric when it was continued; -1 if it had none."""
        if self._is_new:
            return -1
        if key not in self._last_steps:
            history = self._client.get_metric_history(self.run_id, key)
            self._last_steps[key] = max((m.step for m in history), default=-1)
        return self._last_steps[key]

    def artifacts(self, path: Path, under: str = "") -> None:
        """Log a file or all files of a folder, in the artifact folder `under`."""
        log = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
        self._send(f"files of {path.name}", lambda: log(self.run_id, str(path), under or None))

    def dataset(self, programs: Sequence[Program], name: str, context: str) -> None:
        """Log the programs that the run uses, as a data set of MLflow.

        Args:
            programs: the programs.
            name: of the data set, such as the name of their suite.
            context: what they are used for, such as "training".
        """

        def send() -> None:
            from mlflow.entities import Dataset, DatasetInput, InputTag

            tag = InputTag("mlflow.data.context", context)
            found = DatasetInput(Dataset(**describe_programs(programs, name)), [tag])
            self._client.log_inputs(self.run_id, [found])

        self._send("data sets", send)

    def model(self, policy: Path, name: str, tags: Mapping[str, str]) -> None:
        """Log a policy folder as a model in MLflow's format, and register it as a new version of a model.

        Args:
            policy: the folder of the policy.
            name: of the registered model; it is created if there is none.
            tags: of the version.
        """

        def send() -> None:
            self.registered = register_policy(self._client, self._run, policy, name, tags)

        self._send("models", send)

    # ---- sending to a store that may fail

    def _send(self, what: str, action: Callable[[], object]) -> None:
        self._waiting.append((what, action))
        if len(self._waiting) > MAX_WAITING:
            self._lost[self._waiting.popleft()[0]] += 1
        if time.monotonic() >= self._retry_at:
            self._send_waiting()

    def _send_waiting(self) -> None:
        """Send the waiting actions in order, up to the first that fails."""
        from mlflow.exceptions import MlflowException

        while self._waiting:
            what, action = self._waiting[0]
            try:
                with short_requests():
                    action()
            except Exception as error:  # the store, its transport and its database may raise anything
                self._warn(error)
                refused = isinstance(error, MlflowException) and error.error_code == "INVALID_PARAMETER_VALUE"
                if not refused:  # a refused action would be refused again
                    self._retry_at = time.monotonic() + self._pause
                    self._pause = min(2 * self._pause, MAX_RETRY_SECONDS)
                    return
                self._lost[what] += 1
            else:
                self._pause = RETRY_SECONDS
            self._waiting.popleft()

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            error_console.print(
                f"warning: cannot write to the MLflow store {self.uri} ({reason_of(error, self._uri)}); "
                "the run continues, and unsent data is retried",
                soft_wrap=True,
            )

    def __enter__(self) -> TrackedRun:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        status = "FINISHED" if kind is None else "KILLED" if kind is KeyboardInterrupt else "FAILED"
        self._waiting.append(("the end of the run", lambda: self._client.set_terminated(self.run_id, status)))
        self._send_waiting()
        missing = self._lost + Counter(what for what, _ in self._waiting)
        if missing:
            listed = ", ".join(what if n == 1 else f"{n} {what}" for what, n in missing.items())
            error_console.print(
                f"warning: not tracked in {self.uri}: {listed}; the run's folder is complete", soft_wrap=True
            )


def download_policy(folder: Path, run_id: str, to: Path, which: str = "policy") -> Path:
    """Download a policy folder among a run's artifacts, "policy" or "best", to the folder `to` and return its path.

    Raises:
        TrackingError: there is no such run, it has no policy, or the store does not answer.
    """
    import mlflow.artifacts
    from mlflow.exceptions import MlflowException

    uri = tracking_uri(folder)
    client = existing_client(folder, uri)
    answered(uri, lambda: client.get_run(run_id))
    try:
        with short_requests():
            path = mlflow.artifacts.download_artifacts(
                run_id=run_id, artifact_path=which, dst_path=str(to), tracking_uri=uri
            )
    except (MlflowException, OSError) as error:
        raise TrackingError(
            f"run {run_id!r} has no policy in {without_password(uri)}: {reason_of(error, uri)}"
        ) from error
    return Path(path)
