"""Products and convolutions by oneDNN with the ops that follow as post-operations: results equal the interpreter's."""

import math
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler import parse
from compiler.analysis.cost_model import device_model
from compiler.backends.cpu import BACKEND
from compiler.backends.cpu.onednn import library, matcher
from compiler.backends.cpu.onednn.library import VARIABLE, why_unavailable
from compiler.codegen.languages import C
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.errors import PlanError
from compiler.fusion.policies import make_policy
from compiler.interpreter import evaluate
from compiler.ir import HloModule, Opcode
from compiler.plan import CompilationPlan
from compiler.runtime.executable import CallOptions, Configurable, Executable
from compiler.runtime.kernel_sites import KernelSite, KernelTarget
from compiler.runtime.thunks import LibraryThunk
from compiler.session import CompilationSession

pytestmark = pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))

Array = NDArray[np.generic]


def fused(parameters: list[str], lines: list[str]) -> str:
    """Return a program that is one fusion; the last line is its result, and %p0, %p1... are its parameters."""
    shape = lines[-1].split("= ")[1].split(" ")[0]
    inside = [f"%p{n} = {p} parameter({n})" for n, p in enumerate(parameters)] + lines
    outside = [f"%a{n} = {p} parameter({n})" for n, p in enumerate(parameters)]
    given = ", ".join(f"%a{n}" for n in range(len(parameters)))
    call = f"ROOT %f = {shape} fusion({given}), kind=kOutput, calls=%body"
    inside[-1] = "ROOT " + inside[-1]
    blocks = (f"%body {{\n  {chr(10).join(inside)}\n}}", f"ENTRY %main {{\n  {chr(10).join([*outside, call])}\n}}")
    return "HloModule m\n\n" + "\n\n".join(blocks) + "\n"


def site_of(module: HloModule) -> KernelSite:
    """Return the kernel of the program's fusion, which nothing has lowered."""
    return KernelSite(module.entry.root, KernelTarget("cpu", "c", C.default_schedule, device_model("cpu")))


def in_one_call(text: str) -> Executable:
    module = parse(text)
    exe = BACKEND.build(module, None, {("main", "f"): site_of(module).bind(KernelChoice("onednn"))})
    assert [type(t) for t in exe.thunks] == [LibraryThunk], text
    return exe


def refusal(text: str) -> str:
    """Return why oneDNN does not compute the fusion of a program."""
    site = site_of(parse(text))
    reason = matcher.refusal(site.instruction)
    assert reason is not None and site.check(KernelChoice("onednn")) is not None
    return reason


def whole(text: str, seed: int = 0) -> list[Array]:
    """Small integers, so that sums are exact in every order."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-3, 4, s.dimensions).astype(s.dtype) for s in parse(text).parameter_shapes]


def check(text: str, arguments: Sequence[Array] | None = None, rtol: float = 0.0) -> None:
    arguments = whole(text) if arguments is None else arguments
    exe, module = in_one_call(text), parse(text)
    for _ in range(2):
        for got, want in zip(exe(*arguments), evaluate(module, arguments), strict=True):
            np.testing.assert_allclose(
                np.asarray(got).astype(np.float64), np.asarray(want).astype(np.float64), rtol, rtol, err_msg=text
            )


@pytest.fixture
def any_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow the implementations without vector code that oneDNN has for unusual shapes."""
    monkeypatch.setattr(matcher, "_SLOW", ("none",))


# ---- epilogues: lines that follow %c of shape R, with features in the dimension F

RELU = ["%z = f32[] constant(0)", "%zs = R broadcast(%z), dimensions={}", "%relu = R maximum(LAST, %zs)"]
LEAKY = [
    "%z = f32[] constant(0)", "%zs = R broadcast(%z), dimensions={}", "%s = f32[] constant(0.25)",
    "%ss = R broadcast(%s), dimensions={}", "%g = P compare(LAST, %zs), direction=GT", "%l = R multiply(LAST, %ss)",
    "%leaky = R select(%g, LAST, %l)",
]  # fmt: skip
BIAS = ["%bs = R broadcast(%p2), dimensions={F}", "%biased = R add(LAST, %bs)"]
SCALE = ["%ws = R broadcast(%p2), dimensions={F}", "%scaled = R multiply(%ws, LAST)"]
SHIFT = ["%vs = R broadcast(%p3), dimensions={F}", "%shifted = R subtract(LAST, %vs)"]
RESIDUAL = ["%added = R add(%p3, LAST)"]
NEGATED = ["%n = R subtract(%p3, LAST)", "%m = R negate(%n)", "%abs = R abs(%m)"]
LINEAR = ["%two = f32[] constant(2)", "%twos = R broadcast(%two), dimensions={}", "%l = R multiply(LAST, %twos)"]


