import numpy as np
import pytest

from compiler.analysis.cost_model import CostModel, cpu, device_model, gpu, is_priced_as_kernel, module_cost
from compiler.analysis.kernel_summary import summarize
from compiler.analysis.loop_marks import mark_kernel_loop
from compiler.analysis.trip_count import annotate_trip_counts
from compiler.api import decide
from compiler.errors import UnknownNameError
from compiler.fusion.policies import DEFAULT_POLICY, make_policy
from compiler.fusion.protocol import run_policy
from compiler.fusion.state import FusionState
from compiler.ir import HloInstruction, HloModule, Opcode
from compiler.session import CompilationSession
from compiler.text import parse
from env.suites import load_suite
from tests.fuzz.random_modules import random_module


def _root(lines: str, parameters: str = "x: f32[1024,256]") -> HloInstruction:
    name, _, shape = parameters.partition(": ")
    return parse(f"ENTRY %main {{\n  %{name} = {shape} parameter(0)\n{lines}\n}}").entry.root


def test_an_elementwise_kernel_reads_and_writes_each_byte_once() -> None:
    s = summarize(_root("  ROOT %y = f32[1024,256] multiply(%x, %x)"))
    assert (s.bytes_read, s.bytes_written, s.flops) == (1 << 20, 1 << 20, 1024 * 256)


def test_a_slice_reads_only_what_it_takes() -> None:
    s = summarize(_root("  ROOT %y = f32[10,256] slice(%x), slice={[5:15], [0:256]}"))
    assert s.bytes_read == s.bytes_written == 10 * 256 * 4


def test_a_broadcast_reads_its_operand_once() -> None:
    s = summarize(_root("  ROOT %y = f32[1024,256] broadcast(%x), dimensions={0}", "x: f32[1024]"))
    assert (s.bytes_read, s.bytes_written) == (4096, 1 << 20)


def test_an_update_in_place_writes_only_its_window() -> None:
    s = summarize(
        _root(
            "  %b = f32[1024,256] negate(%x)\n"
            "  %u = f32[1,256] slice(%x), slice={[0:1], [0:256]}\n  %i = s32[] constant(3)\n"
            "  ROOT %y = f32[1024,256] dynamic-update-slice(%b, %u, %i, %i)"
        )
    )
    assert s.bytes_written == 1024


_FUSED = """%f (p: f32[1024,256]) -> f32[512,256] {
  %p = f32[1024,256] parameter(0)
  %e = f32[1024,256] exponential(%p)
  %a = f32[512,256] slice(%e), slice={[0:512], [0:256]}
  %b = f32[512,256] slice(%e), slice={[OFFSET], [0:256]}
  ROOT %s = f32[512,256] add(%a, %b)
}

ENTRY %main (x: f32[1024,256]) -> f32[512,256] {
  %x = f32[1024,256] parameter(0)
  ROOT %y = f32[512,256] fusion(%x), kind=kLoop, calls=%f
}"""


def test_values_at_different_indices_are_computed_again_and_equal_indices_are_not() -> None:
    one = summarize(parse(_FUSED.replace("OFFSET", "0:512")).entry.root)
    two = summarize(parse(_FUSED.replace("OFFSET", "512:1024")).entry.root)
    assert two.flops > 1.5 * one.flops
    assert two.bytes_read == 2 * one.bytes_read
    assert two.inputs[0].copies == 2 * one.inputs[0].copies


def test_a_row_kernel_computes_what_two_of_its_stages_need_once() -> None:
    text = """%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

%f (p: f32[1024,256]) -> f32[1024,256] {
  %p = f32[1024,256] parameter(0)
  %e = f32[1024,256] exponential(%p)
  %z = f32[] constant(0)
  %t = f32[1024] reduce(%e, %z), dimensions={1}, to_apply=%sum
  %b = f32[1024,256] broadcast(%t), dimensions={0}
  ROOT %r = f32[1024,256] divide(%e, %b)
}

ENTRY %main (x: f32[1024,256]) -> f32[1024,256] {
  %x = f32[1024,256] parameter(0)
  ROOT %y = f32[1024,256] fusion(%x), kind=kInput, calls=%f
}"""
    s = summarize(parse(text).entry.root)
    n = 1024 * 256
    assert s.flops == n * (12 + 1 + 4)
    assert s.bytes_read == n * 4
    assert s.looped_reduction


