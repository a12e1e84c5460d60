"""Compares modules of many kinds, compiled by the hlogym backend, with eager PyTorch: forward and backward."""

import copy

import pytest
import torch

from experiments.torch_modules.table import TABLE
from tests.torch_backend.compiled import assert_close, compiled, with_gradients

FAST = ("mlp", "conv_net", "gpt_block", "graph_attention", "actor_critic")
"""Rows of the fast tier; the others are slow because each is compiled twice."""


def agree(name: str) -> None:
    case = TABLE[name]
    module, args = case.make(dtype=case.checked_in)
    eager = copy.deepcopy(module)
    with torch._dynamo.config.patch(allow_rnn=True):
        found = with_gradients(module, compiled(module, fallback_random=True), args)
    torch.manual_seed(0)
    assert_close(found, with_gradients(eager, eager, args), 1e-9 if case.checked_in is torch.float64 else 1e-4)


@pytest.mark.parametrize("name", FAST)
def test_a_selection_agrees_with_eager(name: str) -> None:
    torch.manual_seed(0)
    agree(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in TABLE if n not in FAST])
def test_every_module_agrees_with_eager(name: str) -> None:
    torch.manual_seed(0)
    agree(name)
