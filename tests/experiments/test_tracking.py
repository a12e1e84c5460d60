"""Tracking accepts any name, fails within seconds if a server does not answer, and tolerates a later outage."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.exceptions import MlflowException
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from mlflow.tracking import MlflowClient

import experiments.mlflow_store
import experiments.tracking
from compiler.support.safe_names import metric_name
from experiments.tracking import TrackedRun, TrackingError, check_store, download_policy


@pytest.fixture(autouse=True)
def local_store(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_HTTP_REQUEST_MAX_RETRIES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for all tests, because creating its tables takes seconds."""
    return tmp_path_factory.mktemp("runs #1 100% [x] é")


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen(50)
        yield f"http://127.0.0.1:{s.getsockname()[1]}"


def client_of(store: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{store / 'mlflow.db'}")


def test_metrics_params_and_tags_of_any_name(store: Path, tmp_path: Path) -> None:
    names = ("a[b]|c<d>$x$", "../../evil", "é", "a b", "x" * 300, "", "/x", "a\nb", "plain")
    with TrackedRun(store, "run [1] $x$") as tracked:
        tracked.metrics({**{f"speedup.{n}": 2.0 for n in names}, "nan": float("nan")}, 3)
        tracked.metrics({f"m{i}": 1.0 for i in range(1500)}, 4)  # MLflow accepts 1000 at once
        tracked.params(dict.fromkeys(names, "v" * 10_000))
        tracked.params({"plain": "another value", "more": 1})  # as in a resumed run
        tracked.tags(dict.fromkeys(names, "x"))
        (tmp_path / "p [1].txt").write_text("x")
        tracked.artifacts(tmp_path / "p [1].txt", "files")
    data = client_of(store).get_run(tracked.run_id).data
    assert {metric_name(f"speedup.{n}") for n in names} <= data.metrics.keys()
    assert len(data.metrics) == len(names) + 1500
    assert {metric_name(n) for n in names} <= data.params.keys()
    assert data.params["more"] == "1"
    assert {metric_name(n) for n in names} <= data.tags.keys()


def test_a_run_that_is_continued_from_an_earlier_step_has_each_step_once(store: Path) -> None:
    with TrackedRun(store, "killed") as tracked:
        for step in (16, 32, 48):
            tracked.metrics({"speedup": 1.0, "loss": 1.0}, step)
    with TrackedRun(store, "killed", tracked.run_id) as continued:
        for step in (32, 48, 64):
            continued.metrics({"speedup": 2.0, "new": 2.0}, step)
        continued.metrics({"speedup": 3.0}, 64)  # what one training logs is not looked at again
    client = client_of(store)
    history = {n: [(m.step, m.value) for m in client.get_metric_history(tracked.run_id, n)] for n in ("speedup", "new")}
    assert history["speedup"] == [(16, 1), (32, 1), (48, 1), (64, 2), (64, 3)]
    assert history["new"] == [(32, 2), (48, 2), (64, 2)]


def test_a_server_that_does_not_answer_raises_one_error_within_seconds(
    tmp_path: Path, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiments.mlflow_store, "REQUEST_SECONDS", 1)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", silent)
    before = dict(os.environ)
    start = time.monotonic()
    attempts: list[Callable[[], object]] = [
        lambda: TrackedRun(tmp_path, "r"), lambda: TrackedRun(tmp_path, "r", "0" * 32),
        lambda: check_store(tmp_path), lambda: download_policy(tmp_path, "0" * 32, tmp_path),
    ]  # fmt: skip
    for attempt in attempts:
        with pytest.raises(TrackingError, match="does not answer") as caught:
            attempt()
        assert silent in str(caught.value)
        assert "MLFLOW_TRACKING_URI" in str(caught.value)
        assert "MLFLOW_HTTP_REQUEST_TIMEOUT" in str(caught.value)
    assert time.monotonic() - start < 60  # without the limits, MLflow takes 200 s for one of them
    assert dict(os.environ) == before
    assert list(tmp_path.iterdir()) == []


def test_a_request_that_blocks_for_too_long_is_given_up(
    tmp_path: Path, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiments.mlflow_store, "REQUEST_SECONDS", 3600)
    monkeypatch.setattr(experiments.mlflow_store, "OPENING_SECONDS", 0.5)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", silent)
    with pytest.raises(TrackingError, match="does not answer"):
        check_store(tmp_path)


def test_the_users_timeouts_are_respected(tmp_path: Path, silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str | None, str | None]] = []

    def look(self: MlflowClient, name: str) -> None:
        seen.append((os.environ.get("MLFLOW_HTTP_REQUEST_TIMEOUT"), os.environ.get("MLFLOW_HTTP_REQUEST_MAX_RETRIES")))

    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", look)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", silent)
    check_store(tmp_path)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    check_store(tmp_path)
    assert seen == [("5", "0"), ("77", "0")]


