"""The executable of the cuda backend on the stand-in: products, graphs, control flow, donation, threads."""

from __future__ import annotations

import importlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler import CompileOptions, compile, load
from compiler.backends.cuda import nvrtc, planning
from compiler.backends.cuda.control import PinnedValue
from compiler.backends.cuda.emulation import available, stand_in
from compiler.interpreter import evaluate
from compiler.loops import UnrollLoops
from compiler.text import parse
from tests.codegen.running import random_args

needs_emulator = pytest.mark.skipif(not available(), reason="the emulator needs g++")
PLAIN = CompileOptions(optimize=False)


def _calls(text: str, calls: int = 3, **options: Any) -> tuple[list[list[Any]], list[Any], list[str]]:
    """Return the results of some calls and those of the interpreter, on random arguments, and what was launched."""
    module = parse(text)
    args = random_args(module.entry.parameter_shapes, np.random.default_rng(0))
    executable = compile(module, backend="cuda", **options)
    with stand_in.installed() as gpu:
        got = [[r.get() for r in executable(*args)] for _ in range(calls)]
        return got, evaluate(module, args), list(gpu.launched)


def _assert_calls_match(text: str, calls: int = 3, rtol: float = 1e-5, **options: Any) -> list[str]:
    got, wanted, launched = _calls(text, calls, **options)
    for results in got:
        for result, expected in zip(results, wanted, strict=True):
            assert result.dtype == expected.dtype
            np.testing.assert_allclose(
                result.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=rtol, strict=True
            )
    return launched


# ---- products


def _product(element: str, lhs: str, rhs: str, batch: int) -> str:
    """Return a product of m x k and k x n matrices whose operands are stored in an order such as "mk" or "km"."""
    sizes = {"m": 5, "n": 7, "k": 6, "b": batch}
    lead = "b" if batch else ""
    shapes = [f"{element}[{','.join(str(sizes[d]) for d in lead + order)}]" for order in (lhs, rhs)]
    out = ",".join(str(sizes[d]) for d in lead + "mn")
    batches = "lhs_batch_dims={0}, rhs_batch_dims={0}, " if batch else ""
    dims = [len(lead) + order.index("k") for order in (lhs, rhs)]
    return (
        f"HloModule m\nENTRY e {{ x = {shapes[0]} parameter(0) y = {shapes[1]} parameter(1) ROOT r = {element}[{out}] "
        f"dot(x, y), {batches}lhs_contracting_dims={{{dims[0]}}}, rhs_contracting_dims={{{dims[1]}}} }}"
    )


@pytest.mark.parametrize("batch", [0, 3])
@pytest.mark.parametrize("lhs", ["mk", "km"])
@pytest.mark.parametrize("rhs", ["kn", "nk"])
def test_products_of_every_operand_order(lhs: str, rhs: str, batch: int) -> None:
    launched = _assert_calls_match(_product("f32", lhs, rhs, batch), options=PLAIN)
    assert [w for w in launched if "kernel" in w] == []  # nothing is transposed in memory
    assert launched.count("a product by cuBLAS") == 3


@pytest.mark.parametrize(("element", "rtol"), [("f64", 1e-14), ("bf16", 1e-2), ("f16", 2e-3)])
def test_products_of_other_types(element: str, rtol: float) -> None:
    for lhs, rhs, batch in (("mk", "kn", 0), ("km", "nk", 2)):
        launched = _assert_calls_match(_product(element, lhs, rhs, batch), 1, rtol, options=PLAIN)
        assert "a product by cuBLAS" in launched


def test_products_of_halves_are_accumulated_in_f32() -> None:
    text = _product("f16", "mk", "kn", 0).replace("f16[5,6]", "f16[5,4096]").replace("f16[6,7]", "f16[4096,7]")
    executable = compile(text, backend="cuda", options=PLAIN)
    with stand_in.installed():
        (result,) = executable(np.ones((5, 4096), np.float16), np.full((4096, 7), 0.5, np.float16))
        np.testing.assert_array_equal(result.get(), np.full((5, 7), 2048.0))  # a sum in f16 ends at 1024


# ---- graphs


