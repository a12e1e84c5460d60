"""Tracking of runs in MLflow: in a local SQLite store, or on the server that MLFLOW_TRACKING_URI names.

A store that cannot be used at the start is an error. If it fails later, the run continues: unsent data is kept and
retried from time to time, and a warning at the end lists what is missing.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import secrets
import sqlite3
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

from compiler.errors import HlogymError
from compiler.support.files import DRAFT_PREFIX
from compiler.support.safe_names import metric_name, one_line
from experiments.console import error_console

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

__all__ = ["EXPERIMENT", "TrackedRun", "TrackingError", "check_store", "download_policy", "tracking_uri"]

T = TypeVar("T")
EXPERIMENT = "hlogym"
REQUEST_SECONDS = 5
OPENING_SECONDS = 10.0
DATABASE_SECONDS = 60.0  # the first use of a database creates its tables
RETRY_SECONDS, MAX_RETRY_SECONDS = 30.0, 300.0
MAX_WAITING = 2000
BATCH = 500  # MLflow accepts 1000 metrics at once
_MISSING = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "INVALID_STATE")
"""The error codes with which MLflow reports that a run was removed."""
_SPECIAL_IN_URI = re.compile(r"\?|%[0-9A-Fa-f]{2}")
_TIMEOUT_VARIABLES = ("MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_HTTP_REQUEST_MAX_RETRIES")


class TrackingError(HlogymError, RuntimeError):
    """An MLflow store that cannot be used, or a run that is not in it."""


def tracking_uri(folder: Path) -> str:
    """Return MLFLOW_TRACKING_URI, or the URI of a SQLite store in the folder.

    Raises:
        TrackingError: the folder's path cannot be part of a URI.
    """
    return os.environ.get("MLFLOW_TRACKING_URI") or _sqlite(_database(folder))


class TrackedRun:
    """A context manager for one MLflow run, new or continued, that also records how the run ended.

    Names of metrics, parameters and tags may be arbitrary strings.

    Args:
        folder: the folder of the local store; not used if MLFLOW_TRACKING_URI is set.
        name: the name of a new run.
        run_id: the id of a run to continue; if the store does not have it, a new run is started.

    Attributes:
        uri: the URI of the store, without its password.
        run_id: the id of the run in MLflow.

    Raises:
        TrackingError: the store cannot be used, or does not answer in time.
    """

    def __init__(self, folder: Path, name: str, run_id: str | None = None) -> None:
        uri = self._uri = tracking_uri(folder)
        self.uri = _without_password(uri)

        def open_run() -> tuple[MlflowClient, Run]:
            client = _client(folder, uri)
            return client, _open_run(client, folder, uri, name, run_id)

        self._client, self._run = _answered(uri, open_run)
        self.run_id: str = self._run.info.run_id
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
        """Log metrics at a step; values that are not finite are skipped."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        found = [(metric_name(k), float(v)) for k, v in values.items() if math.isfinite(v)]

        def send() -> None:
            for start in range(0, len(found), BATCH):
                batch = [Metric(k, v, now, step) for k, v in found[start : start + BATCH]]
                self._client.log_batch(self.run_id, metrics=batch)

        self._send("metric updates", send)

    def artifacts(self, path: Path, under: str = "") -> None:
        """Log a file or all files of a folder, in the artifact folder `under`."""
        log = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
        self._send(f"files of {path.name}", lambda: log(self.run_id, str(path), under or None))

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
                with _short_requests():
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
                f"warning: cannot write to the MLflow store {self.uri} ({_reason(error, self._uri)}); "
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
    _answered(uri, lambda: _client(folder, uri).get_run(run_id))
    try:
        with _short_requests():
            path = mlflow.artifacts.download_artifacts(
                run_id=run_id, artifact_path=which, dst_path=str(to), tracking_uri=uri
            )
    except (MlflowException, OSError) as error:
        raise TrackingError(
            f"run {run_id!r} has no policy in {_without_password(uri)}: {_reason(error, uri)}"
        ) from error
    return Path(path)


# ---- opening


def check_store(folder: Path) -> None:
    """Check that the store can be used, and create a local one, before a run begins.

    Raises:
        TrackingError: the store cannot be used.
    """
    uri = tracking_uri(folder)
    _answered(uri, lambda: _client(folder, uri).get_experiment_by_name(EXPERIMENT))


def _client(folder: Path, uri: str) -> MlflowClient:
    # Importing MLflow takes seconds, so the command line does it only when needed.
    from mlflow.tracking import MlflowClient

    for quiet in ("mlflow", "alembic"):
        logging.getLogger(quiet).setLevel(logging.CRITICAL)  # their errors are reported by this module
    if _is_local(uri):
        folder.mkdir(parents=True, exist_ok=True)
    if uri.startswith("sqlite:///"):
        _check_database(Path(uri.removeprefix("sqlite:///").partition("?")[0]))
    database = _database(folder)
    if not os.environ.get("MLFLOW_TRACKING_URI") and not database.exists():
        # Creating the tables takes seconds. A kill or a full disk in between would leave an unusable database.
        draft = folder.resolve() / f"{DRAFT_PREFIX}{secrets.token_hex(8)}.db"
        try:
            MlflowClient(_sqlite(draft)).search_experiments(max_results=1)
            _put_in_place(draft, database)
        finally:
            draft.unlink(missing_ok=True)
    return MlflowClient(uri)


