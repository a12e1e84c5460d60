"""Products, scatters and sorts as producers and consumers, and kernels of unlike shapes side by side."""

import numpy as np
import pytest

from compiler import CompileOptions
from compiler import compile as compile_program
from compiler.analysis.cost_model import CostModel, gpu
from compiler.codegen.build_target import C_TARGET, CUDA_TARGET
from compiler.codegen.buildability import kernel_refusal
from compiler.fusion.actions import KINDS, FusionAction
from compiler.fusion.policies import make_policy
from compiler.fusion.protocol import run_policy
from compiler.fusion.rewriting import body_of
from compiler.fusion.state import FusionState
from compiler.interpreter import evaluate
from compiler.ir import HloInstruction, HloModule, Opcode
from compiler.session import CompilationSession
from compiler.text import parse
from tests.fusion.checks import check, take_apart
from tests.fusion.template_graphs import integer_arguments, template_graph

COMPUTATIONS = """%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

%odd (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  %d = f32[] subtract(%a, %b)
  ROOT %s = f32[] multiply(%d, %d)
}

%less (a: f32[], b: f32[]) -> pred[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = pred[] compare(%a, %b), direction=LT, type=TOTALORDER
}

%pair (a: f32[], b: f32[], c: s32[], d: s32[]) -> pred[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  %c = s32[] parameter(2)
  %d = s32[] parameter(3)
  ROOT %e = pred[] compare(%a, %b), direction=LT, type=TOTALORDER
}
"""
PRODUCT = """  %x = f32[70,33] parameter(0)
  %y = f32[33,50] parameter(1)
  %z = f32[70] parameter(2)
  %n = f32[70,33] negate(%x)
  %d = f32[70,50] dot(%n, %y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %b = f32[70,50] broadcast(%z), dimensions={0}
  %s = f32[70,50] add(%d, %b)
  ROOT %t = f32[50,70] transpose(%s), dimensions={1,0}
"""
SCATTER = """  %x = f32[40,8] parameter(0)
  %i = s32[30] parameter(1)
  %u = f32[30,8] parameter(2)
  %n = f32[40,8] negate(%x)
  %j = s32[30] abs(%i)
  %v = f32[30,8] multiply(%u, %u)
  %d = f32[40,8] scatter(%n, %j, %v), update_window_dims={1}, inserted_window_dims={0},
    scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=%sum
  ROOT %s = f32[40,8] abs(%d)
"""
SORT = """  %x = f32[6,90,3] parameter(0)
  %y = f32[6,90,3] parameter(1)
  %n = f32[6,90,3] subtract(%x, %y)
  %d = f32[6,90,3] sort(%n), dimensions={1}, is_stable=true, to_apply=%less
  %m = f32[6,90,3] multiply(%d, %y)
  ROOT %s = f32[6,3,90] transpose(%m), dimensions={0,2,1}
"""
UNLIKE = """  %x = f32[300] parameter(0)
  %y = f32[7,11] parameter(1)
  %z = f32[5,40] parameter(2)
  %zero = f32[] constant(0)
  %p = f32[300] negate(%x)
  %q = f32[7,11] abs(%y)
  %r = f32[5] reduce(%z, %zero), dimensions={1}, to_apply=%sum
  %k = f32[40] reduce(%z, %zero), dimensions={0}, to_apply=%sum
  ROOT %t = (f32[300], f32[7,11], f32[5], f32[40]) tuple(%p, %q, %r, %k)
"""
CONVOLUTION = """  %x = f32[2,3,9,7] parameter(0)
  %k = f32[3,2,3,4] parameter(1)
  %b = f32[4] parameter(2)
  %r = f32[2,4,5,7] parameter(3)
  %n = f32[2,3,9,7] negate(%x)
  %d = f32[2,4,5,7] convolution(%n, %k), window={size=3x2 stride=2x1 pad=1_1x1_0}, dim_labels=bf01_01io->bf01
  %w = f32[2,4,5,7] broadcast(%b), dimensions={1}
  %s = f32[2,4,5,7] add(%d, %w)
  %t = f32[2,4,5,7] add(%s, %r)
  ROOT %m = f32[2,4,5,7] abs(%t)
"""
RUNNING = """  %x = f32[6,90,3] parameter(0)
  %y = f32[3,90,6] parameter(1)
  %n = f32[6,90,3] negate(%x)
  %zero = f32[] constant(0)
  %d = f32[6,90,3] reduce-window(%n, %zero), window={size=1x90x1 pad=0_0x89_0x0_0}, to_apply=%sum
  %t = f32[3,90,6] transpose(%d), dimensions={2,1,0}
  %m = f32[3,90,6] multiply(%t, %y)
  ROOT %s = f32[3,540] reshape(%m)
"""
PROGRAMS = {
    "product": PRODUCT,
    "running": RUNNING,
    "convolution": CONVOLUTION,
    "scatter": SCATTER,
    "sort": SORT,
    "unlike": UNLIKE,
}


