"""Fusions and loops are judged for the backend that they are meant for."""

from dataclasses import replace
from typing import cast

import pytest

from compiler import CompileOptions
from compiler import compile as compile_hlo
from compiler.backends.cuda.backend import CudaBackend
from compiler.codegen.build_target import C_TARGET, CUDA_TARGET
from compiler.codegen.buildability import kernel_refusal
from compiler.codegen.lowering.lower import lower
from compiler.codegen.schedules.bind_cuda import bind_cuda, binds_surely
from compiler.errors import UnbuildableFusionError
from compiler.fusion import trials
from compiler.fusion.actions import FusionAction
from compiler.fusion.rewriting import body_of
from compiler.ir import HloComputation
from compiler.loops import KERNEL, KnownLoops, loop_sites
from compiler.passes.pipelines.default import default_pipeline
from compiler.plan import CompilationPlan
from compiler.session import CompilationSession
from compiler.text import parse
from env.measurement import Failure, Measurement, Measurer
from env.speedup_measurer import SpeedupMeasurer
from env.suites import Program, load_suite
from env.worker import _failure

SUMS = 25
"""So many sums of columns of f64 need more than the shared memory of a block if it has many threads.

They need less than a stack has, and blocks may be smaller.
"""
LARGE_BLOCKS = replace(CUDA_TARGET.schedule, block=1024)


def _sums() -> str:
    """A program of sums of columns that could all be one kernel."""
    n = range(SUMS)
    parameters = "".join(f"  %x{k} = f64[64,256] parameter({k})\n" for k in n)
    sums = "".join(f"  %s{k} = f64[256] reduce(%x{k}, %zero), dimensions={{0}}, to_apply=%add\n" for k in n)
    shape = ", ".join(["f64[256]"] * SUMS)
    return f"""HloModule sums
%add (a: f64[], b: f64[]) -> f64[] {{
  %a = f64[] parameter(0)
  %b = f64[] parameter(1)
  ROOT %s = f64[] add(%a, %b)
}}
ENTRY %main ({", ".join(f"x{k}: f64[64,256]" for k in n)}) -> ({shape}) {{
  %zero = f64[] constant(0)
{parameters}{sums}  ROOT %t = ({shape}) tuple({", ".join(f"%s{k}" for k in n)})
}}"""


SMALL = """HloModule small
ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0)
  %a = f32[8] negate(%x)
  ROOT %b = f32[8] sine(%a)
}"""


def _fuse_all(session: CompilationSession) -> str | None:
    """Make one kernel of as many sums as is legal; return why another one is refused."""
    fusion = "s0"
    for k in range(1, SUMS):
        action = FusionAction("horizontal", "main", fusion, (f"s{k}",))
        reason = session.why_not(action)
        if reason is not None:
            return reason
        fusion = session.apply(action).name
    return None


def _session(backend: str) -> CompilationSession:
    return CompilationSession(parse(_sums()), backend, pipeline=[])


@pytest.fixture
def _large_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cuda backend with another default schedule."""
    monkeypatch.setattr(CudaBackend, "default_schedule", property(lambda _: LARGE_BLOCKS))


@pytest.mark.usefixtures("_large_blocks")
def test_the_limits_of_a_gpu_and_its_schedule_hold_for_fusions_for_it() -> None:
    on_cpu, on_gpu = _session("cpu"), _session("cuda")
    assert on_gpu.target.schedule == LARGE_BLOCKS
    assert _fuse_all(on_cpu) is None
    (fusion,) = on_cpu.fusion.fusions()
    assert kernel_refusal(body_of(fusion), C_TARGET) is None
    assert kernel_refusal(body_of(fusion), CUDA_TARGET) is None
    assert "shared memory" in str(kernel_refusal(body_of(fusion), on_gpu.target))
    assert "shared memory" in str(_fuse_all(on_gpu))
    (fusion,) = on_gpu.fusion.fusions()
    assert kernel_refusal(body_of(fusion), on_gpu.target) is None
    assert len(on_gpu.finish().kernels) > 1


def test_sessions_and_forks_judge_for_their_backend() -> None:
    for backend, target in (("cpu", C_TARGET), ("cuda", CUDA_TARGET), ("interpreter", C_TARGET)):
        session = CompilationSession(parse(SMALL), backend)
        assert session.target == target
        assert session.fork().fusion.target == target
        assert all(s.legality.target == target for s in session.fusion.fork().sequences.values())


def test_loops_are_judged_for_a_target_and_remembered_by_it() -> None:
    module = parse(load_suite("quickstart").find("cartpole_split").text())
    default_pipeline().run(module)
    known = KnownLoops()
    for target in (C_TARGET, CUDA_TARGET):
        assert any(KERNEL in s.choices for s in loop_sites(module, known, target))
    assert len(known) == 2


ONE_WINDOW = """HloModule one_window
%second (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  ROOT %b = f32[] parameter(1)
}
ENTRY %main (x: f32[40,8], i: s32[1], v: f32[3,8]) -> f32[40,8] {
  %x = f32[40,8] parameter(0)
  %i = s32[1] parameter(1)
  %v = f32[3,8] parameter(2)
  %n = f32[40,8] negate(%x)
  ROOT %s = f32[40,8] scatter(%n, %i, %v), update_window_dims={0,1}, inserted_window_dims={},
    scatter_dims_to_operand_dims={0}, index_vector_dim=0, to_apply=%second
}"""


def test_a_scatter_without_a_loop_over_updates_is_judged_as_others_are() -> None:
    action = FusionAction("producer-consumer", "main", "n", ("s",))
    reason = CompilationSession(parse(ONE_WINDOW), "cuda", pipeline=[]).why_not(action)
    assert reason is not None and "blocks of a GPU do not wait" in reason
    assert CompilationSession(parse(ONE_WINDOW), "cpu", pipeline=[]).why_not(action) is None


@pytest.fixture
def _misjudged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Legality that accepts kernels that need more memory than there is."""
    monkeypatch.setattr(trials, "kernel_refusal", lambda *_: None)