def test_more_work_never_costs_less() -> None:
    for device in (cpu(1), cpu(8), gpu()):
        model = CostModel(device)
        times = [
            model.instruction(_root(f"  ROOT %y = f32[{n},256] exponential(%x)", f"x: f32[{n},256]"))
            for n in (1, 16, 256, 4096, 65536)
        ]
        assert times == sorted(times)


def test_on_a_gpu_few_elements_wait_for_each_operation() -> None:
    model = CostModel(gpu())
    one, many = (
        model.instruction(_root(f"  ROOT %y = f32[{n}] exponential(%x)", f"x: f32[{n}]")) - gpu().launch
        for n in (1, 32)
    )
    assert one == pytest.approx(many, rel=0.05)  # 32 elements are computed at the same time


def test_on_a_gpu_rows_of_few_inputs_use_all_units() -> None:
    text = """%f (p: f32[8192]) -> f32[8192] {
  %p = f32[8192] parameter(0)
  %r = f32[8192,4096] broadcast(%p), dimensions={0}
  %e = f32[8192,4096] exponential(%r)
  %z = f32[] constant(0)
  ROOT %s = f32[8192] reduce(%e, %z), dimensions={1}, to_apply=%add
}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

ENTRY %main (x: f32[8192]) -> f32[8192] {
  %x = f32[8192] parameter(0)
  ROOT %y = f32[8192] fusion(%x), kind=kInput, calls=%f
}"""
    fusion = parse(text).entry.root
    device = gpu()
    at_full_rate = summarize(fusion).flops / (device.units * device.flops_per_unit)
    assert CostModel(device).instruction(fusion) - device.launch == pytest.approx(at_full_rate, rel=0.05)


def test_on_a_gpu_one_row_that_exceeds_the_cache_is_not_read_faster() -> None:
    def total(n: int) -> float:
        text = f"""%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}}

ENTRY %main (x: f32[{n}]) -> f32[] {{
  %x = f32[{n}] parameter(0)
  %z = f32[] constant(0)
  ROOT %y = f32[] reduce(%x, %z), dimensions={{0}}, to_apply=%add
}}"""
        return CostModel(gpu()).instruction(parse(text).entry.root)

    assert total(1 << 24) > 3.9 * total(1 << 22)


_COUNTED = """%step (s: (s32[], f32[N])) -> (s32[], f32[N]) {
  %s = (s32[], f32[N]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[N] get-tuple-element(%s), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %y = f32[N] sine(%x)
  ROOT %t = (s32[], f32[N]) tuple(%next, %y)
}

%more (s: (s32[], f32[N])) -> pred[] {
  %s = (s32[], f32[N]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] constant(1000)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (x: f32[N]) -> f32[N] {
  %x = f32[N] parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[N]) tuple(%zero, %x)
  %w = (s32[], f32[N]) while(%start), condition=%more, body=%step
  ROOT %y = f32[N] get-tuple-element(%w), index=1
}"""


def _loop(positions: int, kernel: bool) -> tuple[HloModule, HloInstruction]:
    module = parse(_COUNTED.replace("f32[N]", f"f32[{positions}]"))
    annotate_trip_counts(module)
    loop = next(i for i in module.entry.instructions if i.opcode is Opcode.WHILE)
    if kernel:
        mark_kernel_loop(loop)
    return module, loop


def test_nothing_waits_for_the_condition_of_a_counted_loop_on_a_gpu() -> None:
    _, loop = _loop(64, kernel=False)
    assert CostModel(gpu()).instruction(loop) == 0
    assert CostModel(cpu(1)).instruction(loop) == pytest.approx(1000 * cpu(1).loop_iteration)


def test_a_loop_in_one_kernel_on_a_gpu_uses_as_many_lanes_as_it_has_positions() -> None:
    model, device = CostModel(gpu()), gpu()
    few, many = (model.instruction(_loop(n, kernel=True)[1]) - device.launch for n in (2, 256))
    assert few == pytest.approx(many, rel=0.05)
    assert many > 1000 * device.lanes / device.loop_flops_per_unit  # an operation per iteration at least


def test_more_cores_never_cost_much_more() -> None:
    root = _root("  ROOT %y = f32[65536,256] exponential(%x)", "x: f32[65536,256]")
    one, many = (CostModel(cpu(n)).instruction(root) for n in (1, 8))
    assert many < one / 3


