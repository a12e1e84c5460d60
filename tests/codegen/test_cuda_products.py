"""Matrix products in CUDA C++: tiles in shared memory and tensor cores, in the emulator against the interpreter."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from compiler import compile
from compiler.backends.cuda.cubins import compile_cubins
from compiler.backends.cuda.gpu_models import gpu_model, resident_blocks
from compiler.backends.cuda.nvrtc import source_of
from compiler.codegen.kernel_spec import make_kernel
from compiler.codegen.languages import default_schedule
from compiler.codegen.lowering.lower import lower
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.codegen.schedules.schedule import Schedule
from compiler.errors import UnsupportedError
from compiler.ir import HloComputation
from compiler.runtime.thunks import GemmThunk
from compiler.session import CompilationSession
from compiler.text import parse
from tests.codegen import running
from tests.codegen.nvrtc_errors import has_nvrtc, nvrtc_errors
from tests.codegen.products import random_product
from tests.codegen.running import case_of, fused, kernel_of, random_args

needs_nvrtc = pytest.mark.skipif(not has_nvrtc(), reason="NVRTC is not installed")
needs_emulator = pytest.mark.skipif(not running.has_emulator(), reason="the emulator needs g++")


def product(t: str, m: int, n: int, k: int, turned: str = "", after: Sequence[str] = ()) -> HloComputation:
    """Return the product %d of p0 and p1; `turned` names the operands that are transposed."""
    lhs, rhs = (f"{k},{m}", f"{n},{k}") if turned == "both" else (f"{m},{k}", f"{k},{n}")
    lhs = f"{k},{m}" if turned == "lhs" else lhs
    rhs = f"{n},{k}" if turned == "rhs" else rhs
    dims = (int(turned not in ("lhs", "both")), int(turned in ("rhs", "both")))
    lines = [
        f"p0 = {t}[{lhs}] parameter(0)",
        f"p1 = {t}[{rhs}] parameter(1)",
        f"d = {t}[{m},{n}] dot(p0, p1), lhs_contracting_dims={{{dims[0]}}}, rhs_contracting_dims={{{dims[1]}}}",
        *after,
    ]
    lines[-1] = f"ROOT {lines[-1]}"
    return fused("\n".join(lines))


def check(computations: Sequence[HloComputation], folder: Path, schedule: Schedule | None = None) -> None:
    """Assert that the emulated kernels of computations give what the interpreter gives."""
    rng = np.random.default_rng(5)
    cases = [case_of(c, random_args(c.parameter_shapes, rng), "cuda", schedule) for c in computations]
    for computation, case, run in zip(computations, cases, running.run_emulated(cases, folder), strict=True):
        assert run.error == "", f"{computation.root}: {run.error}"
        assert running.problem(run.outputs, case) is None, str(computation.root)


@needs_emulator
def test_random_products(tmp_path: Path) -> None:
    check([random_product(random.Random(seed)) for seed in range(12)], tmp_path)


@pytest.mark.slow
@needs_emulator
@pytest.mark.parametrize("first", [12, 112])
def test_many_random_products(first: int, tmp_path: Path) -> None:
    check([random_product(random.Random(seed)) for seed in range(first, first + 100)], tmp_path)


@needs_emulator
@pytest.mark.parametrize("t", ["f32", "bf16"])
def test_operands_are_copied_in_every_order(t: str, tmp_path: Path) -> None:
    cases = [product(t, 72, 40, 48, turned) for turned in ("", "lhs", "rhs", "both")]
    check(cases, tmp_path)
    assert all("const void *" in kernel_of(c, "cuda").source for c in cases)


def quantised(m: int, n: int, k: int, turned: bool) -> HloComputation:
    """Return the product of bf16 with weights of int8 that have a scale for each result."""
    sizes, dims = (f"{n},{k}", 1) if turned else (f"{k},{n}", 0)
    return fused(
        f"""
        x = bf16[{m},{k}] parameter(0)
        w = s8[{sizes}] parameter(1)
        s = bf16[{n}] parameter(2)
        c = bf16[{sizes}] convert(w)
        b = bf16[{sizes}] broadcast(s), dimensions={{{1 - dims}}}
        y = bf16[{sizes}] multiply(c, b)
        ROOT d = bf16[{m},{n}] dot(x, y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{{dims}}}
        """
    )


@needs_emulator
def test_adjacent_elements_are_computed_together(tmp_path: Path) -> None:
    together = [quantised(40, 72, 80, turned) for turned in (False, True)]
    alone = [quantised(33, 27, 35, False), quantised(20, 24, 29, True)]
    check([*together, *alone, quantised(24, 20, 36, True)], tmp_path)
    for c in together:
        source = kernel_of(c, "cuda").source
        assert "group_operand" in source
        assert "load_wide<8>" in source
    assert not any("group_operand" in kernel_of(c, "cuda").source for c in alone)


@needs_emulator
@pytest.mark.parametrize("t", ["f32", "bf16", "f16", "f64", "s32"])
def test_adjacent_results_are_stored_together(t: str, tmp_path: Path) -> None:
    after = [f"p2 = {t}[70,{{n}}] parameter(2)", f"r = {t}[70,{{n}}] subtract(d, p2)"]
    wide, narrow = (product(t, 70, n, 37, after=[line.format(n=n) for line in after]) for n in (136, 45))
    check([wide, narrow], tmp_path)
    assert "store_wide(o0" in kernel_of(wide, "cuda").source
    assert "store_wide(o0" not in kernel_of(narrow, "cuda").source


def padded_window(t: str, features: int, low: int = 1) -> HloComputation:
    """Return the product of the padded slices of an image with features, as of a convolution along one dimension."""
    slices = [f"s{n} = {t}[50,{features}] slice(p), slice={{[{n}:{n + 50}], [0:{features}]}}" for n in range(3)]
    return fused(
        "\n".join(
            [
                f"x = {t}[50,{features}] parameter(0)",
                f"w = {t}[{3 * features},40] parameter(1)",
                f"z = {t}[] constant(0)",
                f"p = {t}[52,{features}] pad(x, z), padding={low}_{2 - low}x0_0",
                *slices,
                f"c = {t}[50,{3 * features}] concatenate(s0, s1, s2), dimensions={{1}}",
                f"ROOT d = {t}[50,40] dot(c, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}",
            ]
        )
    )


@needs_emulator
@pytest.mark.parametrize("t", ["f32", "bf16", "f64"])
def test_padded_rows_are_copied_where_they_are_inside(t: str, tmp_path: Path) -> None:
    whole, odd = [padded_window(t, 16, low) for low in (0, 1, 2)], padded_window(t, 7)
    check([*whole, odd], tmp_path)
    assert all("inside = inside && " in kernel_of(c, "cuda").source for c in whole)
    assert "inside = inside && " not in kernel_of(odd, "cuda").source


@needs_emulator
def test_tiles_of_other_sizes(tmp_path: Path) -> None:
    preset = default_schedule("cuda")
    for tiles in (
        {"tiles.rows": 16, "tiles.columns": 32, "tiles.depth": 16},
        {"tiles.rows": 128, "tiles.columns": 64, "tiles.stages": 3},
        {"tiles.rows": 32, "tiles.columns": 64, "tiles.depth": 16, "tiles.stages": 4},
    ):
        cases = [product("bf16", 70, 136, 88), product("f16", 70, 90, 50, "rhs")]
        check(cases, tmp_path, preset.with_values(tiles))
    for tiles in ({"tiles.rows": 128, "tiles.columns": 128}, {"tiles.rows": 32, "tiles.columns": 64, "tiles.depth": 8}):
        check([product("f32", 150, 130, 37), product("s32", 20, 33, 12, "rhs")], tmp_path, preset.with_values(tiles))


def test_one_stage_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="at least two stages"):
        kernel_of(product("bf16", 64, 64, 64), "cuda", default_schedule("cuda").with_values({"tiles.stages": 1}))


@pytest.mark.parametrize("tiles", [{"tiles.rows": 16, "tiles.row_parts": 3}, {"tiles.columns": 32, "tiles.depth": 24}])
def test_tiles_that_do_not_divide_are_refused(tiles: dict[str, int]) -> None:
    with pytest.raises(UnsupportedError, match="cannot be divided"):
        kernel_of(product("bf16", 64, 64, 64), "cuda", default_schedule("cuda").with_values(tiles))


def test_tiles_that_do_not_fit_into_shared_memory_are_refused() -> None:
    tiles = {"tiles.rows": 128, "tiles.columns": 128, "tiles.stages": 4, "tiles.depth": 64}
    with pytest.raises(UnsupportedError, match="shared memory"):
        kernel_of(product("bf16", 512, 512, 512), "cuda", default_schedule("cuda").with_values(tiles))


@needs_emulator
@needs_emulator
@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_groups_of_threads_divide_the_depth(parts: int, tmp_path: Path) -> None:
    shapes = [
        ("f32", 40, 70, 100, "lhs"),
        ("f64", 33, 20, 61, ""),
        ("s32", 30, 50, 90, "rhs"),
        ("f32", 20, 90, 5, "both"),
    ]
    schedule = default_schedule("cuda").with_values({"tiles.depth_parts": parts, "tiles.depth": 8})
    check([product(*s) for s in shapes], tmp_path, schedule)


def test_few_tiles_of_long_sums_have_more_threads() -> None:
    few, many, short = (kernel_of(product("f32", *s), "cuda") for s in ((64, 64, 512), (4096, 512, 512), (64, 64, 8)))
    assert few.block == 4 * short.block
    assert many.block == short.block == 128


def test_too_many_threads_are_refused() -> None:
    schedule = default_schedule("cuda").with_values(
        {"tiles.depth_parts": 8, "tiles.row_parts": 16, "tiles.column_parts": 16}
    )
    with pytest.raises(UnsupportedError, match="2048 threads"):
        kernel_of(product("f32", 64, 64, 512), "cuda", schedule)


@pytest.mark.parametrize(("rows", "columns"), [(64, 25600), (25600, 64)])
def test_results_of_few_rows_or_columns_have_equally_many_tiles(rows: int, columns: int) -> None:
    assert kernel_of(product("f32", rows, columns, 16), "cuda").grid == 25600 // 128


@needs_emulator
def test_tiles_of_few_rows_are_right(tmp_path: Path) -> None:
    check([product("f32", 50, 21000, 9), product("f32", 64, 21000, 5, "both")], tmp_path)


def test_an_operand_that_needs_a_reduction_is_refused() -> None:
    """Each of its elements would compute the reduction again, in every block."""
    computation = fused(
        """
        x = f32[64,10] parameter(0)
        w = f32[10,32] parameter(1)
        z = f32[] constant(0)
        s = f32[64] reduce(x, z), dimensions={1}, to_apply=add
        b = f32[64,10] broadcast(s), dimensions={0}
        q = f32[64,10] divide(x, b)
        ROOT d = f32[64,32] dot(q, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        """,
        "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }",
    )
    with pytest.raises(UnsupportedError, match="%s would be computed again"):
        kernel_of(computation, "cuda")


def _padded_product(levels: int) -> HloComputation:
    """Return a product whose operand is a sum of paddings of sums of paddings, each of which is a branch."""
    lines = ["p0 = f32[40,64] parameter(0)", "p1 = f32[64,48] parameter(1)", "z = f32[] constant(0)"]
    last = "p0"
    for n in range(levels):
        lines += [f"a{n} = f32[40,64] pad({last}, z), padding=0_0x{n + 1}_-{n + 1}"]
        lines += [f"b{n} = f32[40,64] pad({last}, z), padding=0_0x-{n + 2}_{n + 2}"]
        lines += [f"s{n} = f32[40,64] add(a{n}, b{n})"]
        last = f"s{n}"
    dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    return fused("\n".join([*lines, f"ROOT d = f32[40,48] dot({last}, p1), {dims}"]))


def _outcome(computation: HloComputation, is_trial: bool) -> str:
    try:
        lower(computation, default_schedule("cuda"), tiles=True, is_trial=is_trial)
    except UnsupportedError as e:
        return str(e)
    return "made"


def test_a_trial_finds_a_kernel_where_there_is_one_and_else_the_same_reason() -> None:
    cases = [random_product(random.Random(seed)) for seed in range(40)] + [_padded_product(n) for n in (1, 2, 4, 6, 12)]
    outcomes = [_outcome(c, is_trial=True) for c in cases]
    assert outcomes == [_outcome(c, is_trial=False) for c in cases]
    assert outcomes.count("made") >= 40
    assert any(o != "made" for o in outcomes)


@needs_emulator
def test_nan_and_infinity_stay_in_their_rows(tmp_path: Path) -> None:
    computation = product("bf16", 19, 37, 21)
    a, b = random_args(computation.parameter_shapes, np.random.default_rng(3))
    a[4, 2], b[20, 36] = np.nan, np.inf
    case = case_of(computation, [a, b], "cuda")

    (run,) = running.run_emulated([case], tmp_path)

    assert running.problem(run.outputs, case) is None
    found = run.outputs[0].astype(np.float32)
    assert np.isnan(found[4]).all()
    assert np.isfinite(np.delete(found, 4, axis=0)[:, :36]).all()


@needs_emulator
def test_a_product_of_bfloat16_is_rounded_once(tmp_path: Path) -> None:
    case = case_of(c := product("bf16", 16, 16, 300), random_args(c.parameter_shapes, np.random.default_rng(5)), "cuda")
    wanted = (case.args[0].astype(np.float64) @ case.args[1].astype(np.float64)).astype(case.args[0].dtype)

    ((result,),) = [r.outputs for r in running.run_emulated([case], tmp_path)]

    assert np.mean(result == wanted) > 0.95


def test_converted_halves_are_multiplied_by_tensor_cores() -> None:
    computation = fused("""
        p0 = bf16[64,32] parameter(0)
        p1 = bf16[32,64] parameter(1)
        a = f32[64,32] convert(p0)
        b = f32[32,64] convert(p1)
        ROOT d = f32[64,64] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    """)

    assert "tensor_product<bfloat16_t" in kernel_of(computation, "cuda").source


@needs_emulator
def test_small_integers_are_multiplied_by_tensor_cores_exactly(tmp_path: Path) -> None:
    computation = fused("""
        p0 = s8[40,100] parameter(0)
        p1 = u8[100,24] parameter(1)
        a = f32[40,100] convert(p0)
        b = f32[100,24] convert(p1)
        d = f32[40,24] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        ROOT r = s32[40,24] convert(d)
    """)
    rng = np.random.default_rng(2)
    args = [rng.integers(-128, 128, (40, 100)).astype(np.int8), rng.integers(0, 256, (100, 24)).astype(np.uint8)]
    case = case_of(computation, args, "cuda")

    (run,) = running.run_emulated([case], tmp_path)

    assert "tensor_product<bfloat16_t" in case.spec.source
    np.testing.assert_array_equal(run.outputs[0], args[0].astype(np.int64) @ args[1].astype(np.int64))


def test_f32_is_not_rounded_for_tensor_cores() -> None:
    assert "scalar_product<float" in kernel_of(product("f32", 64, 64, 64), "cuda").source


def test_a_residual_may_be_overwritten_but_an_operand_may_not() -> None:
    after = ["p2 = f32[64,64] parameter(2)", "r = f32[64,64] add(d, p2)"]

    assert kernel_of(product("f32", 64, 64, 64, after=after), "cuda").in_place == ((2, 3),)


LAYER = """HloModule layer
ENTRY e {
  x = f32[40,50] parameter(0)
  w = f32[50,60] parameter(1)
  b = f32[60] parameter(2)
  zero = f32[] constant(0)
  zeros = f32[40,60] broadcast(zero), dimensions={}
  biases = f32[40,60] broadcast(b), dimensions={1}
  d = f32[40,60] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  s = f32[40,60] add(d, biases)
  ROOT r = f32[40,60] maximum(s, zeros)
}
"""


def test_a_small_layer_is_one_kernel() -> None:
    assert [k.kind for k in compile(LAYER, backend="cuda").kernels] == ["product"]


def test_a_product_that_a_library_could_not_read_needs_no_transposes() -> None:
    text = """HloModule heads
    ENTRY e {
      x = f32[128,8,64] parameter(0)
      y = f32[64,96,8] parameter(1)
      ROOT d = f32[8,128,96] dot(x, y), lhs_batch_dims={1}, rhs_batch_dims={2}, lhs_contracting_dims={2},
        rhs_contracting_dims={0}
    }"""

    assert [k.kind for k in compile(text, backend="cuda", fusion_policy="none").kernels] == ["product"]


def test_a_library_is_a_choice_for_a_fused_product() -> None:
    session = CompilationSession(parse(LAYER), backend="cuda")
    (site,) = session.kernel_sites()
    session.set_kernel(site, KernelChoice("separate"))

    executable = session.finish()

    assert any(isinstance(t, GemmThunk) for t in executable.thunks)
    assert "product" not in [k.kind for k in executable.kernels]


def test_a_large_product_is_left_to_a_library() -> None:
    text = LAYER.replace("40", "8192").replace("50", "8192").replace("60", "8192")

    assert "product" not in [k.kind for k in compile(text, backend="cuda", fusion_policy="none").kernels]


@pytest.mark.parametrize("policy", ["none", "priority"])
def test_a_product_of_few_long_sums_is_left_to_a_library(policy: str) -> None:
    """One block per tile would compute it; a library divides the sums among all multiprocessors."""
    text = LAYER.replace("40", "32").replace("60", "64").replace("50", "16384")

    assert "product" not in [k.kind for k in compile(text, backend="cuda", fusion_policy=policy).kernels]


def test_an_operand_that_every_tile_would_compute_from_much_is_computed_once() -> None:
    """A gated layer: the product of two activations and a gate is an operand of the next product."""
    shapes = ["bf16[2048,2816]"] * 3
    lines = [f"x{n} = {s} parameter({n})" for n, s in enumerate(shapes)]
    text = "\n".join(
        [
            "HloModule m\nENTRY e {",
            *lines,
            "w = bf16[2816,1024] parameter(3)",
            "y = bf16[2048,2816] multiply(x0, x1)",
            "z = bf16[2048,2816] multiply(y, x2)",
            "ROOT d = bf16[2048,1024] dot(z, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
            "}",
        ]
    )

    executable = compile(text, backend="cuda")

    assert any(isinstance(t, GemmThunk) for t in executable.thunks)
    assert "product" not in [k.kind for k in executable.kernels]


def test_results_of_halves_are_stored_as_halves_and_widened_where_they_are_read() -> None:
    text = """HloModule m
    add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
    ENTRY e {
      x = bf16[512,64] parameter(0)
      y = bf16[64,512] parameter(1)
      m = pred[512,512] parameter(2)
      d = bf16[512,512] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
      z = bf16[] constant(0)
      b = bf16[512,512] broadcast(z), dimensions={}
      s = bf16[512,512] select(m, d, b)
      f = f32[512,512] convert(s)
      e = f32[512,512] exponential(f)
      zero = f32[] constant(0)
      r = f32[512] reduce(e, zero), dimensions={1}, to_apply=add
      c = f32[512] reduce(f, zero), dimensions={0}, to_apply=add
      ROOT t = (f32[512], f32[512]) tuple(r, c)
    }"""

    products = [k for k in compile(text, backend="cuda").kernels if k.kind == "product"]

    assert {s.element_type.text for k in products for s in k.outputs} <= {"bf16"}


@needs_nvrtc
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_nvrtc_compiles_products(architecture: str) -> None:
    after = ["p2 = {t}[70,40] parameter(2)", "r = {t}[70,40] add(d, p2)"]
    specs = [
        kernel_of(product(t, 70, 40, 30, after=[line.format(t=t) for line in after]), "cuda")
        for t in ("f32", "bf16", "f16", "f64", "s32")
    ]
    specs += [kernel_of(padded_window(t, 16), "cuda") for t in ("f32", "bf16", "f64")]
    assert nvrtc_errors(source_of(specs), architecture) == ""


@pytest.mark.slow
@needs_nvrtc
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_registers_suffice_for_the_largest_tiles(architecture: str) -> None:
    specs = [
        kernel_of(product(t, 2048, n, 1024, turned), "cuda")
        for t in ("f32", "bf16", "f16", "f64")
        for n, turned in ((2048, ""), (2048, "both"), (2047, ""))
    ]

    found = compile_cubins(specs, architecture)

    assert {s.symbol: found[s.symbol].resources.spill_stores for s in specs} == {s.symbol: 0 for s in specs}


@pytest.mark.parametrize(("rows", "bound"), [(64, ", 1)"), (20000, ", 3)"), (1 << 17, ")")])
def test_blocks_that_may_all_run_at_once_share_the_registers_of_a_multiprocessor(rows: int, bound: str) -> None:
    spec = make_kernel(parse(_tall_product(rows)).entry.root, "cuda")
    assert f"__launch_bounds__({spec.block}{bound}" in spec.source


@needs_nvrtc
def test_no_block_of_a_few_waits_for_registers() -> None:
    spec = make_kernel(parse(_tall_product(20000)).entry.root, "cuda")
    gpu = gpu_model("h100")

    resources = compile_cubins([spec], gpu.architecture)[spec.symbol].resources
    resident = resident_blocks(gpu, spec.block, resources.registers, resources.shared_bytes)

    assert gpu.multiprocessors < spec.grid <= resident * gpu.multiprocessors


def _tall_product(rows: int) -> str:
    return (
        f"HloModule m\nENTRY e {{ x = f32[{rows},256] parameter(0) y = f32[256,128] parameter(1)\n"
        f"ROOT r = f32[{rows},128] dot(x, y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}} }}"
    )


def patches(starts: Sequence[tuple[int, ...]], strides: tuple[int, ...], wrapped: bool) -> HloComputation:
    """Return a product of patches of an array [12, 11, 10, 3], of 4 x 3 x 4 positions.

    Args:
        starts: where each piece of the patches starts.
        strides: distances of the positions of a piece.
        wrapped: whether pieces are reshaped, with a dimension of their own.
    """
    lines = ["x = f32[10,9,8,3] parameter(0)", "z = f32[] constant(0)"]
    lines.append("p = f32[12,11,10,3] pad(x, z), padding=1_1x1_1x1_1x0_0")
    sizes = (4, 3, 4)
    for n, start in enumerate(starts):
        spans = zip(start, sizes, strides, strict=True)
        spec = ",".join(f"[{a}:{a + (size - 1) * s + 1}:{s}]" for a, size, s in spans)
        lines.append(f"s{n} = f32[4,3,4,3] slice(p), slice={{{spec},[0:3]}}")
        lines.append(f"r{n} = f32[48,1,3] reshape(s{n})")
    pieces = ", ".join(f"{'r' if wrapped else 's'}{n}" for n in range(len(starts)))
    k = 3 * len(starts)
    joined = f"f32[48,{len(starts)},3]" if wrapped else f"f32[4,3,4,{k}]"
    lines += [
        f"c = {joined} concatenate({pieces}), dimensions={{{1 if wrapped else 3}}}",
        f"m = f32[48,{k}] reshape(c)",
        f"w = f32[{k},20] parameter(1)",
        "ROOT d = f32[48,20] dot(m, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    ]
    return fused("\n".join(lines))


CUBE = [(a, b, c) for a in range(3) for b in range(2) for c in (0, 2)]


@needs_emulator
@pytest.mark.parametrize("wrapped", [False, True])
def test_patches_at_regular_distances(wrapped: bool, tmp_path: Path) -> None:
    square = [(2, b, c) for b in range(3) for c in range(3)]
    starts = [CUBE, square, CUBE[::-1], [(0, 0, 0)] * 5, [(0, 0, 3), (1, 0, 0), (0, 2, 1), (2, 0, 4), (1, 1, 1)]]
    check([patches(s, (2, 3, 1), wrapped) for s in starts], tmp_path)


def test_patches_at_regular_distances_are_read_by_one_load() -> None:
    source = kernel_of(patches(CUBE, (1, 1, 1), False), "cuda").source
    assert source.count("= p0[") == 1
    assert source.count(" ? ") < len(CUBE)
