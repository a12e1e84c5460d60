"""Calls of compiled programs: arguments, results, errors, and repeated and concurrent calls."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler import CompileOptions, compile
from compiler.backends.cpu import toolchain as cpu
from compiler.backends.cpu.blas import blas_threading
from compiler.backends.cpu.executable import CpuExecutable
from compiler.backends.cpu.native_runtime import RUNTIME
from compiler.errors import ArgumentError, BackendError, HlogymError, InterpreterError, UnsupportedError
from compiler.interpreter import evaluate, register_custom_call
from compiler.interpreter.registry import Value
from compiler.ir import HloInstruction
from compiler.ir.verifier import verify
from compiler.text import parse
from env.reference import Reference
from tests.codegen.running import problem

PLAIN = CompileOptions(optimize=False)
ADD = """
HloModule add
ENTRY main {
  a = f32[2,3] parameter(0)
  b = s32[] parameter(1)
  c = f32[] convert(b)
  d = f32[2,3] broadcast(c), dimensions={}
  ROOT r = f32[2,3] add(a, d)
}
"""
A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.int32(4)


# ---- arguments


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "takes 2 argument"),
        ((A,), "1 given"),
        ((A, B, B), "3 given"),
        ((A.T, B), "expected f32[2,3]"),
        ((A.astype(np.float64), B), "float64"),
        ((A, np.int64(4)), "int64"),
        ((A, np.array([4], np.int32)), "argument 1"),
        (("text", B), "argument 0"),
    ],
)
def test_mismatched_arguments_are_refused(backend: str, args: tuple[object, ...], message: str) -> None:
    exe = compile(ADD, backend=backend)
    with pytest.raises(ArgumentError) as e:
        exe(*args)
    assert isinstance(e.value, TypeError)
    assert message in str(e.value)


def test_arguments_may_have_any_memory_layout() -> None:
    exe = compile(ADD)
    wide = np.zeros((4, 9), np.float32)
    wide[::2, ::3] = A
    for a in (np.asfortranarray(A), wide[::2, ::3], A[:, ::-1].copy()[:, ::-1], A.tolist()):
        given = np.asarray(a, np.float32) if isinstance(a, list) else a
        np.testing.assert_array_equal(exe(given, B)[0], A + 4)


def test_arguments_are_not_modified() -> None:
    text = """
    HloModule m
    ENTRY main {
      a = f32[8] parameter(0)
      u = f32[2] parameter(1)
      i = s32[] constant(3)
      ROOT r = f32[8] dynamic-update-slice(a, u, i)
    }
    """
    a, u = np.zeros(8, np.float32), np.ones(2, np.float32)
    for options in (PLAIN, None):
        out = compile(text, options=options)(a, u)[0]
        assert a.sum() == 0
        assert out.sum() == 2


# ---- results


def test_scalar_results_are_zero_dimensional_arrays() -> None:
    text = """
    HloModule m
    ENTRY main {
      a = f32[] parameter(0)
      n = f32[] negate(a)
      ROOT r = (f32[], f32[]) tuple(n, a)
    }
    """
    for backend in ("cpu", "interpreter"):
        for out in compile(text, backend=backend)(np.float32(2)):
            assert isinstance(out, np.ndarray)
            assert out.shape == ()


def test_results_are_owned_by_the_caller() -> None:
    exe = compile(ADD)
    first = exe(A, B)[0]
    kept = first.copy()
    second = exe(A + 1, B)[0]
    np.testing.assert_array_equal(first, kept)
    first[...] = 0
    np.testing.assert_array_equal(second, A + 5)


@pytest.mark.parametrize("options", [PLAIN, None], ids=["plain", "optimized"])
def test_results_may_be_parameters_constants_or_duplicates(options: CompileOptions | None) -> None:
    text = """
    HloModule m
    ENTRY main {
      a = f32[4] parameter(0)
      k = s32[2] constant({3, 4})
      n = f32[4] negate(a)
      g = f32[2,2] reshape(n)
      ROOT r = (f32[4], s32[2], f32[4], f32[4], f32[2,2], f32[4]) tuple(a, k, n, n, g, a)
    }
    """
    a = np.arange(4, dtype=np.float32)
    exe = compile(text, options=options)
    outs = exe(a)
    assert problem(outs, evaluate(parse(text), [a])) is None
    outs[0][...] = 9
    outs[1][...] = 9
    outs[2][...] = 9
    assert a[3] == 3
    assert problem(exe(a), evaluate(parse(text), [a])) is None
    assert outs[3][3] == -3


def test_a_program_may_have_no_results() -> None:
    assert compile("HloModule m\nENTRY main {\n a = f32[3] parameter(0)\n ROOT r = () tuple()\n}")(A[0]) == []


def test_arrays_may_be_empty() -> None:
    text = """
    HloModule m
    add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }
    ENTRY main {
      a = f32[0,5] parameter(0)
      n = f32[0,5] negate(a)
      z = f32[] constant(7)
      s = f32[5] reduce(a, z), dimensions={0}, to_apply=add
      d = f32[0,0] dot(n, a), lhs_contracting_dims={1}, rhs_contracting_dims={1}
      e = f32[5,5] dot(n, a), lhs_contracting_dims={0}, rhs_contracting_dims={0}
      ROOT r = (f32[0,5], f32[5], f32[0,0], f32[5,5]) tuple(n, s, d, e)
    }
    """
    a = np.zeros((0, 5), np.float32)
    for options in (PLAIN, None):
        assert problem(compile(text, options=options)(a), evaluate(parse(text), [a])) is None


def test_results_may_be_large() -> None:
    text = "HloModule m\nENTRY main {\n a = f32[] parameter(0)\n ROOT r = f32[3000,2000] broadcast(a), dimensions={}\n}"
    out = compile(text)(np.float32(3))[0]
    assert out.shape == (3000, 2000)
    assert (out == 3).all()


@pytest.mark.parametrize("options", [PLAIN, None], ids=["plain", "optimized"])
def test_tuples_may_be_nested_and_contain_tokens(options: CompileOptions | None) -> None:
    text = """
    HloModule m
    ENTRY main {
      p = (f32[3], (s32[], f32[3])) parameter(0)
      q = f32[3] parameter(1)
      a = f32[3] get-tuple-element(p), index=0
      inner = (s32[], f32[3]) get-tuple-element(p), index=1
      n = s32[] get-tuple-element(inner), index=0
      b = f32[3] get-tuple-element(inner), index=1
      t = token[] after-all()
      s = f32[3] add(a, b)
      u = f32[3] multiply(s, q)
      pair = (f32[3], s32[]) tuple(u, n)
      ROOT r = ((f32[3], s32[]), token[], (s32[], f32[3])) tuple(pair, t, inner)
    }
    """
    a, n, b, q = (np.arange(3, dtype=np.float32) + k for k in range(4))
    flat = [a, np.int32(5), b, q]
    del n
    wanted = evaluate(parse(text), [(a, (np.int32(5), b)), q])
    assert problem(compile(text, options=options)(*flat), wanted) is None


def test_a_fusion_without_a_kernel_runs_op_by_op() -> None:
    text = """
    HloModule m
    less { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = pred[] compare(a, b), direction=LT }
    inside {
      x = f32[5,6] parameter(0)
      y = f32[6,4] parameter(1)
      d = f32[5,4] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
      s = f32[6,4] sort(y), dimensions={0}, to_apply=less
      n = f32[5,4] negate(d)
      ROOT r = (f32[5,4], f32[6,4]) tuple(n, s)
    }
    ENTRY main {
      a = f32[5,6] parameter(0)
      b = f32[6,4] parameter(1)
      f = (f32[5,4], f32[6,4]) fusion(a, b), kind=kOutput, calls=inside
      g = f32[5,4] get-tuple-element(f), index=0
      h = f32[6,4] get-tuple-element(f), index=1
      e = f32[5,4] tanh(g)
      ROOT r = (f32[5,4], f32[6,4]) tuple(e, h)
    }
    """
    rng = np.random.default_rng(3)
    args = [rng.normal(size=d).astype(np.float32) for d in ((5, 6), (6, 4))]
    for options in (PLAIN, None):
        assert problem(compile(text, options=options)(*args), Reference.of(parse(text), args)) is None


@pytest.mark.parametrize("make", [lambda x: x[:, ::2], lambda x: x[:, :6].copy("F"), lambda x: x[:, :6].tolist()])
def test_arrays_that_are_copied_are_passed_to_the_built_in_function(
    make: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not RUNTIME.calls_arrays:
        pytest.skip("the built-in functions do not work with this NumPy")
    exe = compile("HloModule m\nENTRY e { x = f64[5,6] parameter(0)\nROOT y = f64[5,6] add(x, x) }")
    assert isinstance(exe, CpuExecutable)
    x = make(np.arange(60.0).reshape(5, 12))
    exe(x)

    def called(*_: Any) -> None:
        pytest.fail("called through ctypes")

    monkeypatch.setattr(exe, "_call_from_python", called)
    np.testing.assert_array_equal(exe(x)[0], 2 * np.asarray(x))


# ---- host ops

HOST = """
HloModule m
less { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = pred[] compare(a, b), direction=LT }
ENTRY main {
  x = f32[6,6] parameter(0)
  e = f32[6,6] tanh(x)
  s = f32[6,6] sort(e), dimensions={1}, to_apply=less
  t = f32[6,6] transpose(x), dimensions={1,0}
  g = f32[6,6] dot(x, t), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  c = f32[6,6] cholesky(g), lower=true
  z = f32[] constant(0)
  p = f32[6,131] pad(s, z), padding=0_0x0_125
  k = c64[6,66] fft(p), fft_type=RFFT, fft_length={131}
  m = f32[6,66] real(k)
  i = f32[6,66] imag(k)
  y = f32[6,66] add(m, i)
  n = f32[6,6] negate(c)
  ROOT r = (f32[6,66], f32[6,6], c64[6,66]) tuple(y, n, k)
}
"""


def test_ops_without_kernels_match_the_interpreter() -> None:
    x = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32) + 3 * np.eye(6, dtype=np.float32)
    wanted = Reference.of(parse(HOST), [x])
    for options in (PLAIN, None):
        exe = compile(HOST, options=options)
        for _ in range(2):
            assert problem(exe(x), wanted) is None


FAILING = """
HloModule m
ENTRY main {
  a = f32[40,40] parameter(0)
  d = f32[40,40] dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  n = f32[40,40] negate(d)
  h = f32[40,40] custom-call(n), custom_call_target="fails_on_purpose"
  ROOT r = f32[40,40] dot(h, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def _fail(instruction: HloInstruction, values: Sequence[Value]) -> Value:
    raise InterpreterError(f"the target failed in %{instruction.name}")


register_custom_call("fails_on_purpose", _fail)


def test_an_error_in_a_host_op_is_raised_by_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    from compiler.backends.cpu import host_steps

    a = np.eye(40, dtype=np.float32)
    exe = compile(HOST, options=PLAIN)
    x = np.eye(6, dtype=np.float32)
    exe(x)

    def broken(*_: object) -> None:
        raise ValueError("failed on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(host_steps, "transform", broken)
        for _ in range(2):
            with pytest.raises(ValueError, match="failed on purpose"):
                exe(x)
        with pytest.raises(ValueError, match="failed on purpose"):
            exe.benchmark([x], repeats=2)
    assert problem(exe(x), Reference.of(parse(HOST), [x])) is None
    assert len(exe.benchmark([x], repeats=3)) == 3
    exe = compile(FAILING, options=PLAIN)
    with pytest.raises(HlogymError, match="the target failed"):
        exe(a)


def test_an_unknown_custom_call_is_refused_when_the_program_is_compiled() -> None:
    for target, why in (("nobody_knows", "register_custom_call"), ("__cublas$gemm", "a call of cuBLAS for GPUs")):
        with pytest.raises(UnsupportedError, match=rf"%h .*{re.escape(target)}.*{why}"):
            compile(FAILING.replace("fails_on_purpose", target))


def test_an_error_restores_the_threads_of_the_blas() -> None:
    getter, _ = blas_threading()
    if not getter:
        pytest.skip("the BLAS is not OpenBLAS")
    threads = ctypes.CFUNCTYPE(ctypes.c_int)(getter)
    before = threads()
    exe = compile(FAILING, options=PLAIN)
    with pytest.raises(HlogymError):
        exe(np.eye(40, dtype=np.float32))
    assert threads() == before


# ---- many calls


def test_two_programs_may_be_called_alternately() -> None:
    one, two = compile(ADD), compile(ADD.replace("add(a, d)", "subtract(a, d)"))
    for k in range(20):
        np.testing.assert_array_equal(one(A + k, B)[0], A + k + 4)
        np.testing.assert_array_equal(two(A + k, B)[0], A + k - 4)


def test_threads_may_call_one_program_concurrently() -> None:
    text = """
    HloModule m
    less { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = pred[] compare(a, b), direction=LT }
    ENTRY main {
      a = f32[300,300] parameter(0)
      s = f32[300,300] sort(a), dimensions={1}, to_apply=less
      e = f32[300,300] negate(s)
      ROOT d = f32[300,300] dot(e, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    }
    """
    exe = compile(text, options=PLAIN)
    rng = np.random.default_rng(1)
    inputs = [rng.normal(size=(300, 300)).astype(np.float32) for _ in range(3)]
    wanted = [Reference.of(parse(text), [x]) for x in inputs]
    exe(inputs[0])
    wrong: list[str] = []

    def work(k: int) -> None:
        for _ in range(5):
            what = problem(exe(inputs[k]), wanted[k])
            if what:
                wrong.append(what)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_a_profile_has_a_row_per_thunk() -> None:
    exe = compile(HOST, options=PLAIN)
    x = np.eye(6, dtype=np.float32)
    rows = exe.profile(x, repeats=2)
    assert [r.name for r in rows] == [t.name for t in exe.thunks]
    assert all(r.seconds >= 0 for r in rows)
    assert {r.kind for r in rows} >= {"kernel", "gemm", "host"}
    assert all(s > 0 for s in exe.benchmark([x], repeats=4))


# ---- the C compiler and the cache


def test_a_missing_compiler_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(BackendError, match="no C compiler found") as e:
        compile(ADD)
    assert "interpreter" in str(e.value)
    assert "gcc" in (cpu.why_unavailable() or "")
    np.testing.assert_array_equal(compile(ADD, backend="interpreter")(A, B)[0], A + 4)


def test_a_broken_compiler_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(BackendError, match="does not run"):
        compile(ADD)


def test_an_unwritable_cache_folder_is_replaced_by_a_temporary_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("HLOGYM_CACHE", str(file / "kernels"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    cache = cpu.object_cache()
    assert cache.folder.is_dir()
    assert not cache.folder.is_relative_to(tmp_path)
    np.testing.assert_array_equal(compile(ADD)(A, B)[0], A + 4)


def test_kernels_are_built_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HLOGYM_CACHE", str(tmp_path))
    compile(ADD)(A, B)
    built = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.so")}
    assert built
    compile(ADD)(A, B)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.so")} == built


ASYNC_STARTS = """HloModule m
ENTRY main {
  p = f32[6]{0} parameter(0)
  at = s32[] constant(3)
  slice_start = ((f32[6]{0}, s32[]), f32[2]{0}, u32[]) dynamic-slice-start(p, at), dynamic_slice_sizes={2}
  slice_done = f32[2]{0} dynamic-slice-done(slice_start)
  send = (f32[2]{0}, f32[2]{0}, u32[], u32[]) collective-permute-start(slice_done), source_target_pairs={{0,0}}
  ROOT sent = f32[2]{0} collective-permute-done(send)
}
"""


def test_async_ops_run_without_a_pass_that_removes_them() -> None:
    made = compile(ASYNC_STARTS, pipeline=[])
    assert any(i.opcode.text == "async-start" for i in made.module.entry.instructions)
    np.testing.assert_array_equal(made(np.arange(6, dtype=np.float32))[0], [3, 4])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(("m", "n"), [(1, 70), (70, 1), (1, 1), (300, 1), (1, 300)])
@pytest.mark.parametrize("sides", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_matrix_vector_products_match_numpy(dtype: str, m: int, n: int, sides: tuple[int, int]) -> None:
    k = 400
    left, right = ((k, m) if sides[0] else (m, k)), ((n, k) if sides[1] else (k, n))
    text = (
        f"HloModule m\nENTRY e {{ a = {dtype}[3,{left[0]},{left[1]}] parameter(0)\n"
        f"b = {dtype}[3,{right[0]},{right[1]}] parameter(1)\n"
        f"ROOT d = {dtype}[3,{m},{n}] dot(a, b), lhs_batch_dims={{0}}, rhs_batch_dims={{0}}, "
        f"lhs_contracting_dims={{{1 if sides[0] else 2}}}, rhs_contracting_dims={{{2 if sides[1] else 1}}} }}"
    )
    rng = np.random.default_rng(0)
    made = compile(text, pipeline=[])
    a, b = (rng.standard_normal((3, *s)).astype(made.module.parameter_shapes[0].dtype) for s in (left, right))
    want = np.matmul(a.transpose(0, 2, 1) if sides[0] else a, b.transpose(0, 2, 1) if sides[1] else b)
    np.testing.assert_allclose(made(a, b)[0], want, rtol=1e-4, atol=1e-4)


SCHEDULED = """HloModule m, is_scheduled=true
ENTRY main {
  p = f32[4] parameter(0)
  q = f32[4] parameter(1)
  a = f32[4] add(p, q)
  b = f32[4] multiply(a, p)
  c = f32[4] subtract(b, q)
  ROOT d = f32[4] maximum(c, a)
}
"""


@pytest.mark.parametrize("pipeline", [None, []])
def test_a_scheduled_module_stays_valid_through_fusion(pipeline: list[str] | None) -> None:
    made = compile(SCHEDULED, pipeline=pipeline)
    assert str(parse(str(made.module))) == str(made.module)
    verify(made.module)
    p, q = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
    np.testing.assert_array_equal(made(p, q)[0], np.maximum((p + q) * p - q, p + q))


def test_a_device_number_may_be_used_beside_fusions() -> None:
    text = """HloModule m
      ENTRY main {
        p = u32[4] parameter(0)
        me = u32[] replica-id()
        all = u32[4] broadcast(me), dimensions={}
        a = u32[4] add(p, all)
        ROOT b = u32[4] multiply(a, p)
      }"""
    made = compile(text, pipeline=[])
    np.testing.assert_array_equal(made(np.arange(4, dtype=np.uint32))[0], [0, 1, 4, 9])


def test_random_ops_share_one_generator_per_call() -> None:
    text = """HloModule m
      ENTRY main {
        low = s32[] constant(0)
        high = s32[] constant(1000)
        a = s32[8] rng(low, high), distribution=rng_uniform
        b = s32[8] rng(low, high), distribution=rng_uniform
        ROOT t = (s32[8], s32[8]) tuple(a, b)
      }"""
    made = compile(text)
    first = made()
    assert not np.array_equal(*first)
    for got, want in zip(first, evaluate(parse(text), []), strict=True):
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(made(), first)


SCALARS = """
loop_body {
  s = (s32[], f32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  a = f32[] get-tuple-element(s), index=1
  b = f32[4] get-tuple-element(s), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  read = f32[] dynamic-slice(a), dynamic_slice_sizes={}
  twice = f32[] add(read, read)
  written = f32[] dynamic-update-slice(a, twice)
  row = f32[1] reshape(written)
  rows = f32[4] dynamic-update-slice(b, row, i)
  ROOT t = (s32[], f32[], f32[4]) tuple(next, written, rows)
}
loop_test {
  s = (s32[], f32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT go = pred[] compare(i, n), direction=LT
}
ENTRY main {
  a = f32[] parameter(0)
  b = f32[4] parameter(1)
  zero = s32[] constant(0)
  s = (s32[], f32[], f32[4]) tuple(zero, a, b)
  w = (s32[], f32[], f32[4]) while(s), condition=loop_test, body=loop_body
  ROOT r = f32[4] get-tuple-element(w), index=2
}
"""


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
@pytest.mark.parametrize("options", [None, PLAIN])
def test_scalars_are_sliced_and_updated_without_indices(backend: str, options: CompileOptions | None) -> None:
    (found,) = compile(SCALARS, backend, options=options)(np.float32(1), np.full(4, 9, np.float32))
    np.testing.assert_array_equal(found, np.array([2, 4, 8, 9], np.float32))
