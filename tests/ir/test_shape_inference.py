# ruff: noqa: SIM905  # names in one line each read better
import pytest

from compiler.errors import HloSyntaxError
from compiler.text import parse
from tests.text.reference import reprint

REDUCER = "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }\n"
PAIR = (
    "pair { a = f32[] parameter(0) b = s32[] parameter(1) c = f32[] parameter(2) d = s32[] parameter(3) "
    "x = f32[] add(a, c) y = s32[] add(b, d) ROOT t = (f32[], s32[]) tuple(x, y) }\n"
)
LESS = "less { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = pred[] compare(a, b), direction=LT }\n"
GREATER = "ge { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = pred[] compare(a, b), direction=GE }\n"
CALLEE = "f { p = f32[2,3] parameter(0) ROOT r = (f32[2,3], f32[2,3]) tuple(p, p) }\n"
COMBINE = (
    "step { i = f32[3] parameter(0) c = f32[3] parameter(1) n = f32[3] add(i, c) "
    "ROOT t = (f32[3], f32[3]) tuple(n, n) }\n"
)
LOOP = (
    "cond { s = (s32[], f32[2]) parameter(0) ROOT p = pred[] constant(1) }\n"
    "body { ROOT s = (s32[], f32[2]) parameter(0) }\n"
)

# (This XLA cannot infer opt-barrier, and takes the operands of scaled-dot in another order when it infers.)
# Operand shapes, the op with its attributes, and computations it calls; the result's shape is left to both parsers.
CASES = [
    *((("f32[2,3]",), name, "") for name in """abs acos acosh asin asinh atanh ceil cosine cosh erf exponential
        exponential-minus-one floor is-finite log log-plus-one logistic negate round-nearest-afz round-nearest-even
        rsqrt sign sine sinh sqrt tan tanh cbrt real imag copy""".split()),
    *((("c64[2]",), name, "") for name in "abs real imag negate sine exponential".split()),
    *((("u8[3]",), name, "") for name in "not popcnt count-leading-zeros".split()),
    *((("f64[3,1]",) * 2, name, "") for name in """add subtract multiply divide remainder power maximum minimum atan2
        complex""".split()),
    *((("s16[4]",) * 2, name, "") for name in """and or xor shift-left shift-right-arithmetic
        shift-right-logical""".split()),
    (("f32[<=4,2]", "f32[4,2]"), "add", ""),
    (("f32[3]",) * 2, "compare(%), direction=LT", ""),
    (("pred[]", "f32[3]", "f32[3]"), "select", ""),
    (("f32[]", "f32[3]", "f32[]"), "clamp", ""),
    (("f32[2,3]",), "transpose(%), dimensions={1,0}", ""),
    (("f32[<=2,3]",), "transpose(%), dimensions={1,0}", ""),
    (("f32[2,3]",), "reverse(%), dimensions={1}", ""),
    (("f32[2,3]", "f32[2,5]"), "concatenate(%), dimensions={1}", ""),
    (("f32[5,3]", "f32[]"), "pad(%), padding=1_-2_1x0_4", ""),
    (("f32[2,3]",), "get-dimension-size(%), dimensions={1}", ""),
    (("f32[2,3]", "s32[]"), "set-dimension-size(%), dimensions={1}", ""),
    (("f32[5,3]", "s32[4,1]"), "gather(%), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, "
     "index_vector_dim=1, slice_sizes={1,2}", ""),
    (("f32[5,3]", "s32[4]", "f32[4,3]"), "scatter(%), update_window_dims={1}, inserted_window_dims={0}, "
     "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add", REDUCER),
    (("f32[2,3]", "f32[]"), "reduce(%), dimensions={0}, to_apply=add", REDUCER),
    (("f32[2,3]", "s32[2,3]", "f32[]", "s32[]"), "reduce(%), dimensions={1}, to_apply=pair", PAIR),
    (("f32[8,9]", "f32[]"), "reduce-window(%), window={size=3x2 stride=2x1 pad=1_1x0_1 rhs_dilate=1x2}, to_apply=add",
     REDUCER),
    (("f32[8]", "f32[4]", "f32[]"), "select-and-scatter(%), window={size=2 stride=2}, select=ge, scatter=add",
     GREATER + REDUCER),
    (("f32[2,3]",), "map(%), dimensions={0,1}, to_apply={ a = f32[] parameter(0) ROOT r = f32[] sine(a) }", ""),
    (("f32[4,3]", "f32[3]"), "scan(%), dimensions={0}, num_carries=1, to_apply=step", COMBINE),
    (("f32[2,3,4]", "f32[2,4,5]"), "dot(%), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, "
     "rhs_contracting_dims={1}", ""),
    (("bf16[2,4]", "f32[4,5]"), "dot(%), lhs_contracting_dims={1}, rhs_contracting_dims={0}", ""),
    (("f32[6,4]", "f32[3,4,5]", "s32[3]"), "ragged-dot(%), lhs_contracting_dims={1}, rhs_contracting_dims={1}, "
     "lhs_ragged_dims={0}, rhs_group_dims={0}", ""),
    (("f32[6,4]", "f32[4,5]", "s32[3]"), "ragged-dot(%), lhs_contracting_dims={1}, rhs_contracting_dims={0}, "
     "lhs_ragged_dims={1}", ""),
    (("f32[1,8,9,4]", "f32[3,2,2,6]"), "convolution(%), window={size=3x2 stride=2x1 pad=1_1x0_0 lhs_dilate=1x2}, "
     "dim_labels=b01f_01io->b01f, feature_group_count=2", ""),
    (("f32[2,3]", "f32[3]", "f32[3]"), "batch-norm-training(%), epsilon=0.1, feature_index=1", ""),
    (("f32[2,3]", *["f32[3]"] * 4), "batch-norm-inference(%), epsilon=0.1, feature_index=1", ""),
    (("f32[2,3]", *["f32[3]"] * 3, "f32[2,3]"), "batch-norm-grad(%), epsilon=0.1, feature_index=1", ""),
    (("f32[2,3,3]",), "cholesky(%), lower=true", ""),
    (("f32[3,3]", "f32[3,2]"), "triangular-solve(%), left_side=true, lower=true, transpose_a=NO_TRANSPOSE", ""),
    (("f32[2,8]",), "fft(%), fft_type=RFFT, fft_length={8}", ""),
    (("c64[2,5]",), "fft(%), fft_type=IRFFT, fft_length={8}", ""),
    (("c128[2,5]",), "fft(%), fft_type=FFT, fft_length={2,5}", ""),
    (("f32[2,8]", "s8[2,8]"), "sort(%), dimensions={1}, to_apply={ a = f32[] parameter(0) b = f32[] parameter(1) "
     "c = s8[] parameter(2) d = s8[] parameter(3) ROOT l = pred[] compare(a, b), direction=LT }", ""),
    (("f32[2,8]",), "sort(%), dimensions={1}, to_apply=less", LESS),
    (("f32[2,8]",), "topk(%), k=3", ""),
    (("f32[2,3]",), "call(%), to_apply=f", CALLEE),
    (("pred[]", "f32[2,3]", "f32[2,3]"), "conditional(%), true_computation=f, false_computation=f", CALLEE),
    (("(s32[], f32[2])",), "while(%), condition=cond, body=body", LOOP),
    (("f32[2]", "(s32[], f32[2])"), "tuple", ""),
    (("(s32[], (f32[2], u8[]))",), "get-tuple-element(%), index=1", ""),
    (("token[]", "token[]"), "after-all", ""),
    (("f32[2]", "token[]"), "add-dependency", ""),
    ((), "replica-id", ""),
    ((), "partition-id", ""),
]  # fmt: skip