_SELECTS = """%f (x: f32[65536], y: f32[65536], z: f32[65536]) -> f32[65536] {
  %x = f32[65536] parameter(0)
  %y = f32[65536] parameter(1)
  %z = f32[65536] parameter(2)
  %less = pred[65536] compare(%x, %y), direction=LT
  ROOT %s = f32[65536] select(%less, %y, %z)
}

ENTRY %main (x: f32[65536], y: f32[65536], z: f32[65536]) -> (f32[65536], f32[65536]) {
  %x = f32[65536] parameter(0)
  %y = f32[65536] parameter(1)
  %z = f32[65536] parameter(2)
  %less = pred[65536] compare(%x, %y), direction=LT
  %s = f32[65536] select(%less, %y, %z)
  %fused = f32[65536] fusion(%x, %y, %z), kind=kLoop, calls=%f
  ROOT %t = (f32[65536], f32[65536]) tuple(%s, %fused)
}"""


@pytest.mark.parametrize("size", [256, 65536, 120_000, 1 << 20])
def test_a_kernel_accesses_arrays_as_fast_as_two_kernels(size: int) -> None:
    """Also where the arrays of one kernel fit into the cache, and those of both together do not."""
    select, fused = parse(_SELECTS.replace("65536", str(size))).entry.root.operands
    less = select.operand(0)
    for device in (cpu(1), cpu(2), gpu()):
        model = CostModel(device)
        assert model.instruction(fused) < model.instruction(less) + model.instruction(select)


@pytest.mark.parametrize("rows", [100, 256, 1000, 4000])
def test_slices_of_one_array_are_read_as_fast_in_one_kernel_as_in_two(rows: int) -> None:
    """Also where each slice fits into the cache, and the array does not."""
    text = """
    f {
      x = s32[ROWS,1024] parameter(0)
      a = s32[ROWS,512] slice(x), slice={[0:ROWS], [0:1024:2]}
      n = s32[ROWS,512] negate(a)
      b = s32[ROWS,512] slice(x), slice={[0:ROWS], [1:1024:2]}
      ROOT s = s32[ROWS,512] add(n, b)
    }
    g {
      x = s32[ROWS,1024] parameter(0)
      a = s32[ROWS,512] slice(x), slice={[0:ROWS], [0:1024:2]}
      ROOT n = s32[ROWS,512] negate(a)
    }
    h {
      x = s32[ROWS,1024] parameter(0)
      n = s32[ROWS,512] parameter(1)
      b = s32[ROWS,512] slice(x), slice={[0:ROWS], [1:1024:2]}
      ROOT s = s32[ROWS,512] add(n, b)
    }
    ENTRY e {
      x = s32[ROWS,1024] parameter(0)
      both = s32[ROWS,512] fusion(x), kind=kLoop, calls=f
      first = s32[ROWS,512] fusion(x), kind=kLoop, calls=g
      second = s32[ROWS,512] fusion(x, first), kind=kLoop, calls=h
      ROOT t = (s32[ROWS,512], s32[ROWS,512]) tuple(both, second)
    }"""
    both, second = parse(text.replace("ROWS", str(rows))).entry.root.operands
    for device in (cpu(1), cpu(2), gpu()):
        model = CostModel(device)
        assert model.instruction(both) < model.instruction(second.operand(1)) + model.instruction(second)


def test_cores_share_the_work_of_few_elements() -> None:
    few = _root("  ROOT %y = f32[30000] exponential(%x)", "x: f32[30000]")
    one, two = (CostModel(cpu(n)).instruction(few) for n in (1, 2))
    assert two < one


def test_operands_that_repeat_are_read_once() -> None:
    square, product = (
        parse(f"ENTRY e {{ p = f32[4194304] parameter(0) q = f32[4194304] parameter(1) ROOT r = f32[4194304] {op} }}")
        for op in ("multiply(p, p)", "multiply(p, q)")
    )
    model = CostModel(cpu(1))
    once, twice = model.instruction(square.entry.root), model.instruction(product.entry.root)
    assert once == pytest.approx(2 * 2**24 / 1e10, rel=0.05)
    assert twice == pytest.approx(3 * 2**24 / 1e10, rel=0.05)


def test_a_product_of_matrices_costs_its_flops() -> None:
    root = _root(
        "  ROOT %y = f32[1024,1024] dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "x: f32[1024,1024]",
    )
    assert CostModel(cpu(1)).instruction(root) == pytest.approx(2 * 1024**3 / cpu(1).gemm_flops_per_unit, rel=0.1)