def module_of(lines: str) -> HloModule:
    module = parse("HloModule test\n\n" + COMPUTATIONS + "\nENTRY %main {\n" + lines + "}\n")
    module.remove_unreachable()
    return module


def state_of(lines: str, **options: object) -> FusionState:
    return FusionState(module_of(lines), **options)  # type: ignore[arg-type]


def action(kind: str, producer: str, *consumers: str) -> FusionAction:
    return FusionAction(kind, "main", producer, consumers)  # type: ignore[arg-type]


def fuse_all(state: FusionState, *pairs: tuple[str, str, str]) -> HloInstruction:
    """Fuse nodes by their original names; a name stands for the fusion that has absorbed it."""
    owner: dict[str, str] = {}
    found = state.module.entry.root
    for kind, producer, consumer in pairs:
        found = state.apply(action(kind, owner.get(producer, producer), owner.get(consumer, consumer)))
        for name, held in [*owner.items(), (producer, producer), (consumer, consumer)]:
            if held in (owner.get(producer, producer), owner.get(consumer, consumer)):
                owner[name] = found.name
    return found


EDGES = {
    "product": [("producer-consumer", "n", "d"), ("producer-consumer", "d", "s"), ("producer-consumer", "s", "t")],
    "running": [
        ("producer-consumer", "d", "t"),
        ("producer-consumer", "t", "m"),
        ("producer-consumer", "n", "t"),
        ("producer-consumer", "m", "s"),
    ],
    "convolution": [
        ("producer-consumer", "d", "s"),
        ("multi-output", "s", "t"),
        ("producer-consumer", "t", "m"),
        ("producer-consumer", "n", "s"),
        ("producer-consumer", "w", "s"),
    ],
    "scatter": [("producer-consumer", "n", "d"), ("producer-consumer", "j", "d"), ("producer-consumer", "v", "d")],
    "sort": [("producer-consumer", "n", "d"), ("producer-consumer", "d", "m"), ("producer-consumer", "m", "s")],
    "unlike": [("horizontal", "p", "q"), ("horizontal", "p", "r"), ("sibling", "p", "k")],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_kernel_of_all_is_that_of_the_interpreter(name: str) -> None:
    module = module_of(PROGRAMS[name])
    arguments = integer_arguments(module, np.random.default_rng(0))
    expected = evaluate(module, arguments)
    state = FusionState(module)
    before = str(state.module)

    fusion = fuse_all(state, *EDGES[name])

    check(state)
    assert kernel_refusal(body_of(fusion)) is None
    for got, want in zip(evaluate(state.module, arguments), expected, strict=True):
        np.testing.assert_array_equal(got, want)
    executable = compile_program(str(state.module), options=CompileOptions(keep_fusions=True))
    for got, want in zip(executable(*arguments), expected, strict=True):
        np.testing.assert_array_equal(got, want)
    while state.can_undo:
        state.undo()
    assert str(state.module) == before


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_plan_replays_them(name: str) -> None:
    module = module_of(PROGRAMS[name])
    session = CompilationSession(module, "cpu", [])
    chosen = [a for a in session.actions() if a.kind != "producer-into-all-users"][:1]
    for a in chosen:
        session.apply(a)
    executable = session.finish()
    again = compile_program(module, plan=executable.plan)
    assert str(again.module) == str(executable.module)
    assert chosen


@pytest.mark.parametrize("convolutions", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_random_walks_end_in_kernels_that_compute_the_same(seed: int, convolutions: bool) -> None:
    module = template_graph(seed, 10, convolutions)
    module.entry.remove_dead()
    rng = np.random.default_rng(seed)
    arguments = integer_arguments(module, rng)
    expected = evaluate(module, arguments)
    target = CUDA_TARGET if seed % 4 == 3 else C_TARGET
    state = FusionState(module, target=target)
    before, fingerprint = str(module), state.fingerprint
    for _ in range(12):
        actions = state.actions(KINDS if seed % 2 else None)
        if actions:
            state.apply(actions[int(rng.integers(len(actions)))])
    check(state)
    assert all(kernel_refusal(body_of(f), target) is None for f in state.fusions())
    for got, want in zip(evaluate(module, arguments), expected, strict=True):
        np.testing.assert_array_equal(got, want)
    if seed % 4 == 0:
        executable = compile_program(str(module), options=CompileOptions(keep_fusions=True))
        for got, want in zip(executable(*arguments), expected, strict=True):
            np.testing.assert_array_equal(got, want)
    take_apart(state, rng)
    assert state.fingerprint == fingerprint
    while state.can_undo:
        state.undo()
    assert str(module) == before


# ---- reasons

REFUSED = {
    "two products": (
        "%y = f32[4,4] dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "%q = f32[4,4] dot(%y, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "%y (dot) and %q (dot) each need a kernel with loops of their own",
    ),
    "a reduction of a product": (
        "%y = f32[40,40] dot(%w, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "%q = f32[40] reduce(%y, %zero), dimensions={1}, to_apply=%sum",
        "%y (dot) is computed in loops of its own, in which the reduction of %q has no place",
    ),
    "a product read elsewhere": (
        "%y = f32[4,4] dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "%q = f32[4,4] reverse(%y), dimensions={0}",
        "%y: its result is read at other places",
    ),
    "a window that is not cumulative": (
        "%y = f32[4,4] negate(%x)",
        "%q = f32[3,4] reduce-window(%y, %zero), window={size=2x1}, to_apply=%sum",
        "%q: only cumulative windows have a kernel; a library or the expansion 'prefix-sums' computes others, or the "
        "expansion 'slices', whose ops can be fused",
    ),
    "a scan read elsewhere": (
        "%y = f32[4,4] reduce-window(%x, %zero), window={size=1x4 pad=0_0x3_0}, to_apply=%sum",
        "%q = f32[4,4] reverse(%y), dimensions={1}",
        "%y: its result is read at other places",
    ),
    "a scan of branches": (
        "%y = f32[4,4] pad(%p, %zero), padding=0_0x1_2",
        "%q = f32[4,4] reduce-window(%y, %zero), window={size=1x4 pad=0_0x3_0}, to_apply=%sum",
        "%q: what is computed before or after it needs branches or loops",
    ),
    "after a scatter": (
        "%y = f32[4,4] scatter(%x, %j, %x), update_window_dims={1}, inserted_window_dims={0}, "
        "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=%sum",
        "%q = f32[4,4] negate(%y)",
        "%y (scatter) is complete only after its last update, so %q needs another kernel",
    ),
    "an odd scatter": (
        "%y = f32[4,4] negate(%x)",
        "%q = f32[4,4] scatter(%x, %j, %y), update_window_dims={1}, inserted_window_dims={0}, "
        "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=%odd",
        "%q: combining f32 by %odd has no kernel",
    ),
    "a sort of pairs": (
        "%y = f32[4,4] negate(%x)",
        "%q = (f32[4,4], s32[4,4]) sort(%y, %i), dimensions={1}, is_stable=true, to_apply=%pair",
        "%q: a sort of type (f32[4,4], s32[4,4]) has no kernel that computes other ops too",
    ),
    "a sort read elsewhere": (
        "%y = f32[4,4] sort(%x), dimensions={1}, is_stable=true, to_apply=%less",
        "%q = f32[4,4] reverse(%y), dimensions={1}",
        "%y: its result is read at other places",
    ),
    "a convolution read elsewhere": (
        "%y = f32[4,4] convolution(%x, %x), dim_labels=bf_io->bf",
        "%q = f32[4,4] reverse(%y), dimensions={0}",
        "%y: its result is read at other places",
    ),
    "a reduction of a convolution": (
        "%y = f32[40,40] convolution(%w, %w), dim_labels=bf_io->bf",
        "%q = f32[40] reduce(%y, %zero), dimensions={1}, to_apply=%sum",
        "%y (convolution) is computed in loops of its own, in which the reduction of %q has no place",
    ),
    "a convolution of a product": (
        "%y = f32[4,4] dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "%q = f32[4,4] convolution(%y, %x), dim_labels=bf_io->bf",
        "%y (dot) and %q (convolution) each need a kernel with loops of their own",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_why(name: str) -> None:
    producer, consumer, why = REFUSED[name]
    state = state_of(
        "  %x = f32[4,4] parameter(0)\n  %w = f32[40,40] parameter(1)\n  %i = s32[4,4] parameter(2)\n"
        "  %j = s32[4] parameter(3)\n  %zero = f32[] constant(0)\n"
        "  %p = f32[4,1] parameter(4)\n"
        f"  {producer}\n  ROOT {consumer}\n"
    )
    assert state.why_not(action("producer-consumer", "y", "q")) == why
    assert all(a.consumer != "q" for a in state.actions())


def test_a_scatter_yields_nothing_else() -> None:
    state = state_of(SCATTER)
    reason = state.why_not(action("multi-output", "v", "d"))
    assert reason == "the kernel of %d (scatter) yields nothing but its result"


def test_gpus_have_kernels_of_products_with_what_is_around_them() -> None:
    state = state_of(PRODUCT, target=CUDA_TARGET)
    assert state.why_not(action("producer-consumer", "n", "d")) is None


def test_gpus_refuse_products_of_types_without_a_kernel() -> None:
    state = state_of(PRODUCT.replace("f32", "u8"), target=CUDA_TARGET)
    reason = state.why_not(action("producer-consumer", "n", "d"))
    assert reason == "%d: a dot of these types has no kernel: u8, u8, u8"


def test_gpus_update_arrays_only() -> None:
    state = state_of(SCATTER, target=CUDA_TARGET)
    assert state.why_not(action("producer-consumer", "v", "d")) is None
    assert "the blocks of a GPU do not wait for each other" in str(state.why_not(action("producer-consumer", "n", "d")))


def test_gpus_have_kernels_of_unlike_shapes_with_reductions_to_scalars_among_them() -> None:
    lines = UNLIKE.replace("%k = f32[40]", "%k = f32[]").replace("dimensions={0}", "dimensions={0,1}")
    state = state_of(lines.replace("f32[5], f32[40])", "f32[5], f32[])"), target=CUDA_TARGET)
    assert state.why_not(action("horizontal", "p", "q")) is None
    assert state.why_not(action("horizontal", "p", "r")) is None
    assert state.why_not(action("horizontal", "p", "k")) is None


# ---- what policies make of it


def product_with_epilogue(n: int) -> str:
    return (
        f"  %x = f32[{n},{n}] parameter(0)\n  %y = f32[{n},{n}] parameter(1)\n"
        f"  %d = f32[{n},{n}] dot(%x, %y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n"
        f"  ROOT %s = f32[{n},{n}] tanh(%d)\n"
    )


@pytest.mark.parametrize("policy", ["default", "priority", "greedy"])
def test_small_products_are_fused_and_large_ones_left_to_libraries(policy: str) -> None:
    for n, fused in ((64, True), (2048, False)):
        state = state_of(product_with_epilogue(n))
        run_policy(state, make_policy(policy))
        inside = {i.opcode for f in state.fusions() for i in body_of(f).instructions}
        assert (Opcode.DOT in inside) is fused


def test_the_strategies_of_xla_leave_products_to_libraries() -> None:
    for policy in ("instruction", "fusion-merger", "multi-output"):
        state = state_of(product_with_epilogue(64))
        run_policy(state, make_policy(policy))
        assert not state.fusions()


def test_kernels_side_by_side_start_their_units_for_each_shape() -> None:
    lines = (
        "  %x = f32[400000] parameter(0)\n  %y = f32[300000] parameter(1)\n  %p = f32[400000] negate(%x)\n"
        "  %q = f32[300000] negate(%y)\n  ROOT %t = (f32[400000], f32[300000]) tuple(%p, %q)\n"
    )
    state = state_of(lines)
    both = action("horizontal", "p", "q")
    device = state.cost_model.device
    assert state.estimate(both) < device.launch + device.parallel_launch / 2
    on_gpu = state_of(lines, device=gpu(), target=CUDA_TARGET)
    assert on_gpu.estimate(both) > 0.5 * CostModel(gpu()).device.launch


def test_a_product_yields_only_what_is_computed_from_it() -> None:
    state = state_of(
        PRODUCT.replace("ROOT %t = f32[50,70] transpose(%s), dimensions={1,0}", "")
        + "  %u = f32[70,33] abs(%n)\n  ROOT %t = (f32[70,50], f32[70,33]) tuple(%s, %u)\n"
    )
    reason = "the kernel of %d (dot) yields only what is computed from its result, and not "
    assert state.why_not(action("multi-output", "n", "d")) == reason + "%n"
    assert state.why_not(action("sibling", "u", "d")) == reason + "%u"


def test_an_empty_output_goes_beside_others() -> None:
    lines = (
        "  %a = f32[0] parameter(0)\n  %b = f32[] parameter(1)\n"
        "  %e = f32[0] concatenate(%a, %a, %a), dimensions={0}\n  %n = f32[] negate(%b)\n"
        "  ROOT %t = (f32[0], f32[]) tuple(%e, %n)\n"
    )
    state = state_of(lines)
    state.apply(action("horizontal", "e", "n"))
    executable = compile_program(str(state.module), options=CompileOptions(keep_fusions=True))
    empty, negative = executable(np.zeros(0, np.float32), np.float32(2.0))
    assert empty.shape == (0,) and negative == -2.0


def test_on_a_gpu_a_convolution_with_its_epilogue_is_one_kernel() -> None:
    state = state_of(CONVOLUTION, target=CUDA_TARGET, device=gpu())
    assert state.estimate(action("producer-consumer", "d", "s")) > 0.0
    run_policy(state, make_policy("priority"))
    (fusion,) = state.fusions()
    assert {i.opcode for i in body_of(fusion).instructions} >= {Opcode.CONVOLUTION, Opcode.NEGATE, Opcode.ABS}
    assert kernel_refusal(body_of(fusion), CUDA_TARGET) is None


def test_on_a_cpu_a_large_convolution_is_left_to_the_library() -> None:
    lines = CONVOLUTION.replace("[2,3,9,7]", "[2,64,99,56]").replace("[2,4,5,7]", "[2,64,50,56]")
    lines = lines.replace("[3,2,3,4]", "[3,2,64,64]").replace("f32[4]", "f32[64]")
    state = state_of(lines)
    run_policy(state, make_policy("priority"))
    assert all(i.opcode is not Opcode.CONVOLUTION for f in state.fusions() for i in body_of(f).instructions)
