# ruff: noqa: E501, SIM905  # cases and names in one line each read better
"""Result shapes that the text omits are inferred as XLA infers them."""

import random
import re
from collections.abc import Sequence

import pytest

from compiler.errors import HloSyntaxError
from compiler.ir import Opcode, Trait
from compiler.text import parse
from compiler.text.scanner import Scanner
from compiler.text.shapes import parse_shape
from tests.ir.random_shapes import GENERATORS, GREATER, LESS, REDUCER, Case
from tests.ir.xla_verdicts import inferred, verdicts
from tests.text.reference import reprint

PAIR = (
    "pair { a = f32[] parameter(0) b = s32[] parameter(1) c = f32[] parameter(2) d = s32[] parameter(3) "
    "x = f32[] add(a, c) y = s32[] add(b, d) ROOT t = (f32[], s32[]) tuple(x, y) }\n"
)
CALLEE = "f { p = f32[2,3] parameter(0) ROOT r = (f32[2,3], f32[2,3]) tuple(p, p) }\n"
COMBINE = (
    "step { i = f32[3] parameter(0) c = f32[3] parameter(1) n = f32[3] add(i, c) "
    "ROOT t = (f32[3], f32[3]) tuple(n, n) }\n"
)
LOOP = (
    "cond { s = (s32[], f32[2]) parameter(0) ROOT p = pred[] constant(1) }\n"
    "body { ROOT s = (s32[], f32[2]) parameter(0) }\n"
)

# (This XLA cannot infer opt-barrier, and expects the operands of scaled-dot in another order when it infers.)
# Operand shapes, the op with its attributes, and the computations it calls; both parsers infer the result's shape.
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
    (("f32[0,9]", "f32[]"), "reduce-window(%), window={size=3x2 pad=1_2x0_0}, to_apply=add", REDUCER),
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
    (("f32[2,8]",), "topk(%), k=0", ""),
    (("f32[2,3]",), "call(%), to_apply=f", CALLEE),
    (("pred[]", "f32[2,3]", "f32[2,3]"), "conditional(%), true_computation=f, false_computation=f", CALLEE),
    (("(s32[], f32[2])",), "while(%), condition=cond, body=body", LOOP),
    (("f32[2]", "(s32[], f32[2])"), "tuple", ""),
    (("(s32[], (f32[2], u8[]))",), "get-tuple-element(%), index=1", ""),
    (("token[]", "token[]"), "after-all", ""),
    (("f32[2]", "token[]"), "add-dependency", ""),
    ((), "replica-id", ""),
    ((), "partition-id", ""),
    (("s32[4]",) * 2, "mulhi", ""),
]  # fmt: skip

# Ops whose shape XLA's parser requires but we infer: XLA must accept what we infer. (This XLA expects the
# operands of scaled-dot in another order when it infers.) Operand shapes, instructions, and computations they call.
TAKEN: list[Case] = [
    (("f32[2,3]",), "ROOT r = reduce-precision(p0), exponent_bits=5, mantissa_bits=2", ""),
    (("f32[8,9]",), "ROOT r = slice(p0), slice={[1:8:3], [2:9:2]}", ""),
    (("f32[8,9]", "s32[]", "s32[]"), "ROOT r = dynamic-slice(p0, p1, p2), dynamic_slice_sizes={3,9}", ""),
    (("f32[8,9]", "f32[3,9]", "s32[]", "s32[]"), "ROOT r = dynamic-update-slice(p0, p1, p2, p3)", ""),
    (("f32[]", "f32[]"), "ROOT r = dynamic-update-slice(p0, p1)", ""),
    (("f32[2,3]",), "ROOT r = opt-barrier(p0)", ""),
    (("f32[2,3]",), "ROOT r = fusion(p0), kind=kLoop, calls=f", CALLEE),
    (("f32[2,3]",), 'ROOT r = domain(p0), domain={kind="sharding", entry={replicated}, exit={maximal device=0}}', ""),
    ((), "ROOT r = rng-get-and-update-state(), delta=1", ""),
    (("f32[8]",), "ROOT r = all-reduce(p0), replica_groups={}, to_apply=add", REDUCER),
    (("f32[8]",), "ROOT r = collective-broadcast(p0), replica_groups={{0}}", ""),
    (("f32[8]",), "ROOT r = collective-permute(p0), source_target_pairs={{0,0}}", ""),
    (("f32[8]",), "ROOT r = all-to-all(p0), dimensions={0}, replica_groups={{0}}", ""),
    (("f32[8,2]", "f32[9,2]", *["s32[1]"] * 4), "ROOT r = ragged-all-to-all(p0, p1, p2, p3, p4, p5), replica_groups={{0}}", ""),
    (("f32[8]",), "s = copy-start(p0); ROOT r = copy-done(s)", ""),
    (("f32[8]",), "s = (f32[8], f32[8]) all-gather-start(p0), dimensions={0}, replica_groups={{0}}; ROOT r = all-gather-done(s)", ""),
    (("f32[8]",), "s = all-reduce-start(p0), replica_groups={}, to_apply=add; ROOT r = all-reduce-done(s)", REDUCER),
    (("f32[8]",), "s = (f32[8], f32[8]) collective-permute-start(p0), source_target_pairs={{0,0}}; ROOT r = collective-permute-done(s)", ""),
    (("f32[8]",), "k = after-all(); s = send(p0, k), channel_id=1; ROOT r = send-done(s), channel_id=1", ""),
    ((), "k = after-all(); s = (f32[8], u32[], token[]) recv(k), channel_id=1; ROOT r = recv-done(s), channel_id=1", ""),
    (("f32[8]",), "k = after-all(); ROOT r = outfeed(p0, k), outfeed_shape=f32[8]", ""),
    (("bf16[4,8]", "bf16[8,6]", "bf16[4,2]", "bf16[2,6]"), "ROOT r = scaled-dot(p0, p1, p2, p3), lhs_contracting_dims={1}, rhs_contracting_dims={0}", ""),
]  # fmt: skip
UNCOMPILED = {
    "ragged-all-to-all": "XLA:CPU aborts on it",
    "scaled-dot": "StableHLO, the form in which jaxlib passes programs to XLA, has no such op",
}
"""Ops for which we can only check that XLA parses them."""
WRITTEN = """constant parameter iota convert bitcast-convert stochastic-convert bitcast broadcast reshape dynamic-reshape rng
    rng-bit-generator all-gather reduce-scatter all-gather-start collective-permute-start async-start async-update
    async-done infeed recv custom-call""".split()