def test_module_cost_is_the_sum_of_its_instructions_and_counts_loops() -> None:
    text = """%body (s: (s32[], f32[4096])) -> (s32[], f32[4096]) {
  %s = (s32[], f32[4096]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %one = s32[] constant(1)
  %j = s32[] add(%i, %one)
  %v = f32[4096] get-tuple-element(%s), index=1
  %w = f32[4096] sine(%v)
  ROOT %r = (s32[], f32[4096]) tuple(%j, %w)
}

%cond (s: (s32[], f32[4096])) -> pred[] {
  %s = (s32[], f32[4096]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] constant(TRIPS)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (x: f32[4096]) -> f32[4096] {
  %x = f32[4096] parameter(0)
  %zero = s32[] constant(0)
  %t = (s32[], f32[4096]) tuple(%zero, %x)
  %loop = (s32[], f32[4096]) while(%t), condition=%cond, body=%body
  ROOT %out = f32[4096] get-tuple-element(%loop), index=1
}"""
    ten, thousand = (module_cost(parse(text.replace("TRIPS", n)), cpu(2)) for n in ("10", "1000"))
    assert ten.seconds == pytest.approx(sum(ten.by_instruction.values()))
    assert thousand.seconds == pytest.approx(100 * ten.seconds, rel=1e-6)
    assert ten.by_instruction["body", "w"] > ten.by_instruction["body", "j"]


def test_an_unknown_device_is_told() -> None:
    with pytest.raises(UnknownNameError, match="unknown device model 'cpuu'"):
        device_model("cpuu")


def test_what_it_remembers_is_what_it_would_say_again() -> None:
    model = CostModel(cpu(4))
    modules = [parse(p.text()) for p in (*load_suite("quickstart").programs, *load_suite("linear_algebra").programs)]
    modules += [random_module(np.random.default_rng(seed), 40) for seed in range(10)]
    for module in modules:
        for i in (i for c in module.computations for i in c.instructions if is_priced_as_kernel(i)):
            assert model.instruction(i) == model.kernel(summarize(i)), i


def test_an_update_that_copies_is_not_taken_for_one_in_place() -> None:
    update = "dynamic-update-slice(p, u, i)"
    head = "HloModule m\nENTRY e { p = f32[4096] parameter(0) u = f32[4] parameter(1) i = s32[] parameter(2)"
    alone = parse(f"{head} ROOT r = f32[4096] {update} }}")
    shared = parse(f"{head} r = f32[4096] {update} ROOT t = (f32[4096], f32[4096]) tuple(r, p) }}")
    model = CostModel(cpu(1))
    in_place = model.instruction(alone.entry.root)
    assert in_place < model.instruction(shared.entry.root.operand(0))
    assert in_place == model.instruction(alone.entry.root)


GATHER = """HloModule m
%sum (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}}

ENTRY %main (x: f32[500,{wide}], senders: s32[2000,1], receivers: s32[2000,1]) -> f32[500,{n}] {{
  %x = f32[500,{wide}] parameter(0)
  %senders = s32[2000,1] parameter(1)
  %receivers = s32[2000,1] parameter(2)
  %sent = f32[2000,{n}] gather(%x, %senders), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}},
    index_vector_dim=1, slice_sizes={{1,{n}}}
  %zero = f32[] constant(0)
  %start = f32[500,{n}] broadcast(%zero), dimensions={{}}
  ROOT %received = f32[500,{n}] scatter(%start, %receivers, %sent), update_window_dims={{1}},
    inserted_window_dims={{0}}, scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=%sum
}}
"""


@pytest.mark.parametrize(("n", "wide", "shared"), [(1, 1, 1), (4, 4, 4), (4, 8, 4), (32, 32, 16), (64, 80, 16)])
def test_elements_of_a_gathered_row_share_an_index(n: int, wide: int, shared: int) -> None:
    gather = next(i for i in parse(GATHER.format(n=n, wide=wide)).entry.instructions if i.opcode is Opcode.GATHER)
    alone = next(i for i in parse(GATHER.format(n=1, wide=1)).entry.instructions if i.opcode is Opcode.GATHER)
    elements = gather.shape.num_elements / alone.shape.num_elements
    assert summarize(gather).flops == pytest.approx(summarize(alone).flops * elements / shared)