def after(shape: str, feature: int, *parts: list[str]) -> list[str]:
    """Return the lines of epilogues that follow each other."""
    lines, last = [], "%c"
    for part in parts:
        for line in part:
            text = line.replace("LAST", last).replace("{F}", f"{{{feature}}}")
            lines.append(text.replace("P ", shape.replace("f32", "pred") + " ").replace("R ", shape + " "))
        last = part[-1].split(" ")[0]
    return lines


def convolution(seed: int, layout: str) -> tuple[list[str], str, str, int]:
    """Return parameters, the line of a random convolution, the shape of its result and its dimension of features."""
    rng = random.Random(seed)
    groups = rng.choice([1, 1, 2, 8])
    sizes = {"b": rng.choice([1, 3]), "f": groups * rng.choice([1, 2, 16])}
    sizes |= {"0": rng.randint(11, 14), "1": rng.randint(11, 14)}
    outputs, k = groups * rng.choice([1, 2, 16]), [rng.randint(1, 3), rng.randint(1, 3)]
    stride, dilate, pad = [[rng.randint(low, 2) for _ in "01"] for low in (1, 1, 0)]
    space = [
        (sizes[c] + 2 * pad[n] - (k[n] - 1) * dilate[n] - 1) // stride[n] + 1 for n, c in enumerate("01")
    ]  # fmt: skip
    result = {"b": sizes["b"], "f": outputs, "0": space[0], "1": space[1]}
    weights = {"o": outputs, "i": sizes["f"] // groups, "0": k[0], "1": k[1]}

    def shape(labels: str, of: dict[str, int]) -> str:
        return f"f32[{','.join(str(of[c]) for c in labels)}]"

    r, order = shape(layout, result), rng.choice(["01io", "oi01"])
    joined = ("x".join(map(str, v)) for v in (k, stride, [f"{p}_{p}" for p in pad], dilate))
    window = " ".join(f"{n}={v}" for n, v in zip(("size", "stride", "pad", "rhs_dilate"), joined, strict=True))
    line = (
        f"%c = {r} convolution(%p0, %p1), window={{{window}}}, dim_labels={layout}_{order}->{layout}, "
        f"feature_group_count={groups}"
    )
    return [shape(layout, sizes), shape(order, weights), f"f32[{outputs}]"], line, r, layout.index("f")


@pytest.mark.usefixtures("any_implementation")
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("parts", [(BIAS, RELU), (SCALE, LEAKY), (LINEAR, RELU)], ids=["relu", "leaky", "linear"])
def test_convolutions_of_any_shape_with_values_per_feature(seed: int, parts: tuple[list[str], ...]) -> None:
    parameters, line, r, feature = convolution(seed, ["b01f", "bf01", "b01f", "0b1f"][seed % 4])
    check(fused(parameters, [line, *after(r, feature, *parts)]))


@pytest.mark.usefixtures("any_implementation")
@pytest.mark.parametrize("seed", range(6))
def test_convolutions_with_residuals(seed: int) -> None:
    parameters, line, r, feature = convolution(100 + seed, "b01f")
    check(fused([*parameters, r], [line, *after(r, feature, BIAS, RESIDUAL, RELU)]))


@pytest.mark.usefixtures("any_implementation")
def test_a_chain_of_operations_in_order() -> None:
    parameters, line, r, feature = convolution(3, "b01f")
    check(fused([*parameters, f"f32[{parameters[2][4:-1]}]"], [line, *after(r, feature, SCALE, SHIFT, RELU)]))
    check(fused([*parameters, r], [line, *after(r, feature, BIAS, NEGATED)]))


DOT = "%c = f32[24,48] dot(%p0, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
SIDES = ["f32[24,32]", "f32[32,48]"]


@pytest.mark.parametrize("parts", [(BIAS, RELU), (SCALE, SHIFT, LEAKY), (BIAS,)], ids=["relu", "affine", "bias"])
def test_products(parts: tuple[list[str], ...]) -> None:
    check(fused([*SIDES, "f32[48]", "f32[48]"], [DOT, *after("f32[24,48]", 1, *parts)]))


@pytest.mark.parametrize("parts", [(RESIDUAL, RELU), (BIAS, NEGATED)], ids=["residual", "negated"])
def test_products_with_arrays(parts: tuple[list[str], ...]) -> None:
    check(fused([*SIDES, "f32[48]", "f32[24,48]"], [DOT, *after("f32[24,48]", 1, *parts)]))


def test_batches_of_products_and_reshapes() -> None:
    dot = (
        "%c = f32[2,16,32] dot(%p0, %p1), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, "
        "rhs_contracting_dims={1}"
    )
    check(fused(["f32[2,16,24]", "f32[2,24,32]", "f32[32]"], [dot, *after("f32[2,16,32]", 2, BIAS, RELU)]))
    reshaped = [DOT, "%d = f32[2,12,48] reshape(%c)", *after("f32[2,12,48]", 2, BIAS, RELU)]
    check(fused([*SIDES, "f32[48]"], [line.replace("(%c, %bs)", "(%d, %bs)") for line in reshaped]))


def gelu(middle: float) -> list[str]:
    constants = {"p": middle, "q": math.sqrt(2 / math.pi), "h": 0.5, "u": 1.0}
    made = []
    for name, value in constants.items():
        made += [f"%{name} = f32[] constant({value})", f"%{name}s = R broadcast(%{name}), dimensions={{}}"]
    return [
        *made, "%x2 = R multiply(LAST, LAST)", "%x3 = R multiply(LAST, %x2)", "%x4 = R multiply(%x3, %ps)",
        "%y = R add(LAST, %x4)", "%yq = R multiply(%qs, %y)", "%t = R tanh(%yq)", "%t1 = R add(%us, %t)",
        "%hx = R multiply(%hs, LAST)", "%gelu = R multiply(%hx, %t1)",
    ]  # fmt: skip


def test_gelu_is_recognized_by_its_constants_alone() -> None:
    parameters = [*SIDES, "f32[48]"]
    text = fused(parameters, [DOT, *after("f32[24,48]", 1, BIAS, gelu(0.044715))])
    rng = np.random.default_rng(0)
    arguments = [rng.standard_normal(s.dimensions).astype(np.float32) for s in parse(text).parameter_shapes]
    check(text, arguments, rtol=1e-5)
    assert "no function" in refusal(fused(parameters, [DOT, *after("f32[24,48]", 1, BIAS, gelu(0.05))]))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_half_types_are_rounded_once(dtype: str) -> None:
    parameters, lines = [*SIDES, "f32[48]"], [DOT, *after("f32[24,48]", 1, BIAS, RELU)]
    text = fused(parameters, lines).replace("f32", dtype)
    site = site_of(parse(text))
    if matcher.refusal(site.instruction) is not None:
        pytest.skip("the processor has no instructions for products of this type")
    check(text, rtol=1e-2)


# ---- what floats may be

SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -2.0, 3e38, -3e38, 1e-40, -1e-40, 1e-45, -1e-45, 1.2e-38, 7.0, -7.0]


