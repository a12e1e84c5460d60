"""PyTorch idioms: results of native code and the interpreter, compared elementwise with eager PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.utils import _pytree

from compiler import compile
from compiler.frontends.torch import argument_values, result_names
from compiler.frontends.torch_builder import to_numpy
from compiler.frontends.torch_export import export
from compiler.frontends.torch_program import lower_program
from compiler.interpreter import evaluate
from compiler.ir.verifier import verify
from tests.idioms import (
    torch_arrays,
    torch_attention,
    torch_layers,
    torch_losses,
    torch_normalisation,
    torch_reinforcement,
    torch_training,
)
from tests.idioms.collection import Case, Idiom, assert_close, parameters

SUBJECTS = {
    "arrays": torch_arrays.IDIOMS,
    "attention": torch_attention.IDIOMS,
    "layers": torch_layers.IDIOMS,
    "losses": torch_losses.IDIOMS,
    "normalisation": torch_normalisation.IDIOMS,
    "reinforcement": torch_reinforcement.IDIOMS,
    "training": torch_training.IDIOMS,
}


def check(idiom: Idiom, case: Case) -> None:
    program: Any = idiom.fn
    if idiom.makes_module:
        torch.manual_seed(0)
        program = idiom.fn().train(idiom.training)
    tensors = _pytree.tree_map(_tensor, case.args)
    exported = export(program, tensors, {})
    module = lower_program(exported, freeze=False)
    verify(module)
    args = argument_values(exported, _pytree.tree_leaves(tensors), freeze=False, seed=None)
    want = _eager(program, tensors, list(result_names(module).values()))
    assert_close(evaluate(module, args), want, idiom.closeness, "interpreter")
    assert_close(compile(module, "cpu")(*args), want, idiom.closeness, "cpu")


def _tensor(value: Any) -> Any:
    if isinstance(value, torch.Tensor | int | float | None):
        return value
    return torch.from_numpy(value)


def _eager(program: Any, args: Any, names: list[str]) -> list[Any]:
    """Run PyTorch and return the outputs, followed by the buffers that the lowered program updates."""
    program, args = copy.deepcopy(program), copy.deepcopy(args)
    results = [leaf for leaf in _pytree.tree_leaves(program(*args)) if isinstance(leaf, torch.Tensor)]
    if isinstance(program, torch.nn.Module):
        results += [program.get_buffer(name) for name in names[len(results) :]]
    return [to_numpy(r.detach().resolve_conj().resolve_neg()) for r in results]


@pytest.mark.parametrize(("idiom", "case"), parameters(SUBJECTS, fast=True))
def test_idiom(idiom: Idiom, case: Case) -> None:
    check(idiom, case)


@pytest.mark.slow
@pytest.mark.parametrize(("idiom", "case"), parameters(SUBJECTS, fast=False))
def test_idiom_on_other_shapes(idiom: Idiom, case: Case) -> None:
    check(idiom, case)
