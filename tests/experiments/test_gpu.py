"""`python -m experiments.gpu` on the stand-in: parts, restarts, failures, and what it imports."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from compiler.backends.cuda.gpu_models import gpu_model
from compiler.errors import BackendError, UnknownNameError
from env.reference import Reference
from experiments.gpu.command import check_device, chosen_parts, main, run_parts
from experiments.gpu.device import Device, open_device
from experiments.gpu.job import GpuResultError, Job, result_file
from experiments.gpu.kernel_times import default_kernels
from experiments.gpu.model_fit import fitted, model_of
from experiments.gpu.parts import PARTS, Part
from experiments.gpu.pool import Reply, Request, Worker, run_tasks
from experiments.gpu.settings import Settings
from experiments.gpu.worker import TASKS, answer

ROOT = Path(__file__).parents[2]
PROGRAM = {"suite": "linear_algebra", "program": "partial_product", "seed": 0}


@dataclass(frozen=True)
class FakePart(Part):
    """A part that calls a function."""

    function: Callable[[Job], None] = lambda job: None

    @property
    def run(self) -> Callable[[Job], None]:
        return self.function


def settings_in(folder: Path, **values: Any) -> Settings:
    return Settings(folder, stand_in=True, workers=1, **values)


def run_with(folder: Path, *functions: Callable[[Job], None]) -> None:
    run_parts(settings_in(folder), [FakePart(f"part{n}", 60.0, "a part", function=f) for n, f in enumerate(functions)])


def saved(folder: Path, part: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result_file(folder, part).read_text(encoding="utf-8"))
    return found


# ---- the whole command


def test_the_command_runs_on_the_stand_in(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    main(["--out", str(tmp_path), "--stand-in", "--programs", "partial_product", "--workers", "1",
          "--parts", "correctness,sanitizer"])  # fmt: skip
    rows = saved(tmp_path, "correctness")["rows"]
    assert [r["name"] for r in rows] == ["linear_algebra/partial_product", "linear_algebra/partial_product schedules 1"]
    assert all(r["finding"] is None and r["kernels"] > 0 for r in rows)
    assert saved(tmp_path, "sanitizer")["skipped"] == "there is no GPU"
    page = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert "| linear_algebra | default | 1 | 1 | 0 | 0 |" in page
    assert "skipped: there is no GPU" in page
    assert "linear_algebra/partial_product" not in capfd.readouterr().err


def test_without_a_gpu_the_command_says_so() -> None:
    if (problem := _why_no_gpu()) is None:
        pytest.skip("there is a GPU")
    with pytest.raises(BackendError, match=r"no GPU can be used here: .*--stand-in") as caught:
        check_device(Settings(Path("unused")))
    assert problem in str(caught.value)
    assert "BackendError" not in str(caught.value)


def _why_no_gpu() -> str | None:
    try:
        with open_device(stand_in=False):
            return None
    except BackendError as error:
        return str(error)


def test_parts_are_named() -> None:
    assert chosen_parts(None) == list(PARTS)
    assert [p.name for p in chosen_parts("races,environment")] == ["environment", "races"]
    with pytest.raises(UnknownNameError, match="race"):
        chosen_parts("race")


def test_programs_are_named_and_the_limit_is_positive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results"
    with pytest.raises(UnknownNameError, match="softmax"):
        main(["--out", str(out), "--stand-in", "--programs", "softmx"])
    with pytest.raises(SystemExit):
        main(["--out", str(out), "--stand-in", "--seconds", "-4"])
    assert "--seconds must be positive, not -4" in capsys.readouterr().err
    assert not out.exists()


def test_it_imports_only_what_a_gpu_machine_has() -> None:
    code = """
import importlib, pkgutil, sys
absent = "gymnasium stable_baselines3 sb3_contrib mlflow rich typer yaml safetensors ray jax torch cupy matplotlib"
sys.modules.update(dict.fromkeys(absent.split()))
import experiments.gpu
for module in pkgutil.iter_modules(experiments.gpu.__path__):
    if module.name not in ("__main__", "short_training"):
        importlib.import_module(f"experiments.gpu.{module.name}")
from experiments.gpu.device import Device
from experiments.gpu.worker import answer
request = {"op": "check", "suite": "linear_algebra", "program": "partial_product", "seed": 0, "schedules": None}
print(answer(Device("interpreter", None), request)["finding"])
files = {n.partition(".")[0]: getattr(m, "__file__", None) or "" for n, m in sys.modules.items()}
print(" ".join(n for n, file in files.items() if "site-packages" in file))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    finding, modules = done.stdout.splitlines()
    assert finding == "None"
    # NumPy and SciPy import the last one and private modules of their own where these are installed.
    known = {"numpy", "scipy", "ml_dtypes", "charset_normalizer"}
    assert {n for n in modules.split() if not n.startswith("_")} <= known


# ---- restarts and failures


def test_a_part_that_is_complete_is_not_run_again(tmp_path: Path) -> None:
    runs: list[str] = []

    def once(job: Job) -> None:
        runs.append("run")
        job.add("a task", {"value": 1})

    for _ in range(2):
        run_with(tmp_path, once)
    assert runs == ["run"]
    assert saved(tmp_path, "part0")["rows"] == [{"name": "a task", "value": 1}]


