"""Kernels whose indices make them slow, as the default fusion prices them."""

from __future__ import annotations

import pytest

import hlogym
from compiler.analysis.kernel_summary import summarize
from compiler.fusion.policies import DEFAULT_POLICY, make_policy
from compiler.fusion.protocol import run_policy
from compiler.fusion.state import FusionState
from compiler.ir import HloInstruction, HloModule, Opcode
from compiler.text import parse

ADD = "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }"
INTERLEAVED = """
HloModule m
ENTRY main {
  x = f32[512,32] parameter(0)
  zero = f32[] constant(0)
  x0 = f32[512,64] pad(x, zero), padding=0_0x0_1_1
  x1 = f32[512,64] pad(x, zero), padding=0_0x1_0_1
  y = f32[512,64] add(x0, x1)
  e = f32[512,64] tanh(y)
  y0 = f32[512,128] pad(e, zero), padding=0_0x0_1_1
  y1 = f32[512,128] pad(e, zero), padding=0_0x1_0_1
  ROOT z = f32[512,128] add(y0, y1)
}
"""
PICKED = """
HloModule m
ADD
ENTRY main {
  x = f32[1024,1024] parameter(0)
  i = s32[1024,1] parameter(1)
  zero = f32[] constant(0)
  e = f32[1024,1024] exponential(x)
  s = f32[1024] reduce(e, zero), dimensions={AXIS}, to_apply=add
  ROOT g = f32[1024] gather(s, i), offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1,
    slice_sizes={1}
}
"""
WAVELET = """
HloModule m
ENTRY main {
  x = f32[2048,32] parameter(0)
  y = f32[2048,32] parameter(1)
  z = f32[2048,32] parameter(2)
  d = f32[2048,32] subtract(x, y)
  small = f32[] constant(0.1)
  smalls = f32[2048,32] broadcast(small), dimensions={}
  step = f32[2048,32] multiply(d, smalls)
  s = f32[2048,32] add(z, step)
  odd = f32[2048,16] slice(s), slice={[0:2048], [1:32:2]}
  even = f32[2048,16] slice(s), slice={[0:2048], [0:32:2]}
  sum = f32[2048,16] add(even, odd)
  difference = f32[2048,16] subtract(even, odd)
  ROOT w = f32[2048,32] concatenate(sum, difference), dimensions={1}
}
"""


def fused(text: str) -> HloModule:
    module = parse(text)
    run_policy(FusionState(module), make_policy(DEFAULT_POLICY))
    return module


def opcodes(i: HloInstruction) -> list[Opcode]:
    return [x.opcode for c in i.called_computations() for x in c.instructions]


def test_interleaved_values_are_not_interleaved_again_in_one_kernel() -> None:
    kernels = [opcodes(i) for i in fused(INTERLEAVED).entry.instructions if i.opcode is Opcode.FUSION]
    assert [k.count(Opcode.PAD) for k in kernels] == [2, 2]


@pytest.mark.parametrize(("axis", "together"), [("1", True), ("0", False)])
def test_a_reduction_along_columns_is_computed_before_a_gather_picks_them(axis: str, together: bool) -> None:
    module = fused(PICKED.replace("ADD", ADD).replace("AXIS", axis))
    sums = [k for i in module.entry.instructions if Opcode.REDUCE in (k := opcodes(i))]
    assert [Opcode.GATHER in k for k in sums] == [together]


ALONG_COLUMNS = "s = f32[1024] reduce(x, zero), dimensions={0}, to_apply=add"
ALONG_ROWS = "r = f32[1024] reduce(x, zero), dimensions={1}, to_apply=add"
PICK = """f32[1024] gather(s, i), offset_dims={}, collapsed_slice_dims={0}, start_index_map={0},
            index_vector_dim=1, slice_sizes={1}"""


def _of_square(statements: str, shape: str) -> HloInstruction:
    """Return a fusion of a square array `x` and indices `i` with the given statements and shape."""
    module = parse(f"""
        HloModule m
        {ADD}
        f {{
          x = f32[1024,1024] parameter(0)
          i = s32[1024,1] parameter(1)
          zero = f32[] constant(0)
          {statements}
        }}
        ENTRY main {{
          x = f32[1024,1024] parameter(0)
          i = s32[1024,1] parameter(1)
          ROOT y = {shape} fusion(x, i), kind=kInput, calls=f
        }}
    """)
    return module.entry.root


def test_columns_that_a_gather_picks_are_read_by_lines() -> None:
    fusion = _of_square(f"{ALONG_COLUMNS}\n ROOT g = {PICK}", "f32[1024]")
    assert summarize(fusion).bytes_read == 64 * 1024**2 + 4096


@pytest.mark.parametrize("reductions", [(ALONG_COLUMNS, ALONG_ROWS), (ALONG_ROWS, ALONG_COLUMNS)])
def test_picked_columns_are_read_by_lines_beside_rows_of_a_square(reductions: tuple[str, str]) -> None:
    both = "(f32[1024], f32[1024])"
    fusion = _of_square("\n".join((*reductions, f"g = {PICK}", f"ROOT t = {both} tuple(g, r)")), both)
    assert summarize(fusion).bytes_read >= 64 * 1024**2


CENTRED = """
HloModule m
ADD
centred {
  x = f32[16,LONG] parameter(0)
  zero = f32[] constant(0)
  e = f32[16,LONG] tanh(x)
  s = f32[16] reduce(e, zero), dimensions={1}, to_apply=add
  b = f32[16,LONG] broadcast(s), dimensions={0}
  ROOT d = f32[16,LONG] subtract(e, b)
}
ENTRY main {
  x = f32[16,LONG] parameter(0)
  ROOT f = f32[16,LONG] fusion(x), kind=kLoop, calls=centred
}
"""


