"""Scatter kernels against the interpreter."""

import numpy as np
import pytest

from compiler import CompileOptions, compile, parse
from compiler.codegen.schedules.schedule import Schedule
from compiler.interpreter import evaluate
from compiler.runtime.thunks import CopyThunk
from tests.codegen import running

REDUCERS = {
    "add": "ROOT r = {t}[] add(a, b)",
    "maximum": "ROOT r = {t}[] maximum(a, b)",
    "multiply": "ROOT r = {t}[] multiply(b, a)",
    "replace": "ROOT r = {t}[] parameter(1)",
}

CASES = {
    "rows": (
        "{t}[9,4]", "s32[5,1]", "{t}[5,4]",
        "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1",
    ),
    "elements": (
        "{t}[6,5]", "s32[7,2]", "{t}[7]",
        "update_window_dims={}, inserted_window_dims={0,1}, scatter_dims_to_operand_dims={0,1}, index_vector_dim=1",
    ),
    "windows": (
        "{t}[6,5]", "s32[2,3]", "{t}[3,2,3]",
        "update_window_dims={1,2}, inserted_window_dims={}, scatter_dims_to_operand_dims={1,0}, index_vector_dim=0",
    ),
    "batched": (
        "{t}[3,8]", "s32[3,4]", "{t}[3,4]",
        "update_window_dims={}, inserted_window_dims={1}, scatter_dims_to_operand_dims={1}, input_batching_dims={0}, "
        "scatter_indices_batching_dims={0}, index_vector_dim=2",
    ),
    "implicit index vector": (
        "{t}[8]", "s32[3,4]", "{t}[3,4]",
        "update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=2",
    ),
}  # fmt: skip


def module_text(case: str, reducer: str, t: str) -> str:
    operand, indices, updates, attributes = CASES[case]
    a, b = "a = {t}[] parameter(0)", "b = {t}[] parameter(1)"
    body = " ".join([a, b, REDUCERS[reducer]]) if reducer != "replace" else f"{a} {REDUCERS[reducer]}"
    return f"""HloModule scatter
f {{ {body.format(t=t)} }}
ENTRY e {{
  x = {operand.format(t=t)} parameter(0)
  i = {indices} parameter(1)
  u = {updates.format(t=t)} parameter(2)
  ROOT s = {operand.format(t=t)} scatter(x, i, u), {attributes}, to_apply=f
}}"""


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("reducer", REDUCERS)
@pytest.mark.parametrize("t", ["f32", "s32"])
def test_a_scatter_kernel_equals_the_interpreter(case: str, reducer: str, t: str) -> None:
    module = parse(module_text(case, reducer, t))
    executable = compile(module, options=CompileOptions(optimize=False))
    assert [k.kind for k in executable.kernels] == ["scatter"]
    rng = np.random.default_rng(0)
    for _ in range(5):
        x, i, u = (rng.integers(-2, 8, s.dimensions).astype(s.dtype) for s in module.entry.parameter_shapes)
        if reducer == "replace":  # updates of one element may be applied in any order
            i[...] = np.resize(np.arange(i.size) % 5, i.shape) if case != "elements" else i
        (got,), (want,) = executable(x, i, u), evaluate(module, [x, i, u])
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("splits", [2, 3, 100])
@pytest.mark.parametrize("case", CASES)
def test_a_scatter_in_parts_equals_the_interpreter(case: str, splits: int) -> None:
    module = parse(module_text(case, "add", "f32"))
    rng = np.random.default_rng(splits)
    args = [rng.integers(-2, 8, s.dimensions).astype(s.dtype) for s in module.entry.parameter_shapes]
    made = running.case_of(module.entry, args, "c", Schedule(splits=splits))
    (found,) = running.run_c([made])
    assert running.problem(found, made) is None


