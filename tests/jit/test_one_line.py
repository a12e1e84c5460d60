"""The scripts of `experiments.benchmarks.one_line` compute the same with one line changed."""

import re

import pytest

from compiler.jit.function import JitFunction
from experiments.benchmarks.one_line import TOLERANCE, difference, names
from experiments.benchmarks.script_frameworks import JAX, TORCH


def test_one_line_is_changed_in_scripts_of_jax() -> None:
    assert len(JAX.names()) >= 6
    for name in JAX.names():
        assert isinstance(JAX.run_script(name, changed=True)["step"], JitFunction)
        assert not isinstance(JAX.run_script(name, changed=False)["step"], JitFunction)


def test_one_line_is_changed_in_scripts_of_pytorch() -> None:
    assert len(TORCH.names()) >= 3
    for name in TORCH.names():
        before = (TORCH.folder / f"{name}.py").read_text(encoding="utf-8")
        after = TORCH.changed(before)
        assert after is not None
        lines = [b for a, b in zip(before.splitlines(), after.splitlines(), strict=True) if a != b]
        assert len(lines) == 1
        assert re.search(r'torch\.compile\(\w+, backend="hlogym"\)', lines[0])


def test_a_script_without_the_line_is_refused() -> None:
    assert TORCH.changed("model = model.eval()\n") is None
    assert JAX.changed("import jax\n") is None


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_results_are_those_of_the_given_script(name: str) -> None:
    assert difference(name) <= TOLERANCE