def test_graphs_are_replayed_with_the_addresses_that_they_were_captured_for() -> None:
    text = """
HloModule chain
ENTRY e {
  x = f64[3,3] parameter(0)
  y = f64[3,3] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT z = f64[3,3] dot(y, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
    executable = compile(text, backend="cuda", options=PLAIN)
    with stand_in.installed():
        cupy: Any = importlib.import_module("cupy")
        rng = np.random.default_rng(0)
        hosts = [rng.standard_normal((3, 3)) for _ in range(3)]
        arrays = [cupy.asarray(h) for h in hosts]
        kept = []
        for n in (0, 0, 0, 1, 0, 1, 2, 1, 2, 0):
            kept.append((n, executable(arrays[n])[0]))
            if n == 1:
                kept = kept[:1]  # addresses of results come back
        for n, result in kept:
            np.testing.assert_allclose(result.get(), hosts[n] @ hosts[n] @ hosts[n], rtol=1e-12)
        arrays[0][...] = np.eye(3)
        np.testing.assert_array_equal(executable(arrays[0])[0].get(), np.eye(3))


def test_results_belong_to_the_caller() -> None:
    executable = compile(_product("f32", "mk", "kn", 0), backend="cuda", options=PLAIN)
    with stand_in.installed():
        one, zero = np.ones((5, 6), np.float32), np.zeros((5, 6), np.float32)
        y = np.ones((6, 7), np.float32)
        results = [executable(x, y)[0] for x in (one, zero, one, zero)]
        for n, result in enumerate(results):
            np.testing.assert_array_equal(result.get(), np.full((5, 7), 0.0 if n % 2 else 6.0))


# ---- control flow

COUNTED = """
HloModule counted
body {{
  s = (s32[], f64[3,3]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  x = f64[3,3] get-tuple-element(s), index=1
  one = s32[] constant(1)
  m = s32[] add(n, one)
  y = f64[3,3] dot(x, x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT t = (s32[], f64[3,3]) tuple(m, y)
}}
condition {{
  s = (s32[], f64[3,3]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  limit = s32[] {limit}
  ROOT c = pred[] compare(n, limit), direction=LT
}}
ENTRY e {{
  x = f64[3,3] parameter(0)
  n = s32[] {start}
  s = (s32[], f64[3,3]) tuple(n, x)
  ROOT r = (s32[], f64[3,3]) while(s), condition=condition, body=body
}}
"""


@needs_emulator
@pytest.mark.parametrize("start", ["constant(0)", "parameter(1)"])
def test_loops(start: str) -> None:
    text = COUNTED.format(limit="constant(4)", start=start)
    module = parse(text)
    x = 0.5 * np.random.default_rng(0).standard_normal((3, 3))
    executable = compile(module, backend="cuda", options=PLAIN)
    with stand_in.installed():
        for first in (0, 1, 4) if "parameter" in start else (0, 0, 0):
            args = [x, np.int32(first)][: len(module.entry.parameters)]
            for got, expected in zip(executable(*args), evaluate(module, args), strict=True):
                np.testing.assert_allclose(got.get(), expected, rtol=1e-12)


@needs_emulator
@pytest.mark.parametrize(("most", "count"), [(7, 3), (7, 11), (7, 14), (1, 5)])
def test_counted_loops_of_more_launches_than_a_graph_has(
    most: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "MOST_LAUNCHES", most)
    text = COUNTED.format(limit=f"constant({count})", start="constant(0)")
    module = parse(text)
    x = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))[0]  # its powers stay bounded
    executable = compile(module, backend="cuda", options=PLAIN)
    assert "while" in [t.kind for t in executable.thunks]
    with stand_in.installed():
        for _ in range(3):
            for got, expected in zip(executable(x), evaluate(module, [x]), strict=True):
                np.testing.assert_allclose(got.get(), expected, atol=1e-10)


CONDITIONAL = """
HloModule branches
first { x = f32[6] parameter(0) ROOT r = f32[6] negate(x) }
second { x = f32[6] parameter(0) ROOT r = f32[6] multiply(x, x) }
third { x = f32[6] parameter(0) ROOT r = f32[6] add(x, x) }
ENTRY e {
  i = s32[] parameter(0)
  x = f32[6] parameter(1)
  y = f32[6] add(x, x)
  c = f32[6] conditional(i, y, y, y), branch_computations={first, second, third}
  ROOT r = f32[6] multiply(c, x)
}
"""


@needs_emulator
def test_conditionals_take_the_branch_that_the_device_chooses() -> None:
    module = parse(CONDITIONAL)
    executable = compile(module, backend="cuda", options=PLAIN)
    x = np.arange(6, dtype=np.float32)
    with stand_in.installed():
        for index in (0, 1, 2, -1, 7, 0):
            args = [np.int32(index), x]
            np.testing.assert_array_equal(executable(*args)[0].get(), evaluate(module, args)[0])


SEARCH = """
HloModule search

body {
  s = (f32[200,200], f32[200], s32[]) parameter(0)
  a = f32[200,200] get-tuple-element(s), index=0
  x = f32[200] get-tuple-element(s), index=1
  n = s32[] get-tuple-element(s), index=2
  y = f32[200] dot(a, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  one = s32[] constant(1)
  next = s32[] add(n, one)
  ROOT r = (f32[200,200], f32[200], s32[]) tuple(a, y, next)
}

max {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT m = f32[] maximum(a, b)
}

condition {
  s = (f32[200,200], f32[200], s32[]) parameter(0)
  x = f32[200] get-tuple-element(s), index=1
  least = f32[] constant(1)
  none = f32[] constant(0)
  largest = f32[] reduce(x, none), dimensions={0}, to_apply=max
  ROOT again = pred[] compare(largest, least), direction=GT
}

ENTRY e {
  a = f32[200,200] parameter(0)
  x = f32[200] parameter(1)
  n = s32[] constant(0)
  start = (f32[200,200], f32[200], s32[]) tuple(a, x, n)
  loop = (f32[200,200], f32[200], s32[]) while(start), condition=condition, body=body
  y = f32[200] get-tuple-element(loop), index=1
  count = s32[] get-tuple-element(loop), index=2
  ROOT r = (f32[200], s32[]) tuple(y, count)
}
"""


@needs_emulator
def test_the_host_asks_after_several_iterations_whether_there_are_more(monkeypatch: pytest.MonkeyPatch) -> None:
    module, waits, wait = parse(SEARCH), list[Any](), PinnedValue.wait

    def counted(self: PinnedValue, stream: Any) -> int:
        waits.append(stream)
        return wait(self, stream)

    monkeypatch.setattr(PinnedValue, "wait", counted)
    executable = compile(module, backend="cuda", loop_policy=UnrollLoops(4))
    a = np.full((200, 200), 1 / 400, np.float32)  # halves the vector
    with stand_in.installed():
        for iterations in (0, 1, 4, 9):
            waits.clear()
            args = [a, np.full(200, 0.75 * 2.0**iterations, np.float32)]
            for got, want in zip(executable(*args), evaluate(module, args), strict=True):
                np.testing.assert_allclose(got.get(), want, rtol=1e-5)
            assert len(waits) == 1 + -(-iterations // 4)


HOST = """
HloModule host
ENTRY e {
  x = f64[129,129] parameter(0)
  y = f64[129,129] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  c = f64[129,129] cholesky(y), lower=true
  ROOT z = f64[129,129] dot(c, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def test_ops_of_the_interpreter_between_launches() -> None:
    module = parse(HOST)
    executable = compile(module, backend="cuda", options=PLAIN)
    assert [t.kind for t in executable.thunks] == ["gemm", "host", "gemm"]
    x = np.eye(129) + 0.001 * np.ones((129, 129))
    with stand_in.installed():
        for _ in range(3):
            np.testing.assert_allclose(executable(x)[0].get(), evaluate(module, [x])[0], rtol=1e-12)


# ---- donation

DONATED = """
HloModule donated, input_output_alias={ {0}: (0, {}, must-alias) }
ENTRY e {
  x = f64[3,3] parameter(0)
  y = f64[3,3] parameter(1)
  z = f64[3,3] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  w = f64[3,3] dot(y, z), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = (f64[3,3], f64[3,3]) tuple(z, w)
}
"""


def test_donated_arguments_are_taken_over_where_nothing_shares_them() -> None:
    executable = compile(DONATED, backend="cuda", options=PLAIN)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 3, 3))
    with stand_in.installed():
        cupy: Any = importlib.import_module("cupy")
        b = cupy.asarray(y)
        for _ in range(3):
            a = cupy.asarray(x)
            z, w = executable(a, b)
            assert z is a
            np.testing.assert_allclose(z.get(), x @ y, rtol=1e-12)
            np.testing.assert_allclose(w.get(), y @ x @ y, rtol=1e-12)
        shared = cupy.asarray(np.stack([x, x]))[0]
        z, _ = executable(shared, b)
        assert z is not shared
        np.testing.assert_array_equal(shared.get(), x)
        z, _ = executable(b, b)
        assert z is not b
        np.testing.assert_allclose(z.get(), y @ y, rtol=1e-12)


def test_timing_leaves_donated_arguments_as_they_are() -> None:
    executable = compile(DONATED, backend="cuda", options=PLAIN)
    with stand_in.installed():
        cupy: Any = importlib.import_module("cupy")
        a, b = cupy.asarray(np.eye(3)), cupy.asarray(2 * np.eye(3))
        seconds = executable.benchmark([a, b], 5)
        assert len(seconds) == 5
        assert min(seconds) >= 0
        rows = executable.profile(a, b, repeats=2)
        assert [r.kind for r in rows] == [t.kind for t in executable.thunks]
        np.testing.assert_array_equal(a.get(), np.eye(3))


# ---- arguments


def test_arguments_of_every_kind() -> None:
    executable = compile(_product("f32", "mk", "kn", 0), backend="cuda", options=PLAIN)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((5, 6)).astype(np.float32), rng.standard_normal((6, 7)).astype(np.float32)
    with stand_in.installed():
        cupy: Any = importlib.import_module("cupy")
        flat = cupy.asarray(np.concatenate([[0.0], y.reshape(-1)]).astype(np.float32))
        columns = cupy.asarray(np.ascontiguousarray(x.T)).T
        for a, b in (
            (x, y), (np.asfortranarray(x), y), (columns, y), (cupy.asarray(x), flat[1:].reshape(6, 7)),
        ):  # fmt: skip
            np.testing.assert_allclose(executable(a, b)[0].get(), x @ y, rtol=1e-5)


@needs_emulator
@pytest.mark.parametrize("element", ["bf16", "f8e4m3fn", "s4", "pred", "c64"])
def test_arguments_and_results_of_types_that_few_libraries_know(element: str) -> None:
    body = f"x = {element}[2,3] parameter(0) ROOT r = {element}[3,2] transpose(x), dimensions={{1,0}}"
    text = f"HloModule m\nENTRY e {{ {body} }}"
    module = parse(text)
    dtype = module.entry.root.shape.dtype
    x = np.arange(6).reshape(2, 3).astype(dtype)
    executable = compile(module, backend="cuda", options=PLAIN)
    with stand_in.installed():
        cupy: Any = importlib.import_module("cupy")
        for given in (x, cupy.asarray(x)):
            (result,) = executable(given)
            assert result.dtype == dtype
            assert result.get().tobytes() == np.ascontiguousarray(x.T).tobytes()


# ---- saved programs


@needs_emulator
def test_saved_programs_carry_the_kernels_that_were_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = parse(CONDITIONAL)
    args = [np.int32(1), np.arange(6, dtype=np.float32)]
    executable = compile(module, backend="cuda", options=PLAIN)
    executable.save(tmp_path / "source")
    with stand_in.installed():
        executable(*args)
        executable.save(tmp_path / "compiled")
        for name in ("source", "compiled"):
            loaded = load(tmp_path / name)
            np.testing.assert_array_equal(loaded(*args)[0].get(), evaluate(module, args)[0])
        monkeypatch.setattr(nvrtc, "compiler", lambda: pytest.fail("NVRTC is not needed"))
        monkeypatch.setenv("HLOGYM_CACHE", str(tmp_path / "cache"))
        loaded = load(tmp_path / "compiled")
        np.testing.assert_array_equal(loaded(*args)[0].get(), evaluate(module, args)[0])


# ---- several programs and threads


def test_two_programs_in_turns() -> None:
    first = compile(_product("f32", "mk", "kn", 0), backend="cuda", options=PLAIN)
    second = compile(_product("f32", "km", "nk", 3), backend="cuda", options=PLAIN)
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(s).astype(np.float32) for s in ((5, 6), (6, 7)))
    u, v = (rng.standard_normal(s).astype(np.float32) for s in ((3, 6, 5), (3, 7, 6)))
    wanted = u.swapaxes(1, 2) @ v.swapaxes(1, 2)
    with stand_in.installed():
        for _ in range(4):
            a, b = first(x, y)[0], second(u, v)[0]
            np.testing.assert_allclose(a.get(), x @ y, rtol=1e-5)
            np.testing.assert_allclose(b.get(), wanted, rtol=1e-5)


def test_calls_of_several_threads_on_streams_of_their_own() -> None:
    executable = compile(HOST, backend="cuda", options=PLAIN)
    module = parse(HOST)
    problems: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            cupy: Any = importlib.import_module("cupy")
            x = np.eye(129) * (2 + seed) + 0.001
            (wanted,) = evaluate(module, [x])
            with cupy.cuda.Stream(non_blocking=True):
                for _ in range(5):
                    np.testing.assert_allclose(executable(x)[0].get(), wanted, rtol=1e-12)
        except BaseException as e:
            problems.append(e)

    with stand_in.installed():
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert problems == []