@pytest.mark.parametrize("uri", ["http://user:secret@127.0.0.1:9", "http://no-such-host.invalid", "nonsense://x"])
def test_an_unreachable_server_is_reported_without_its_password(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(TrackingError, match="cannot use the MLflow server") as caught:
        TrackedRun(tmp_path, "r")
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_damaged_local_store_raises_one_error_and_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"no database" * 1000)
    with pytest.raises(TrackingError, match=r"mlflow\.db"):
        TrackedRun(tmp_path, "r")
    assert (tmp_path / "mlflow.db").read_bytes() == b"no database" * 1000


def test_a_failed_creation_leaves_no_local_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill or a full disk while the tables are created must not leave a partial database."""
    seen: list[list[str]] = []

    def full(self: MlflowClient, **_: Any) -> None:
        seen.append([p.name for p in tmp_path.iterdir() if p.name == "mlflow.db"])
        raise MlflowException("database or disk is full")

    monkeypatch.setattr(MlflowClient, "search_experiments", full)
    with pytest.raises(TrackingError, match="disk is full"):
        check_store(tmp_path)
    assert seen == [[]]
    assert list(tmp_path.iterdir()) == []


def _columns(database: Path) -> list[tuple[str, ...]]:
    with contextlib.closing(sqlite3.connect(database)) as opened:
        found = opened.execute("SELECT m.name, c.name, c.type FROM sqlite_master m, pragma_table_info(m.name) c")
        return sorted(found.fetchall())


def test_tables_are_kept_for_the_next_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLOGYM_CACHE", str(tmp_path / "cache"))
    check_store(tmp_path / "first")
    (kept,) = (tmp_path / "cache" / "mlflow").iterdir()
    made = kept.read_bytes()
    check_store(tmp_path / "second")
    assert _columns(tmp_path / "second" / "mlflow.db") == _columns(tmp_path / "first" / "mlflow.db")
    for name in ("first", "second"):  # each is a store of its own
        client = MlflowClient(f"sqlite:///{tmp_path / name / 'mlflow.db'}")
        assert [e.name for e in client.search_experiments()] == ["Default"]
        client.create_experiment(name)
    assert kept.read_bytes() == made

    kept.write_bytes(made[:5000])
    check_store(tmp_path / "third")
    assert _columns(tmp_path / "third" / "mlflow.db") == _columns(tmp_path / "first" / "mlflow.db")
    assert len(kept.read_bytes()) == len(made)


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("a file")
    monkeypatch.setenv("HLOGYM_CACHE", str(tmp_path / "cache"))
    check_store(tmp_path / "runs")
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["mlflow.db"]


@pytest.mark.parametrize("name", ["a?b", "a%20b"])
def test_a_folder_that_cannot_be_part_of_a_uri_is_rejected(tmp_path: Path, name: str) -> None:
    """MLflow would create its store elsewhere: a question mark ends the path, and an escape is decoded."""
    (tmp_path / name).mkdir()
    with pytest.raises(TrackingError, match="name another folder"):
        TrackedRun(tmp_path / name, "r")
    assert [p.name for p in tmp_path.rglob("*")] == [name]


@pytest.mark.parametrize("named", [True, False])
def test_an_unusable_local_store_raises_one_error_within_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """MLflow alone would retry for 100 s."""
    monkeypatch.setattr(experiments.mlflow_store, "OPENING_SECONDS", 0.2)
    database = tmp_path / "mlflow.db"
    if named:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")
    start = time.monotonic()
    database.mkdir()
    with pytest.raises(TrackingError, match="unable to open"):
        check_store(tmp_path)
    database.rmdir()
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("CREATE TABLE t (x)")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(TrackingError, match="locked"):
            check_store(tmp_path)
    assert time.monotonic() - start < 30


def test_a_run_on_a_server_prints_nothing(
    store: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """MLflow prints links to a run on a server when it ends, among the JSON that a command has printed."""
    monkeypatch.setattr("mlflow.tracking._tracking_service.client.RestStore", SqlAlchemyStore)
    monkeypatch.setattr(
        SqlAlchemyStore, "get_host_creds", lambda _: SimpleNamespace(host="http://server"), raising=False
    )
    with TrackedRun(store, "r") as tracked:
        pass
    with TrackedRun(store, "r", tracked.run_id):
        pass
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("uri", "advice"),
    [
        ("mlruns", "set MLFLOW_TRACKING_URI to sqlite:///FILE or"),
        ("file:///nowhere/mlruns", "set MLFLOW_TRACKING_URI to sqlite:///FILE or"),
        ("sqlite:////dev/full", "check its permissions, its disk"),
    ],
)
def test_a_store_that_cannot_be_used_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, advice: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(TrackingError) as caught:
        check_store(tmp_path)
    assert advice in str(caught.value)
    assert "damaged" not in str(caught.value)


def test_a_deleted_experiment_is_named_before_training_with_the_command_that_restores_it(tmp_path: Path) -> None:
    with TrackedRun(tmp_path, "r"):
        pass
    client = client_of(tmp_path)
    experiment = client.get_experiment_by_name("hlogym")
    assert experiment is not None
    client.delete_experiment(experiment.experiment_id)
    begin: list[Callable[[], object]] = [lambda: check_store(tmp_path), lambda: TrackedRun(tmp_path, "s")]
    for use in begin:
        with pytest.raises(TrackingError, match=r"was deleted; restore it with .*mlflow experiments restore") as caught:
            use()
        assert f"--experiment-id {experiment.experiment_id}" in str(caught.value)
        assert "damaged" not in str(caught.value)
    client.restore_experiment(experiment.experiment_id)
    check_store(tmp_path)


def test_a_store_that_another_run_has_created_is_kept(tmp_path: Path) -> None:
    (tmp_path / "draft").write_text("ours")
    (tmp_path / "mlflow.db").write_text("theirs")
    experiments.mlflow_store._put_in_place(tmp_path / "draft", tmp_path / "mlflow.db")
    assert (tmp_path / "mlflow.db").read_text() == "theirs"


# ---- a store that fails during a run


class Outage:
    """Makes all requests of a client fail while `down` is True."""

    def __init__(self, tracked: TrackedRun, monkeypatch: pytest.MonkeyPatch) -> None:
        self.down, self.attempts, self.now = True, 0, 1000.0
        for name in ("log_batch", "log_param", "set_tag", "log_artifact", "set_terminated"):
            monkeypatch.setattr(tracked._client, name, self._wrapped(getattr(tracked._client, name)))
        monkeypatch.setattr("experiments.tracking.time.monotonic", lambda: self.now)

    def _wrapped(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if self.down:
                self.attempts += 1
                raise MlflowException("API request to http://x failed with exception ...")
            return method(*arguments, **named)

        return call


def test_unsent_data_is_sent_after_an_outage(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tracked = TrackedRun(store, "outage")
    outage = Outage(tracked, monkeypatch)
    (tmp_path / "plan.json").write_text("{}")
    with tracked:
        tracked.params({"a": 1})
        for step in range(50):
            tracked.metrics({"speedup": float(step)}, step)
        tracked.artifacts(tmp_path / "plan.json", "plans")
        assert outage.attempts == 1  # an attempt may take seconds, so there is a pause before the next one
        outage.now += 31
        tracked.tags({"t": "x"})
        assert outage.attempts == 2
        outage.now += 31
        tracked.metrics({"speedup": 50.0}, 50)
        assert outage.attempts == 2  # the pauses get longer
        outage.down = False
        outage.now += 31
        tracked.metrics({"speedup": 51.0}, 51)
    history = client_of(store).get_metric_history(tracked.run_id, "speedup")
    assert sorted((m.step, m.value) for m in history) == [(n, float(n)) for n in range(52)]
    found = client_of(store).get_run(tracked.run_id)
    assert (found.data.params["a"], found.data.tags["t"], found.info.status) == ("1", "x", "FINISHED")
    message = " ".join(capsys.readouterr().err.split())
    assert message.count("warning") == 1
    assert "cannot write to the MLflow store" in message


def test_missing_data_is_reported_at_the_end(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(experiments.tracking, "MAX_WAITING", 20)
    tracked = TrackedRun(store, "gone for good")
    Outage(tracked, monkeypatch)
    with tracked:
        tracked.tags({"t": "x"})
        for step in range(50):
            tracked.metrics({"speedup": 1.0}, step)
    message = " ".join(capsys.readouterr().err.split())
    assert message.count("cannot write to the MLflow store") == 1
    assert "not tracked" in message
    assert "50 metric updates" in message
    assert "tags" in message


def test_an_outage_does_not_hide_the_error_of_a_run(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracked = TrackedRun(store, "broken")
    Outage(tracked, monkeypatch)
    with pytest.raises(ZeroDivisionError), tracked:
        raise ZeroDivisionError


def test_a_locked_local_store_does_not_end_a_run(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def locked(*_: Any, **__: Any) -> None:
        raise sqlite3.OperationalError("database is locked")

    tracked = TrackedRun(store, "locked")
    with tracked, monkeypatch.context() as patched:
        patched.setattr(tracked._client, "log_batch", locked)
        tracked.metrics({"speedup": 1.0}, 1)
    assert "database is locked" in capsys.readouterr().err
    assert [m.step for m in client_of(store).get_metric_history(tracked.run_id, "speedup")] == [1]
