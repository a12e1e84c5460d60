"""Ways to be rewarded for nothing, known from other systems with measured rewards; none of them is rewarded.

A plan holds decisions and never code, so most of these programs cannot be written as plans. The tests put them in the
plan's place inside the worker, to show that the measurement would not be fooled either.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.finalists import Finalists, confirm
from compiler.fusion.policies import DEFAULT_POLICY, make_policy
from compiler.plan import CompilationPlan
from compiler.session import CompilationSession
from compiler.text import parse
from env.comparison import difference
from env.environments import FusionEnv
from env.gate import judge
from env.measurement import Measurement, MeasurementError, Measurer, MeasurerOptions, ReferenceFailedError
from env.racing import Budget, race
from env.rewards import FAILURE_REWARD, SLOWEST_REWARD
from env.store import PlanStore
from env.suites import Program, load_suite
from env.worker_process import WorkerProcess
from tests.env.scripted import FAILED, ScriptedMeasurer, taking
from tests.env.small_programs import CHAIN, write_suite

OPTIONS = MeasurerOptions(rounds=5, timeout=60, seconds=0.1)

_WORKER = """
import ctypes, os
import env.worker as w
from compiler.backends.cpu.executable import _ENTRY
{fault}
w.main()
"""
# Replaces the entry point of the plan while it is timed; `run` is the real one. The default is first timed alone.
_ENTRY_FAULT = """
real = w.race
def race(default, candidate, inputs, budget, load):
    if candidate.func.__self__ is default.func.__self__:
        return real(default, candidate, inputs, budget, load)
    executable = candidate.func.__self__
    address, run, calls = executable._entry_address, executable._entry, []
    @_ENTRY
    def entry(*memory):
        calls.append(0)
        {body}
    executable._entry_address = ctypes.cast(entry, ctypes.c_void_p).value
    try:
        return real(default, candidate, inputs, budget, load)
    finally:
        executable._entry_address = address
w.race = race
"""


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return load_suite(write_suite(tmp_path)).find("chain")


def plan(policy: str = "none") -> CompilationPlan:
    session = CompilationSession(parse(CHAIN))
    session.run_passes()
    session.run_fusion_policy(make_policy(policy))
    return session.plan


def measured(program: Program, fault: str, chosen: CompilationPlan | None = None) -> Measurement:
    worker = WorkerProcess([sys.executable, "-c", _WORKER.format(fault=fault)])
    with Measurer(options=OPTIONS, worker=worker) as measurer:
        measurer.measure_reference(program)
        return measurer.measure(program, chosen or plan())


# ---- programs that do not do the work while they are timed


@pytest.mark.parametrize(
    "body",
    [
        "pass",  # 1. no work at all: outputs are left from the check before the timing
        "run(*memory) if len(calls) % 2 == 0 else None",  # 2. every other call: calls batched into one
        "run(*memory) if len(calls) < 3 else None",  # 3. only the first calls: cached outputs
        # 20. memoised by the identity of the inputs: the same input objects each time
        "key = ctypes.cast(memory[1], ctypes.POINTER(ctypes.c_void_p))[0]; calls.append(key)\n"
        "        run(*memory) if calls.count(key) == 1 else None",
    ],
)
def test_a_program_that_skips_its_work_is_wrong(body: str, program: Program) -> None:
    # The default's race with itself is not faulty: the plan's is the second one.
    found = measured(program, _ENTRY_FAULT.format(body=body))
    assert found.failure == "wrong"
    assert "after it was timed" in found.message


def test_outputs_kept_from_an_earlier_call_are_wrong(program: Program) -> None:  # 4. cached outputs
    fault = """
real = w.PlanReplays.compile
class Cached:
    def __init__(self, executable): self.executable, self.kept = executable, []
    def __getattr__(self, name): return getattr(self.executable, name)
    def __call__(self, *arrays):
        self.kept = self.kept or self.executable(*arrays)
        return self.kept
w.PlanReplays.compile = lambda *args: Cached(real(*args))
"""
    assert measured(program, fault).failure == "wrong"


def test_changing_the_arguments_is_wrong(program: Program) -> None:  # 5. easier inputs for the next call
    fault = """
real = w.fresh_outputs
def fresh_outputs(executable, reference):
    outputs = real(executable, reference)
    if len(executable.thunks) > 2:
        reference.inputs[0][...] = 0
    return outputs