def test_a_part_that_ran_out_of_time_goes_on_with_the_tasks_that_are_left(tmp_path: Path) -> None:
    runs: list[set[str]] = []

    def half(job: Job) -> None:
        runs.append(job.done())
        job.add(f"task {len(runs)}", {})
        job.is_whole = len(runs) == 2

    for _ in range(3):
        run_with(tmp_path, half)
    assert runs == [set(), {"task 1"}]
    assert [r["name"] for r in saved(tmp_path, "part0")["rows"]] == ["task 1", "task 2"]
    assert saved(tmp_path, "part0")["complete"]


def test_a_part_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    def failing(job: Job) -> None:
        job.add("a task", {})
        raise BackendError("there is no such kernel")

    run_with(tmp_path, failing, lambda job: job.add("another", {}))
    first, second = saved(tmp_path, "part0"), saved(tmp_path, "part1")
    assert not first["complete"]
    assert first["rows"] == [{"name": "a task"}]
    assert "there is no such kernel" in first["errors"][0]["error"]
    assert second["complete"]


def test_a_part_that_failed_is_tried_again(tmp_path: Path) -> None:
    def failing(job: Job) -> None:
        job.fail("a task", "its kernel is wrong")
        raise BackendError("the driver is gone")

    run_with(tmp_path, failing)
    run_with(tmp_path, lambda job: job.add("another", {}))
    assert [e["error"] for e in saved(tmp_path, "part0")["errors"]] == ["its kernel is wrong"]
    assert saved(tmp_path, "part0")["complete"]


def test_results_of_the_stand_in_do_not_count_in_a_run_on_a_gpu(tmp_path: Path) -> None:
    run_with(tmp_path, lambda job: job.add("a task", {}))
    job, complete = Job.open(Settings(tmp_path), "part0", time.monotonic() + 60)
    assert not complete
    assert job.done() == set()


def test_a_run_that_is_killed_leaves_the_page_and_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(job: Job) -> None:
        del job
        raise KeyboardInterrupt

    parts = [FakePart("sanitizer", 60.0, "a part"), FakePart("training", 60.0, "a part", function=killed)]
    monkeypatch.setattr("experiments.gpu.command.chosen_parts", lambda _: parts)
    with pytest.raises(KeyboardInterrupt):
        main(["--out", str(tmp_path), "--stand-in"])
    with ZipFile(tmp_path / "gpu.zip") as archive:
        assert archive.read("gpu.md") == (tmp_path / "gpu.md").read_bytes()
        assert json.loads(archive.read("sanitizer.json"))["complete"]


def test_another_file_of_that_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "part0.json").write_text('{"rows": 1}', encoding="utf-8")
    with pytest.raises(GpuResultError, match="is no result of this command"):
        run_with(tmp_path, lambda job: None)


# ---- workers


class FakeWorker:
    """Replies to tasks by name, and counts how many of its kind were closed."""

    closed = 0

    def __init__(self, replies: dict[str, Reply]) -> None:
        self.replies = replies

    def ask(self, request: Request, timeout: float) -> Reply:
        del timeout
        return self.replies[request["name"]]

    def close(self) -> None:
        FakeWorker.closed += 1


def tasks(*names: str) -> list[Request]:
    return [{"op": "check", "name": n} for n in names]


def test_a_lost_worker_does_not_end_the_other_tasks() -> None:
    replies: dict[str, Reply] = {"a": {"finding": None}, "b": {"error": "signal SIGSEGV", "lost": True}, "c": {"n": 1}}
    make: Any = lambda: FakeWorker(replies)  # noqa: E731
    FakeWorker.closed = 0
    found = {r["name"]: reply for r, reply in run_tasks(tasks("a", "b", "c"), 2, make, 10.0, lambda: 100.0)}
    assert found == replies
    assert FakeWorker.closed == 2


def test_no_task_begins_when_no_time_is_left() -> None:
    make: Any = lambda: FakeWorker({"a": {}})  # noqa: E731
    assert list(run_tasks(tasks("a", "a"), 1, make, 10.0, lambda: 0.0)) == []


def test_a_task_that_the_end_of_the_part_cuts_short_has_not_failed() -> None:
    make: Any = lambda: FakeWorker({"a": {"error": "no reply", "lost": True, "late": True}})  # noqa: E731
    assert list(run_tasks(tasks("a"), 1, make, 10.0, lambda: 5.0)) == []
    assert len(list(run_tasks(tasks("a"), 1, make, 10.0, lambda: 50.0))) == 1


@pytest.mark.slow
def test_a_worker_that_crashed_is_replaced() -> None:
    worker = Worker(stand_in=True)
    request = {
        "op": "check",
        "name": "x",
        "suite": "linear_algebra",
        "program": "no such",
        "seed": 0,
        "schedules": None,
    }
    try:
        assert "no such" in worker.ask(request, 60.0)["error"]
        pid = worker.pid
        assert pid is not None
        os.kill(pid, signal.SIGSEGV)
        again = worker.ask(request, 60.0)
        assert "no such" in again["error"] or again["lost"]
        assert "no such" in worker.ask(request, 60.0)["error"]
    finally:
        worker.close()


