"""The names that `import hlogym` provides."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import compiler
import hlogym
from compiler.errors import ArgumentError, HlogymError, OptionError

TEXT = "ENTRY e { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }"


def test_a_program_compiles_and_runs() -> None:
    x = np.arange(4, dtype=np.float32)
    (y,) = hlogym.compile(TEXT)(x)
    np.testing.assert_array_equal(y, -x)


@pytest.mark.parametrize("program", [None, 3, TEXT.encode(), np.zeros(3)])
def test_a_program_of_another_type_is_rejected(program: Any) -> None:
    with pytest.raises(TypeError, match="a program is HLO text or an HloModule"):
        hlogym.compile(program)


def test_values_of_other_types_are_refused() -> None:
    with pytest.raises(HlogymError, match="parse takes HLO text, not b'HloModule m'"):
        hlogym.parse(b"HloModule m")  # type: ignore[arg-type]
    with pytest.raises(HlogymError, match="options are a CompileOptions, not 4"):
        hlogym.compile(hlogym.parse("ENTRY e { ROOT x = f32[] constant(1) }"), options=4)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", [None, 3, ["cpu"]])
def test_a_backend_of_another_type_is_rejected(backend: Any) -> None:
    with pytest.raises(TypeError, match="name of a backend must be a string"):
        hlogym.compile(TEXT, backend=backend)


def test_arguments_that_are_not_arrays_are_rejected() -> None:
    executable = hlogym.compile(TEXT)
    for argument, said in (
        (torch.ones(4, requires_grad=True), "numpy cannot read a Tensor"),
        ([[1], [1, 2]], "numpy cannot read a list"),
        (np.ones(4, ">f4"), "in the byte order of another machine"),
    ):
        with pytest.raises(ArgumentError, match=said):
            executable(argument)


def test_it_exports_all_functions_of_the_compiler() -> None:
    offered = {name for name in vars(compiler) if not name.startswith("_") and name in vars(hlogym)}
    functions = {name for name, value in vars(compiler).items() if callable(value) and not name.startswith("_")}
    assert functions <= offered


def test_the_environments_are_registered() -> None:
    environment = gym.make("hlogym/Fusion-v0", suite="quickstart")
    environment.reset(seed=0, options={"program": "softmax"})
    environment.close()


def test_making_an_environment_imports_no_large_package() -> None:
    program = (
        "import sys, hlogym, gymnasium; "
        "gymnasium.make('hlogym/PassOrder-v0', suite='quickstart').reset(options={'program': 'softmax'}); "
        "large = {'torch', 'mlflow', 'jax', 'stable_baselines3', 'matplotlib', 'scipy'}; "
        "print(sorted(large & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True,
        cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("pipeline", 3, "a pipeline is a pass, its text, or a list"),
        ("pipeline", {}, "a pipeline is a pass, its text, or a list"),
        ("pipeline", [3], "a pass is an HloPass or its text, not 3"),
        ("loop_policy", 3, "a loop policy has choose_loop"),
        ("policy", "", "policy is a name, a folder or a Policy, not ''"),
    ],
)
def test_wrong_arguments_of_compile_say_what_is_expected(argument: str, value: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        hlogym.compile(TEXT, **{argument: value})


def test_other_wrong_arguments_say_what_is_expected() -> None:
    with pytest.raises(ArgumentError, match=r"parse\(text\) makes one"):
        hlogym.CompilationSession(TEXT)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"cannot parse 'dce,cse' as a pass.*several passes are a list"):
        hlogym.compile(TEXT, pipeline="dce,cse")
    executable, x = hlogym.compile(TEXT), np.zeros(4, np.float32)
    for repeats in (0, -1, "3", 2.0):
        with pytest.raises(ArgumentError, match="at least 1"):
            executable.profile(x, repeats=repeats)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="at least 1"):
            executable.benchmark([x], repeats=repeats)  # type: ignore[arg-type]


def test_paths_are_strings_or_path_objects() -> None:
    executable = hlogym.compile(TEXT)
    assert executable.plan is not None
    calls: list[Callable[[Any], object]] = [
        executable.save, executable.plan.save, hlogym.load, hlogym.CompilationPlan.load, hlogym.load_policy,
        hlogym.load_pass_order,
    ]  # fmt: skip
    for call in calls:
        others: list[Any] = [None, 3, [], np.zeros(2)]
        for other in others:
            with pytest.raises(ArgumentError, match="given by its path, a string"):
                call(other)
        for text in ("", "a\0b", "\ud800"):
            with pytest.raises(HlogymError, match="is not a valid path for a"):
                call(text)
    for name in ("x" * 5000, "no-policy"):
        with pytest.raises(HlogymError, match="unknown policy or folder of a policy"):
            hlogym.compile(TEXT, policy=name)


@pytest.mark.parametrize("steps", [0, -1, float("nan"), True, "3"])
@pytest.mark.parametrize("name", ["Fusion", "PassOrder"])
def test_episodes_have_a_positive_number_of_steps(name: str, steps: Any) -> None:
    with pytest.raises(OptionError, match="max_steps must be a positive integer"):
        gym.make(f"hlogym/{name}-v0", suite="quickstart", max_steps=steps)
