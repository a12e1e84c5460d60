"""Runs in MLflow: a local SQLite store by default, any server by MLFLOW_TRACKING_URI."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.errors import HlogymError

if TYPE_CHECKING:
    from mlflow.entities import Run

__all__ = ["EXPERIMENT", "TrackedRun", "TrackingError", "download_policy", "tracking_uri"]

EXPERIMENT = "hlogym"


class TrackingError(HlogymError, RuntimeError):
    """An MLflow store that cannot be used, or a run that is not in it."""


def tracking_uri(folder: Path) -> str:
    """MLFLOW_TRACKING_URI, or a SQLite store in the folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.resolve() / 'mlflow.db'}"


class TrackedRun:
    """One MLflow run, new or continued; use it as a context manager, which also records how it ended.

    Args:
        folder: where the local store stands when no server is named.
        name: of a new run.
        run_id: of a run to continue; a store that does not know it starts a new one.

    Raises:
        TrackingError: the store cannot be used.
    """

    def __init__(self, folder: Path, name: str, run_id: str | None = None) -> None:
        # MLflow takes seconds to import; the command line's --help does not wait for it.
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        for quiet in ("mlflow", "alembic"):
            logging.getLogger(quiet).setLevel(logging.ERROR)
        self.uri = tracking_uri(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._client = MlflowClient(self.uri)
            self._run = self._open(folder, name, run_id)
        except (MlflowException, OSError) as error:
            raise TrackingError(f"cannot use the MLflow store {self.uri}: {error}") from error
        self.run_id: str = self._run.info.run_id

    def _open(self, folder: Path, name: str, run_id: str | None) -> Run:
        from mlflow.exceptions import MlflowException

        if run_id is not None:
            try:
                self._client.set_terminated(run_id, "RUNNING")
                return self._client.get_run(run_id)
            except MlflowException:
                pass  # the store was removed in between; a new run takes over
        return self._client.create_run(self._experiment(folder), run_name=name, tags={"mlflow.source.name": "hlogym"})

    def _experiment(self, folder: Path) -> str:
        found = self._client.get_experiment_by_name(EXPERIMENT)
        if found is not None:
            return str(found.experiment_id)
        local = self.uri.startswith("sqlite:")
        place = (folder.resolve() / "mlartifacts").as_uri() if local else None
        return str(self._client.create_experiment(EXPERIMENT, artifact_location=place))

    def params(self, values: Mapping[str, Any]) -> None:
        """Log parameters; those already logged by the run being continued are left."""
        known = self._client.get_run(self.run_id).data.params
        for key, value in values.items():
            if key not in known:
                self._client.log_param(self.run_id, key, str(value)[:500])

    def tags(self, values: Mapping[str, Any]) -> None:
        """Set tags."""
        for key, value in values.items():
            self._client.set_tag(self.run_id, key, str(value)[:500])

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Log finite numbers at a step."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        found = [Metric(k, float(v), now, step) for k, v in values.items() if math.isfinite(v)]
        self._client.log_batch(self.run_id, metrics=found)

    def artifacts(self, path: Path, under: str = "") -> None:
        """Log a file, or all files of a folder."""
        if path.is_dir():
            self._client.log_artifacts(self.run_id, str(path), under or None)
        else:
            self._client.log_artifact(self.run_id, str(path), under or None)

    def __enter__(self) -> TrackedRun:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        status = "FINISHED" if kind is None else "KILLED" if kind is KeyboardInterrupt else "FAILED"
        self._client.set_terminated(self.run_id, status)


def download_policy(folder: Path, run_id: str, to: Path) -> Path:
    """The policy folder among a run's artifacts.

    Raises:
        TrackingError: no such run, or it has no policy.
    """
    import mlflow.artifacts
    from mlflow.exceptions import MlflowException

    uri = tracking_uri(folder)
    try:
        path = mlflow.artifacts.download_artifacts(
            run_id=run_id, artifact_path="policy", dst_path=str(to), tracking_uri=uri
        )
    except (MlflowException, OSError) as error:
        raise TrackingError(f"run {run_id!r} has no policy in {uri}: {error}") from error
    return Path(path)
