import json

import numpy as np
import pytest

from compiler.errors import PlanError, UnknownNameError
from compiler.fusion.policies import RandomFusion, make_policy
from compiler.interpreter import evaluate
from compiler.ir import HloModule
from compiler.loops import KernelOrUnrolledLoops, LoopSite, UnrollLoops
from compiler.plan import CompilationPlan
from compiler.session import CompilationSession, SessionError
from compiler.text import parse
from tests.passes.programs import difference, program_inputs, program_results, program_text, run

PROGRAMS = ("softmax", "layer_norm_backward", "cartpole_split")


def _decided(program: str, seed: int = 0) -> CompilationSession:
    session = CompilationSession(parse(program_text(program)))
    session.run_passes(["call-inliner", "tuple-simplifier", "cse", "dce"])
    session.run_loop_policy(UnrollLoops(2))
    session.run_fusion_policy(RandomFusion(seed, max_actions=25))
    return session


def _renamed(module: HloModule) -> HloModule:
    """Return the same program with other instruction names."""
    copy = module.clone()
    for c in copy.computations:
        for n, i in enumerate(c.instructions):
            i.name = f"other_{n}"
        c._by_name = {i.name: i for i in c.instructions}
    return copy


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_plan_rebuilds_the_same_module_from_its_json(program: str) -> None:
    session = _decided(program)
    plan = CompilationPlan.from_json(session.plan.to_json())
    assert plan == session.plan
    again = CompilationSession(parse(program_text(program)))
    again.replay(plan)
    assert str(again.module) == str(session.module)
    assert again.plan == plan
    assert difference(run(again.module, program_inputs(program)), program_results(program)) is None


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_plan_can_be_replayed_after_renaming(program: str) -> None:
    session = _decided(program, seed=1)
    other = _renamed(parse(program_text(program)))
    assert other.fingerprint() == session.fingerprint
    again = CompilationSession(other)
    again.replay(session.plan)
    assert again.module.fingerprint() == session.module.fingerprint()


def test_a_plan_of_another_program_is_rejected() -> None:
    plan = _decided("softmax").plan
    session = CompilationSession(parse(program_text("rms_norm")))
    with pytest.raises(PlanError, match="made for another module"):
        session.replay(plan)
    assert session.phase == "passes"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": 99}, "format 99 cannot be read"),
        ({"fingerprint": 3}, "fingerprint must be a string, got 3"),
        ({"passes": "dce"}, "passes must be a list of strings"),
        ({"fusions": [{"kind": "glue"}]}, r"fusions\[0\]: kind must be one of"),
        ({"loops": [{"id": "a", "position": -1, "choice": "keep"}]}, r"loops\[0\]: position"),
        ({"kernels": {"main": {"f": {"schedule": {"tile": "big"}}}}}, "kernels: 'main': 'f': a kernel's tile must be"),
        ({"colour": 1}, "unknown entries colour"),
    ],
)
def test_the_error_for_a_damaged_plan_names_the_entry(change: dict[str, object], why: str) -> None:
    data = {**_decided("softmax").plan.to_dict(), **change}
    with pytest.raises(PlanError, match=why):
        CompilationPlan.from_json(json.dumps(data), "my.json")
    with pytest.raises(PlanError, match=r"my\.json: not JSON, line 1 column 2"):
        CompilationPlan.from_json("{,}", "my.json")


def test_a_decision_that_cannot_be_replayed_leaves_the_session_unchanged() -> None:
    data = _decided("softmax").plan.to_dict()
    data["fusions"] = [*data["fusions"], data["fusions"][0]]
    session = CompilationSession(parse(program_text("softmax")))
    with pytest.raises(PlanError):
        session.replay(CompilationPlan.from_json(data))
    assert session.plan.fusions == ()
    session.run_passes()


@pytest.mark.parametrize("program", PROGRAMS)
def test_undo_goes_back_step_by_step(program: str) -> None:
    session = CompilationSession(parse(program_text(program)))
    modules = [str(session.module)]
    session.run_passes(["call-inliner", "tuple-simplifier", "dce"])
    if str(session.module) != modules[-1]:
        modules.append(str(session.module))
    for site in session.loops()[:1]:
        session.set_loop(site, "keep")
        modules.append(str(session.module))
    chooser = RandomFusion(2, max_actions=6)
    for _ in range(6):
        action = chooser.choose(session.fusion)
        assert action is not None
        session.apply(action)
        modules.append(str(session.module))
    while len(modules) > 1:
        modules.pop()
        assert session.undo()
        # Trip counts of loops are annotated when fusion begins.
        assert _without_config(str(session.module)) == _without_config(modules[-1])
    assert not session.undo()


def _without_config(text: str) -> str:
    return text.replace(', backend_config={"known_trip_count":{"n":"4"}}', "")


