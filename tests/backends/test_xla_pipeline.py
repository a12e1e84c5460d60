"""The pipeline in front of XLA: which loops and ops it rewrites, and when it leaves a program as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler import compile, parse
from compiler.ir import HloModule, Opcode
from compiler.passes.infrastructure.pipeline import PassPipeline, PipelineRun
from compiler.passes.infrastructure.registry import make_pass
from compiler.passes.pipelines.for_xla import FirstAccepted, xla_pipeline
from env.reference import Reference
from env.suites import find_program, random_inputs

pytest.importorskip("jax")
from compiler.backends.xla.dispatch import is_cheap

LOOP = """HloModule m
c {{ s = (s32[], f32[{n}]) parameter(0) i = s32[] get-tuple-element(s), index=0 k = s32[] constant({trips})
ROOT r = pred[] compare(i, k), direction=LT }}
b {{ s = (s32[], f32[{n}]) parameter(0) i = s32[] get-tuple-element(s), index=0
x = f32[{n}] get-tuple-element(s), index=1
one = s32[] constant(1) j = s32[] add(i, one) {body} ROOT r = (s32[], f32[{n}]) tuple(j, y) }}
ENTRY e {{ x = f32[{n}] parameter(0) z = s32[] constant(0) s = (s32[], f32[{n}]) tuple(z, x)
w = (s32[], f32[{n}]) while(s), condition=c, body=b ROOT r = f32[{n}] get-tuple-element(w), index=1 }}"""
SQUARES = "q = f32[{n}] multiply(x, x) y = f32[{n}] subtract(q, x)"
SHIFTS = "l = f32[1] slice(x), slice={{[0:1]}} t = f32[{m}] slice(x), slice={{[1:{n}]}} " \
         "o = f32[{n}] concatenate(t, l), dimensions={{0}} y = f32[{n}] add(o, x)"  # fmt: skip
ADD = "f {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] {op}(a, b) }}\n"
POOL = (
    ADD.format(op="maximum")
    + """ENTRY e { x = f32[4,32,32] parameter(0) z = f32[] constant(-inf)
ROOT r = f32[4,16,16] reduce-window(x, z), window={size=1x2x2 stride=1x2x2}, to_apply=f }"""
)
POINTWISE = """ENTRY e { x = f32[2,8,16,16] parameter(0) k = f32[4,8,1,1] parameter(1)
ROOT r = f32[2,4,16,16] convolution(x, k), window={size=1x1}, dim_labels=bf01_oi01->bf01 }"""
DEPTHWISE = """ENTRY e { x = f32[2,8,16,16] parameter(0) k = f32[8,1,3,3] parameter(1)
ROOT r = f32[2,8,16,16] convolution(x, k), window={size=3x3 pad=1_1x1_1}, dim_labels=bf01_oi01->bf01,
feature_group_count=8 }"""
DENSE = """ENTRY e { x = f32[2,8,16,16] parameter(0) k = f32[4,8,3,3] parameter(1)
ROOT r = f32[2,4,16,16] convolution(x, k), window={size=3x3 pad=1_1x1_1}, dim_labels=bf01_oi01->bf01 }"""
RUNNING = (
    ADD.format(op="add")
    + """ENTRY e { x = f32[64,64] parameter(0) z = f32[] constant(0)
ROOT r = f32[64,64] reduce-window(x, z), window={size=1x64 pad=0_0x63_0}, to_apply=f }"""
)
SORT = """f { a = f32[] parameter(0) b = f32[] parameter(1)
ROOT r = pred[] compare(a, b), direction=LT, type=TOTALORDER }
ENTRY e { x = f32[8,64] parameter(0) ROOT r = f32[8,64] sort(x), dimensions={1}, to_apply=f }"""


def loop_text(body: str, n: int, trips: int = 4) -> str:
    return LOOP.format(n=n, trips=trips, body=body.format(n=n, m=n - 1))


def opcodes(module: HloModule) -> list[Opcode]:
    return [i.opcode for c in module.control_flow_computations() for i in c.instructions]


def arguments(module: HloModule) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s.dimensions).astype(np.float32) for s in module.entry.parameter_shapes]


def compiled(text: str) -> HloModule:
    """Compile for XLA, check the results against the interpreter and return the module that XLA got."""
    module = parse(text)
    exe, arrays = compile(module, "xla"), arguments(module)
    assert Reference.of(module, arrays).difference(exe(*arrays)) is None
    return exe.module


def test_a_loop_counts_as_one_iteration() -> None:
    assert is_cheap(parse(loop_text(SQUARES, 100, trips=50)))
    assert not is_cheap(parse(loop_text(SQUARES, 1000, trips=2)))
    assert is_cheap(parse("ENTRY e { x = f32[100000] parameter(0) ROOT r = f32[100000] copy(x) }"))
    assert not is_cheap(
        parse('ENTRY e { x = f32[3] parameter(0) ROOT r = f32[3] custom-call(x), custom_call_target="?" }')
    )


def test_loops_are_unrolled_where_the_program_stays_cheap_or_is_not() -> None:
    assert Opcode.WHILE not in opcodes(compiled(loop_text(SQUARES, 20)))  # 160 operations instead of 40
    assert Opcode.WHILE in opcodes(compiled(loop_text(SQUARES, 200)))  # 1600 instead of 400
    assert Opcode.WHILE not in opcodes(compiled(loop_text(SQUARES, 2000)))  # 16000 instead of 4000


def test_loops_that_shift_their_state_are_kept() -> None:
    assert Opcode.WHILE in opcodes(compiled(loop_text(SHIFTS, 20)))
    module = parse(loop_text(SHIFTS, 20))
    assert not make_pass("while-loop-unroller{stencils=false}").run(module)
    assert make_pass("while-loop-unroller").run(module)


@pytest.mark.parametrize(("name", "unrolled"), [("random_bits_32", True), ("random_bernoulli", False)])
def test_random_bits_are_unrolled_where_they_gain(name: str, unrolled: bool) -> None:
    program = find_program(name)
    module = parse(program.text())
    inputs = random_inputs(program, [(s.dtype, s.dimensions) for s in module.entry.parameter_shapes], 0)
    exe = compile(module, backend="xla")
    assert Reference.of(module, inputs).difference(exe(*inputs), program.tolerance) is None
    assert (Opcode.WHILE not in opcodes(exe.module)) is unrolled


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        (POOL, Opcode.REDUCE_WINDOW),
        (POINTWISE, Opcode.CONVOLUTION),
        (DEPTHWISE, Opcode.CONVOLUTION),
    ],
    ids=["pool", "pointwise", "depthwise"],
)
def test_ops_of_scalar_loops_are_written_out(text: str, gone: Opcode) -> None:
    assert gone not in opcodes(compiled(text))


@pytest.mark.parametrize(("text", "kept"), [(DENSE, Opcode.CONVOLUTION), (RUNNING, Opcode.REDUCE_WINDOW)])
def test_what_xla_does_well_is_kept(text: str, kept: Opcode) -> None:
    assert kept in opcodes(compiled(text))


def test_sorts_of_floats_become_sorts_of_integers() -> None:
    (sort,) = (i for i in compiled(SORT).entry.instructions if i.opcode is Opcode.SORT)
    assert sort.shape.element_type.is_integer


def test_only_the_passes_of_the_chosen_pipeline_are_recorded() -> None:
    unroll, tidy = make_pass("while-loop-unroller"), make_pass("dce")
    tried: list[bool] = []

    def has_loop(m: HloModule) -> bool:
        tried.append(Opcode.WHILE in opcodes(m))
        return tried[-1]

    for accepts, wanted in ((has_loop, ["dce"]), (lambda m: False, ["while-loop-unroller"])):
        module, run = parse(loop_text(SQUARES, 4)), PipelineRun()
        run.run(FirstAccepted("first", (PassPipeline("a", (unroll,)), PassPipeline("b", (tidy,))), accepts), module)
        assert [r.name for r in run.records] == wanted
    assert tried == [False, True]


def test_without_a_judge_everything_is_rewritten() -> None:
    module = parse(loop_text(SQUARES, 200))
    assert xla_pipeline().run(module)
    assert Opcode.WHILE not in opcodes(module)


def test_transposes_of_shared_products_stay_beside_them() -> None:
    text = """ENTRY e { x = f32[4,5] parameter(0) y = f32[5,3] parameter(1)
    d = f32[4,3] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    t = f32[3,4] transpose(d), dimensions={1,0} a = f32[3,4] negate(t) b = f32[3,4] exponential(t)
    ROOT r = (f32[3,4], f32[3,4]) tuple(a, b) }"""
    assert make_pass("reshape-mover").run(parse(text))
    assert not make_pass("reshape-mover{shared_products=false}").run(parse(text))
    single = text.replace("b = f32[3,4] exponential(t)", "b = f32[3,4] exponential(a)")
    assert make_pass("reshape-mover{shared_products=false}").run(parse(single))


def test_convolutions_beside_others_are_kept() -> None:
    both = """ENTRY e { x = f32[2,8,16,16] parameter(0) k = f32[4,8,1,1] parameter(1) l = f32[4,8,3,3] parameter(2)
    a = f32[2,4,16,16] convolution(x, k), window={size=1x1}, dim_labels=bf01_oi01->bf01
    b = f32[2,4,16,16] convolution(x, l), window={size=3x3 pad=1_1x1_1}, dim_labels=bf01_oi01->bf01
    ROOT r = f32[2,4,16,16] add(a, b) }"""
    assert make_pass("convolution-to-dot").run(parse(both))
    assert not make_pass("convolution-to-dot{shared=false}").run(parse(both))
    assert make_pass("convolution-to-dot{shared=false}").run(parse(POINTWISE))


def test_what_is_made_of_an_iota_stays_computed() -> None:
    module = parse("""ENTRY e { x = f32[4,4] parameter(0) i = s32[4,4] iota(), iota_dimension=0
j = s32[4,4] iota(), iota_dimension=1 p = pred[4,4] compare(i, j), direction=GT z = f32[] constant(0)
zs = f32[4,4] broadcast(z), dimensions={} ROOT r = f32[4,4] select(p, x, zs) }""")
    ours = module.clone()
    PipelineRun().run(xla_pipeline(), ours)
    assert Opcode.IOTA in opcodes(ours)
    assert not [i for i in ours.entry.instructions if i.opcode is Opcode.CONSTANT and i.shape.rank]
