"""Start indices of gathers and dynamic slices: clamped in every integer type, narrow ones without 64 bits."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.codegen.lowering.lower import lower
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.traversal import walk
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType as T
from tests.codegen import running

TYPES = ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64")


def gather(dtype: str) -> str:
    return (
        f"x = f32[300] parameter(0)\n i = {dtype}[40,1] parameter(1)\n"
        "ROOT r = f32[40] gather(x, i), offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, "
        "index_vector_dim=1, slice_sizes={1}"
    )


def sliced(dtype: str) -> str:
    return (
        f"x = f32[300] parameter(0)\n i = {dtype}[] parameter(1)\n"
        "ROOT r = f32[7] dynamic-slice(x, i), dynamic_slice_sizes={7}"
    )


@pytest.mark.parametrize("dtype", TYPES)
def test_indices_out_of_range_are_clamped(dtype: str) -> None:
    numpy_type = np.dtype(dtype.replace("s", "int").replace("u", "uint"))
    limits = np.iinfo(numpy_type)
    x = np.arange(300, dtype=np.float32)
    near = [n for n in (-301, -300, -1, 0, 1, 127, 128, 292, 293, 294, 299, 300, 301) if limits.min <= n <= limits.max]
    indices = np.array((near + [limits.min, limits.max] * 40)[:40], numpy_type)
    f = running.fused(gather(dtype))
    cases = [running.case_of(f, [x, indices.reshape(40, 1)], "c")]
    f = running.fused(sliced(dtype))
    cases += [running.case_of(f, [x, np.asarray(i)], "c") for i in dict.fromkeys(indices)]
    found = running.run_c(cases)
    expected = np.clip(indices.astype(object), 0, 299).astype(np.float32)
    np.testing.assert_array_equal(found[0][0], expected)
    assert [running.problem(r, c) for c, r in zip(cases, found, strict=True)] == [None] * len(cases)


@pytest.mark.parametrize("dtype", ["s8", "u16", "s32"])
def test_narrow_indices_are_clamped_in_32_bits(dtype: str) -> None:
    lets = [s for s in walk(lower(running.fused(gather(dtype))).body) if isinstance(s, lir.Let)]
    clamps = [s for s in lets if isinstance(s.value, lir.Apply) and s.value.op.opcode is Opcode.CLAMP]
    assert [s.type for s in clamps] == [T.S32]


@pytest.mark.parametrize(
    ("dtype", "n", "clamped"), [("s32", 40, False), ("s64", 40, False), ("s64", 400, True), ("s8", 300, True)]
)
def test_counted_indices_that_are_in_range_need_no_clamp(dtype: str, n: int, clamped: bool) -> None:
    f = running.fused(
        f"x = f32[300] parameter(0)\n i = {dtype}[{n},1] iota(), iota_dimension=0\n"
        f"ROOT r = f32[{n}] gather(x, i), offset_dims={{}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, "
        "index_vector_dim=1, slice_sizes={1}"
    )
    case = running.case_of(f, [np.arange(300, dtype=np.float32)], "c")
    assert running.problem(running.run_c([case])[0], case) is None
    lets = [s for s in walk(lower(f).body) if isinstance(s, lir.Let) and isinstance(s.value, lir.Apply)]
    assert any(s.value.op.opcode is Opcode.CLAMP for s in lets if isinstance(s.value, lir.Apply)) == clamped


@pytest.mark.parametrize(
    ("steps", "clamped"),
    [
        ("j = s32[40] subtract(seven, i)\n k = s32[40] subtract(i, j)\n l = s32[40] add(k, seven)", False),
        ("l = s32[40] multiply(i, seven)", False),
        ("j = s32[40] divide(i, seven)\n k = s32[40] remainder(i, seven)\n l = s32[40] add(j, k)", False),
        ("l = s32[40] shift-right-arithmetic(i, seven)", False),
        ("j = s8[40] convert(i)\n l = s32[40] convert(j)", False),
        ("l = s32[40] subtract(seven, i)", True),
        ("j = s32[40] subtract(i, seven)\n l = s32[40] divide(j, seven)", True),
        ("j = s32[40] multiply(i, seven)\n k = s8[40] convert(j)\n l = s32[40] convert(k)", True),
    ],
)
def test_indices_computed_from_counters_need_no_clamp_in_range(steps: str, clamped: bool) -> None:
    f = running.fused(
        "x = f32[300] parameter(0)\n i = s32[40] iota(), iota_dimension=0\n s = s32[] constant(7)\n"
        f"seven = s32[40] broadcast(s), dimensions={{}}\n {steps}\n m = s32[40,1] reshape(l)\n"
        "ROOT r = f32[40] gather(x, m), offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, "
        "index_vector_dim=1, slice_sizes={1}"
    )
    case = running.case_of(f, [np.arange(300, dtype=np.float32)], "c")
    assert running.problem(running.run_c([case])[0], case) is None
    lets = [s for s in walk(lower(f).body) if isinstance(s, lir.Let) and isinstance(s.value, lir.Apply)]
    assert any(s.value.op.opcode is Opcode.CLAMP for s in lets if isinstance(s.value, lir.Apply)) == clamped
