"""Kernel sites of a session: their choices, checks, and how plans, undo and fork keep what was chosen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from compiler import DefaultKernels, KernelChoice, KernelSite, compile, parse
from compiler.backends.registry import find_backend
from compiler.codegen.schedules.kernel_choice import BoundKernel
from compiler.codegen.schedules.schedule_space import Knob
from compiler.errors import ArgumentError, PlanError
from compiler.fusion.policies import make_policy
from compiler.interpreter import evaluate
from compiler.ir import HloInstruction, Opcode
from compiler.ir.verifier import verify
from compiler.loops import KernelLoops
from compiler.plan import CompilationPlan
from compiler.runtime import implementations
from compiler.runtime.implementations import KernelImplementation, register_implementation
from compiler.runtime.kernel_features import FEATURE_NAMES
from compiler.runtime.thunks import KernelThunk
from compiler.session import CompilationSession
from tests.fuzz.plan_programs import LOOPS, WIDE, plan_program

TRANSPOSE = """
HloModule transposed
ENTRY main {
  a = f32[200,300] parameter(0)
  t = f32[300,200] transpose(a), dimensions={1,0}
  ROOT r = f32[300,200] negate(t)
}
"""
SAME_NAMES = """
HloModule same
yes { x = f32[90,70] parameter(0) ROOT y = f32[70,90] transpose(x), dimensions={1,0} }
no { x = f32[90,70] parameter(0) t = f32[90,70] tanh(x) ROOT y = f32[70,90] transpose(t), dimensions={1,0} }
ENTRY main { q = pred[] parameter(0) x = f32[90,70] parameter(1)
  ROOT c = f32[70,90] conditional(q, x, x), true_computation=yes, false_computation=no }
