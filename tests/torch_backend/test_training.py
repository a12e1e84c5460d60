"""Training steps compiled by the hlogym backend: optimizers and transforms of torch.func."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.torch_backend.compiled import assert_close, compiled

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


def trained(make: Callable[[Any], torch.optim.Optimizer], compile_step: Callable[[Any], Any]) -> list[Any]:
    """Return losses and weights of five steps."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    optimizer = make(module.parameters())
    x = torch.randn(5, 4).double()

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = (module(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    call = compile_step(step)
    return [call(x).clone() for _ in range(5)] + [p.detach().clone() for p in module.parameters()]


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == "adam" else pytest.mark.slow) for n in OPTIMIZERS])
def test_steps_with_an_optimizer(name: str) -> None:
    found = trained(OPTIMIZERS[name], compiled)
    # PyTorch counts steps of compiled optimizers in float32; SGD counts none.
    assert_close(found, trained(OPTIMIZERS[name], lambda step: step), 1e-12 if name == "sgd" else 1e-5)


@pytest.mark.slow
def test_an_optimizer_agrees_with_the_same_graphs_run_by_pytorch() -> None:
    found = trained(OPTIMIZERS["adam"], compiled)
    torch._dynamo.reset()
    wanted = trained(OPTIMIZERS["adam"], lambda step: torch.compile(step, backend="aot_eager"))
    assert_close(found, wanted, 1e-7)


def test_only_the_step_of_an_optimizer() -> None:
    layer = nn.Linear(4, 4)
    other = copy.deepcopy(layer)
    first, second = (torch.optim.Adam(m.parameters()) for m in (layer, other))
    step = compiled(first.step)
    for _ in range(3):
        for module in (layer, other):
            module.zero_grad()
            (module(torch.ones(2, 4)) ** 2).sum().backward()
        step()
        second.step()
    assert_close(layer.weight, other.weight)


def test_transforms_of_functions() -> None:
    w, x = torch.randn(3, 4), torch.randn(5, 4)

    def f(w: Any, x: Any) -> Any:
        return (x @ w.t()).tanh().sum()

    gradient = torch.func.grad(f)
    assert_close(compiled(gradient)(w, x), gradient(w, x))
    of_each = torch.func.vmap(gradient, (None, 0))
    assert_close(compiled(of_each)(w, x), of_each(w, x))
    layer = nn.Linear(4, 3)
    parameters = dict(layer.named_parameters())

    def loss(p: Any, x: Any) -> Any:
        return torch.func.functional_call(layer, p, (x,)).square().sum()

    gradients = torch.func.grad(loss)
    found, wanted = compiled(gradients)(parameters, x), gradients(parameters, x)
    assert_close([found[k] for k in sorted(found)], [wanted[k] for k in sorted(wanted)], 1e-4)


@pytest.mark.slow
def test_second_derivatives_by_transforms() -> None:
    x = torch.randn(4)
    second = torch.func.hessian(lambda x: (x**3).sum())
    assert_close(compiled(second)(x), second(x))


def test_the_gradient_of_a_gradient_is_refused_as_pytorch_refuses_it() -> None:
    x = torch.randn(3, requires_grad=True)
    (g,) = torch.autograd.grad(compiled(lambda x: (x**3).sum())(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(g.sum(), x)
