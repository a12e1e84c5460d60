"""Reductions over everything, rows and columns, cumulative sums and arg-max."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch

from experiments.natives.native import Native, Table, normal, uniform

__all__ = ["TABLE"]

TABLE: Table = {}
SIZES = ((128, 256), (2048, 2048))


def jax_two_columns(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return two sums over columns."""
    return jnp.tanh(x).sum(0), (x * x).sum(0)


def torch_two_columns(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two sums over columns."""
    return torch.tanh(x).sum(0), (x * x).sum(0)


for m, n in SIZES:
    TABLE |= {
        f"sum_of_squares_{m}x{n}": Native(lambda x: (x * x).sum(), lambda x: (x * x).sum(), (normal(m, n),)),
        f"row_sums_{m}x{n}": Native(lambda x: x.sum(1), lambda x: x.sum(1), (uniform(-1.0, 3.0, m, n),)),
        f"column_sums_{m}x{n}": Native(lambda x: x.sum(0), lambda x: x.sum(0), (uniform(-1.0, 3.0, m, n),)),
        f"row_maximum_{m}x{n}": Native(lambda x: x.max(1), lambda x: x.amax(1), (normal(m, n),)),
        f"cumsum_rows_{m}x{n}": Native(
            lambda x: jnp.cumsum(x, axis=1), lambda x: torch.cumsum(x, 1), (uniform(-1.0, 3.0, m, n),)
        ),
    }
TABLE |= {
    "row_sums_bf16_2048x2048": Native(
        lambda x: x.sum(1), lambda x: x.sum(1), (uniform(-1.0, 3.0, 2048, 2048, dtype="bfloat16"),), 2e-2
    ),
    "column_sums_bf16_2048x2048": Native(
        lambda x: x.sum(0), lambda x: x.sum(0), (uniform(-1.0, 3.0, 2048, 2048, dtype="bfloat16"),), 2e-2
    ),
    "two_column_sums_4096x1024": Native(jax_two_columns, torch_two_columns, (normal(4096, 1024),)),
    "cumsum_columns_2048x512": Native(
        lambda x: jnp.cumsum(x, axis=0), lambda x: torch.cumsum(x, 0), (uniform(-1.0, 3.0, 2048, 512),)
    ),
    "argmax_rows_2048x2048": Native(lambda x: jnp.argmax(x, 1), lambda x: torch.argmax(x, 1), (normal(2048, 2048),)),
    "argmax_columns_2048x512": Native(lambda x: jnp.argmax(x, 0), lambda x: torch.argmax(x, 0), (normal(2048, 512),)),
    "logsumexp_1024x4096": Native(
        lambda x: jax.nn.logsumexp(x, axis=1), lambda x: torch.logsumexp(x, 1), (normal(1024, 4096),)
    ),
}
