"""The scripts of `experiments.benchmarks.one_line` compute with `hlogym.jit` what they compute with `jax.jit`."""

import pytest

from compiler.jit.function import JitFunction
from experiments.benchmarks.one_line import TOLERANCE, difference, names, run_script


def test_one_line_is_changed() -> None:
    assert len(names()) >= 6
    for name in names():
        assert isinstance(run_script(name, changed=True)["step"], JitFunction)
        assert not isinstance(run_script(name, changed=False)["step"], JitFunction)


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_results_are_those_of_jax(name: str) -> None:
    assert difference(name) <= TOLERANCE