def _check_database(database: Path) -> None:
    """Raise sqlite3.Error at once if a SQLite file cannot be used; MLflow would retry for minutes."""
    if database.exists():
        uri = f"file:{quote(str(database.resolve()))}?mode=rw"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=OPENING_SECONDS)) as opened:
            opened.execute("BEGIN IMMEDIATE")
            opened.rollback()


def _put_in_place(draft: Path, database: Path) -> None:
    """Rename the draft to its final name, unless another process has created the database in the meantime."""
    try:
        os.link(draft, database)
    except FileExistsError:
        pass
    except OSError:  # the file system has no hard links
        draft.replace(database)


def _database(folder: Path) -> Path:
    return folder.resolve() / "mlflow.db"


def _sqlite(database: Path) -> str:
    """Return the URI of a SQLite file.

    Raises:
        TrackingError: the path contains characters with a special meaning in URIs. They cannot be escaped, because
            parts of MLflow do not decode the path.
    """
    if (found := _SPECIAL_IN_URI.search(str(database))) is not None:
        raise TrackingError(
            f"MLflow cannot keep its store in {database.parent}, because the path contains {found.group()!r}; "
            "name another folder"
        )
    return f"sqlite:///{database}"


def _open_run(client: MlflowClient, folder: Path, uri: str, name: str, run_id: str | None) -> Run:
    from mlflow.exceptions import MlflowException

    if run_id is not None:
        try:
            client.set_terminated(run_id, "RUNNING")
            return client.get_run(run_id)
        except MlflowException as error:
            if error.error_code not in _MISSING:
                raise
            # The run was removed in the meantime; start a new one.
    return client.create_run(_experiment(client, folder, uri), run_name=name, tags={"mlflow.source.name": "hlogym"})


def _experiment(client: MlflowClient, folder: Path, uri: str) -> str:
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is not None:
        return str(found.experiment_id)
    place = (folder.resolve() / "mlartifacts").as_uri() if _is_local(uri) else None
    return str(client.create_experiment(EXPERIMENT, artifact_location=place))


def _answered(uri: str, question: Callable[[], T]) -> T:
    """Return the result of a request to the store.

    Raises:
        TrackingError: the store cannot be used, or does not answer in time.
    """
    shown, patience = _without_password(uri), _patience(uri)
    try:
        with _short_requests():
            return question() if _is_local(uri) else _within(patience, question)
    except Exception as error:  # the client propagates errors of its transport, its database and its migrations
        if _is_local(uri):
            raise TrackingError(
                f"cannot use the MLflow store {shown}: {_reason(error, uri)}; if it is damaged, move it away, and a "
                "new one will be created"
            ) from error
        raise TrackingError(
            f"cannot use the MLflow server {shown}: {_reason(error, uri)}; "
            "start it, or set MLFLOW_TRACKING_URI to another one, or unset it to keep runs in a local file"
        ) from error


def _within(seconds: float | None, question: Callable[[], T]) -> T:
    """Return the result of a request that may block for longer than its own timeouts, for example in a DNS lookup.

    Raises:
        TimeoutError: there is no answer after so many seconds.
    """
    answers: list[T] = []
    errors: list[Exception] = []

    def ask() -> None:
        try:
            answers.append(question())
        except Exception as error:  # raised again in the waiting thread
            errors.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return answers[0]


def _patience(uri: str) -> float | None:
    """Return the seconds to wait for a store that is not a local file; None if the user has set MLflow's own limits."""
    if not uri.startswith(("http:", "https:")):
        return DATABASE_SECONDS
    return None if any(os.environ.get(name) for name in _TIMEOUT_VARIABLES) else OPENING_SECONDS


@contextlib.contextmanager
def _short_requests() -> Iterator[None]:
    """Limit MLflow's requests to a few seconds instead of minutes, unless the user has set the limits."""
    limits = {"MLFLOW_HTTP_REQUEST_TIMEOUT": str(REQUEST_SECONDS), "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    unset = {name: value for name, value in limits.items() if not os.environ.get(name)}
    before = {name: os.environ.get(name) for name in unset}
    os.environ.update(unset)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _is_local(uri: str) -> bool:
    return uri.startswith(("sqlite:", "file:")) or not (":" in uri or uri.startswith(("databricks", "uc")))


def _without_password(text: str, uri: str | None = None) -> str:
    """Return a URI, or a message that quotes the URI `uri`, with the password replaced by asterisks."""
    password = urlsplit(text if uri is None else uri).password
    return text.replace(f":{password}@", ":***@") if password else text


def _reason(error: Exception, uri: str) -> str:
    """Return a short one-line description of an error; for a network error, that of its root cause."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    root = chain[-1]
    if isinstance(root, TimeoutError):
        return "it does not answer" if root is not error else f"it does not answer: {error}"
    text = (root.strerror if isinstance(root, OSError) else None) or str(error)
    line = one_line(_without_password((text.strip().splitlines() or [type(error).__name__])[0], uri))
    return line if len(line) <= 300 else f"{line[:297]}..."