def test_a_scatter_in_parts_with_indices_that_are_computed_in_branches() -> None:
    f = running.fused(
        """
        x = s32[9] parameter(0)
        i = s32[20] parameter(1)
        u = s32[31] parameter(2)
        border = s32[] constant(7)
        padded = s32[31] pad(i, border), padding=5_6
        rows = s32[31,1] reshape(padded)
        ROOT r = s32[9] scatter(x, rows, u), update_window_dims={}, inserted_window_dims={0},
            scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=sum
        """,
        "sum { a = s32[] parameter(0) b = s32[] parameter(1) ROOT c = s32[] add(a, b) }",
    )
    x, i, u = np.arange(9, dtype=np.int32), np.arange(20, dtype=np.int32) % 13 - 1, np.arange(31, dtype=np.int32)
    made = running.case_of(f, [x, i, u], "c", Schedule(splits=4))
    (found,) = running.run_c([made])
    assert running.problem(found, made) is None


READS_ITS_OPERAND = """HloModule m
second { a = s32[] parameter(0) ROOT b = s32[] parameter(1) }
sum { a = s32[] parameter(0) b = s32[] parameter(1) ROOT c = s32[] add(a, b) }
body {
  a = s32[7] parameter(0)
  i = s32[7] parameter(1)
  b = s32[7] parameter(2)
  ROOT s = s32[7] scatter(a, i, b), DIMENSIONS, to_apply=sum
}
bodyd {
  a = s32[7] parameter(0)
  k = s32[] parameter(1)
  b = s32[7] parameter(2)
  r = s32[7] reverse(b), dimensions={0}
  part = s32[4] slice(r), slice={[0:4]}
  ROOT s = s32[7] dynamic-update-slice(a, part, k)
}
ENTRY main {
  x = s32[7] parameter(0)
  i = s32[7] parameter(1)
  k = s32[] parameter(2)
  y = s32[7] add(x, x)
  whole = s32[7] scatter(y, i, y), DIMENSIONS, to_apply=second
  z = s32[7] multiply(x, x)
  added = s32[7] scatter(z, z, z), DIMENSIONS, to_apply=sum
  w = s32[7] subtract(x, i)
  f = s32[7] fusion(w, i, w), kind=kLoop, calls=body
  v = s32[7] subtract(i, x)
  d = s32[7] fusion(v, k, v), kind=kLoop, calls=bodyd
  ROOT t = (s32[7], s32[7], s32[7], s32[7]) tuple(whole, added, f, d)
}"""


