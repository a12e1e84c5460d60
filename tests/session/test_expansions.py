"""Expansion decisions: sites and choices, plans, undo and replay, and the results of every choice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from compiler import CompilationPlan, compile, parse
from compiler.backends.cuda import emulation
from compiler.backends.cuda.emulation import stand_in
from compiler.backends.registry import find_backend
from compiler.errors import ArgumentError, PlanError
from compiler.expansions import DefaultExpansions, ExpansionSite, expansion_sites
from compiler.fusion.policies import make_policy
from compiler.interpreter import evaluate
from compiler.ir import HloModule, Opcode
from compiler.session import CompilationSession, SessionError
from env.comparison import difference
from env.reference import Reference
from env.suites import Tolerance

TOLERANCE = Tolerance(1e-4, 1e-5)
"""Sums of products are computed in another order."""
TEXT = """
HloModule expansions
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
ENTRY e {
  x = f32[2,9,9,3] parameter(0)
  w = f32[3,3,3,5] parameter(1)
  c = f32[2,7,7,5] convolution(x, w), window={size=3x3}, dim_labels=b01f_01io->b01f
  a = f32[4,8] parameter(2)
  b = f32[8,4] parameter(3)
  small = f32[4,4] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  k = f32[16,32] parameter(4)
  l = f32[32,64] parameter(5)
  large = f32[16,64] dot(k, l), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = (f32[2,7,7,5], f32[4,4], f32[16,64]) tuple(c, small, large)
}
"""


@pytest.fixture
def module() -> HloModule:
    return parse(TEXT)


def session_of(module: HloModule) -> CompilationSession:
    session = CompilationSession(module)
    session.run_passes()
    return session


def site_named(session: CompilationSession, name: str) -> ExpansionSite:
    return next(s for s in session.expansions() if s.id.endswith(f"/{name}"))


def arguments(module: HloModule) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(p.shape.dimensions).astype(np.float32) for p in module.entry.parameters]


def test_small_products_are_loops_and_large_ones_library_calls_by_default(module: HloModule) -> None:
    session = session_of(module)
    assert site_named(session, "small").choices == ("loops", "keep")
    assert site_named(session, "large").choices == ("keep", "loops")
    assert site_named(session, "large").signature == "(f32[16,32], f32[32,64]) -> f32[16,64]"


@pytest.mark.parametrize("choose", [lambda s: s.choices[0], lambda s: s.choices[-1]], ids=["default", "last"])
def test_every_choice_computes_the_same(module: HloModule, choose: Callable[[ExpansionSite], str]) -> None:
    exe = compile(module, expansion_policy=choose)
    args = arguments(module)
    assert difference(exe(*args), evaluate(module, args), TOLERANCE) is None
    assert exe.plan is not None and exe.plan.expansions


def test_a_product_and_loops_lead_to_different_programs(module: HloModule) -> None:
    kinds = []
    for choice in ("keep", "loops"):
        session = session_of(module)
        session.set_expansion(site_named(session, "large"), choice)
        session.run_fusion_policy(make_policy("priority"))
        kinds.append([k.kind for k in session.finish().kernels])
    assert kinds[0].count("product") == kinds[1].count("product") + 1


def test_default_expansions_are_those_of_no_policy(module: HloModule) -> None:
    one, two = compile(module, expansion_policy=DefaultExpansions()), compile(module)
    assert [t.kind for t in one.thunks] == [t.kind for t in two.thunks]


def test_plans_replay_on_a_module_with_other_names(module: HloModule) -> None:
    session = session_of(module)
    session.set_expansion(site_named(session, "small"), "keep")
    session.run_fusion_policy(make_policy("priority"))
    plan = CompilationPlan.from_json(session.plan.to_json())
    renamed = parse(TEXT.replace("small", "other").replace("large", "another"))
    replayed = CompilationSession(renamed)
    replayed.replay(plan)
    assert [(c.position, c.choice) for c in replayed.plan.expansions] == [
        (c.position, c.choice) for c in plan.expansions
    ]
    args = arguments(module)
    assert difference(replayed.finish()(*args), evaluate(module, args), TOLERANCE) is None


def test_undo_and_fork(module: HloModule) -> None:
    session = session_of(module)
    before = str(session.module)
    session.set_expansion(site_named(session, "large"), "loops")
    forked = session.fork()
    assert session.undo()
    assert str(session.module) == before
    assert [c.choice for c in forked.plan.expansions] == ["loops"]


def test_wrong_choices_are_refused_with_a_reason(module: HloModule) -> None:
    session = session_of(module)
    with pytest.raises(PlanError, match="cannot be computed as 'sort'; choices: keep, loops"):
        session.set_expansion(site_named(session, "large"), "sort")
    with pytest.raises(PlanError, match="no choice of expansion for 'nothing'; sites: e/"):
        session.set_expansion("nothing", "keep")
    with pytest.raises(ArgumentError, match="an expansion policy is an object with choose_expansion"):
        session.run_expansion_policy(3)  # type: ignore[arg-type]
    _ = session.fusion
    assert session.expansions() == []
    with pytest.raises(SessionError, match="expansions are decided already"):
        session.set_expansion("e/large", "keep")


def test_a_plan_with_an_impossible_expansion_is_refused(module: HloModule) -> None:
    session = session_of(module)
    session.set_expansion(site_named(session, "small"), "keep")
    data = session.plan.to_dict()
    data["expansions"][0]["position"] = 99
    with pytest.raises(PlanError, match="no expansion site at position 99"):
        CompilationSession(module).replay(CompilationPlan.from_json(data))


def test_a_backend_without_kernels_has_no_sites(module: HloModule) -> None:
    session = CompilationSession(module, backend="interpreter")
    assert session.expansions() == []


def test_topk_and_cumulative_reductions_keep_their_kernels_by_default() -> None:
    module = parse(
        "HloModule m\nsum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }\n"
        "ENTRY e { x = f32[4,100] parameter(0) zero = f32[] constant(0)\n"
        "t = (f32[4,3], s32[4,3]) topk(x), k=3\n"
        "w = f32[4,100] reduce-window(x, zero), window={size=1x100 pad=0_0x99_0}, to_apply=sum\n"
        "v = f32[4,3] get-tuple-element(t), index=0\n"
        "ROOT r = (f32[4,3], f32[4,100]) tuple(v, w) }"
    )
    sites = expansion_sites(module, find_backend("cpu"))
    assert {s.opcode for s in sites} >= {Opcode.TOPK}
    assert {s.default for s in sites} == {"keep"}
    assert {k.kind for k in CompilationSession(module, "cpu").finish().kernels} == {"top-k", "scan"}


def test_random_numbers_are_arithmetic_or_left_to_the_interpreter() -> None:
    text = """HloModule r