w.fresh_outputs = fresh_outputs
"""
    found = measured(program, fault)
    assert found.failure == "wrong"
    assert "changes arguments" in found.message


# ---- clocks


@pytest.mark.parametrize("seconds", [0.0, 1e-12, math.nan, -1.0])  # 6. a patched timer; 7. time 0 by underflow
def test_times_that_no_machine_reaches_are_refused(
    seconds: float, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Measurer(options=OPTIONS) as measurer:
        measurer.measure_reference(program)
        ask = measurer._ask

        def patched(request: dict[str, Any]) -> dict[str, Any]:
            reply = ask(request)
            for block in reply.get("blocks", ()):
                block[1] = block[2] = seconds
            return reply

        monkeypatch.setattr(measurer, "_ask", patched)
        found = measurer.measure(program, plan())
        assert found.failure == "wrong"
        assert "which no machine undercuts" in found.message


class _Machine:
    """Programs on a machine with a clock of its own; `cost` gives the seconds of a program after another one."""

    def __init__(self, cost: Callable[[str, str], float]) -> None:
        self.cost, self.last = cost, ""

    def runner(self, name: str) -> Callable[[Sequence[Any], int], tuple[list[float], Sequence[Any]]]:
        def run(arrays: Sequence[Any], repeats: int) -> tuple[list[float], Sequence[Any]]:
            del arrays
            seconds = []
            for _ in range(repeats):
                seconds.append(self.cost(name, self.last))
                self.last = name
            return seconds, ()

        return run


def raced(cost: Callable[[str, str], float]) -> float:
    machine = _Machine(cost)
    blocks, looks, _ = race(machine.runner("default"), machine.runner("plan"), [[]], Budget(), lambda: 1e-4)
    return judge(blocks, looks=looks).counted


def test_slowing_down_whoever_runs_next_is_not_rewarded() -> None:  # 8. a candidate that harms the default
    assert raced(lambda name, last: 0.04 + 0.01 * (name == "default" and last == "plan")) == 1.0


def test_warm_caches_are_not_rewarded() -> None:  # 9. faster only right after itself, as in a loop of the same call
    assert raced(lambda name, last: 0.04 - 0.01 * (name == last == "plan")) == 1.0


def test_an_honest_gain_is_found_on_that_machine() -> None:
    assert raced(lambda name, _: 0.04 - 0.01 * (name == "plan")) == pytest.approx(4 / 3)


# ---- outputs that are nearly right


@pytest.mark.parametrize("wrong", [0.0, math.nan, 1.001])  # 10. small elements hidden behind a large one
def test_one_wrong_element_is_wrong_however_large_the_others_are(wrong: float) -> None:
    want = np.full(1000, 1e9, np.float32)
    want[7] = 1.0
    got = want.copy()
    got[7] = wrong
    assert difference([got], [want]) is not None


def test_a_part_that_is_not_written_is_wrong(program: Program) -> None:  # 11. less work than asked for
    fault = _ENTRY_FAULT.format(
        body="""run(*memory)
        ctypes.memset(ctypes.cast(memory[2], ctypes.POINTER(ctypes.c_void_p))[0], 0xA5, 64)"""
    )
    assert measured(program, fault).failure == "wrong"


# ---- plans


def test_plans_hold_no_code(program: Program) -> None:  # 12. code in the place of decisions
    data = json.loads(plan().to_json())
    with Measurer(options=OPTIONS) as measurer:
        honest = measurer._prepare(program, json.dumps(data))
        for extra in ({"source": "int main;"}, {"kernels": {"e": {"d": {"source": "x"}}}}, {"objects": {"k": "/x.so"}}):
            reply = measurer._prepare(program, json.dumps({**data, **extra}))
            assert reply.get("error") == "compile" or reply["build"] == honest["build"]


def test_a_plan_of_another_program_is_not_used(program: Program) -> None:  # 13. the plan of an easier program
    with Measurer(options=OPTIONS) as measurer:
        assert measurer.measure(program, CompilationPlan(fingerprint="0" * 64)).failure == "compile"


def test_the_default_plan_in_disguise_is_worth_nothing(program: Program) -> None:  # 14. hoping for noise
    with Measurer(options=OPTIONS) as measurer:
        for _ in range(3):
            found = measurer.measure(program, plan(DEFAULT_POLICY), remeasure=True)
            assert found.speedup == 1.0


# ---- failures, stores and replies


def test_a_failure_is_worth_less_than_the_slowest_plan(tmp_path: Path) -> None:  # 15. crash rather than be slow
    suite = write_suite(tmp_path / "suite")
    rewards = []
    for entry in (taking(1e6), FAILED):
        env = FusionEnv(suite, measured=True, measurer=ScriptedMeasurer(entry))
        env.reset(options={"program": "chain"})
        ended = False
        while not ended:
            _, reward, ended, *_ = env.step(int(np.flatnonzero(env.action_masks())[-1]))
        rewards.append(reward)
    assert rewards == [SLOWEST_REWARD, FAILURE_REWARD]
    assert FAILURE_REWARD < SLOWEST_REWARD < 0


def test_breaking_the_default_plan_is_no_gain(program: Program) -> None:  # 16. sabotage of the opponent
    fault = """
