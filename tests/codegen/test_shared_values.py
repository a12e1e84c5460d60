"""Values that all rows share are computed once, however often other shared values use them."""

import numpy as np
import pytest

from compiler import compile
from compiler.codegen.schedules.schedule import Schedule
from compiler.interpreter import evaluate
from compiler.text import parse
from tests.codegen.test_short_loops import SUM
from tests.codegen.test_stages import checked


def _text(steps: int, tail: str) -> str:
    """Return a program in which each step uses the value before three times, so that there are 3^steps paths to it."""
    lines = ["x = f32[64,512] parameter(0)", "y = f32[512] parameter(1)", "v0 = f32[512] tanh(y)"]
    for n in range(steps):
        lines.append(f"s{n} = f32[512] multiply(v{n}, v{n})")
        lines.append(f"v{n + 1} = f32[512] subtract(v{n}, s{n})")
    lines.append(f"b = f32[64,512] broadcast(v{steps}), dimensions={{1}}")
    add = "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }"
    return "\n".join([add, "ENTRY e {", *lines, tail, "}"])


@pytest.mark.parametrize(
    "tail",
    [
        "ROOT r = f32[64,512] multiply(x, b)",
        "p = f32[64,512] multiply(x, b) z = f32[] constant(0) "
        "ROOT r = f32[64] reduce(p, z), dimensions={1}, to_apply=add",
    ],
)
def test_a_long_chain_of_shared_values_compiles(tail: str) -> None:
    text = _text(60, tail)  # never, if each path to a value is followed
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(0.1, 0.9, shape).astype(np.float32) for shape in ((64, 512), (512,))]
    executable = compile(text)
    np.testing.assert_allclose(executable(*arrays)[0], evaluate(parse(text), arrays)[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("t", ["f32", "bf16"])
@pytest.mark.parametrize("shared", [True, False])  # one column, and the first row
def test_elements_that_lie_apart_are_copied_for_all_rows(t: str, shared: bool) -> None:
    where = "{[0:96], [0:1]}" if shared else "{[0:1], [0:96]}"
    text = f"""
    x = {t}[64,96] parameter(0)
    y = {t}[96,96] parameter(1)
    few = {t}[{"96,1" if shared else "1,96"}] slice(y), slice={where}
    w = {t}[96] reshape(few)
    xf = f32[64,96] convert(x)
    wf = f32[96] convert(w)
    b = f32[64,96] broadcast(wf), dimensions={{1}}
    p = f32[64,96] multiply(xf, b)
    z = f32[] constant(0)
    ROOT r = f32[64] reduce(p, z), dimensions={{1}}, to_apply=add_f32
    """
    assert ("_shared[" in checked(text, Schedule(), SUM)) == shared


@pytest.mark.parametrize(("by_rows", "copied"), [(True, True), (False, False)])
def test_elements_that_lie_apart_are_copied_for_branches_that_test_the_row(by_rows: bool, copied: bool) -> None:
    parts = ("32,96", "32,96") if by_rows else ("64,48", "64,48")
    text = f"""
    x = f32[{parts[0]}] parameter(0)
    u = f32[{parts[1]}] parameter(1)
    y = f32[96,96] parameter(2)
    few = f32[96,1] slice(y), slice={{[0:96], [95:96]}}
    w = f32[96] reshape(few)
    b = f32[64,96] broadcast(w), dimensions={{1}}
    joined = f32[64,96] concatenate(x, u), dimensions={{{0 if by_rows else 1}}}
    z = f32[] constant(0)
    spread = f32[128,96] pad(b, z), padding=0_1_1x0_0
    ones = f32[128,96] pad(joined, z), padding=1_0_1x0_0
    ROOT r = f32[128,96] add(spread, ones)
    """
    assert ("_shared[" in checked(text, Schedule())) == copied


def test_elements_that_lie_apart_are_copied_for_the_rows_of_one_block() -> None:
    text = """
    x = f32[40,48] parameter(0)
    y = f32[48,40] parameter(1)
    b = f32[40,48,48] broadcast(y), dimensions={2,0}
    a = f32[40,48,48] broadcast(x), dimensions={0,2}
    ROOT r = f32[40,48,48] multiply(a, b)
    """
    source = checked(text, Schedule())
    copy, _, rows = source.partition("_shared[48]")[2].partition("for (index_t i2 ")
    assert "40*i3k" in copy
    assert "40*" not in rows


def test_a_transpose_in_tiles_stays_one() -> None:
    text = """
    x = f32[40,96] parameter(0)
    y = f32[96,40,40] parameter(1)
    b = f32[40,40,96] broadcast(x), dimensions={1,2}
    t = f32[40,40,96] transpose(y), dimensions={2,1,0}
    ROOT r = f32[40,40,96] multiply(t, b)
    """
    assert "_shared[" not in checked(text, Schedule())


def test_several_long_columns_are_copied() -> None:
    lines = ["x = f32[4000,4] parameter(0)"]
    for n in range(3):
        lines.append(f"s{n} = f32[4000,1] slice(x), slice={{[0:4000], [{n}:{n + 1}]}}")
        lines.append(f"w{n} = f32[4000] reshape(s{n})")
        lines.append(f"b{n} = f32[32,4000] broadcast(w{n}), dimensions={{1}}")
    lines += ["y = f32[32,4000] parameter(1)", "p = f32[32,4000] multiply(y, b0)"]
    lines += ["q = f32[32,4000] add(p, b1)", "ROOT r = f32[32,4000] multiply(q, b2)"]
    assert checked("\n".join(lines), Schedule()).count("_shared[4000]") == 3


@pytest.mark.parametrize("t", ["s64", "u64", "s32"])
def test_indices_that_all_rows_share_are_clamped_once(t: str) -> None:
    text = f"""
    x = f32[64,96] parameter(0)
    k = {t}[33] parameter(1)
    ROOT r = f32[64,33] gather(x, k), offset_dims={{0}}, collapsed_slice_dims={{1}}, start_index_map={{1}},
        index_vector_dim=1, slice_sizes={{64,1}}
    """
    assert ("int32_t" in checked(text, Schedule()).partition("_shared[")[0].splitlines()[-1]) == (t != "s32")


def test_a_packed_operand_computes_the_values_of_rows_once() -> None:
    text = """
    HloModule m
    f {
      v = f32[32] parameter(0)
      x = f32[32,512] parameter(1)
      w = f32[256,512] parameter(2)
      s = f32[32] rsqrt(v)
      b = f32[32,512] broadcast(s), dimensions={0}
      y = f32[32,512] multiply(x, b)
      ROOT p = f32[32,256] dot(y, w), lhs_contracting_dims={1}, rhs_contracting_dims={1}
    }
    ENTRY e {
      v = f32[32] parameter(0)
      x = f32[32,512] parameter(1)
      w = f32[256,512] parameter(2)
      ROOT p = f32[32,256] fusion(v, x, w), kind=kOutput, calls=f
    }
    """
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(0.5, 2.0, shape).astype(np.float32) for shape in ((32,), (32, 512), (256, 512))]
    executable = compile(text, policy="none")
    np.testing.assert_allclose(executable(*arrays)[0], evaluate(parse(text), arrays)[0], rtol=1e-4)
    (kernel,) = executable.kernels
    packing = kernel.source.partition("float panel")[2].partition("\n}\n")[0]
    assert packing
    assert "reciprocal_root_f32(" in kernel.source
    assert "reciprocal_root_f32(" not in packing


@pytest.mark.parametrize("t", ["f32", "bf16"])
def test_values_that_parts_of_a_loop_share_have_arrays_of_their_own(t: str) -> None:
    text = f"""
    x = {t}[127,12,19] parameter(0)
    w = {t}[19] parameter(1)
    b = {t}[127,12,19] broadcast(w), dimensions={{2}}
    u = {t}[127,12,19] tanh(x)
    m = {t}[127,12,19] multiply(b, u)
    v = {t}[127,12,19] tanh(b)
    a = {t}[127,12,19] add(m, v)
    l = {t}[127,12,19] logistic(a)
    ROOT r = {t}[127,12,19] logistic(l)
    """
    assert "_shared[" in checked(text, Schedule())


@pytest.mark.parametrize(("op", "shared"), [("tanh", True), ("negate", False)])
@pytest.mark.parametrize(("batch", "rows", "columns"), [(16, 100, 10), (33, 40, 5), (20, 64, 300)])
def test_functions_of_rows_that_a_batch_of_matrices_is_summed_by(
    op: str, shared: bool, batch: int, rows: int, columns: int
) -> None:
    text = f"""
    x = f32[{batch},{rows},{columns}] parameter(0)
    y = f32[{batch},{rows}] parameter(1)
    f = f32[{batch},{rows}] {op}(y)
    b = f32[{batch},{rows},{columns}] broadcast(f), dimensions={{0,1}}
    p = f32[{batch},{rows},{columns}] multiply(x, b)
    z = f32[] constant(0)
    ROOT r = f32[{batch},{columns}] reduce(p, z), dimensions={{1}}, to_apply=add_f32
    """
    assert ("_shared[" in checked(text, Schedule(), SUM)) == shared