ENTRY e {
  s = u64[2] parameter(0)
  g = (u64[2], u32[64]) rng-bit-generator(s), algorithm=rng_three_fry
  h = (u64[2], u32[8]) rng-bit-generator(s), algorithm=rng_three_fry
  x = u32[64] get-tuple-element(g), index=1
  y = u32[8] get-tuple-element(h), index=1
  ROOT r = (u32[64], u32[8]) tuple(x, y)
}"""
    key = np.array([1, 2], np.uint64)
    want = compile(text)(key)
    for choices in (("arithmetic", "arithmetic"), ("keep", "arithmetic"), ("keep", "keep")):
        session = CompilationSession(parse(text))
        assert [s.choices for s in session.expansions()] == [("arithmetic", "keep")] * 2
        for choice in choices:
            session.set_expansion(session.expansions()[0], choice)
        left = sum(i.opcode is Opcode.RNG_BIT_GENERATOR for i in session.module.entry.instructions)
        assert left == choices.count("keep")
        exe = compile(text, plan=session.plan)
        for got, expected in zip(exe(key), want, strict=True):
            np.testing.assert_array_equal(got, expected)
    session = CompilationSession(parse(text))
    session.run_passes()
    assert session.expansions() == []


SUMS = """
HloModule sums
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
ENTRY e {
  x = f32[512,1000] parameter(0)
  zero = f32[] constant(0)
  s = f32[] reduce(x, zero), dimensions={0,1}, to_apply=add
  r = f32[512] reduce(x, zero), dimensions={1}, to_apply=add
  ROOT t = (f32[], f32[512]) tuple(s, r)
}
"""


def test_only_a_gpu_reduces_in_stages_and_only_to_few_results() -> None:
    assert expansion_sites(parse(SUMS), find_backend("cpu")) == []
    (site,) = expansion_sites(parse(SUMS), find_backend("cuda"))
    assert (site.id, site.choices) == ("e/s", ("stages", "keep"))


@pytest.mark.parametrize("choice", ["stages", "keep"])
def test_stages_are_a_decision(choice: str) -> None:
    session = CompilationSession(parse(SUMS), "cuda", pipeline=[])
    session.set_expansion("e/s", choice)
    plan = CompilationPlan.from_json(session.plan.to_json())
    replayed = CompilationSession(parse(SUMS), "cuda", pipeline=[])
    replayed.replay(plan)
    for s in (session, replayed):
        _ = s.fusion
        assert sum(i.opcode is Opcode.REDUCE for i in s.module.entry.instructions) == (3 if choice == "stages" else 2)
    args = arguments(parse(SUMS))
    assert difference(evaluate(session.module, args), evaluate(parse(SUMS), args), TOLERANCE) is None


LONG_PRODUCT = """HloModule m
ENTRY e { x = f32[40,8192] parameter(0) y = f32[8192,24] parameter(1) b = f32[40,24] parameter(2)
  d = f32[40,24] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = f32[40,24] add(d, b) }