def test_a_fork_is_independent() -> None:
    session = _decided("layer_norm_backward")
    fork = session.fork()
    before, plan = str(session.module), session.plan
    fork.run_fusion_policy(make_policy("default"))
    assert str(session.module) == before
    assert session.plan == plan
    assert fork.plan.fusions[: len(plan.fusions)] == plan.fusions


def test_phases_only_go_forward() -> None:
    session = CompilationSession(parse(program_text("softmax")))
    session.run_passes()
    session.apply(session.actions()[0])
    with pytest.raises(SessionError, match="passes are decided already"):
        session.run_passes()


def test_the_given_module_is_not_changed() -> None:
    module = parse(program_text("cartpole_split"))
    before = str(module)
    session = CompilationSession(module)
    session.run_passes()
    session.run_fusion_policy(make_policy("priority"))
    assert str(module) == before


def test_unknown_names_are_rejected() -> None:
    session = CompilationSession(parse(program_text("softmax")))
    with pytest.raises(UnknownNameError, match="unknown pass"):
        session.apply_pass("dcee")
    with pytest.raises(PlanError, match="there is no loop 'main/while'"):
        session.set_loop("main/while", "full")
    with pytest.raises(PlanError, match="there is no kernel %missing"):
        session.set_kernel("missing", {"tile": 8})


def test_loop_choices_are_applied_and_kept_in_the_plan() -> None:
    program = "cartpole_split"
    session = CompilationSession(parse(program_text(program)))
    session.run_passes(["call-inliner", "tuple-simplifier", "dce"])
    (site,) = session.loops()
    assert site.trip_count == 4
    assert {"keep", "unroll-2", "full"} <= set(site.choices)
    with pytest.raises(PlanError, match="cannot be treated as 'unroll-3'"):
        session.set_loop(site, "unroll-3")
    session.set_loop(site, "unroll-2")
    assert session.plan.loops == {site.id: "unroll-2"}
    session.run_fusion_policy(make_policy("default"))
    assert difference(run(session.module, program_inputs(program)), program_results(program)) is None


def test_the_session_and_its_fusion_state_have_the_same_cost() -> None:
    session = _decided("layer_norm_backward")
    assert session.cost().seconds == pytest.approx(session.fusion.seconds())


@pytest.mark.parametrize("decided", ["finish", "fusion", "replay"])
def test_ops_without_kernels_are_expanded_whatever_passes_ran(decided: str) -> None:
    module = parse(
        "HloModule m\nsum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }\n"
        "ENTRY e { x = f32[8,8] parameter(0) key = u64[2] parameter(1) zero = f32[] constant(0)\n"
        "w = f32[8,8] reduce-window(x, zero), window={size=1x3 pad=0_0x2_0}, to_apply=sum\n"
        "r = (u64[2], u32[4]) rng-bit-generator(key), algorithm=rng_three_fry\n"
        "bits = u32[4] get-tuple-element(r), index=1\n"
        "ROOT t = (f32[8,8], u32[4]) tuple(w, bits) }"
    )
    session = CompilationSession(module)
    session.run_passes([])
    if decided == "fusion":
        session.run_fusion_policy(make_policy("default"))
    if decided == "replay":
        done = CompilationSession(module)
        done.run_fusion_policy(make_policy("random"))
        session.replay(done.plan)
    executable = session.finish()
    left = {i.opcode.text for c in executable.module.computations for i in c.instructions}
    assert not left & {"reduce-window", "rng-bit-generator"}
    inputs = [np.arange(64, dtype=np.float32).reshape(8, 8), np.array([3, 4], np.uint64)]
    for got, want in zip(executable(*inputs), evaluate(module, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_loops_run_in_a_kernel_or_are_unrolled_as_far_as_their_size_allows() -> None:
    def chosen(size: int, *choices: str) -> str:
        return KernelOrUnrolledLoops().choose_loop(
            LoopSite("e/w", 0, 100, size, ("keep", *choices)), parse(program_text("softmax"))
        )

    assert chosen(5, "unroll-2", "unroll-4", "unroll-8", "full", "kernel") == "kernel"
    assert chosen(100, "unroll-2", "unroll-4", "unroll-8", "full") == "unroll-8"
    assert chosen(101, "unroll-2", "unroll-4", "unroll-8") == "unroll-4"
    assert chosen(5, "unroll-2", "full") == "unroll-2"
    assert chosen(401, "unroll-2") == "keep"
    assert chosen(5) == "keep"


def test_backends_have_their_own_rules() -> None:
    sessions = {name: CompilationSession(parse(program_text("softmax")), backend=name) for name in ("cpu", "cuda")}
    assert [s.default_fusion() for s in sessions.values()] == ["default", "reshapes,default,readers"]
    assert isinstance(sessions["cuda"].default_loops(), KernelOrUnrolledLoops)
    assert not isinstance(sessions["cpu"].default_loops(), KernelOrUnrolledLoops)