"""


def fused(text: str, backend: str = "cpu") -> CompilationSession:
    session = CompilationSession(parse(text), backend=backend)
    session.run_passes()
    session.run_loop_policy(KernelLoops())
    session.run_fusion_policy(make_policy("default"))
    return session


@cache
def _site(text: str = TRANSPOSE, backend: str = "cpu") -> KernelSite:
    return fused(text, backend).kernel_sites()[0]


@pytest.mark.parametrize("text", [WIDE, LOOPS, SAME_NAMES])
def test_sites_are_the_kernels_and_nothing_else(text: str) -> None:
    session = fused(text)
    sites = session.kernel_sites()
    assert len({s.id for s in sites}) == len(sites)
    assert {s.instruction for s in sites} <= set(session.kernels())
    thunks = [t.name for t in session.finish().thunks if isinstance(t, KernelThunk)]
    assert sorted(s.name for s in sites) == sorted(thunks)
    assert fused(text, "interpreter").kernel_sites() == []


def test_the_default_is_the_first_choice_and_then_one_knob_differs() -> None:
    choices = _site().choices
    assert choices[0] == _site().default == KernelChoice()
    assert all(len(c.schedule) == 1 for c in choices[1 : choices.nearest])
    assert len(choices) > choices.nearest and len(choices[choices.nearest].schedule) == 2
    tiles = [str(c) for c in choices[: choices.nearest] if "tile" in c.schedule]
    assert tiles == [f"generated{{tile={n}}}" for n in (0, 8, 16, 64)]
    assert choices[-1] == choices[len(choices) - 1] and choices[1:3] == [choices[1], choices[2]]
    assert KernelChoice(schedule={"tile": 8}) in choices
    assert KernelChoice(schedule={"tile": 9}) not in choices and KernelChoice("missing") not in choices
    with pytest.raises(IndexError):
        choices[len(choices)]


def test_neighbours_differ_in_one_knob() -> None:
    site = _site()
    here = KernelChoice(schedule={"tile": 8, "threads": 0})
    found = site.neighbours(here)
    assert KernelChoice(schedule={"tile": 8}) in found and KernelChoice(schedule={"tile": 16, "threads": 0}) in found
    assert here not in found and site.default not in found and len(set(found)) == len(found)
    assert set(site.neighbours(site.default)) == set(site.choices[1 : site.choices.nearest])


def test_knobs_without_effect_on_a_kernel_are_not_offered() -> None:
    knobs = {s.id: {k.name for k in s.choices.options["generated"].knobs} for s in fused(LOOPS).kernel_sites()}
    assert "lanes" in knobs["main/b"] and "tile" not in knobs["main/b"]
    assert "lanes" not in knobs["main/fusion.1"] and not any("block" in names for names in knobs.values())
    assert {k.name for k in _site(backend="cuda").choices.options["generated"].knobs} >= {"block"}


def test_every_choice_computes_the_same() -> None:
    program = plan_program("wide")
    session = fused(WIDE)
    for site in session.kernel_sites():
        for choice in site.choices[1 : site.choices.nearest : 5]:
            assert site.check(choice) is None
            fork = session.fork()
            fork.set_kernel(site, choice)
            assert program.wanted.difference(fork.finish()(*program.inputs)) is None


PRODUCT = """
HloModule product
ENTRY main {
  a = f32[24,70] parameter(0)
  b = f32[70,40] parameter(1)
  d = f32[24,40] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = f32[24,40] negate(d)
}
"""
SELECTION = "HloModule m\nENTRY e { x = f32[8,900] parameter(0) ROOT t = (f32[8,90], s32[8,90]) topk(x), k=90 }"


@pytest.mark.parametrize(
    ("text", "part", "choice"),
    [
        (PRODUCT, "product", {"product.accumulators": 8}),
        (SELECTION, "order", {"order.merge": 0, "order.room": 4}),
    ],
)
def test_parameters_of_templates_are_knobs_that_plans_keep(text: str, part: str, choice: dict[str, int]) -> None:
    session = fused(text)
    (site,) = (s for s in session.kernel_sites() if s.spec is not None and s.spec.kind in ("product", "top-k"))
    knobs = {k.name for k in site.choices.options["generated"].knobs}
    assert choice.keys() <= knobs and all(k.startswith(f"{part}.") or "." not in k for k in knobs)
    session.set_kernel(site, choice)
    chosen, plan = session.finish(), CompilationPlan.from_json(session.plan.to_json())
    replayed = compile(text, plan=plan)
    assert [k.symbol for k in replayed.kernels] == [k.symbol for k in chosen.kernels]
    assert [k.symbol for k in replayed.kernels] != [k.symbol for k in fused(text).finish().kernels]
    args = [np.random.default_rng(n).standard_normal(s.dimensions).astype(np.float32)
            for n, s in enumerate(site.instruction.parent.parameter_shapes)]  # type: ignore[union-attr]  # fmt: skip
    wanted = evaluate(parse(text), args)
    for a, b in zip(replayed(*args), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("choice", "why"),
    [
        ({"size": 3}, "has no choice 'size'"),
        ({"tile": 5000}, "tile must be an integer from 0 to 1024"),
        ({"tile": "8"}, "tile must be"),
        (10**9, "has no choice 1000000000; it has"),
        (-1, "has no choice -1"),
        ("tile=8", "must be a KernelChoice, a mapping"),
        (KernelChoice("missing"), "there is no implementation 'missing'; there are generated"),
    ],
)
def test_a_choice_is_refused_with_the_reason(choice: Any, why: str) -> None:
    session = fused(TRANSPOSE)
    (site,) = session.kernel_sites()
    refusal = site.check(choice)
    assert refusal is not None and why in refusal
    with pytest.raises(PlanError, match=why):
        session.set_kernel(site, choice)
    assert session.plan.kernels == {}


def test_a_site_is_named_by_itself_its_id_or_a_unique_name() -> None:
    session = fused(TRANSPOSE)
    (site,) = session.kernel_sites()
    for given in (site, site.id, site.name):
        assert session.fork().set_kernel(given, 1) == site.choices[1]
    with pytest.raises(PlanError, match="there is no kernel %missing"):
        session.set_kernel("missing", 1)


def test_kernels_of_the_same_name_are_chosen_one_by_one() -> None:
    session = CompilationSession(parse(SAME_NAMES))
    session.run_passes([])
    with pytest.raises(PlanError, match=r"several kernels are called %y; name one of them as (yes|no)/y, (yes|no)/y"):
        session.set_kernel("y", 1)
    session.set_kernel("no/y", {"tile": 8})
    plan = CompilationPlan.from_json(session.plan.to_json())
    assert plan.kernels == {"no": {"y": KernelChoice(schedule={"tile": 8})}}
    executable = compile(SAME_NAMES, plan=plan)
    assert executable.plan == plan
    x = np.random.default_rng(0).standard_normal((90, 70)).astype(np.float32)
    for q in (True, False):
        (got,) = executable(np.array(q), x)
        np.testing.assert_allclose(got, x.T if q else np.tanh(x.T), rtol=1e-6)


def test_a_choice_in_normal_form_has_no_fields_that_are_the_default() -> None:
    session = fused(TRANSPOSE)
    (site,) = session.kernel_sites()
    assert session.set_kernel(site, {"tile": 8, "columns": 256}) == KernelChoice(schedule={"tile": 8})
    assert session.chosen_kernel(site) == KernelChoice(schedule={"tile": 8})
    assert session.set_kernel(site, {"tile": 32}) == site.default
    assert session.plan.kernels == {}


def test_undo_fork_and_replay_keep_what_was_chosen() -> None:
    session = fused(TRANSPOSE)
    (site,) = session.kernel_sites()
    session.set_kernel(site, {"tile": 8})
    fork = session.fork()
    fork.set_kernel(site.id, {"tile": 16})
    assert session.chosen_kernel(site).schedule == {"tile": 8}
    assert fork.chosen_kernel(site).schedule == {"tile": 16}
    replayed = CompilationSession(parse(TRANSPOSE))
    replayed.replay(CompilationPlan.from_json(json.loads(fork.plan.to_json())))
    assert replayed.plan == fork.plan
    assert fork.undo() and fork.chosen_kernel(site).schedule == {"tile": 8}
    assert session.undo() and session.plan.kernels == {} and session.phase == "fusion"
    assert session.undo() and [s.name for s in session.kernel_sites()] != [site.name]  # the fusion is undone


def test_choices_for_another_backend_are_refused_and_ignored_where_there_are_no_kernels() -> None:
    session = fused(TRANSPOSE)
    session.set_kernel(session.kernel_sites()[0], {"tile": 8})
    plan = session.plan
    with pytest.raises(PlanError, match=r"for the backend cpu, .* is for cuda; .*without_kernels\(\)"):
        compile(TRANSPOSE, backend="cuda", plan=plan)
    assert compile(TRANSPOSE, backend="cuda", plan=plan.without_kernels()).kernels
    other = compile(TRANSPOSE, backend="interpreter", plan=plan)
    assert other.plan is not None and other.plan.kernels == {}
    with pytest.raises(PlanError, match="the backend interpreter makes no kernels"):
        fused(TRANSPOSE, "interpreter").set_kernel("negate", 1)


def test_a_plan_of_the_former_format_is_refused() -> None:
    data = {**fused(TRANSPOSE).plan.to_dict(), "format": 1, "kernels": {"r": {"tile": 8}}}
    with pytest.raises(PlanError, match="format 1 cannot be read; this version reads format 2"):
        CompilationPlan.from_json(data)


# ---- selectors


def test_a_function_is_a_selector_and_is_asked_about_kernels_only() -> None:
    asked: list[str] = []

    def smallest(site: KernelSite) -> KernelChoice:
        asked.append(site.name)
        return min(site.choices, key=lambda c: c.schedule.get("tile", 1000))

    executable = compile(TRANSPOSE, kernel_selector=smallest)
    assert asked == [k.name for k in executable.kernels]
    assert executable.kernels[0].kind == "loop"


def test_the_default_selector_changes_nothing() -> None:
    assert compile(WIDE, kernel_selector=DefaultKernels()).plan == compile(WIDE).plan


@pytest.mark.parametrize("given", [DefaultKernels, 3, "default"])
def test_an_object_that_is_no_selector_is_refused(given: Any) -> None:
    with pytest.raises(ArgumentError, match="a kernel selector is an object"):
        compile(TRANSPOSE, kernel_selector=given)


def test_what_is_no_choice_is_refused() -> None:
    with pytest.raises(PlanError, match="must be a KernelChoice"):
        compile(TRANSPOSE, kernel_selector=lambda _: "fast")  # type: ignore[arg-type, return-value]


# ---- facts of a site


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_features_are_finite_and_have_the_documented_size(backend: str) -> None:
    for text in (WIDE, LOOPS):
        for site in fused(text, backend).kernel_sites():
            features = site.features()
            assert len(features) == len(FEATURE_NAMES) == len(set(FEATURE_NAMES))
            assert all(np.isfinite(features)) and sum(features[:10]) == 1 and max(map(abs, features)) < 16


def test_features_tell_kernels_apart() -> None:
    by_name = dict(zip(FEATURE_NAMES, _site().features(), strict=True))
    assert (by_name["kind transpose"], by_name["transposes"], by_name["has reduction"]) == (1, 1, 0)
    assert by_name["log elements"] == pytest.approx(np.log2(60_001) / 24)
    assert by_name["rank"] == 0.5 and by_name["element bits"] == 1


@pytest.mark.parametrize("text", [WIDE, LOOPS])
def test_the_module_of_a_site_computes_its_instruction(text: str) -> None:
    rng = np.random.default_rng(0)
    for site in fused(text).kernel_sites():
        module = site.module()
        verify(module)
        args = [rng.uniform(0, 2, s.dimensions).astype(s.dtype) for s in module.parameter_shapes]
        spec = find_backend("cpu").build(module).kernels[0]
        assert site.spec is not None and spec.symbol == site.spec.symbol
        for got, want in zip(find_backend("cpu").build(module)(*args), evaluate(module, args), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        assert site.fingerprint == module.fingerprint()


# ---- implementations


CALLS: list[dict[str, int]] = []


def _library_refusal(instruction: HloInstruction, backend: str) -> str | None:
    return None if instruction.opcode is Opcode.FUSION and backend == "cpu" else "the library computes fusions on cpu"


def _emit_host(emitter: Any, i: Any, operands: Any, thunks: Any, runs: float, bound: BoundKernel) -> Any:
    """Emit the instruction as an op that the interpreter computes."""
    CALLS.append(dict(bound.options))
    return emitter._host(i, operands, thunks, runs)


LIBRARY = KernelImplementation("host", _library_refusal, _emit_host, lambda *_: (Knob("way", (0, 1, 2), 0),))


@pytest.fixture(params=[False, True], ids=["possible", "preferred"])
def preferred(request: pytest.FixtureRequest) -> Iterator[bool]:
    register_implementation(replace(LIBRARY, prefers=lambda i, backend: request.param))
    CALLS.clear()
    yield request.param
    del implementations.IMPLEMENTATIONS["host"]


def test_an_implementation_is_among_the_choices_and_the_default_where_it_is_preferred(preferred: bool) -> None:
    session = fused(TRANSPOSE)
    (site,) = session.kernel_sites()
    assert site.default == KernelChoice("host" if preferred else "generated")
    assert len(set(site.choices)) == len(site.choices) == site.choices.options["generated"].size + 3
    assert all(c in site.choices for c in site.choices)
    assert all(site.check(c) is None for c in site.choices[: site.choices.nearest])
    near = {c.implementation for c in site.choices[: site.choices.nearest]}
    assert near == {"host", "generated"}
    x = np.random.default_rng(0).standard_normal((200, 300)).astype(np.float32)
    library = [KernelChoice("host"), KernelChoice("host", {"way": 1}), KernelChoice("host", {"way": 2})]
    assert set(library) <= set(site.choices)
    for choice in [KernelChoice(), KernelChoice(schedule={"tile": 8}), *library]:
        CALLS.clear()
        fork = session.fork()
        fork.set_kernel(site, choice)
        plan = CompilationPlan.from_json(fork.plan.to_json())
        (got,) = compile(TRANSPOSE, plan=plan)(x)
        np.testing.assert_array_equal(got, -x.T)
        assert ([{**choice.schedule}] if choice.implementation == "host" else []) == CALLS


@pytest.mark.usefixtures("preferred")
def test_choices_of_an_implementation_are_checked() -> None:
    site = fused(TRANSPOSE).kernel_sites()[0]
    for schedule, why in (
        ({"tile": 8}, "host has no knob 'tile'; knobs: way"),
        ({"way": 7}, "way must be one of 0, 1, 2"),
    ):
        assert why in str(site.check(KernelChoice("host", schedule)))
    assert "the library computes fusions on cpu" in str(_site(backend="cuda").check(KernelChoice("host")))
    with pytest.raises(ValueError, match="two kernel implementations are called 'host'"):
        register_implementation(replace(LIBRARY, emit=lambda *_: None))
