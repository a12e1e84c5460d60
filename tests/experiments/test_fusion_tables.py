"""The tables of kernel counts: the paper's ladder and normalisations."""

from __future__ import annotations

import pytest

from experiments.benchmarks.fusion_ladder import RUNGS, Rung, our_kinds
from experiments.benchmarks.norm_kernels import row


@pytest.mark.parametrize("rung", RUNGS[1:], ids=lambda rung: rung.name)
def test_each_rung_is_one_loop_kernel_and_nothing_else(rung: Rung) -> None:
    assert our_kinds(rung) == (["loop-kernel"], 0)


@pytest.mark.parametrize("name", ["softmax", "layer_norm_forward", "rms_norm"])
def test_a_normalisation_of_rows_is_one_kernel(name: str) -> None:
    found = row(name)

    assert found.kinds == ("block",)
    assert not found.reasons


def test_a_boundary_has_a_reason() -> None:
    found = row("layer_norm_backward")

    assert sorted(found.kinds) == ["block", "column-reduction"]
    assert [r.split(":")[0] for r in found.reasons] == ["reductions over different domains"]