@pytest.mark.parametrize(
    ("given", "n", "shift", "tested"),
    [(True, 256, 1, 1 / 256), (True, 256, 200, 1.0), (True, 16, 1, 1.0), (False, 256, 1, 1.0)],
    ids=["rolled", "half from each end", "short rows", "computed"],
)
def test_few_elements_of_a_given_array_that_is_rolled_are_tested(
    given: bool, n: int, shift: int, tested: float
) -> None:
    text = f"""ENTRY %main {{
  %x = f32[256,{n}] parameter(0)
  %y = f32[256,{n}] {"copy" if given else "negate"}(%x)
  %a = f32[{256 - shift},{n}] slice({"%x" if given else "%y"}), slice={{[{shift}:256], [0:{n}]}}
  %b = f32[{shift},{n}] slice(%x), slice={{[0:{shift}], [0:{n}]}}
  ROOT %r = f32[256,{n}] concatenate(%a, %b), dimensions={{0}}
}}
"""
    joined = _root(f"  ROOT %y = f32[512,{n}] concatenate(%x, %x), dimensions={{0}}", f"x: f32[256,{n}]")
    each = summarize(joined).flops / joined.shape.num_elements
    assert summarize(parse(text).entry.root).flops == pytest.approx(each * 256 * n * tested)


def test_gathers_of_different_rows_have_prices_of_their_own() -> None:
    text = """HloModule m
ENTRY %main (x: f32[40,8,4], i: s32[60,1], j: s32[60,8,1]) -> (f32[60,8,4], f32[60,8,4]) {
  %x = f32[40,8,4] parameter(0)
  %i = s32[60,1] parameter(1)
  %j = s32[60,8,1] parameter(2)
  %rows = f32[60,8,4] gather(%x, %i), offset_dims={1,2}, collapsed_slice_dims={0}, start_index_map={0},
    index_vector_dim=1, slice_sizes={1,8,4}
  %parts = f32[60,8,4] gather(%x, %j), offset_dims={2}, collapsed_slice_dims={0,1}, start_index_map={1},
    index_vector_dim=2, slice_sizes={1,1,4}
  ROOT %r = (f32[60,8,4], f32[60,8,4]) tuple(%rows, %parts)
}
"""
    rows, parts = parse(text).entry.root.operands
    assert summarize(rows).flops * 4 == pytest.approx(summarize(parts).flops)
    assert CostModel(cpu()).instruction(rows) < CostModel(cpu()).instruction(parts)


def test_messages_of_a_graph_are_gathered_where_they_are_summed() -> None:
    module = parse(GATHER.format(n=32, wide=32))
    session = CompilationSession(module, "cpu")
    decide(session, make_policy(DEFAULT_POLICY))
    bodies = [i.attributes["calls"] for i in session.module.entry.instructions if i.opcode is Opcode.FUSION]
    assert any({Opcode.GATHER, Opcode.SCATTER} <= {i.opcode for i in b.instructions} for b in bodies)


def test_few_tiles_of_a_generated_product_take_as_long_as_their_depth_on_a_gpu() -> None:
    def seconds(rows: int, depth: int) -> float:
        a, b, r = f"f32[{rows},{depth}]", f"f32[{depth},32]", f"f32[{rows},32]"
        text = (
            f"%f (a: {a}, b: {b}) -> {r} {{\n  %a = {a} parameter(0)\n  %b = {b} parameter(1)\n"
            f"  %n = {a} negate(%a)\n"
            f"  ROOT %d = {r} dot(%n, %b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n}}\n"
            f"ENTRY %main (a: {a}, b: {b}) -> {r} {{\n  %a = {a} parameter(0)\n  %b = {b} parameter(1)\n"
            f"  ROOT %y = {r} fusion(%a, %b), kind=kLoop, calls=%f\n}}"
        )
        return CostModel(gpu()).instruction(parse(text).entry.root) - gpu().launch

    assert seconds(64, 4096) > 0.8 * seconds(256, 4096)  # more units multiply more rows in the same time
    assert seconds(64, 8192) > 1.5 * seconds(64, 4096)


def test_a_generated_product_on_a_gpu_waits_for_what_is_loaded_around_it() -> None:
    def seconds(arrays: int) -> float:
        a, b, r = "f32[4096,512]", "f32[512,64]", "f32[4096,64]"
        names = [f"a{n}" for n in range(arrays)]
        sums = [f"  %s{n} = {a} add(%{f's{n - 1}' if n > 1 else 'a0'}, %a{n})\n" for n in range(1, arrays)]
        given = "".join(f"  %{x} = {a} parameter({n})\n" for n, x in enumerate(names))
        text = (
            f"%f ({''.join(f'{x}: {a}, ' for x in names)}b: {b}) -> {r} {{\n{given}  %b = {b} parameter({arrays})\n"
            f"{''.join(sums)}  ROOT %d = {r} dot(%s{arrays - 1}, %b), lhs_contracting_dims={{1}}, "
            f"rhs_contracting_dims={{0}}\n}}\n"
            f"ENTRY %main ({''.join(f'{x}: {a}, ' for x in names)}b: {b}) -> {r} {{\n{given}"
            f"  %b = {b} parameter({arrays})\n"
            f"  ROOT %y = {r} fusion({''.join(f'%{x}, ' for x in names)}%b), kind=kLoop, calls=%f\n}}"
        )
        return CostModel(gpu()).instruction(parse(text).entry.root) - gpu().launch

    # Each array adds more than reading it once takes all threads of the device.
    assert seconds(8) - seconds(4) > 4 * 4096 * 512 * 4 / gpu().memory_bandwidth