def text_of(operands: tuple[str, ...], op: str, callees: str) -> str:
    parameters = "".join(f" p{i} = {s} parameter({i})\n" for i, s in enumerate(operands))
    names = ", ".join(f"p{i}" for i in range(len(operands)))
    call = op.replace("%", names) if "(" in op else f"{op}({names})"
    return f"HloModule m\n{callees}ENTRY e {{\n{parameters} ROOT r = {call}\n}}\n"


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[1].partition("(")[0] + "-" + "-".join(c[0]))
def test_inferred_shapes_are_those_xla_infers(case: tuple[tuple[str, ...], str, str]) -> None:
    text = text_of(*case)
    ours, theirs = parse(text).entry.root.shape, parse(reprint(text)).entry.root.shape
    assert ours.without_layout() == theirs.without_layout()


@pytest.mark.parametrize("op", ["convert", "bitcast-convert", "reshape", "iota", "rng-bit-generator", "custom-call"])
def test_what_cannot_be_inferred_must_be_written_out(op: str) -> None:
    attributes = {"iota": ", iota_dimension=0", "rng-bit-generator": ", algorithm=rng_philox"}.get(op, "")
    attributes = ', custom_call_target="t"' if op == "custom-call" else attributes
    operand = "" if op == "iota" else "x"
    with pytest.raises(HloSyntaxError, match="cannot tell the result's shape"):
        parse(f"ENTRY e {{\n x = u64[2] parameter(0)\n ROOT r = {op}({operand}){attributes}\n}}")
