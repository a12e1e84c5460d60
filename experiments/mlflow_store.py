"""The MLflow store of a folder: a local SQLite file, or the server that MLFLOW_TRACKING_URI names."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import shlex
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlsplit

from compiler.errors import HlogymError
from compiler.support.files import DRAFT_PREFIX
from compiler.support.safe_names import one_line
from env.suites.locations import cache_folder

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

__all__ = [
    "EXPERIMENT",
    "TrackingError",
    "answered",
    "check_store",
    "existing_client",
    "is_missing",
    "open_client",
    "open_run",
    "reason_of",
    "short_requests",
    "store_of",
    "tracking_uri",
    "without_password",
]

T = TypeVar("T")
EXPERIMENT = "hlogym"
REQUEST_SECONDS = 5
OPENING_SECONDS = 10.0
DATABASE_SECONDS = 60.0  # the first use of a database creates its tables
_FAILURES = OSError, RuntimeError, sqlite3.Error
"""Of the cache folder, which may not be writable, or not be known."""
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


def check_store(folder: Path) -> None:
    """Check that the store can be used, and create a local one, before a run begins.

    Raises:
        TrackingError: the store cannot be used.
    """
    uri = tracking_uri(folder)
    answered(uri, lambda: _find_experiment(open_client(folder, uri), uri))


def store_of(track: bool | None, runs: Path) -> Path | None:
    """Return the folder in whose store a command records its results, or None.

    Args:
        track: what the user asked for; None: the results are recorded if there is a store already.
        runs: the folder of the local store.
    """
    known = bool(os.environ.get("MLFLOW_TRACKING_URI")) or _database(runs).exists()
    return runs if track or (track is None and known) else None


def open_client(folder: Path, uri: str) -> MlflowClient:
    """Return a client of a store; a local one is created if it does not exist."""
    # Importing MLflow takes seconds, so the command line does it only when needed.
    from mlflow.tracking import MlflowClient

    for quiet in ("mlflow", "alembic"):
        logging.getLogger(quiet).setLevel(logging.CRITICAL)  # their errors are reported by this module
    if _is_local(uri):
        folder.mkdir(parents=True, exist_ok=True)
    if (file := _file_of(uri)) is not None:
        _check_database(file)
    database = _database(folder)
    if not os.environ.get("MLFLOW_TRACKING_URI") and not database.exists():
        # A kill or a full disk while the tables are created would leave an unusable database.
        draft = folder.resolve() / f"{DRAFT_PREFIX}{secrets.token_hex(8)}.db"
        try:
            has_tables = _copy_tables(draft)
            MlflowClient(_sqlite(draft)).search_experiments(max_results=1)
            if not has_tables:
                _keep_tables(draft)
            _put_in_place(draft, database)
        finally:
            draft.unlink(missing_ok=True)
    return MlflowClient(uri)


def existing_client(folder: Path, uri: str) -> MlflowClient:
    """Return a client of a store to read from it; unlike `open_client`, never create a local one.

    Raises:
        TrackingError: there is no such store, or it cannot be used.
    """
    file = _file_of(uri)
    if file is not None and not file.exists():
        raise TrackingError(
            f"there is no MLflow store {without_password(uri)}; set MLFLOW_TRACKING_URI to the one that "
            "is meant, or run the command where its folder of runs is"
        )
    return answered(uri, lambda: open_client(folder, uri))


def _file_of(uri: str) -> Path | None:
    """Return the file of a SQLite store; None for other stores."""
    return Path(uri.removeprefix("sqlite:///").partition("?")[0]) if uri.startswith("sqlite:///") else None


def _tables() -> Path:
    """Return where the empty tables of this version of MLflow are kept, which it takes seconds to create."""
    return cache_folder() / "mlflow" / f"{version('mlflow')}.db"


def _copy_tables(draft: Path) -> bool:
    """Begin a database with the tables that are kept; return whether there are any."""
    try:
        shutil.copyfile(_tables(), draft)
        with contextlib.closing(sqlite3.connect(draft)) as opened:
            if opened.execute("PRAGMA quick_check").fetchall() == [("ok",)]:
                return True
    except _FAILURES:
        pass
    draft.unlink(missing_ok=True)
    return False


def _keep_tables(made: Path) -> None:
    """Keep the tables of a new database for the next one, if the cache can be written."""
    with contextlib.suppress(*_FAILURES):
        kept = _tables()
        draft = kept.with_name(f"{DRAFT_PREFIX}{secrets.token_hex(8)}.db")
        kept.parent.mkdir(parents=True, exist_ok=True)
        try:
            with contextlib.closing(sqlite3.connect(made)) as new, contextlib.closing(sqlite3.connect(draft)) as copy:
                new.backup(copy)
                copy.execute("DELETE FROM experiments")  # MLflow adds its default one, which knows the folder
                copy.commit()
            draft.replace(kept)
        finally:
            draft.unlink(missing_ok=True)


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


def open_run(
    client: MlflowClient, folder: Path, uri: str, name: str, run_id: str | None, tags: Mapping[str, str]
) -> tuple[Run, bool]:
    """Return a run, and whether it is a new one: the one of that id, or a new one if there is none."""
    from mlflow.exceptions import MlflowException

    if run_id is not None:
        try:
            client.set_terminated(run_id, "RUNNING")
            return client.get_run(run_id), False
        except MlflowException as error:
            if not is_missing(error):
                raise
            # The run was removed in the meantime; start a new one.
    made = client.create_run(
        _experiment(client, folder, uri), run_name=name, tags={"mlflow.source.name": "hlogym", **tags}
    )
    return made, True


def is_missing(error: Exception) -> bool:
    """Return whether MLflow reports by this error that it does not have what was asked for."""
    return getattr(error, "error_code", None) in _MISSING


def _experiment(client: MlflowClient, folder: Path, uri: str) -> str:
    found = _find_experiment(client, uri)
    if found is not None:
        return found
    place = (folder.resolve() / "mlartifacts").as_uri() if _is_local(uri) else None
    return str(client.create_experiment(EXPERIMENT, artifact_location=place))


def _find_experiment(client: MlflowClient, uri: str) -> str | None:
    """Return the id of the experiment of hlogym, or None if there is none yet.

    Raises:
        TrackingError: it was deleted; MLflow keeps it until it is restored or removed.
    """
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is not None and found.lifecycle_stage == "deleted":
        shown = without_password(uri)
        command = f"MLFLOW_TRACKING_URI={shlex.quote(shown)} mlflow experiments restore --experiment-id"
        raise TrackingError(
            f"the experiment {EXPERIMENT!r} of the MLflow store {shown} was deleted; restore it with "
            f"{command} {found.experiment_id}, or use another store"
        )
    return None if found is None else str(found.experiment_id)


def answered(uri: str, question: Callable[[], T]) -> T:
    """Return the result of a request to the store.

    Raises:
        TrackingError: the store cannot be used, or does not answer in time.
    """
    shown, patience = without_password(uri), _patience(uri)
    try:
        with short_requests():
            return question() if _is_local(uri) else _within(patience, question)
    except TrackingError:
        raise
    except Exception as error:  # the client propagates errors of its transport, its database and its migrations
        if _is_local(uri):
            raise TrackingError(
                f"cannot use the MLflow store {shown}: {reason_of(error, uri)}; {_local_remedy(uri, error)}"
            ) from error
        raise TrackingError(
            f"cannot use the MLflow server {shown}: {reason_of(error, uri)}; {_remedy(uri, error)}"
        ) from error


def _local_remedy(uri: str, error: Exception) -> str:
    """Return what a user can do about a local store that cannot be used."""
    if _file_of(uri) is None:
        return "set MLFLOW_TRACKING_URI to sqlite:///FILE or to the URL of a server, or unset it"
    if isinstance(_causes(error)[-1], sqlite3.OperationalError | OSError):
        return "it must be possible to write it: check its permissions, its disk, and who else uses it"
    return "if it is damaged, move it away, and a new one will be created"


def _remedy(uri: str, error: Exception) -> str:
    """Return what a user can do about a server that cannot be used."""
    first = "install it" if isinstance(error, ImportError) else "start it"  # the driver of a database, or the server
    if uri.startswith("http") and isinstance(_causes(error)[-1], TimeoutError):
        first += ", or allow more time with MLFLOW_HTTP_REQUEST_TIMEOUT=60"
    return f"{first}, or set MLFLOW_TRACKING_URI to another one, or unset it to keep runs in a local file"


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
def short_requests() -> Iterator[None]:
    """Limit MLflow's requests to a few seconds instead of minutes, unless the user has set the limits.

    MLflow does not print either: what commands print to standard output may be JSON.
    """
    limits = {
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(REQUEST_SECONDS),
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    }
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


def without_password(text: str, uri: str | None = None) -> str:
    """Return a URI, or a message that quotes the URI `uri`, with the password replaced by asterisks."""
    password = urlsplit(text if uri is None else uri).password
    return text.replace(f":{password}@", ":***@") if password else text


def reason_of(error: Exception, uri: str) -> str:
    """Return a short one-line description of an error; for a network error, that of its root cause."""
    root = _causes(error)[-1]
    if isinstance(root, TimeoutError):
        return "it does not answer" if root is not error else f"it does not answer: {error}"
    text = (root.strerror if isinstance(root, OSError) else None) or str(error)
    # SQLAlchemy may say in a first line in parentheses when it noticed the error.
    lines = [line for line in text.strip().splitlines() if not line.startswith("(raised as a result of")]
    line = one_line(without_password((lines or [type(error).__name__])[0], uri))
    return line if len(line) <= 300 else f"{line[:297]}..."


def _causes(error: BaseException) -> list[BaseException]:
    """Return an error and what caused it, the first cause last."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    return chain
