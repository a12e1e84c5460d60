"""Explanations of executables: the decisions that made each kernel, and the reasons for boundaries."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from compiler import CompilationSession, CompileOptions, compile, load, parse
from compiler.analysis.cost_model import module_cost
from compiler.backends.registry import find_backend
from compiler.errors import PlanError
from compiler.fusion.actions import FusionAction
from compiler.fusion.state import FusionState
from compiler.plan import CompilationPlan
from compiler.runtime.executable import Executable
from compiler.runtime.explanation import DETAILED, Explanation
from compiler.runtime.thunks import KernelThunk

CHAIN = """
HloModule chain

sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }

ENTRY main {
  x = f32[64,48] parameter(0)
  y = f32[64,48] parameter(1)
  zero = f32[] constant(0)
  product = f32[64,48] multiply(x, y)
  wave = f32[64,48] tanh(product)
  rows = f32[64] reduce(wave, zero), dimensions={1}, to_apply=sum
  columns = f32[48] reduce(wave, zero), dimensions={0}, to_apply=sum
  ROOT both = (f32[64], f32[48]) tuple(rows, columns)
}
"""


def explained(
    text: str = CHAIN, policy: str | None = "default", backend: str = "cpu"
) -> tuple[Executable, Explanation]:
    executable = compile(text, backend=backend, fusion_policy=policy)
    return executable, executable.explain()


def test_without_fusion_every_kernel_is_one_instruction_and_boundaries_have_estimates() -> None:
    _, explanation = explained(policy="none")
    assert [(k.name, dict(k.opcodes), k.fusions) for k in explanation.kernels] == [
        ("product", {"multiply": 1}, ()),
        ("wave", {"tanh": 1}, ()),
        ("rows", {"reduce": 1}, ()),
        ("columns", {"reduce": 1}, ()),
    ]
    found = {(b.producer, b.consumer): b for b in explanation.boundaries}
    assert list(found) == [("product", "wave"), ("wave", "rows"), ("wave", "columns")]
    boundary = found["product", "wave"]
    assert boundary.refusal is None
    assert boundary.bytes == 64 * 48 * 4
    assert boundary.action == "producer-consumer"


def test_the_estimates_of_a_boundary_are_what_the_fusion_changes() -> None:
    executable, explanation = explained(policy="none")
    boundary = next(b for b in explanation.boundaries if b.producer == "product")
    state = FusionState(executable.module.clone())
    before = state.seconds()
    state.apply(FusionAction("producer-consumer", "main", "product", ("wave",)))
    assert boundary.before - boundary.after == pytest.approx(before - state.seconds(), rel=1e-9)


def test_steps_are_those_of_the_plan_that_lead_to_the_kernel() -> None:
    executable, explanation = explained()
    plan = executable.plan
    assert plan is not None
    (kernel,) = [k for k in explanation.kernels if "tanh" in k.opcodes and "multiply" in k.opcodes]
    taken = {s.action.producer for s in kernel.fusions}
    assert "product" in taken
    assert all(s in plan.steps for s in kernel.fusions)
    assert list(kernel.fusions) == [s for s in plan.steps if s in kernel.fusions]
    assert "fusion      default" in str(explanation)


def test_an_illegal_boundary_says_why() -> None:
    _, explanation = explained(Path("env/suites/quickstart/layer_norm_backward.hlo").read_text())
    refusals = [b.refusal for b in explanation.boundaries if b.refusal is not None]
    assert any("different domains" in r for r in refusals)


def test_kernels_are_the_thunks_of_the_program() -> None:
    executable, explanation = explained(Path("env/suites/quickstart/mlp_train_step.hlo").read_text())
    launched = [t.name for t in executable.thunks if isinstance(t, KernelThunk)]
    assert [k.name for k in explanation.kernels if k.implementation.startswith("generated")] == launched
    products = [k for k in explanation.kernels if k.name.startswith("product_fusion")]
    assert products
    assert all("rule of the compiler" in k.made_by for k in products)


def test_a_replayed_plan_names_who_made_it() -> None:
    executable, _ = explained(policy="priority")
    again = compile(CHAIN, plan=executable.plan)
    assert again.plan is not None
    assert again.plan.decided_by["fusion"] == "plan (priority)"
    assert "fusion      plan (priority)" in str(again.explain())
    third = compile(CHAIN, plan=again.plan)
    assert third.plan is not None
    assert third.plan.decided_by["fusion"] == "plan (priority)"


def test_plans_with_wrong_deciders_are_refused() -> None:
    executable, _ = explained()
    assert executable.plan is not None
    data = executable.plan.to_dict()
    assert CompilationPlan.from_json(data).decided_by == executable.plan.decided_by
    with pytest.raises(PlanError, match="names the phase"):
        CompilationPlan.from_json({**data, "decided_by": {"lunch": "me"}})
    with pytest.raises(PlanError, match="must be a string"):
        CompilationPlan.from_json({**data, "decided_by": {"fusion": 3}})


def test_a_loaded_program_explains_itself(tmp_path: Path) -> None:
    executable, explanation = explained()
    executable.save(tmp_path / "program")
    assert str(load(tmp_path / "program").explain()) == str(explanation)


def test_json_holds_everything_that_the_text_says() -> None:
    _, explanation = explained()
    data = json.loads(explanation.to_json())
    assert data["decided_by"]["fusion"] == "default"
    assert [k["name"] for k in data["kernels"]] == [k.name for k in explanation.kernels]
    assert len(data["boundaries"]) == len(explanation.boundaries)


def test_many_kernels_have_one_line_each_after_the_summary() -> None:
    lines = "\n".join(f"  c{n} = f32[{n + 2}] cosine(p{n})" for n in range(DETAILED + 10))
    parameters = "\n".join(f"  p{n} = f32[{n + 2}] parameter({n})" for n in range(DETAILED + 10))
    shapes = ", ".join(f"f32[{n + 2}]" for n in range(DETAILED + 10))
    names = ", ".join(f"c{n}" for n in range(DETAILED + 10))
    text = f"HloModule many\n\nENTRY e {{\n{parameters}\n{lines}\n  ROOT t = ({shapes}) tuple({names})\n}}"
    _, explanation = explained(text, policy="none")
    printed = str(explanation).splitlines()
    assert printed[0].startswith(f"many: {DETAILED + 10} kernels")
    assert sum(line.startswith("%c") for line in printed) == DETAILED + 10
    assert explanation.of("c3").startswith("%c3 in %e: generated c kernel")
    with pytest.raises(KeyError, match="no kernel is called nothing"):
        explanation.of("nothing")


def test_a_program_without_kernels_or_decisions() -> None:
    _, interpreted = explained(backend="interpreter")
    assert interpreted.kernels == []
    assert "0 kernels" in str(interpreted)
    plain = compile(CHAIN, options=CompileOptions(optimize=False)).explain()
    assert "compiled without passes and fusion" in str(plain)


def test_kept_fusions_are_explained_as_those_of_the_program() -> None:
    executable, _ = explained()
    again = compile(str(executable.module), options=CompileOptions(keep_fusions=True))
    made = [k.made_by for k in again.explain().kernels if k.instructions > 1]
    assert made
    assert all("it was fused when compilation began" in m for m in made)


# ---- fused modules as text


@pytest.mark.parametrize("name", ["softmax", "layer_norm_backward", "mlp_train_step", "cartpole_split"])
def test_the_text_of_a_fused_module_gives_the_same_kernels_back(name: str) -> None:
    executable = compile(Path(f"env/suites/quickstart/{name}.hlo").read_text())
    again = compile(str(executable.module), options=CompileOptions(keep_fusions=True))
    assert [k.symbol for k in again.kernels] == [k.symbol for k in executable.kernels]


def test_an_edited_fused_module_is_compiled_as_it_is_written() -> None:
    fused = """
    HloModule edited

    half { p = f32[8] parameter(0)  n = f32[8] negate(p)  ROOT s = f32[8] sine(n) }

    ENTRY e {
      x = f32[8] parameter(0)
      f = f32[8] fusion(x), kind=kLoop, calls=half
      ROOT a = f32[8] abs(f)
    }
    """
    kept = compile(fused, options=CompileOptions(keep_fusions=True))
    assert [k.name for k in kept.kernels] == ["f", "a"]
    assert len(compile(fused).kernels) == 1
    x = np.linspace(-3, 3, 8, dtype=np.float32)
    np.testing.assert_allclose(kept(x)[0], np.abs(np.sin(-x)), rtol=1e-6)


def test_a_policy_continues_from_kept_fusions() -> None:
    module = compile(CHAIN, fusion_policy="none").module
    kept = compile(parse(str(module)), options=CompileOptions(keep_fusions=True), fusion_policy="default")
    assert kept.plan is not None
    assert kept.plan.decided_by["fusion"] == "default"
    assert len(kept.kernels) < 4


def test_times_are_those_of_the_model_that_is_named() -> None:
    _, learned = explained()
    assert learned.cost_model.startswith("learned cost model")
    assert learned.to_dict()["cost_model"] == learned.cost_model
    assert f"per call by the {learned.cost_model}\n" in str(learned)
    executable, on_gpu = explained(backend="cuda")
    assert on_gpu.cost_model == "analytic cost model"
    assert on_gpu.seconds == pytest.approx(module_cost(executable.module, find_backend("cuda").device_model()).seconds)


def test_a_program_explains_itself_the_same_after_it_is_loaded(tmp_path: Path) -> None:
    executable, explanation = explained()
    executable.save(tmp_path / "saved")
    assert load(tmp_path / "saved").explain().to_dict()["kernels"] == explanation.to_dict()["kernels"]


def test_times_are_those_of_the_kernels_that_were_chosen() -> None:
    session = CompilationSession(parse(CHAIN))
    session.run_passes()
    session.run_fusion_policy()
    (site, *_) = session.kernel_sites()
    default = session.fork().finish().explain()
    session.set_kernel(site, {"threads": 0, "vector": 0})
    chosen = session.finish().explain()
    changed = {k.name for k, other in zip(chosen.kernels, default.kernels, strict=True) if k.seconds != other.seconds}
    assert changed == {site.name}