# ---- tasks


@pytest.fixture
def device() -> Device:
    return Device("cpu", None)


def test_every_task_exists() -> None:
    from importlib import import_module

    for task, module in TASKS.items():
        assert callable(getattr(import_module(module), task))


def test_wrong_outputs_are_found_and_the_kernel_is_named(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    from experiments.gpu import correctness

    monkeypatch.setattr(correctness, "fresh_outputs", lambda executable, reference: [
        o + 1 for o in reference.outputs])  # fmt: skip
    reply = answer(device, {"op": "check", "schedules": None, **PROGRAM})
    assert "elements differ" in reply["finding"]
    monkeypatch.setattr(Reference, "difference", lambda self, got, tolerance=None: "all is wrong")
    found = answer(device, {"op": "locate", "schedules": None, **PROGRAM})["kernels"]
    assert found
    assert all(k["problem"] == "all is wrong" and k["symbol"].startswith("hk_") for k in found)


def test_a_kernel_that_makes_the_gpu_unusable_is_named() -> None:
    with open_device(stand_in=True) as gpu:
        from compiler.api import compile as compile_hlo
        from env.suites import load_suite

        program = load_suite("linear_algebra").find("partial_product")
        symbol = compile_hlo(program.text(), "cuda").kernels[0].symbol
        assert gpu.simulated is not None
        gpu.simulated.failing[symbol] = 700
        request = {"schedules": None, **PROGRAM}
        reply = answer(gpu, {"op": "check", **request})
        assert reply["lost"]
        assert symbol in reply["error"]
    with open_device(stand_in=True) as fresh:
        assert fresh.simulated is not None
        fresh.simulated.failing[symbol] = 700
        (kernel,) = answer(fresh, {"op": "locate", **request})["kernels"]
        assert kernel["symbol"] == symbol
        assert "illegal address" in kernel["problem"]


def test_choices_are_timed_beside_the_default(device: Device) -> None:
    request = {"suite": "kernels", "program": "chain_f32_128x256", "seed": 0, "budget": 3}
    assert answer(device, {"op": "build_choices", **request})["built"] >= 2
    (kernel,) = answer(device, {"op": "time_choices", **request})["kernels"]
    assert len(kernel["times"]) >= 2
    assert kernel["best_choice"] in kernel["times"]
    assert set(kernel["choices"]) == set(kernel["times"])
    assert all(t > 0 for t in (*kernel["default"], *kernel["best"], *kernel["times"].values()))


def test_a_race_without_peers_says_why(device: Device) -> None:
    reply = answer(device, {"op": "race", "suite": "kernels", "program": "chain_f32_128x256", "seed": 0})
    assert list(reply["samples"]) == ["hlogym"]
    assert set(reply["failures"]) == {"xla", "inductor", "eager"}
    assert reply["bytes"] == 3 * 128 * 256 * 4


def test_kernels_are_timed_for_the_model(device: Device) -> None:
    (kernel,) = answer(device, {"op": "time_kernels", "suite": "kernels", "program": "chain_f32_128x256", "seed": 0})[
        "kernels"
    ]
    assert kernel["seconds"] > 0
    assert kernel["symbol"].startswith("hk_")


def test_the_model_is_fitted_to_kernels_by_their_symbols() -> None:
    specs = [spec for _, spec in default_kernels("kernels", "chain_f32_128x256", "cuda")]
    measured = [{**s.to_json(), "seconds": 5e-6} for s in specs] + [{**specs[0].to_json(), "symbol": "hk_other"}]
    request = {"op": "kernel_work", "name": "kernels/chain_f32_128x256", "measured": measured}
    row = answer(Device("cuda", None), request)
    assert len(row["kernels"]) == len(specs)
    assert list(row["left_out"].values()) == ["this version of the compiler makes another kernel"]
    facts = fitted([row], gpu_model("h100"))
    assert facts["kernels"] == len(specs)
    for k in row["kernels"]:
        assert abs(math.log(k["fitted"] / 5e-6)) < abs(math.log(k["predicted"] / 5e-6))
    assert facts["constants"]["multiprocessors"] == gpu_model("h100").multiprocessors  # a fact, which is not fitted


def test_the_model_of_the_device_is_taken(tmp_path: Path) -> None:
    job, _ = Job.open(settings_in(tmp_path), "model_fit", time.monotonic())
    assert model_of(job).name == "h100"
    h200 = FakePart("environment", 60.0, "", function=lambda j: j.facts.update(device="NVIDIA H200"))
    run_parts(settings_in(tmp_path), [h200])
    assert model_of(job).name == "h200"


def test_the_fit_is_skipped_without_times(tmp_path: Path) -> None:
    run_parts(settings_in(tmp_path), [p for p in PARTS if p.name == "model_fit"])
    assert saved(tmp_path, "model_fit")["skipped"] == "no kernels were timed"
