"""Compares the torch frontend with eager PyTorch on a table of commonly used modules and functions."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree

from compiler.errors import UnsupportedError
from compiler.frontends.torch import arguments, lower
from compiler.interpreter import evaluate
from compiler.ir.verifier import verify
from tests.frontends.torch_table import TABLE

NOT_LOWERED = {
    "ldl_factor": "linalg_ldl_factor",
}
"""Rows that are refused, with the op that the message names."""

FAST = (
    "Conv1d_same", "ConvTranspose2d", "Conv2d_reflect", "MaxPool2d_indices", "AvgPool2d_ceil", "AdaptiveAvgPool2d",
    "AdaptiveMaxPool2d_indices", "InstanceNorm1d", "RMSNorm", "EmbeddingBag_mean", "LSTM", "GRUCell",
    "MultiheadAttention_masked", "Fold", "attention_causal", "attention_bool_mask", "einsum_trace",
    "interpolate_bilinear", "cumsum", "median", "scatter_reduce_mean", "scatter_reduce_new", "index_put_accumulate",
    "index_put_mask", "index_apart", "masked_scatter", "setitem_slice", "unfold", "diagonal", "searchsorted", "norms",
    "std_mean", "complex", "fft", "cholesky_solve", "triangular_solve", "cross_entropy_weighted", "cond",
    "int8_product", "int8_weight", "while_loop", "bessel", "scaled_erfc", "gcd", "float_steps",
)  # fmt: skip
"""Representative rows for the fast tier, combined into one program, because exporting takes most of the time."""


class Together(nn.Module):
    """Combine several rows into one program, each with its own arguments."""

    def __init__(self, names: Any) -> None:
        super().__init__()
        self.rows = [TABLE[name] for name in names]
        self.parts = nn.ModuleList(r.program for r in self.rows if isinstance(r.program, nn.Module))

    def forward(self, *args: Any) -> Any:
        results, rest = [], list(args)
        for row in self.rows:
            given, rest = rest[: len(row.args)], rest[len(row.args) :]
            results.append(row.program(*given))
        return results


def agree(program: Any, *args: Any) -> None:
    with torch.no_grad():
        wanted = [
            w.resolve_conj().resolve_neg().numpy()
            for w in _pytree.tree_leaves(program(*args))
            if isinstance(w, torch.Tensor)
        ]
    module = lower(program, *args)
    verify(module)
    found = evaluate(module, arguments(program, *args))
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_a_selection_agrees_with_eager_torch() -> None:
    program = Together(FAST).eval()
    agree(program, *(a for row in program.rows for a in row.args))


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in TABLE if n not in NOT_LOWERED])
def test_every_row_agrees_with_eager_torch(name: str) -> None:
    agree(TABLE[name].program, *TABLE[name].args)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "op"), NOT_LOWERED.items())
def test_what_is_not_lowered_is_named(name: str, op: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"aten\.{op}"):
        lower(TABLE[name].program, *TABLE[name].args)