def one_factor(rows: int) -> str:
    dot = f"%c = f32[{rows},16] dot(%p0, %p1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
    return fused([f"f32[{rows},1]", "f32[1,16]"], [dot, *after(f"f32[{rows},16]", 1, RELU)])


@pytest.mark.parametrize("threads", [1, 2])
def test_a_maximum_with_zero_is_exact_for_every_float(threads: int) -> None:
    """It keeps NaN and subnormal numbers, and is 0 for minus infinity, whichever thread meets them."""
    rows = 1 << 14
    exe = in_one_call(one_factor(rows))
    assert isinstance(exe, Configurable)
    exe.call_options = CallOptions(num_threads=threads)
    ones = np.ones((1, 16), np.float32)
    plain = np.random.default_rng(0).standard_normal((rows, 1)).astype(np.float32)
    np.testing.assert_array_equal(exe(plain, ones)[0], np.maximum(plain, 0) * ones)
    for place in (0, rows // 2, rows - 16):
        fresh = in_one_call(one_factor(rows))
        x = plain.copy()
        x[place : place + 16, 0] = SPECIAL
        for program in (fresh, fresh, exe):
            got = np.asarray(program(x, ones)[0])
            np.testing.assert_array_equal(got, np.where(np.isnan(x), np.nan, np.maximum(x, 0)) * np.float32(1) * ones)
    np.testing.assert_array_equal(exe(plain, ones)[0], np.maximum(plain, 0) * ones)


def test_sums_that_overflow_are_zero_after_a_maximum() -> None:
    dot = "%c = f32[8,16] dot(%p0, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    text = fused(["f32[8,2]", "f32[2,16]"], [dot, *after("f32[8,16]", 1, RELU)])
    x, k = np.full((8, 2), -3e38, np.float32), np.full((2, 16), 2, np.float32)
    np.testing.assert_array_equal(in_one_call(text)(x, k)[0], np.zeros((8, 16)))


def test_several_threads_meet_a_subnormal_number_at_once() -> None:
    rows = 256
    exe, ones = in_one_call(one_factor(rows)), np.ones((1, 16), np.float32)
    x = np.linspace(-1, 1, rows, dtype=np.float32)[:, None]
    x[7] = 1e-41
    with ThreadPoolExecutor(4) as pool:
        for got in pool.map(lambda _: exe(x, ones)[0], range(40)):
            np.testing.assert_array_equal(got, np.maximum(x, 0) * ones)


# ---- refusals

UNARY = "%after = f32[24,48] {}(%c)"
REFUSED = {
    "its logistic function has a larger error": [UNARY.format("logistic")],
    "its exponential has a larger error": [UNARY.format("exponential")],
    "its maximum loses NaN": ["%after = f32[24,48] maximum(%c, %p2)"],
    "its minimum loses NaN": ["%after = f32[24,48] minimum(%c, %p2)"],
    "its clip loses NaN": ["%after = f32[24,48] clamp(%p2, %c, %p2)"],
    "divides by the result": ["%after = f32[24,48] divide(%p2, %c)"],
    "its gelu by the error function": ["%e = f32[24,48] erf(%c)", "%after = f32[24,48] multiply(%c, %e)"],
    "rounds a value before the end": [
        "%r = bf16[24,48] convert(%c)", "%w = f32[24,48] convert(%r)", "%after = f32[24,48] add(%w, %p2)",
    ],
    "neither an input, nor one number per feature": ["%d = f32[24,48] sine(%p2)", "%after = f32[24,48] add(%c, %d)"],
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_what_the_library_computes_otherwise_is_refused(reason: str) -> None:
    assert reason in refusal(fused([*SIDES, "f32[24,48]"], [DOT, *REFUSED[reason]]))


def test_a_computed_operand_is_refused() -> None:
    lines = ["%n = f32[24,32] negate(%p0)", DOT.replace("(%p0", "(%n"), *after("f32[24,48]", 1, RELU)]
    assert "computed in the same kernel" in refusal(fused(SIDES, lines))


def test_an_array_along_rows_is_refused() -> None:
    lines = [DOT, *after("f32[24,48]", 0, BIAS)]
    assert "nor one number per feature" in refusal(fused([*SIDES, "f32[24]"], lines))


# ---- decisions

CHAIN = """HloModule m

ENTRY %main {
  %x = f32[2,28,28,32] parameter(0)
  %k = f32[3,3,32,32] parameter(1)
  %b = f32[32] parameter(2)
  %c = f32[2,28,28,32] convolution(%x, %k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
  %w = f32[2,28,28,32] broadcast(%b), dimensions={3}
  %a = f32[2,28,28,32] add(%c, %w)
  %z = f32[] constant(0)
  %zs = f32[2,28,28,32] broadcast(%z), dimensions={}
  ROOT %m = f32[2,28,28,32] maximum(%a, %zs)
}
"""


def decided(text: str) -> CompilationSession:
    session = CompilationSession(parse(text), "cpu")
    session.run_passes()
    session.run_fusion_policy(make_policy("default"))
    return session


def replayed(text: str, plan: CompilationPlan) -> CompilationSession:
    session = CompilationSession(parse(text), "cpu")
    session.replay(plan)
    return session


def test_the_default_policy_makes_one_call_of_cheap_epilogues() -> None:
    exe = decided(CHAIN).finish()
    assert [type(t) for t in exe.thunks] == [LibraryThunk]
    assert "library call (convolution, then bias, max-zero)" in str(exe.explain())
    arguments = whole(CHAIN)
    np.testing.assert_array_equal(exe(*arguments)[0], evaluate(parse(CHAIN), arguments)[0])


def test_several_users_of_a_convolution_keep_it_apart() -> None:
    both = "ROOT %t = (f32[2,28,28,32], f32[2,28,28,32]) tuple(%m, %c)"
    text = CHAIN.replace("ROOT %m", "%m").replace("\n}", f"\n  {both}\n}}")
    exe, arguments = decided(text).finish(), whole(text)
    for got, want in zip(exe(*arguments), evaluate(parse(text), arguments), strict=True):
        np.testing.assert_array_equal(got, want)
    assert "then" not in "".join(line for line in str(exe.explain()).splitlines() if "library call" in line)


PRODUCT = """HloModule m

ENTRY %main {
  %x = f32[320,250] parameter(0)
  %k = f32[250,256] parameter(1)
  %b = f32[256] parameter(2)
  %c = f32[320,256] dot(%x, %k), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %w = f32[320,256] broadcast(%b), dimensions={1}
  %a = f32[320,256] add(%c, %w)
  %z = f32[] constant(0)
  %zs = f32[320,256] broadcast(%z), dimensions={}
  ROOT %m = f32[320,256] maximum(%a, %zs)
}
"""


def test_a_plan_is_built_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fusion is the same, and its kernel is generated; only a kernel that was chosen must be what was chosen."""
    session = decided(PRODUCT)
    apart = [a for a in session.actions() if a.producer == "c"]
    session.apply(apart[0])
    plan = CompilationPlan.from_json(session.plan.to_json())
    site = next(s for s in session.kernel_sites() if s.instruction.opcode is Opcode.FUSION)
    session.set_kernel(site, KernelChoice("onednn", {matcher.THREADS: 0}))
    chosen = CompilationPlan.from_json(session.plan.to_json())
    monkeypatch.setenv(VARIABLE, "0")
    assert not library.is_installed()
    exe = replayed(PRODUCT, plan).finish()
    arguments = whole(PRODUCT)
    np.testing.assert_array_equal(exe(*arguments)[0], evaluate(parse(PRODUCT), arguments)[0])
    assert len(exe.thunks) == 1 and not isinstance(exe.thunks[0], LibraryThunk)
    with pytest.raises(PlanError, match="onednn"):
        replayed(PRODUCT, chosen)


def test_products_and_residuals_stay_apart_by_default() -> None:
    """They can be chosen, but are not faster."""
    exe = decided(PRODUCT).finish()
    assert len(exe.thunks) == 2 and "library call (product)" in str(exe.explain())
    residual = CHAIN.replace("add(%c, %w)", "add(%c, %r)").replace(
        "%w = ", "%r = f32[2,28,28,32] parameter(3)\n  %w = "
    )
    assert "library call (convolution)" in str(decided(residual).finish().explain())


# ---- windows


def pooling(pad: str) -> str:
    size = 14 if pad else 13
    r = f"f32[2,{size},{size},32]"
    return f"""HloModule m

%larger {{
  %l = f32[] parameter(0)
  %r = f32[] parameter(1)
  ROOT %o = f32[] maximum(%l, %r)
}}

ENTRY %main {{
  %x = f32[2,28,28,32] parameter(0)
  %b = f32[32] parameter(1)
  %bs = f32[2,28,28,32] broadcast(%b), dimensions={{3}}
  %a = f32[2,28,28,32] add(%x, %bs)
  %i = f32[] constant(-inf)
  %w = {r} reduce-window(%a, %i), window={{size=1x3x3x1 stride=1x2x2x1{pad}}}, to_apply=%larger
  %z = f32[] constant(0)
  %zs = {r} broadcast(%z), dimensions={{}}
  ROOT %m = {r} maximum(%w, %zs)
}}
"""


@pytest.mark.parametrize("pad", ["", " pad=0_0x0_1x0_1x0_0"], ids=["plain", "padded"])
def test_a_window_without_padding_is_one_kernel_with_the_ops_around_it(pad: str) -> None:
    text = pooling(pad)
    exe, arguments = decided(text).finish(), whole(text)
    arguments[0] = arguments[0].astype(np.float32)
    arguments[0][0, 3, 4, 5] = np.nan
    np.testing.assert_array_equal(exe(*arguments)[0], evaluate(parse(text), arguments)[0])
    calls = sum(isinstance(t, LibraryThunk) for t in exe.thunks)
    assert (calls, len(exe.thunks) == 1) == (int(bool(pad)), not pad)


def test_a_window_that_is_kept_is_left_to_the_library() -> None:
    session = CompilationSession(parse(pooling("")), "cpu")
    session.run_passes()
    for site in session.expansions():
        session.set_expansion(site, "keep")
    exe, arguments = session.finish(), whole(pooling(""))
    assert any(isinstance(t, LibraryThunk) for t in exe.thunks)
    np.testing.assert_array_equal(exe(*arguments)[0], evaluate(parse(pooling("")), arguments)[0])
