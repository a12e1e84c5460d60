"""Programs that cannot be compiled or measured raise errors that name them; they never give a reward."""

import math
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from compiler.errors import OptionError
from env.base import CompilerEnv
from env.baseline import ProgramError
from env.environments import CompileEnv, FusionEnv, PassOrderEnv, UnrollEnv
from env.measurement import Measurement, MeasurementError, Measurer, MeasurerOptions, ReferenceFailedError
from env.rewards import FAILURE_REWARD
from env.speedup_measurer import SUSPICIOUS_FAILURES
from env.suites import Program, Suite
from env.worker_process import WorkerProcess
from tests.env.scripted import FAILED, ScriptedMeasurer, taking
from tests.env.small_programs import write_suite

CLASSES = (FusionEnv, UnrollEnv, PassOrderEnv, CompileEnv)
_FAULTY = """
import os, signal, time
import env.worker as w
{fault}
w.main()
"""
UNPARSED = "HloModule m\nENTRY e { x = f32[4] parameter(0) ROOT y = f32[4] frobnicate(x) }\n"
INVALID = "HloModule m\nENTRY e { x = f32[4] parameter(0) ROOT y = f32[5] negate(x) }\n"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    return write_suite(tmp_path / "suite")


def measurer(fault: str) -> Measurer:
    worker = WorkerProcess([sys.executable, "-c", _FAULTY.format(fault=fault)])
    return Measurer(options=MeasurerOptions(rounds=3), worker=worker)


def end_episode(env: Any) -> tuple[float, dict[str, Any]]:
    """Take the last legal action until the episode ends; return the last reward and info."""
    env.reset(options={"program": "chain"})
    while True:
        _, reward, terminated, truncated, info = env.step(int(np.flatnonzero(env.action_masks())[-1]))
        if terminated or truncated:
            return reward, info


def unchecked(folder: Path, **sources: str | bytes) -> Suite:
    """Write files and return a suite of the folder that was not checked, as if the files had changed after loading."""
    for name, text in sources.items():
        (folder / f"{name}.hlo").write_bytes(text.encode() if isinstance(text, str) else text)
    return Suite("changed", tuple(Program(p.stem, "changed", "train", p, "") for p in sorted(folder.glob("*.hlo"))))


@pytest.mark.parametrize("cls", CLASSES)
def test_wrong_arguments_are_named(cls: type[Any], suite: Path) -> None:
    for arguments, named in (
        ({"suite": 3}, "suite must be .* got 3"),
        ({"suite": None}, "suite must be .* got None"),
        ({"shared": 3}, "shared must be .* got 3"),
        ({"suite": "s" * 5000}, "unknown suite"),
        ({"backend": "gpu"}, "unknown backend 'gpu'"),
        ({"measured": "no"}, "measured must be True or False, not 'no'"),
        ({"measurer": 3}, "measurer must be a Measurer, got 3"),
        ({"store": 3}, "given by its path, .* not 3"),
        ({"workers": 2}, "cannot read 2 as workers"),
        ({"max_steps": 1.5}, "max_steps must be a positive integer, not 1.5"),
        ({"passes": 3}, "passes are named .* not 3"),
        ({"passes": ["cse", 3]}, "passes are named .* not 3"),
    ):
        with pytest.raises((TypeError, ValueError), match=named):
            cls(**({"suite": suite} | arguments))
    own: dict[str, Any] = {"phases": 3, "automatic": "no", "splits": None}
    if cls is PassOrderEnv:
        own = {"step_cost": math.nan, "verified": "no"}
    for name, value in own.items():
        with pytest.raises(OptionError, match=f"{name} .* not {value!r}"):
            cls(suite, **{name: value})
    env = cls(suite)
    for options, named in (
        ({"programm": "chain"}, "did you mean 'program'"),
        ("chain", "options must be a dict .* got 'chain'"),
    ):
        with pytest.raises((TypeError, ValueError), match=named):
            env.reset(options=options)
    env.reset(options={"program": "chain"})
    for action in (0.5, "a", None, np.array([0, 1]), np.float32(0)):
        with pytest.raises(TypeError, match="an action is an integer"):
            env.step(action)
    for whole in (0, np.int64(0), np.array(0), np.array([0])):
        env.reset(options={"program": "chain"})
        env.step(whole)


