"""Measuring on a Ray cluster: actors and nodes may be killed, and nothing is lost or charged to plans."""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from compiler.fusion.policies import make_policy
from compiler.learned.fusion_policy import load_policy
from compiler.plan import CompilationPlan
from compiler.session import CompilationSession
from compiler.text import parse
from env.isolated import child_environment, python_command
from env.measurement import Measurement, MeasurementError, MeasurerOptions
from env.rewards import FAILURE_REWARD
from env.store import PlanStore, PlanTime, StoreError
from env.suites import Program, load_suite
from env.workers import Workers, WorkersError, parse_workers
from experiments.run_folder import RunFolder, read_progress
from experiments.validation_results import read_validation
from tests.env.small_programs import CHAIN, write_suite

OPTIONS = MeasurerOptions(rounds=9, seconds=0.2, timeout=60)
MEMORY = 80 << 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A head node without cores for actors, and two more nodes with one core each."""
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": MEMORY}
    made = _started(lambda: Cluster(initialize_head=True, head_node_args=head))
    for _ in range(2):
        _started(lambda: made.add_node(num_cpus=1, object_store_memory=MEMORY))
    ray.init(address=made.address, namespace="hlogym", log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


def _started(start: Callable[[], Any]) -> Any:
    """Start a node; Ray waits 30 s for it, which a busy machine may need several times."""
    for _ in range(3):
        try:
            return start()
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
    pytest.skip("Ray cannot start a node within 30 s on this machine")


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return load_suite(write_suite(tmp_path / "suite")).find("chain")


def plans() -> list[CompilationPlan]:
    found = {}
    for policy in ("none", "priority", "greedy", "default"):
        session = CompilationSession(parse(CHAIN))
        session.run_passes()
        session.run_fusion_policy(make_policy(policy))
        found[session.plan.to_json()] = session.plan
    session = CompilationSession(parse(CHAIN))
    session.run_passes()
    session.run_fusion_policy(make_policy("default"))
    site = max(session.kernel_sites(), key=lambda s: s.choices.size)
    for choice in [c for c in site.offered(20) if site.check(c) is None][:8]:
        changed = session.fork()
        changed.set_kernel(site, choice)
        found[changed.plan.to_json()] = changed.plan
    return list(found.values())


def hlogym(folder: Path, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line with a cache of its own."""
    own = {"HLOGYM_CACHE": str(folder / "cache"), "MLFLOW_TRACKING_URI": "", "RAY_USAGE_STATS_ENABLED": "0"}
    return subprocess.run(
        python_command("from experiments.cli import main; main()", *map(str, arguments)),
        env={**child_environment(), **own, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_actors_the_owner_of_the_store_and_a_node_are_killed_and_nothing_is_lost(
    cluster: Any, program: Program, tmp_path: Path
) -> None:
    from env.ray_measurer import RayMeasurer, RayStore

    path = tmp_path / "t.sqlite"
    requests = [(program, plan) for plan in plans()]
    extra = _started(lambda: cluster.add_node(num_cpus=1, object_store_memory=MEMORY))  # the node that is killed
    killed = []

    def kill(service: Any, number: int) -> None:
        if number == 1:  # a measuring actor, in the middle of a measurement
            actor = next(m for m in service._measurers if isinstance(m, RayMeasurer))
            assert actor.actor_pid is not None
            os.kill(actor.actor_pid, signal.SIGKILL)
            killed.append("actor")
        elif number == 3:  # the owner of the store
            os.kill(RayStore(path, OPTIONS.keep_seconds).call("pid"), signal.SIGKILL)
            killed.append("owner")
        elif number == 5:
            cluster.remove_node(extra, allow_graceful=False)
            killed.append("node")

    found: dict[int, Measurement] = {}
    with parse_workers("ray#3").service(path, OPTIONS) as service:
        for count, (number, measurement) in enumerate(service.measure(requests)):
            found[number] = measurement
            kill(service, count)
        assert service.restarts >= 2
    assert killed == ["actor", "owner", "node"]
    assert sorted(found) == list(range(len(requests)))
    assert [m.failure for m in found.values()] == [None] * len(requests)
    with PlanStore(path) as store:
        (kept,) = store._db.execute("SELECT COUNT(*) FROM plan_times").fetchone()
    assert 4 <= kept <= len(requests)  # one per compiled code
    with parse_workers("local").measurer(path, OPTIONS) as measurer:  # the same machine and host, so the same keys
        assert all(measurer.measure(*request).new == 0 for request in requests)


def test_a_killed_actor_and_a_killed_owner_are_replaced(cluster: Any, program: Program, tmp_path: Path) -> None:
    from env.ray_measurer import RayMeasurer, RayStore

    path = tmp_path / "t.sqlite"
    with Workers("auto").measurer(path, OPTIONS) as measurer:
        assert isinstance(measurer, RayMeasurer)
        first = measurer.measure_reference(program)
        assert measurer.actor_pid is not None
        os.kill(measurer.actor_pid, signal.SIGKILL)
        os.kill(RayStore(path, OPTIONS.keep_seconds).call("pid"), signal.SIGKILL)
        for plan in plans()[:2]:
            assert measurer.measure(program, plan).failure is None
        assert measurer.restarts == 1
    with parse_workers("local").measurer(path, OPTIONS) as local:  # nothing that was stored is lost
        again = local.measure(program, None)
        assert again.new == 0
        assert again.seconds == first.seconds


def test_plans_that_fail_kill_no_actor(cluster: Any, program: Program) -> None:
    with Workers("auto").measurer(":memory:", OPTIONS) as measurer:
        before = measurer.measure_reference(program)
        wrong = measurer.measure(program, CompilationPlan(fingerprint="0" * 64))
        assert wrong.failure == "compile"
        compared = measurer.compare(program, {"default": None, "again": None}, 3)
        assert sorted(compared.samples) == ["again", "default"]
        assert measurer.check(program, None) is None
        assert measurer.check(program, None, "HloModule") is not None
        measurer.restart()
        assert measurer.measure(program, None) is before
        assert measurer.restarts == 0


def test_an_environment_measures_on_the_cluster(cluster: Any, tmp_path: Path) -> None:
    suite = write_suite(tmp_path / "suite")
    env: Any = gym.make("hlogym/FusionMeasured-v0", suite=suite, workers="ray", store=":memory:").unwrapped
    env.reset(seed=0, options={"program": "chain"})
    ended = False
    while not ended:
        _, reward, ended, *_ = env.step(int(np.flatnonzero(env.action_masks())[0]))
    assert type(env.measurer).__name__ == "RayMeasurer"
    assert reward > FAILURE_REWARD
    env.close()


def test_a_cluster_without_free_cores_says_so(cluster: Any, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    from env import ray_measurer

    monkeypatch.setattr(ray_measurer, "START_SECONDS", 1.0)
    options = MeasurerOptions(cores=64)
    with (
        Workers("auto").measurer(":memory:", options) as measurer,
        pytest.raises(MeasurementError, match="no node of the Ray cluster has 64 free cores"),
    ):
        measurer.measure(program, None)


def test_errors_of_the_store_reach_the_caller(cluster: Any, program: Program, tmp_path: Path) -> None:
    path = tmp_path / "broken.sqlite"
    path.write_text("this is no database" * 100)
    with (
        Workers("auto").measurer(path, OPTIONS) as measurer,
        pytest.raises(StoreError, match="damaged, or no store of measured plans"),
    ):
        measurer.measure(program, None)


def test_several_writers_use_one_owner(cluster: Any, tmp_path: Path) -> None:
    from env.gate import Block, judge
    from env.ray_measurer import RayStore

    verdict = judge([Block((2.0, 1.0, 1.0, 2.0), 1.0)] * 9)
    stores = [RayStore(tmp_path / "t.sqlite", 60.0) for _ in range(4)]

    def write(writer: int) -> None:
        for n in range(25):
            stores[writer].put(PlanTime(f"{writer}-{n}", "p", verdict, 0.1, time.time()))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({store.call("pid") for store in stores}) == 1
    found = stores[0].get("3-24")
    assert found is not None
    assert found.verdict == verdict
    assert stores[0].get("4-0") is None


@pytest.mark.timeout(600)
def test_a_training_measures_on_the_cluster(cluster: Any, tmp_path: Path) -> None:
    """The whole command, with an environment for each core of the cluster; the trainer itself measures, too."""
    suite = write_suite(tmp_path / "suite")
    done = hlogym(
        tmp_path, "train", "--env", "hlogym/UnrollMeasured-v0", "--suite", suite, "--workers", "ray#2", "--name", "run",
        "--timesteps", 256, "--backend", "cpu", "--runs", tmp_path / "runs", "--set", f"eval_suite={suite}",
        "--set", "n_steps=128", "--set", "batch_size=64", "--set", "n_epochs=1", "--set", "hidden=8",
        RAY_ADDRESS=cluster.address,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = RunFolder(tmp_path / "runs" / "run")
    points = read_progress(run.progress)
    assert [p["timesteps"] for p in points] == [128, 256]
    assert points[-1]["episodes"] > 64
    assert points[-1]["failures"] == 0
    assert set(points[-1]["programs"]) == {"chain", "loop"}
    validation = read_validation(run.validation)
    assert validation is not None
    assert all(o.speedup is not None for o in validation[0].programs.values())
    assert load_policy(run.policy).provenance["reward"] == "measured-time"


@pytest.mark.parametrize("address", ["auto", "ray://127.0.0.1:PORT", "ray://no.such.host.invalid:10001"])
def test_a_cluster_that_does_not_answer_is_one_message(tmp_path: Path, address: str) -> None:
    pytest.importorskip("ray")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = str(unused.getsockname()[1])
        chain = write_suite(tmp_path / "suite") / "chain.hlo"
        workers = "ray" if address == "auto" else address.replace("PORT", port)
        done = hlogym(
            tmp_path, "tune", chain, "--workers", workers, "-o", tmp_path / "p.json", RAY_ADDRESS=f"127.0.0.1:{port}"
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot connect to the Ray cluster at ")
    assert "does not answer" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "workers"),
    [
        ("local", Workers(None, 1)),
        ("local:4", Workers(None, 4)),
        ("ray", Workers("auto", 1)),
        ("ray#3", Workers("auto", 3)),
        ("ray://head:10001#8", Workers("ray://head:10001", 8)),
    ],
)
def test_workers_are_read(text: str, workers: Workers) -> None:
    assert parse_workers(text) == workers
    assert parse_workers(str(workers)) == workers


@pytest.mark.parametrize("text", ["", "local:0", "ray#0", "http://head", "local:-1", "ray://", "local:4x"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(WorkersError, match="cannot read"):
        parse_workers(text)