"""


def test_the_stages_of_a_product_are_a_decision_for_a_gpu_that_is_not_the_default() -> None:
    assert expansion_sites(parse(LONG_PRODUCT), find_backend("cpu")) == []
    (site,) = expansion_sites(parse(LONG_PRODUCT), find_backend("cuda"))
    assert (site.id, site.choices) == ("e/d", ("keep", "stages"))


@pytest.mark.skipif(not emulation.available(), reason="the emulator needs g++")
def test_a_product_in_stages_matches_the_interpreter_and_has_more_blocks() -> None:
    args = arguments(parse(LONG_PRODUCT))
    session = CompilationSession(parse(LONG_PRODUCT), "cuda", pipeline=[])
    session.set_expansion("e/d", "stages")
    session.run_fusion_policy(make_policy("default"))
    executable = session.finish()
    products = [k for k in executable.kernels if k.kind == "product"]
    assert products and all(k.grid > 64 for k in products)
    with stand_in.installed():
        got = [o.get() for o in executable(*args)]
    assert Reference.of(parse(LONG_PRODUCT), args).difference(got, TOLERANCE) is None


LONG_ROWS = """HloModule m
ENTRY e { x = f32[3,7168] parameter(0)
  t = (f32[3,20], s32[3,20]) topk(x), k=20, largest=true
  v = f32[3,20] get-tuple-element(t), index=0
  p = s32[3,20] get-tuple-element(t), index=1
  ROOT r = (f32[3,20], s32[3,20]) tuple(v, p) }