BATCHED = """
HloModule m

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

ENTRY %main (x: f32[16,16,16], y: f32[16,16,16]) -> f32[16,16,16] {
  %x = f32[16,16,16] parameter(0)
  %y = f32[16,16,16] parameter(1)
  %xs = f32[16,16,16,16] broadcast(%x), dimensions={0,1,2}
  %ys = f32[16,16,16,16] broadcast(%y), dimensions={0,2,3}
  %products = f32[16,16,16,16] multiply(%xs, %ys)
  %zero = f32[] constant(0)
  ROOT %r = f32[16,16,16] reduce(%products, %zero), dimensions={2}, to_apply=%add
}
"""


@pytest.mark.parametrize("cores", [1, 2, 8])
def test_small_products_of_a_batch_are_one_kernel_for_any_number_of_cores(cores: int) -> None:
    module = parse(BATCHED)
    run_policy(FusionState(module, cpu(cores)), make_policy(DEFAULT_POLICY))
    assert [i.opcode for i in module.entry.instructions if i.opcode is not Opcode.PARAMETER] == [Opcode.FUSION]


def test_a_result_of_16_bits_costs_its_rounding() -> None:
    def seconds(t: str, op: str) -> float:
        root = _root(f"  ROOT %y = {t}[64,64] {op}", f"x: {t}[64,64]")
        return CostModel(cpu(1)).instruction(root)

    assert seconds("bf16", "negate(%x)") > 1.5 * seconds("f32", "negate(%x)")
    assert seconds("bf16", "transpose(%x), dimensions={1,0}") <= seconds("f32", "transpose(%x), dimensions={1,0}")


@pytest.mark.parametrize(("n", "tested"), [(4, False), (5, True)])
def test_nothing_tests_where_elements_of_short_rows_come_from(n: int, tested: bool) -> None:
    columns = "".join(f"  %c{k} = f32[1024,1] slice(%x), slice={{[0:1024], [{k}:{k + 1}]}}\n" for k in range(n))
    pieces = ", ".join(f"%c{k}" for k in reversed(range(n)))
    root = _root(f"{columns}  ROOT %y = f32[1024,{n}] concatenate({pieces}), dimensions={{1}}", f"x: f32[1024,{n}]")
    assert bool(summarize(root).flops) == tested


@pytest.mark.parametrize("moved", ["transpose(x), dimensions={{1,0}}", "broadcast(x), dimensions={{1,0}}"])
def test_reductions_pay_for_large_arrays_that_they_read_across_rows(moved: str) -> None:
    text = """
    HloModule m
    add {{
      a = f32[] parameter(0)
      b = f32[] parameter(1)
      ROOT c = f32[] add(a, b)
    }}
    fused {{
      x = f32[{m},{n}] parameter(0)
      y = f32[{n},{m}] parameter(1)
      t = f32[{n},{m}] MOVED
      p = f32[{n},{m}] multiply({first}, y)
      z = f32[] constant(0)
      ROOT r = f32[{n}] reduce(p, z), dimensions={{1}}, to_apply=add
    }}
    ENTRY main {{
      x = f32[{m},{n}] parameter(0)
      y = f32[{n},{m}] parameter(1)
      ROOT f = f32[{n}] fusion(x, y), kind=kLoop, calls=fused
    }}
    """

    def seconds(m: int, n: int, first: str) -> float:
        module = parse(text.replace("MOVED", moved).format(m=m, n=n, first=first))
        return CostModel(cpu(1)).instruction(module.entry.root)

    assert seconds(500, 600, "t") > 3 * seconds(500, 600, "y")
    assert seconds(50, 60, "t") < 2 * seconds(50, 60, "y")  # it is in the nearest cache
    assert seconds(8, 60000, "t") < 2 * seconds(8, 60000, "y")  # a cache line holds several of its elements