"""Ops whose shape does not follow from operands and attributes."""


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


def ours_and_theirs(cases: Sequence[Case]) -> list[tuple[Case, str | None, str | None]]:
    """Return the shapes inferred for each here and by XLA; None for what is refused."""
    programs = [text_of(*case) for case in cases]
    theirs = [None if t is None else str(parse_shape(Scanner(t)).without_layout()) for t in inferred(programs)]
    return [(case, _ours(text), t) for case, text, t in zip(cases, programs, theirs, strict=True)]


def _ours(text: str) -> str | None:
    try:
        return str(parse(text).entry.root.shape.without_layout())
    except HloSyntaxError:
        return None


def test_random_instructions_are_inferred_or_refused_as_by_xla() -> None:
    r = random.Random(0)
    cases = [draw(r) for draw in GENERATORS.values() for _ in range(20)]
    found = ours_and_theirs(cases)
    assert [case for case in found if case[1] != case[2]] == []
    assert sum(theirs is None for _, _, theirs in found) < len(cases) // 3


@pytest.mark.slow
def test_many_random_instructions_are_inferred_or_refused_as_by_xla() -> None:
    r = random.Random(1)
    found = ours_and_theirs([draw(r) for draw in GENERATORS.values() for _ in range(200)])
    assert [case for case in found if case[1] != case[2]] == []


TYPES = """pred s2 s4 s8 s32 u4 u8 u64 f16 bf16 f32 f64 f8e5m2 f8e4m3fn f8e8m0fnu f4e2m1fn c64 c128""".split()


def _is_taken_by_type(opcode: Opcode) -> bool:
    """Whether the next test covers an op: elementwise ops of XLA with a fixed number of operands."""
    fixed = opcode.row.arity.least == opcode.row.arity.most
    written = opcode.text in {*WRITTEN, "reduce-precision"}
    return opcode.is_elementwise and fixed and not written and not opcode.has(Trait.EXTENSION)


def test_elementwise_ops_take_the_types_that_xla_takes() -> None:
    cases: list[Case] = []
    for opcode in Opcode:
        count = opcode.row.arity.most
        if not _is_taken_by_type(opcode):
            continue
        call = "compare(%), direction=EQ" if opcode is Opcode.COMPARE else opcode.text
        cases += ((tuple([f"{t}[<=2,3]", f"{t}[2,<=3]", f"{t}[2,3]"][:count]), call, "") for t in TYPES)
    found = ours_and_theirs(cases)
    assert len(cases) > 900
    assert [case for case in found if case[1] != case[2]] == []


def completed(case: Case) -> str:
    """Return the text with the shapes that we infer."""
    operands, body, callees = case
    parameters = "".join(f" p{i} = {s} parameter({i})\n" for i, s in enumerate(operands))
    lines = body.replace("; ", "\n ")
    return str(parse(f"HloModule m\n{callees}ENTRY e {{\n{parameters} {lines}\n}}\n"))


def test_xla_takes_the_shapes_it_wants_written_out() -> None:
    compiled = [completed(c) for c in TAKEN if not any(f" {op}(" in c[1] for op in UNCOMPILED)]
    assert len(compiled) == len(TAKEN) - len(UNCOMPILED)
    assert dict(zip(compiled, verdicts(compiled), strict=True)) == dict.fromkeys(compiled)
    assert None not in inferred([completed(c) for c in TAKEN])


def test_every_opcode_is_inferred_or_written_out() -> None:
    named = {c[1].partition("(")[0] for c in CASES} | {*WRITTEN}
    named |= {op for c in TAKEN for op in re.findall(r"([a-z][a-z0-9\-]*)\(", c[1])}
    named |= {op.text for op in Opcode if _is_taken_by_type(op) or op.has(Trait.EXTENSION)}
    assert {op.text for op in Opcode} <= named


@pytest.mark.parametrize("op", ["convert", "bitcast-convert", "reshape", "iota", "rng-bit-generator", "custom-call"])
def test_what_cannot_be_inferred_must_be_written_out(op: str) -> None:
    attributes = {"iota": ", iota_dimension=0", "rng-bit-generator": ", algorithm=rng_philox"}.get(op, "")
    attributes = ', custom_call_target="t"' if op == "custom-call" else attributes
    operand = "" if op == "iota" else "x"
    with pytest.raises(HloSyntaxError, match="cannot infer the result shape"):
        parse(f"ENTRY e {{\n x = u64[2] parameter(0)\n ROOT r = {op}({operand}){attributes}\n}}")