"""


def test_the_stages_of_a_topk_are_the_default_on_a_gpu() -> None:
    (site,) = expansion_sites(parse(LONG_ROWS), find_backend("cuda"))
    assert site.choices[0] == "stages" and "keep" in site.choices
    (site,) = expansion_sites(parse(LONG_ROWS.replace("7168", "717")), find_backend("cuda"))
    assert site.choices[0] == "keep" and "stages" not in site.choices


@pytest.mark.skipif(not emulation.available(), reason="the emulator needs g++")
@pytest.mark.parametrize(("choice", "blocks"), [("stages", 3 * 7), ("keep", 3)])
def test_a_topk_with_equal_elements_and_nan_is_the_same_in_stages(choice: str, blocks: int) -> None:
    x = np.random.default_rng(0).integers(-20, 20, (3, 7168)).astype(np.float32)
    x[0, ::700], x[1, ::5] = np.nan, -0.0
    session = CompilationSession(parse(LONG_ROWS), "cuda", pipeline=[])
    session.set_expansion("e/t", choice)
    session.run_fusion_policy(make_policy("default"))
    executable = session.finish()
    assert max(k.grid for k in executable.kernels if k.kind == "top-k") == blocks
    with stand_in.installed():
        got = [o.get() for o in executable(x)]
    for found, wanted in zip(got, evaluate(parse(LONG_ROWS), [x]), strict=True):
        np.testing.assert_array_equal(found, wanted)


def _long_scan(element_type: str, dims: tuple[int, int], axis: int, op: str, *, reverse: bool) -> str:
    """Return a module of a cumulative reduction of squares that starts from 1, with a sum after it."""
    n, shape = dims[axis], f"{element_type}[{dims[0]},{dims[1]}]"
    edge = f"0_{n - 1}" if reverse else f"{n - 1}_0"
    size, pad = ((f"{n}x1", f"{edge}x0_0"), (f"1x{n}", f"0_0x{edge}"))[axis]
    return f"""HloModule m
f {{ a = {element_type}[] parameter(0) b = {element_type}[] parameter(1)
  ROOT c = {element_type}[] {op}(a, b) }}
ENTRY e {{ x = {shape} parameter(0) q = {shape} multiply(x, x) one = {element_type}[] constant(1)
  s = {shape} reduce-window(q, one), window={{size={size} pad={pad}}}, to_apply=f
  ROOT r = {shape} add(s, x) }}
"""


LONG_SCANS = {
    "a row": _long_scan("f32", (1, 40960), 1, "add", reverse=False),
    "rows of prime length in reverse": _long_scan("f32", (2, 40009), 1, "add", reverse=True),
    "columns": _long_scan("f32", (12000, 9), 0, "maximum", reverse=False),
    "columns in reverse": _long_scan("s32", (12000, 8), 0, "add", reverse=True),
    "halves": _long_scan("bf16", (2, 81920), 1, "add", reverse=False),
}


@pytest.mark.skipif(not emulation.available(), reason="the emulator needs g++")
@pytest.mark.parametrize("name", LONG_SCANS)
@pytest.mark.parametrize("choice", ["stages", "keep"])
def test_scans_of_few_rows_run_in_stages_on_a_gpu(name: str, choice: str) -> None:
    module = parse(LONG_SCANS[name])
    (site,) = expansion_sites(module, find_backend("cuda"))
    assert site.choices[0] == "stages" and "keep" in site.choices
    session = CompilationSession(parse(LONG_SCANS[name]), "cuda", pipeline=[])
    session.set_expansion(site.id, choice)
    session.run_fusion_policy(make_policy("default"))
    executable = session.finish()
    grids = [k.grid for k in executable.kernels if k.kind == "scan"]
    assert len(grids) == 1
    assert grids[0] >= 16 if choice == "stages" else grids[0] <= 2
    shape = module.entry.parameters[0].shape
    x = np.random.default_rng(0).integers(0, 2, shape.dimensions).astype(shape.dtype)
    with stand_in.installed():
        got = [o.get() for o in executable(x)]
    for found, wanted in zip(got, evaluate(module, [x]), strict=True):
        rtol = 0.01 if shape.element_type.bits < 32 else 1e-6
        np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=rtol)


def test_a_cpu_and_scans_of_many_rows_have_no_stages() -> None:
    assert all("stages" not in s.choices for s in expansion_sites(parse(LONG_SCANS["a row"]), find_backend("cpu")))
    many = parse(_long_scan("f32", (300, 4096), 1, "add", reverse=False))
    assert all("stages" not in s.choices for s in expansion_sites(many, find_backend("cuda")))
