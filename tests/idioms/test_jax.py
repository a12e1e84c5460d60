"""JAX idioms: results of native code and the interpreter, compared elementwise with JAX."""

from __future__ import annotations

import contextlib

import jax
import numpy as np
import pytest

from compiler import compile
from compiler.interpreter import evaluate
from compiler.text import parse
from env.suites.lowering import lower_to_text
from tests.idioms import (
    jax_arrays,
    jax_attention,
    jax_environments,
    jax_layers,
    jax_losses,
    jax_metrics,
    jax_normalisation,
    jax_numerics,
    jax_optimizers,
    jax_probability,
    jax_reinforcement,
)
from tests.idioms.collection import Case, Idiom, assert_close, parameters

SUBJECTS = {
    "optimizers": jax_optimizers.IDIOMS,
    "losses": jax_losses.IDIOMS,
    "reinforcement": jax_reinforcement.IDIOMS,
    "normalisation": jax_normalisation.IDIOMS,
    "attention": jax_attention.IDIOMS,
    "layers": jax_layers.IDIOMS,
    "metrics": jax_metrics.IDIOMS,
    "environments": jax_environments.IDIOMS,
    "numerics": jax_numerics.IDIOMS,
    "arrays": jax_arrays.IDIOMS,
    "probability": jax_probability.IDIOMS,
}


QUICKLY: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}
"""XLA's options for programs that run once."""


def check(idiom: Idiom, case: Case) -> None:
    with jax.enable_x64(True) if idiom.x64 else contextlib.nullcontext():
        program = jax.jit(idiom.fn, keep_unused=True).lower(*case.args).compile(QUICKLY)
        want = jax.tree.leaves(program(*case.args))
        text = lower_to_text(idiom.fn, *case.args)
    module = parse(text)
    dtypes = [s.element_type.dtype for s in module.parameter_shapes]
    args = [np.asarray(a).astype(t) for a, t in zip(jax.tree.leaves(case.args), dtypes, strict=True)]
    assert_close(evaluate(module, args), want, idiom.closeness, "interpreter")
    assert_close(compile(module, "cpu")(*args), want, idiom.closeness, "cpu")


@pytest.mark.parametrize(("idiom", "case"), parameters(SUBJECTS, fast=True))
def test_idiom(idiom: Idiom, case: Case) -> None:
    check(idiom, case)


@pytest.mark.slow
@pytest.mark.parametrize(("idiom", "case"), parameters(SUBJECTS, fast=False))
def test_idiom_on_other_shapes(idiom: Idiom, case: Case) -> None:
    check(idiom, case)
