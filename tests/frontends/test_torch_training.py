"""PyTorch programs that draw random numbers, mutate buffers, or depend on data; and the locations in errors."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from compiler.errors import UnsupportedError
from compiler.frontends.torch import argument_names, arguments, lower, result_names
from compiler.interpreter import evaluate
from compiler.ir.verifier import verify
from compiler.text import parse
from tests.oracle import run_xla


def x(*shape: Any) -> Any:
    return torch.from_numpy(np.random.default_rng(0).normal(size=shape).astype(np.float32))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.25)

    def forward(self, inputs: Any) -> Any:
        return self.drop(self.norm(inputs))


def test_running_statistics_are_results_with_their_names() -> None:
    module, inputs = nn.Sequential(nn.BatchNorm1d(4)).train(), x(8, 4)
    lowered = lower(module, inputs)
    verify(lowered)
    names = {0: "output_0", 1: "0.running_mean", 2: "0.running_var", 3: "0.num_batches_tracked"}
    assert result_names(lowered) == names
    assert result_names(parse(str(lowered))) == names
    found = evaluate(lowered, arguments(module, inputs))
    wanted = module(inputs).detach().numpy()  # mutates the buffers
    np.testing.assert_allclose(found[0], wanted, rtol=1e-4, atol=1e-5)
    for k in (1, 2, 3):
        np.testing.assert_allclose(found[k], dict(module.named_buffers())[names[k]].numpy(), rtol=1e-4, atol=1e-6)


def test_dropout_takes_a_state_and_gives_the_next() -> None:
    module, inputs = Network().train(), torch.ones(64, 4)
    with torch.no_grad():
        module.norm.bias.fill_(1)
    lowered = lower(module, inputs)
    verify(lowered)
    assert list(argument_names(lowered).values())[-1] == "rng_state"
    assert list(result_names(lowered).values())[-1] == "rng_state"
    args = arguments(module, inputs, seed=5)
    first, again = evaluate(lowered, args), evaluate(lowered, args)
    np.testing.assert_array_equal(first[0], again[0])
    then = evaluate(lowered, [*args[:-1], first[-1]])
    assert (first[0] != then[0]).any()
    assert set(np.unique(first[0].round(4))) == {0.0, np.float32(1.3333)}
    assert 0.1 < float(np.mean(first[0] == 0)) < 0.4
    for a, b in zip(first, run_xla(str(lowered), args), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_distributions_are_those_of_torch() -> None:
    def program(a: Any) -> Any:
        return (
            torch.rand_like(a), torch.randn(4000), torch.bernoulli(a), torch.randint(3, 9, (4000,)), torch.randperm(50),
            torch.empty(4000).exponential_(2.0),
        )  # fmt: skip

    chance = torch.full((4000,), 0.3)
    lowered = lower(program, chance)
    uniform, normal, truths, whole, order, waits, state = evaluate(lowered, arguments(program, chance, seed=1))
    assert 0 <= uniform.min() < 0.01
    assert 0.99 < uniform.max() < 1
    assert abs(normal.mean()) < 0.1
    assert abs(normal.std() - 1) < 0.1
    assert abs(truths.mean() - 0.3) < 0.05
    assert set(whole.tolist()) == set(range(3, 9))
    assert sorted(order.tolist()) == list(range(50))
    assert order.tolist() != list(range(50))
    assert abs(waits.mean() - 0.5) < 0.05
    assert waits.min() >= 0
    assert state.tolist() != [1, 0]


def test_half_precision_numbers_stay_below_one() -> None:
    lowered = lower(lambda a: torch.rand_like(a), torch.zeros(4000, dtype=torch.bfloat16))
    drawn = evaluate(lowered, arguments(lambda a: torch.rand_like(a), torch.zeros(4000, dtype=torch.bfloat16), seed=1))[
        0
    ]
    assert float(drawn.max()) < 1


@pytest.mark.parametrize(
    "program", [lambda a, m: a[m], lambda a, m: torch.nonzero(m), lambda a, m: torch.masked_select(a, m)]
)
def test_results_of_unknown_size_are_refused(program: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"depends on the data|as many elements as the mask has true"):
        lower(program, x(2, 3), x(2, 3) > 0)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Identity(), Inner()])

    def forward(self, a: Any) -> Any:
        return self.blocks[1](self.blocks[0](a))


class Inner(nn.Module):
    def forward(self, a: Any) -> Any:
        return torch.linalg.ldl_factor(a)[0].abs()


def test_an_unsupported_op_is_named_with_its_place_in_the_model() -> None:
    with pytest.raises(
        UnsupportedError, match=r"aten\.linalg_ldl_factor.*in blocks\.1 \(Inner\), at test_torch_training\.py:\d+"
    ):
        lower(Outer(), x(8, 8))


def test_a_step_of_an_optimizer_is_refused() -> None:
    layer = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(layer.parameters())
    before = layer.weight.detach().clone()

    def step(a: Any) -> Any:
        layer(a).sum().backward()
        optimizer.step()
        return layer.weight.sum()

    with pytest.raises(UnsupportedError, match=r"calls Adam\.step\(\), whose updates an export loses"):
        lower(step, x(2, 4))
    assert torch.equal(layer.weight, before)
