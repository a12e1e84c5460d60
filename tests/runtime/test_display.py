"""What executables, plans and profiles print in a terminal and in a notebook."""

import numpy as np
import pytest

from compiler import CompilationPlan, compile
from compiler.runtime.executable import Profile, ThunkTime

TEXT = """
HloModule chain
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY e {
  x = f32[8,4] parameter(0)
  y = f32[8,4] tanh(x)
  z = f32[] constant(0)
  ROOT r = f32[8] reduce(y, z), dimensions={1}, to_apply=add
}
"""


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
def test_an_executable_says_what_it_takes_returns_and_runs(backend: str) -> None:
    executable = compile(TEXT, backend=backend)
    text = repr(executable)
    assert "of chain: (f32[8,4]" in text
    assert "-> (f32[8]" in text
    assert ("1 kernel," if backend == "cpu" else "0 kernels") in text
    assert "\n" not in text
    assert str(executable) == text


def test_an_executable_is_a_table_of_kernels_in_a_notebook() -> None:
    executable = compile(TEXT.replace("HloModule chain", "HloModule a_b"), backend="cpu")
    page = executable._repr_html_()  # type: ignore[attr-defined]
    (kernel,) = executable.kernels
    assert f"<td>{kernel.name}</td><td>{kernel.kind}</td><td>{kernel.bytes:,}</td>" in page
    assert "-&gt;" in page


def test_a_plan_counts_its_decisions_and_names_who_took_them() -> None:
    plan = compile(TEXT, backend="cpu", fusion_policy="priority").plan
    assert plan is not None
    assert repr(plan) == f"<CompilationPlan for cpu, module {plan.fingerprint[:12]}: 1 fusion>"
    assert "fusion by priority: producer" in str(plan)
    assert "<td>fusion</td><td>priority</td><td>1</td>" in plan._repr_html_()
    assert "no decisions" in repr(CompilationPlan(fingerprint="0" * 64))


def test_names_are_escaped_in_html() -> None:
    plan = CompilationPlan(fingerprint="0" * 64, decided_by={"fusion": "x"}, passes=("<script>alert(1)</script>",))
    assert "<script>" not in plan._repr_html_()
    row = ThunkTime("<b>", "kernel", 1e-3, 2.0, 100, 10)
    assert "<b>" not in Profile([row])._repr_html_()
    assert "&lt;b&gt;" in Profile([row])._repr_html_()


def test_a_profile_names_the_slowest_thunk_first() -> None:
    profile = Profile(
        [ThunkTime("fast", "kernel", 1e-6, 1, 10, 10), ThunkTime("slow", "kernel", 1e-3, 3, 4_000_000, 0)]
    )
    assert repr(profile) == "<Profile: 2 thunks, 3 ms per call, 100% of it in slow>"
    lines = str(profile).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["step", "slow", "fast"]
    assert lines[2].split() == ["slow", "kernel", "3", "1", "ms", "100%", "4.0", "0.0"]
    assert repr(Profile()) == "<Profile: no thunks>"
    executable = compile(TEXT, backend="cpu")
    found = executable.profile(np.ones((8, 4), np.float32))
    assert isinstance(found, Profile)
    assert [r.name for r in found] == [t.name for t in executable.thunks]
