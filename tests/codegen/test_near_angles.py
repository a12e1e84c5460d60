"""Sines and cosines of small angles in loop kernels: errors, special values, and tiles with large angles."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from compiler.backends.cpu.toolchain import FLAGS, find_compiler
from compiler.codegen.nest.scalar_ops import NEAR_ANGLE
from compiler.codegen.printing.print_c import preamble
from compiler.codegen.schedules.schedule import Schedule
from compiler.codegen.templates.loop_kernel import make_loop_kernel
from compiler.interpreter import Context, evaluate_op
from env.reference import Reference
from tests.codegen import running
from tests.codegen.test_loop_kernel import N, loop

Array = npt.NDArray[Any]

PENDULUM = loop(
    "f32[200]; f32[200]",
    f"""{N}
    sx = f32[200] sine(x1)
    c = f32[200] cosine(x1)
    half = f32[] constant(0.5)
    hb = f32[200] broadcast(half), dimensions={{}}
    slow = f32[200] multiply(sx, hb)
    v = f32[200] subtract(x2, slow)
    a = f32[200] multiply(c, hb)
    y = f32[200] add(x1, a)
    ROOT r = STATE tuple(n, y, v)""",
    3,
)


def case(angles: Array, schedule: Schedule | None = None) -> running.Case:
    made = make_loop_kernel(PENDULUM, "c", schedule)
    args = [np.asarray(0, np.int32), angles, np.zeros_like(angles)]

    def run(arrays: Sequence[Any], context: Context) -> list[running.Array]:
        value: Any = evaluate_op(PENDULUM, [tuple(arrays)], context)
        return [np.asarray(value[k]) for k in made.outputs]

    return running.Case(made.spec, tuple(args[k] for k in made.inputs), Reference(run, args))


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Return a library with the two functions, applied to arrays."""
    folder = tmp_path_factory.mktemp("near")
    loops = "".join(
        f"void near_{f}(const float *x, float *y, long n) {{\n"
        f"  for (long k = 0; k < n; k++) y[k] = near_{f}_f32(x[k]);\n}}\n"
        for f in ("sin", "cos")
    )
    (folder / "near.c").write_text(preamble() + loops)
    command = [find_compiler(), *FLAGS, str(folder / "near.c"), "-o", str(folder / "near.so"), "-lmvec", "-lm"]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(Path(folder) / "near.so"))


def near(functions: ctypes.CDLL, name: str, x: Array) -> Array:
    y = np.empty_like(x)
    getattr(functions, f"near_{name}")(
        ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_long(x.size)
    )
    return y


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_errors_of_sampled_angles_are_within_two_units_in_the_last_place(functions: ctypes.CDLL, name: str) -> None:
    bits = np.arange(0, int(np.float32(NEAR_ANGLE).view(np.uint32)) + 1, 997, dtype=np.uint32)
    size = np.append(bits.view(np.float32), np.float32(NEAR_ANGLE))
    x = np.concatenate([size, -size])
    want = getattr(np, name)(x.astype(np.float64))
    ulps = np.abs(near(functions, name, x) - want) / np.spacing(np.abs(want).astype(np.float32)).astype(np.float64)
    assert ulps.max() <= 2


def test_nan_and_signed_zeros(functions: ctypes.CDLL) -> None:
    x = np.array([0.0, -0.0, np.nan, 1e-45, -1e-45], np.float32)
    sine = near(functions, "sin", x)
    assert np.array_equal(sine, x, equal_nan=True)
    assert np.signbit(sine[:2]).tolist() == [False, True]
    assert np.array_equal(near(functions, "cos", x), np.array([1, 1, np.nan, 1, 1], np.float32), equal_nan=True)


@pytest.mark.parametrize("special", [[], [3e5], [-1e30, np.inf], [np.nan], [NEAR_ANGLE, -NEAR_ANGLE, 65537.0]])
@pytest.mark.parametrize(
    "schedule", [None, Schedule(lanes=64, rare=64), Schedule(lanes=128, vector=256, rare=128)], ids=str
)
def test_tiles_with_and_without_large_angles(special: list[float], schedule: Schedule | None) -> None:
    angles = np.linspace(-50, 50, 200, dtype=np.float32)
    angles[70 : 70 + len(special)] = special
    pendulum = case(angles, schedule)
    assert "near_sin_f32" in pendulum.spec.source
    assert "= sinf(" in pendulum.spec.source
    (found,) = running.run_c([pendulum])
    assert running.problem(found, pendulum) is None


def test_loops_that_pass_through_memory_once_keep_the_plain_functions() -> None:
    fused = running.fused("x = f32[4096] parameter(0) ROOT r = f32[4096] sine(x)")
    assert "near_" not in running.kernel_of(fused, "c").source
    assert "near_" not in case(np.zeros(200, np.float32), Schedule(rare=0)).spec.source
    assert "near_" not in make_loop_kernel(PENDULUM, "cuda").spec.source