def test_programs_that_cannot_be_used_are_named_all_at_once(suite: Path) -> None:
    env = FusionEnv(unchecked(suite, unparsed=UNPARSED, invalid=INVALID, latin=b"HloModule \xff"))
    (suite / "loop.hlo").unlink()
    seen: list[str] = []
    with pytest.raises(ProgramError) as caught:
        env.check_programs(lambda program: seen.append(program.name))
    message = str(caught.value)
    assert "4 of 5 programs" in message
    for name, reason in (("unparsed", "frobnicate"), ("invalid", "f32[5]"), ("latin", "not text"), ("loop", "No such")):
        line = next(line for line in message.splitlines() if f"'{name}'" in line)
        assert str(suite / f"{name}.hlo") in line
        assert reason in message
    assert seen == ["chain", "invalid", "latin", "loop", "unparsed"]


@pytest.mark.parametrize("cls", CLASSES)
def test_a_program_that_cannot_be_compiled_names_itself_and_its_file(cls: type[CompilerEnv[Any]], suite: Path) -> None:
    env = cls(unchecked(suite, invalid=INVALID))
    with pytest.raises(ProgramError, match=r"'invalid' \(.*invalid\.hlo\)"):
        env.reset(options={"program": "invalid"})


def test_references_that_fail_are_named_all_at_once(suite: Path) -> None:
    fault = """
real = w.difference
w.difference = lambda got, *more: "all wrong" if got[0].shape == (256,) else real(got, *more)
"""
    with measurer(fault) as m, pytest.raises(ProgramError, match=r"1 of 2 programs.*\n.*'loop' .*: wrong: all wrong"):
        FusionEnv(suite, measured=True, measurer=m).check_programs()


def test_a_suite_of_copies_has_nothing_to_measure(tmp_path: Path) -> None:
    suite = unchecked(tmp_path, same="HloModule same\nENTRY e { ROOT x = f32[4] parameter(0) }\n")
    with measurer("") as m, pytest.raises(ProgramError, match="nothing to measure"):
        FusionEnv(suite, measured=True, measurer=m).check_programs()


def test_a_machine_on_which_nothing_can_be_measured_is_one_error(suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("env.patient_worker.RETRY_PAUSES", (0,))
    fault = "w.compile_hlo = lambda *a, **k: (_ for _ in ()).throw(OSError(28, 'No space left on device'))"
    with measurer(fault) as m, pytest.raises(MeasurementError, match="No space left on device") as caught:
        FusionEnv(suite, measured=True, measurer=m).check_programs()
    assert not isinstance(caught.value, ReferenceFailedError)


@pytest.mark.parametrize("cls", CLASSES)
def test_a_step_without_a_reference_raises(cls: type[CompilerEnv[Any]], suite: Path) -> None:
    (suite / "loop.hlo").unlink()
    with measurer("w.difference = lambda *a: 'all wrong'") as m:
        env = cls(suite, measured=True, measurer=m)
        with pytest.raises(MeasurementError, match=r"'chain' .*: wrong: all wrong"):
            end_episode(env)


def test_a_plan_that_fails_gets_the_failure_reward(suite: Path) -> None:
    with ScriptedMeasurer(FAILED) as m:
        reward, info = end_episode(FusionEnv(suite, measured=True, measurer=m))
        assert reward == FAILURE_REWARD
        assert (info["measurement"]["failure"], info["measurement"]["message"]) == ("wrong", "all wrong")


def test_a_failure_of_the_program_raises(suite: Path) -> None:
    m = ScriptedMeasurer(Measurement(None, "program", "inputs cannot be drawn"))
    with m, pytest.raises(MeasurementError, match=r"chain\.hlo.*inputs cannot be drawn"):
        end_episode(FusionEnv(suite, measured=True, measurer=m))


def test_the_reference_is_measured_again_after_many_failures_in_a_row(suite: Path) -> None:
    n = SUSPICIOUS_FAILURES
    m = ScriptedMeasurer(*[FAILED] * (n - 1), taking(0.5), *[FAILED] * 2 * n)
    with m:
        env = FusionEnv(suite, measured=True, measurer=m)
        for _ in range(n + n - 1):
            end_episode(env)
        assert m.verified == 0  # a success lies between
        end_episode(env)
        assert m.verified == 1
        m.broken = True
        with pytest.raises(MeasurementError, match="fails now"):
            for _ in range(n):
                end_episode(env)


def test_a_plan_with_nothing_to_run_has_a_finite_reward(suite: Path) -> None:
    with ScriptedMeasurer(taking(1e-9)) as m:
        reward, info = end_episode(FusionEnv(suite, measured=True, measurer=m))
        assert np.isfinite(reward)
        assert info["speedup"] > 1e6


def test_checked_programs_are_not_compiled_again(suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env: Any = gym.make("env:hlogym/PassOrder-v0", suite=str(suite)).unwrapped
    env.check_programs()
    monkeypatch.setattr("env.baseline.parse", lambda *_, **__: pytest.fail("parsed again"))
    env.reset(options={"program": "chain"})