@pytest.mark.parametrize("policy", ["default", "none"])
def test_an_update_may_read_the_array_that_it_updates(policy: str) -> None:
    dimensions = "update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1"
    text = READS_ITS_OPERAND.replace("DIMENSIONS", dimensions)
    x = np.arange(7, dtype=np.int32)
    args = [x, x[::-1].copy(), np.array(2, np.int32)]
    wanted = evaluate(parse(text), args)
    for got, want in zip(compile(text, pipeline=[], fusion_policy=policy)(*args), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


READS_FEW = """HloModule m
f {{ a = {t}[] parameter(0) {reducer} }}
ENTRY e {{
  x = {t}[16,3] parameter(0)
  i = s32[4,1] parameter(1)
  part = {t}[4,3] slice(x), slice={{[2:6], [0:3]}}
  more = {t}[4,3] slice(x), slice={{[9:13], [0:3]}}
  u = {t}[4,3] subtract(part, more)
  ROOT s = {t}[16,3] scatter(x, i, u), update_window_dims={{1}}, inserted_window_dims={{0}},
    scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=f
}}"""


@pytest.mark.parametrize("reducer", REDUCERS)
@pytest.mark.parametrize("t", ["f32", "s32", "bf16"])
def test_few_updates_that_read_the_operand_are_computed_first(reducer: str, t: str) -> None:
    body = ("" if reducer == "replace" else "b = {t}[] parameter(1) ") + REDUCERS[reducer]
    entry = parse(READS_FEW.format(t=t, reducer=body.format(t=t))).entry
    for indices in ([3, 9, 3, 12], [2, -1, 16, 10]):  # updates of what later updates read, and windows outside
        args = running.random_args(entry.parameter_shapes, np.random.default_rng(0))
        args[1] = np.array(indices, np.int32).reshape(4, 1)
        case = running.case_of(entry, args, "c", Schedule())
        assert case.spec.must_alias == ((0, 2),)
        (found,) = running.run_c([case])
        assert running.problem(found, case) is None


def test_many_updates_that_read_the_operand_are_not_held() -> None:
    text = READS_FEW.format(t="f32", reducer=REDUCERS["replace"].format(t="f32")).replace("[16,3]", "[13,3]")
    assert running.kernel_of(parse(text).entry, "c").must_alias == ()


def test_a_loop_that_reads_and_updates_its_state_does_not_copy_it() -> None:
    text = """HloModule m
    sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
    less { p = (s32[], f32[50]) parameter(0) i = s32[] get-tuple-element(p), index=0 n = s32[] constant(20)
      ROOT c = pred[] compare(i, n), direction=LT }
    step { p = (s32[], f32[50]) parameter(0) i = s32[] get-tuple-element(p), index=0 one = s32[] constant(1)
      x = f32[50] get-tuple-element(p), index=1 j = s32[] add(i, one)
      last = f32[1] dynamic-slice(x, i), dynamic_slice_sizes={1}
      next = s32[1] reshape(j)
      y = f32[50] scatter(x, next, last), update_window_dims={}, inserted_window_dims={0},
        scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=sum
      ROOT r = (s32[], f32[50]) tuple(j, y) }
    ENTRY e { x = f32[50] parameter(0) zero = s32[] constant(0) t = (s32[], f32[50]) tuple(zero, x)
      w = (s32[], f32[50]) while(t), condition=less, body=step ROOT y = f32[50] get-tuple-element(w), index=1 }"""
    x = np.arange(50, dtype=np.float32)
    exe = compile(text)
    want = np.concatenate([np.cumsum(x[:21]), x[21:]])
    np.testing.assert_array_equal(exe(x)[0], want)
    steps = [t for loop in exe.thunks for block in loop.blocks() for t in block]
    assert not any(isinstance(t, CopyThunk) and t.source.shape.dimensions == (50,) for t in steps)


EXTREMES = """HloModule m
f {{ a = {t}[] parameter(0) b = {t}[] parameter(1) ROOT r = {t}[] {extreme}(a, b) }}
ENTRY e {{
  x = {t}[3] parameter(0)
  i = s32[{n},1] parameter(1)
  u = {t}[{n}] parameter(2)
  v = {t}[{n}] {value}
  ROOT s = {t}[3] scatter(x, i, v), update_window_dims={{}}, inserted_window_dims={{0}},
    scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=f
}}"""


@pytest.mark.parametrize("extreme", ["maximum", "minimum"])
@pytest.mark.parametrize("t", ["f32", "f64", "bf16", "s32", "u8"])
@pytest.mark.parametrize("value", ["negate(u)", "remainder(u, u)"])
@pytest.mark.parametrize("n", [8, 1000])
@pytest.mark.parametrize("splits", [0, 2])
def test_many_updates_by_an_extreme(extreme: str, t: str, value: str, n: int, splits: int) -> None:
    module = parse(EXTREMES.format(t=t, extreme=extreme, n=n, value=value))
    rng = np.random.default_rng(n)
    x, i, u = (rng.integers(0, 200, s.dimensions).astype(s.dtype) for s in module.entry.parameter_shapes)
    i = (i % 5 - 1).astype(i.dtype)  # some are out of range
    if t.startswith(("f", "bf")):
        x[1], u[5:8] = np.nan, [np.nan, np.inf, -np.inf]
    made = running.case_of(module.entry, [x, i, u], "c", Schedule(splits=splits))
    assert ("_changes" in made.spec.source) == (n == 1000)
    (found,) = running.run_c([made])
    assert running.problem(found, made) is None