def compile_hlo(*args, **kwargs):
    raise w.HlogymError("sabotaged")
w.compile_hlo = compile_hlo  # of the default plan only
"""
    worker = WorkerProcess([sys.executable, "-c", _WORKER.format(fault=fault)])
    with Measurer(options=OPTIONS, worker=worker) as measurer:
        found = measurer.measure(program, plan())
        assert found.failure == "program"
        with pytest.raises(ReferenceFailedError, match="sabotaged"):
            measurer.measure_reference(program)


def test_a_poisoned_store_is_not_believed_when_it_matters(program: Program, tmp_path: Path) -> None:  # 17.
    path = tmp_path / "t.sqlite"
    with Measurer(PlanStore(path), OPTIONS) as measurer:
        measurer.measure(program, plan())
    with PlanStore(path) as store:
        changed = "speedup = 9, speedup_low = 9, speedup_high = 9, counts = 1, base = 9 * seconds"
        both = "base_low = 9 * seconds_low, base_high = 9 * seconds_high"  # otherwise the times would contradict it
        store._db.execute(f"UPDATE plan_times SET {changed}, {both}")  # noqa: S608
        store._db.commit()
    with Measurer(PlanStore(path), OPTIONS) as measurer:
        found = measurer.measure(program, plan())
        assert found.speedup == 9.0  # the store was believed so far
        finalists = Finalists()
        finalists.note(plan(), found)
        confirmed = confirm(measurer, program, finalists)
        assert confirmed is None or confirmed.measurement.speedup < 5
        assert measurer.measure(program, plan()).speedup < 5  # and the poisoned time is gone


def test_a_poisoned_cache_of_compiled_code_is_not_rewarded(  # 21. a persistent cache with the code of another program
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HLOGYM_CACHE", str(tmp_path / "cache"))
    with Measurer(options=OPTIONS) as measurer:
        assert measurer.measure(program, plan()).failure is None
        objects = sorted((tmp_path / "cache" / "objects").glob("*.so"))
        assert objects
        for path in objects:  # the content is replaced under the same name
            path.chmod(0o644)
            path.write_bytes(objects[0].read_bytes()[:-1] + b"!")
        measurer.restart()
        found = measurer.measure(program, plan(), remeasure=True)
        assert found.failure is None  # it was noticed, and compiled again
        for folder in (tmp_path / "cache").glob("kernels-*"):
            entries = [entry for entry in folder.rglob("*") if entry.is_file()]
            for entry in entries:  # every key leads to the same object
                entry.write_text(entries[0].read_text())
        measurer.restart()
        with pytest.raises(MeasurementError, match="has no function"):
            measurer.measure(program, plan(), remeasure=True)


def test_measuring_until_noise_looks_like_a_gain_is_not_rewarded() -> None:  # 22. optional stopping
    rng = np.random.default_rng(5)

    def run(_: Sequence[Any], repeats: int) -> tuple[list[float], Sequence[Any]]:
        return (20e-3 * np.exp(0.05 * rng.standard_normal(repeats))).tolist(), ()

    gains = 0
    for _ in range(100):
        blocks, looks, _ = race(run, run, [[]], Budget(seconds=9.0), lambda: 1e-4)
        gains += judge(blocks, looks=looks).gain
    assert gains <= 1


def test_a_kernel_cannot_forge_a_reply(program: Program) -> None:  # 18. printing the measurement
    fault = """
real = w.fresh_outputs
def fresh_outputs(*args):
    os.write(1, b'{"blocks": [[1, 1e-9, 1e-9, 1, 0]], "floor": 0, "kernels": []}\\\\n')
    return real(*args)
w.fresh_outputs = fresh_outputs
"""
    found = measured(program, fault)
    assert found.failure is None
    assert found.speedup < 100


def test_refused_actions_and_stalling_are_not_rewarded(tmp_path: Path) -> None:  # 19. never to end the episode
    env = FusionEnv(write_suite(tmp_path / "suite"), measured=True, measurer=ScriptedMeasurer(), max_steps=5)
    env.reset(options={"program": "chain"})
    illegal = len(env.action_masks()) - 1
    total, ended = 0.0, False
    while not ended:
        _, reward, terminated, truncated, _ = env.step(illegal)
        total, ended = total + float(reward), terminated or truncated
    assert total < 0
