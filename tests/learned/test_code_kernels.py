"""Choosing kernels by their machine code: features, files, and what is chosen."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import hlogym
from compiler.backends.cpu import disassembly, toolchain
from compiler.backends.cpu.disassembly import Instruction, parse_functions
from compiler.codegen.kernel_spec import KernelSpec
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.errors import PolicyError
from compiler.learned import code_kernels
from compiler.learned.boosted_trees import BoostedTrees
from compiler.learned.code_kernels import CODE_INPUTS, DRAFT_INPUTS, CodeKernels, CodeModel, Trees, generated_kernels
from compiler.learned.features.kernel_costs import COST_FEATURES
from compiler.learned.features.machine_code import CODE_FEATURES, code_features
from compiler.learned.tree_nodes import TreeNodes
from compiler.learned.whole_folder import write_whole
from compiler.policy import load_whole
from compiler.runtime.kernel_sites import KernelSite
from compiler.support.processor import microarchitecture
from tests.session.test_kernel_sites import fused

EXP = """HloModule exp
ENTRY e { p = f32[4096,1000] parameter(0)
  q = f32[4096,1000] multiply(p, p)
  ROOT r = f32[4096,1000] exponential(q) }"""
GATHER = """HloModule gather
ENTRY e { p = f32[4096,64] parameter(0)
  i = s32[1000,1] parameter(1)
  g = f32[1000,64] gather(p, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1,
    slice_sizes={1,64}
  ROOT r = f32[1000,64] multiply(g, g) }"""
LOOP = """
0000000000001000 <hk_a>:
    1000:\tmov    %rdi,%rax
    1004:\tvmovups (%rdi,%rax,4),%zmm0
    1008:\tvfmadd231ps (%rsi,%rax,4),%zmm1,%zmm0
    100c:\tvmovups %zmm0,(%rdx,%rax,4)
    1010:\tadd    $0x10,%rax
    1014:\tcmp    %rcx,%rax
    1018:\tjne    1004 <hk_a+0x4>
    101c:\tvdivss %xmm2,%xmm1,%xmm0
    1020:\tret
"""
HALVED = KernelChoice(schedule={"vector": 256})
needs_objdump = pytest.mark.skipif(disassembly.why_unreadable() is not None, reason="machine code cannot be read here")


def _features(text: str) -> dict[str, float]:
    values = code_features(list(parse_functions(text.splitlines()).values()))
    return dict(zip(CODE_FEATURES, values, strict=True))


def _split(inputs: tuple[str, ...], name: str, bound: float, below: float, above: float) -> BoostedTrees:
    """Return trees of one split: `below` where an input is at most a bound, else `above`."""
    column = inputs.index(name)
    nodes = TreeNodes(
        np.array([0]), np.array([column, -1, -1]), np.array([bound, 0.0, 0.0]), np.array([1, 1, 2]), np.array([2, 1, 2])
    )
    return BoostedTrees(nodes, np.array([0.0, below, above]))


def _model(draft: float = 0.1, gain: float = 0.1, processor: str | None = None, prospect: float = 0.1) -> CodeModel:
    """Return a model that expects a gain where the machine code has fewer instructions on 512 bits."""
    trees = Trees(
        _split(COST_FEATURES, COST_FEATURES[0], 1e9, prospect, prospect),
        _split(DRAFT_INPUTS, "changed field: vector", -0.5, draft, -0.2),
        _split(CODE_INPUTS, "changed all: 512 bits", -0.1, gain, -0.2),
        0.05,
    )
    here = processor or microarchitecture()
    return CodeModel(({"vector": 256}, {"unroll": 2}), {here: trees}, 0.02, -0.03, 3, 0.0, {"families": ["a"]})


def _site() -> KernelSite:
    return fused(EXP).kernel_sites()[0]


# ---- features


def test_the_instructions_of_a_loop_are_counted() -> None:
    found = _features(LOOP)
    assert found["all: instructions"] == np.log2(1 + 9)
    assert found["loop 0: instructions"] == np.log2(1 + 6)
    assert found["loop 0: vector arithmetic"] == 1.0
    assert found["loop 0: lanes"] == np.log2(1 + 16)
    assert found["loop 0: bytes loaded"] == np.log2(1 + 128)
    assert found["loop 0: bytes stored"] == np.log2(1 + 64)
    assert found["loop 0: depth"] == 1.0
    assert found["all: loops"] == found["all: innermost loops"] == 1.0
    assert found["loop 0: divided"] == 0.0
    assert found["all: divided"] == 1.0
    assert found["loop 1: instructions"] == 0.0


def test_a_loop_that_contains_another_is_not_innermost() -> None:
    text = LOOP.replace("\tret", "\tjne    1000 <hk_a>\n    1024:\tret")
    found = _features(text)
    assert found["all: loops"] == np.log2(3)
    assert found["all: innermost loops"] == 1.0
    assert found["loop 0: depth"] == 2.0


@pytest.mark.parametrize(
    ("mnemonic", "operands", "counted"),
    [
        ("vaddpd", "%ymm0,%ymm1,%ymm2", {"vector arithmetic": 1, "lanes": 4, "256 bits": 1}),
        ("vmulsd", "%xmm0,%xmm1,%xmm2", {"scalar arithmetic": 1, "lanes": 1, "128 bits": 1}),
        ("vpaddd", "%zmm0,%zmm1,%zmm2", {"vector integer": 1, "integer lanes": 16, "512 bits": 1}),
        ("vpermps", "%ymm0,%ymm1,%ymm2", {"shuffles": 1, "256 bits": 1}),
        ("vgatherdps", "(%rax,%zmm1,4),%zmm0{%k1}", {"gathered": 16, "512 bits": 1}),
        ("vmovss", "%xmm0,0x8(%rsp)", {"stores": 1, "bytes stored": 4, "stack accesses": 1, "128 bits": 1}),
        ("vmulps", "(%rax){1to16},%zmm1,%zmm0",
         {"vector arithmetic": 1, "lanes": 16, "loads": 1, "bytes loaded": 64, "broadcasts": 1, "512 bits": 1}),
        ("call", "1030 <_ZGVeN16v_expf@plt>", {"calls": 1}),
        ("idiv", "%ecx", {"divided": 4, "divisions": 1, "scalar integer": 1, "integer lanes": 1}),
        ("lea", "0x4(%rax),%rbx", {"scalar integer": 1, "integer lanes": 1}),
        ("mov", "%rax,%rbx", {}),
        ("cmp", "%rax,(%rbx)", {"loads": 1, "bytes loaded": 8, "scalar integer": 1, "integer lanes": 1}),
    ],
)  # fmt: skip
def test_each_instruction_counts_as_what_it_does(mnemonic: str, operands: str, counted: dict[str, int]) -> None:
    values = code_features([[Instruction(0, mnemonic, operands)]])
    named = dict(zip(CODE_FEATURES, values, strict=True))
    found = {n.removeprefix("all: "): 2**v - 1 for n, v in named.items() if n.startswith("all: ") and v}
    assert found == pytest.approx({"instructions": 1, **counted})


# ---- files


def test_a_model_is_read_as_it_was_written(tmp_path: Path) -> None:
    model = _model()
    model.save(tmp_path)
    found = CodeModel.load(tmp_path)
    assert dataclasses.replace(found, trees={}) == dataclasses.replace(model, trees={})
    for name in ("prospects", "draft", "code"):
        kept, given = (getattr(next(iter(m.trees.values())), name) for m in (found, model))
        assert kept.value == pytest.approx(given.value)
        assert kept.nodes.feature.tolist() == given.nodes.feature.tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"candidates": [{"vector": "256"}]}, "must map fields"),
        ({"candidates": [{"no; such": 1}]}, "must map fields"),
        ({"candidates": [{"vector": 1 << 40}]}, "must map fields"),
        ({"candidates": 3}, "candidates must be a list"),
        ({"processors": "all"}, "processors must be a list"),
        ({"processors": ["a", "b"]}, "a number for each processor"),
        ({"processors": ["a", "b"], "least_prospects": [0.1, 0.1]}, "weights must be"),
        ({"least_prospects": ["0.1"]}, "a number for each processor"),
        ({"margin": -1}, "margin must be a number"),
        ({"code_version": 0}, "learned on other features"),
        ({"features": []}, "learned on other features"),
    ],
)
def test_a_damaged_model_is_refused(change: dict[str, object], message: str, tmp_path: Path) -> None:
    _model().save(tmp_path)
    file = tmp_path / "policy.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(PolicyError, match=message):
        CodeModel.load(tmp_path)


# ---- choices


@needs_objdump
def test_the_candidate_with_the_greatest_expected_gain_is_taken() -> None:
    selector, site = CodeKernels(_model()), _site()
    wide = generated_kernels(site, ({"vector": 256},))
    if len(wide) < 2 or "zmm" not in _listing(site):
        pytest.skip("this processor has no vectors of 512 bits")
    selector.prepare([site])
    assert selector.choose_kernel(site) == HALVED
    assert "1.11x from its code, needed 1.02x" in selector.explain(site)


def _listing(site: KernelSite) -> str:
    assert site.spec is not None
    path = toolchain.kernel_objects([site.spec], toolchain.toolchain())[site.spec.symbol]
    code = disassembly.machine_code({site.spec.symbol: path})[site.spec.symbol]
    return " ".join(i.operands for function in code for i in function)


@needs_objdump
@pytest.mark.parametrize(("draft", "gain", "reason"), [(0.1, 0.01, "predicted"), (-0.1, 0.1, "the draft expects")])
def test_a_kernel_keeps_its_default_where_too_little_is_expected(draft: float, gain: float, reason: str) -> None:
    selector, site = CodeKernels(_model(draft, gain)), _site()
    assert selector.choose_kernel(site) == site.default
    assert f"the default; {reason}" in selector.explain(site)


def test_nothing_is_compiled_for_candidates_that_the_draft_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_kernels, "why_unreadable", lambda: None)
    monkeypatch.setattr(code_kernels, "code_rows", lambda kernels: pytest.fail("kernels were compiled"))
    site = _site()
    assert CodeKernels(_model(draft=-0.1)).choose_kernel(site) == site.default


def test_no_candidate_of_a_kernel_without_prospects_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_kernels, "why_unreadable", lambda: None)
    monkeypatch.setattr(code_kernels, "generated_kernels", lambda *_: pytest.fail("candidates were made"))
    selector, site = CodeKernels(_model(prospect=0.01)), _site()
    assert selector.choose_kernel(site) == site.default
    assert "1.01x is expected at best, 1.05x needed" in selector.explain(site)


def test_short_kernels_keep_their_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_kernels, "why_unreadable", lambda: None)
    site = _site()
    selector = CodeKernels(dataclasses.replace(_model(), least_seconds=1e3))
    assert selector.choose_kernel(site) == site.default
    assert "too little time" in selector.explain(site)


@pytest.mark.parametrize("indexed", [True, False])
def test_kernels_that_access_elements_by_data_keep_their_default(
    indexed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_kernels, "why_unreadable", lambda: None)
    monkeypatch.setattr(code_kernels, "code_rows", lambda kernels: {})
    site = fused(GATHER if indexed else EXP).kernel_sites()[0]
    selector = CodeKernels(_model())
    assert selector.choose_kernel(site) == site.default
    assert ("depends on data" in selector.explain(site)) is indexed


def test_a_small_part_of_a_program_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_kernels, "why_unreadable", lambda: None)
    short = EXP.replace("4096,1000", "16,10").replace("ENTRY e", "ENTRY short")
    large, small = _site(), fused(short).kernel_sites()[0]
    looked: list[str] = []

    def kernels(site: KernelSite, candidates: object) -> dict[KernelChoice, KernelSpec]:
        looked.append(site.sequence)
        return {}

    monkeypatch.setattr(code_kernels, "generated_kernels", kernels)
    selector = CodeKernels(_model())
    selector.prepare([large, small])
    assert looked == [large.sequence]
    assert selector.choose_kernel(small) == small.default
    assert "a small part of the program" in selector.explain(small)
    assert looked == [large.sequence]


def test_unknown_processors_keep_their_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_kernels, "why_unreadable", lambda: None)
    selector, site = CodeKernels(_model(processor="Another 1")), _site()
    selector.prepare([site])
    assert selector.choose_kernel(site) == site.default
    assert "nothing was learned on processors like" in selector.explain(site)


def test_without_machine_code_kernels_keep_their_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_kernels, "why_unreadable", lambda: "there is no objdump")
    selector, site = CodeKernels(_model()), _site()
    assert selector.choose_kernel(site) == site.default
    assert "there is no objdump" in selector.explain(site)


@needs_objdump
def test_a_whole_policy_with_the_part_computes_the_same(tmp_path: Path) -> None:
    _model().save(tmp_path / "kernels")
    write_whole(tmp_path / "whole", "by-code", "1", {"kernels": tmp_path / "kernels"}, ("cpu",))
    policy = load_whole(tmp_path / "whole")
    assert isinstance(policy.kernels, CodeKernels)
    x = np.linspace(-1, 1, 4096 * 1000, dtype=np.float32).reshape(4096, 1000)
    chosen, plain = hlogym.compile(EXP, policy=policy), hlogym.compile(EXP, policy="heuristic")
    assert chosen.plan is not None
    assert chosen.plan.decided_by["kernels"] == "by-code@1"
    np.testing.assert_allclose(chosen(x)[0], plain(x)[0], rtol=1e-6)
    again = hlogym.compile(EXP, plan=chosen.plan)
    assert again.kernels[0].source == chosen.kernels[0].source