@pytest.mark.usefixtures("_large_blocks", "_misjudged")
def test_what_was_accepted_and_cannot_be_built_is_an_error() -> None:
    session = _session("cuda")
    assert _fuse_all(session) is None
    with pytest.raises(UnbuildableFusionError, match=r"was legal, but cuda has no kernel for it: .* shared"):
        session.finish()


@pytest.mark.usefixtures("_large_blocks")
def test_a_fusion_of_another_compiler_runs_op_by_op_and_is_named() -> None:
    session = _session("cpu")
    _fuse_all(session)
    session.module.reorder()
    executable = compile_hlo(str(session.module), backend="cuda", options=CompileOptions(keep_fusions=True))
    (fusion,) = session.fusion.fusions()
    assert executable.explain().separate == (fusion.name,)
    assert f"op by op    %{fusion.name}" in str(executable.explain())
    assert len({k.name for k in executable.kernels}) == 1  # equal sums have one kernel


class _Unbuildable(Measurer):
    """A measurer of which every plan has a fusion that cannot be built."""

    def measure_reference(self, program: Program, remeasure: bool = False) -> Measurement:
        del program, remeasure
        return Measurement(None)

    def measure(self, program: Program, plan: CompilationPlan | None, remeasure: bool = False) -> Measurement:
        del program, plan, remeasure
        reply = _failure("compile", UnbuildableFusionError("the fusion %f was legal, but cpu has no kernel for it"))
        return Measurement(None, cast(Failure, reply["error"]), reply["message"])


def test_environments_raise_what_cannot_be_built() -> None:
    program = load_suite("quickstart").find("softmax")
    speedups = SpeedupMeasurer("cpu", _Unbuildable(), None)
    plan = CompilationSession(parse(program.text())).plan
    with pytest.raises(UnbuildableFusionError, match=r"softmax.*: the fusion %f was legal"):
        speedups.measure(program, plan)


def _two_nests(results: str, reduced: str) -> HloComputation:
    """A computation that yields a reduction of f32[64,256] and an array of another shape."""
    text = f"""HloModule nests
%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}}
ENTRY %main (x: f32[64,256], y: f32[100]) -> ({results}, f32[100]) {{
  %x = f32[64,256] parameter(0)
  %y = f32[100] parameter(1)
  %zero = f32[] constant(0)
  %r = {results} reduce(%x, %zero), dimensions={{{reduced}}}, to_apply=%add
  %n = f32[100] negate(%y)
  ROOT %t = ({results}, f32[100]) tuple(%r, %n)
}}"""
    return parse(text).entry


@pytest.mark.parametrize(
    ("results", "reduced", "certain"), [("f32[64]", "1", True), ("f32[256]", "0", True), ("f32[]", "0,1", False)]
)
def test_nests_of_different_shapes_are_bound_only_where_it_is_uncertain(
    results: str, reduced: str, certain: bool
) -> None:
    """Blocks may have to repeat a reduction of a whole array, so that only binding shows whether it has a kernel."""
    kernel = lower(_two_nests(results, reduced), CUDA_TARGET.schedule, CUDA_TARGET.printer.tiles)
    assert kernel.nests == 2
    assert binds_surely(kernel, CUDA_TARGET.schedule) == certain
    assert bind_cuda(kernel, CUDA_TARGET.schedule).threads > 0
