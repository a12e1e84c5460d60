"""Expanded batch norms compute the same."""

import numpy as np
import pytest

from compiler.interpreter import evaluate
from compiler.passes import make_pass
from compiler.text import parse


@pytest.mark.parametrize("op", ["batch-norm-training", "batch-norm-inference"])
def test_epsilon_is_a_float32_also_among_doubles(op: str) -> None:
    vectors = 2 if op == "batch-norm-training" else 4
    names = ", ".join(f"v{n}" for n in range(vectors))
    text = (
        "ENTRY e { x = f64[6,4] parameter(0)\n"
        + "\n".join(f"v{n} = f64[4] parameter({n + 1})" for n in range(vectors))
        + f"\nROOT r = {op}(x, {names}), epsilon=0.001, feature_index=1 }}"
    )
    module = parse(text)
    rng = np.random.default_rng(0)
    args = [rng.uniform(0, 0.01, s.dimensions) for s in module.parameter_shapes]
    wanted = evaluate(module, args)
    assert make_pass("batch-norm-expander").run(module)
    for a, b in zip(evaluate(module, args), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