def centred(n: int, op: str = "tanh") -> HloInstruction:
    return parse(CENTRED.replace("ADD", ADD).replace("LONG", str(n)).replace("tanh", op)).entry.root


@pytest.mark.parametrize(("n", "times"), [(1000, 1), (8192, 1), (8193, 2), (100000, 2)])
def test_values_of_long_rows_are_computed_again(n: int, times: int) -> None:
    summary = summarize(centred(n))
    assert summary.loads == times * 16 * n
    assert summary.block_bytes == (4 * n if times > 1 else 0)
    more, more_in_short = (summarize(centred(k)).flops - summarize(centred(k, "negate")).flops for k in (n, 100))
    assert more / n == times * more_in_short / 100


RUNNING = """
HloModule m
ADD
running {
  x = f32[ROWS,LONG,COLUMNS] parameter(0)
  zero = f32[] constant(0)
  e = f32[ROWS,LONG,COLUMNS] negate(x)
  ROOT s = f32[ROWS,LONG,COLUMNS] reduce-window(e, zero), window={size=1xLONGx1 pad=0_0xPAD_0x0_0}, to_apply=add
}
ENTRY main {
  x = f32[ROWS,LONG,COLUMNS] parameter(0)
  ROOT f = f32[ROWS,LONG,COLUMNS] fusion(x), kind=kLoop, calls=running
}
"""


@pytest.mark.parametrize(
    ("rows", "n", "columns", "times"),
    [(1, 4096, 1, 2), (2, 1024, 3, 2), (1, 1000, 1, 1), (64, 4096, 1, 1), (1, 4096, 16, 1)],
)
def test_only_few_long_rows_of_a_running_sum_are_computed_twice(rows: int, n: int, columns: int, times: int) -> None:
    dims = {"ADD": ADD, "PAD": str(n - 1), "ROWS": str(rows), "LONG": str(n), "COLUMNS": str(columns)}
    text = RUNNING
    for name, value in dims.items():
        text = text.replace(name, value)
    summary = summarize(parse(text).entry.root)
    assert summary.flops == (2 + times) * rows * n * columns


@pytest.mark.parametrize(
    ("columns", "bytes_of_row"), [(4096, 4096), (4080, 1024), (2048, 2048), (1024, 1024), (100, 400)]
)
def test_rows_of_a_block_that_share_the_sets_of_a_cache_take_more_room(columns: int, bytes_of_row: int) -> None:
    text = CENTRED.replace("ADD", ADD).replace("16,LONG", f"LONG,{columns}").replace("[16]", f"[{columns}]")
    text = text.replace("dimensions={1}", "dimensions={9}").replace("dimensions={0}", "dimensions={1}")
    kernel = parse(text.replace("dimensions={9}", "dimensions={0}").replace("LONG", "300")).entry.root
    assert summarize(kernel).block_bytes == 300 * bytes_of_row


def joined(pieces: int, then: str = "") -> HloInstruction:
    """Return a fusion that concatenates exponentials plus numbers along rows; `then` is the op after that."""
    lines = [f"  a{n} = f32[256,16] add(e, b{n})" for n in range(pieces)]
    lines += [f"  b{n} = f32[256,16] broadcast(c{n}), dimensions={{}}" for n in range(pieces)]
    lines += [f"  c{n} = f32[] constant({n})" for n in range(pieces)]
    names = ", ".join(f"a{n}" for n in range(pieces))
    return parse(f"""
HloModule m
parts {{
  x = f32[256,16] parameter(0)
  e = f32[256,16] exponential(x)
{chr(10).join(reversed(lines))}
  {"" if then else "ROOT"} y = f32[256,{16 * pieces}] concatenate({names}), dimensions={{1}}
  {f"ROOT z = f32[256,{16 * pieces}] {then}(y)" if then else ""}
}}
ENTRY main {{
  x = f32[256,16] parameter(0)
  ROOT f = f32[256,{16 * pieces}] fusion(x), kind=kLoop, calls=parts
}}
""").entry.root


@pytest.mark.parametrize(("pieces", "times"), [(2, 1), (4, 1), (5, 2), (8, 2)])
def test_a_concatenation_computes_what_up_to_four_operands_share_once(pieces: int, times: int) -> None:
    assert summarize(joined(pieces)).loads == times * 256 * 16
    assert summarize(joined(pieces, then="negate")).loads == pieces * 256 * 16  # each element tests where it is from


def test_a_level_of_a_wavelet_is_one_kernel_with_what_comes_before_it() -> None:
    kernels = [opcodes(i) for i in fused(WAVELET).entry.instructions if i.opcode is Opcode.FUSION]
    assert len(kernels) == 1
    assert kernels[0].count(Opcode.SLICE) == 2


@pytest.mark.parametrize(("columns", "kernels"), [(5, 1), (10, 1), (15, 1), (8, 2), (40, 1)])
def test_exponentials_of_rows_that_are_transposed_are_counted_once(columns: int, kernels: int) -> None:
    shape = f"f32[1000,{columns}]"
    executable = hlogym.compile(
        f"""HloModule softmax
    add {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }}
    ENTRY main {{
      x = {shape} parameter(0)
      e = {shape} exponential(x)
      zero = f32[] constant(0)
      s = f32[1000] reduce(e, zero), dimensions={{1}}, to_apply=add
      k = {shape} broadcast(s), dimensions={{0}}
      ROOT r = {shape} divide(e, k)
    }}""",
        backend="cpu",
    )
    assert len(executable.kernels) == kernels
