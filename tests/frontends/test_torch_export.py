"""What torch.export cannot trace: gradients are traced below autograd, checks are dropped, the rest is refused."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import grad, jvp
from torch.nn import functional as F

from compiler.errors import ArgumentError, UnsupportedError
from compiler.frontends.torch import argument_names, arguments, lower
from compiler.interpreter import evaluate
from compiler.ir.verifier import verify

distributions: Any = torch.distributions


def x(*shape: Any, seed: Any = 0) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def agree(program: Any, *args: Any, tolerance: Any = 2e-5) -> Any:
    lowered = lower(program, *args)
    verify(lowered)
    wanted = program(*args)
    wanted = wanted if isinstance(wanted, tuple | list) else [wanted]
    for a, b in zip(evaluate(lowered, arguments(program, *args)), wanted, strict=True):
        assert a.shape == tuple(b.shape)
        np.testing.assert_allclose(a, b.detach().numpy(), rtol=tolerance, atol=tolerance)
    return lowered


class Force(nn.Module):
    """Return an energy and its gradient with respect to positions, as in physics-informed networks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.energy = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, position: Any) -> Any:
        position = position.detach().requires_grad_()
        energy = self.energy(position).sum()
        (slope,) = torch.autograd.grad(energy, position)
        return energy.detach(), -slope


def test_a_module_that_takes_a_gradient_keeps_the_names_of_its_weights() -> None:
    lowered = agree(Force(), x(5, 3))
    names = ["energy.0.weight", "energy.0.bias", "energy.2.weight", "energy.2.bias", "position"]
    assert list(argument_names(lowered).values()) == names


def test_names_of_a_function_that_takes_a_gradient() -> None:
    def step(weight: Any, target: Any) -> Any:
        return weight - 0.1 * grad(lambda w: F.mse_loss(w, target))(weight)

    assert list(argument_names(agree(step, x(3), x(3, seed=1))).values()) == ["weight", "target"]


def test_a_program_that_is_refused_leaves_torch_as_it_was() -> None:
    def program(v: Any) -> Any:
        return jvp(lambda u: u[u > 0].sum(), (v,), (v,))[0]

    with pytest.raises(UnsupportedError):
        lower(program, x(2, 2))
    assert grad(lambda v: v.sin())(torch.tensor(0.0)).item() == 1.0
    assert jvp(torch.sin, (torch.tensor(0.0),), (torch.tensor(2.0),))[1].item() == 2.0


def test_the_running_statistics_of_a_traced_gradient_are_results() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, v: Any) -> Any:
            v = v.detach().requires_grad_()
            return torch.autograd.grad(self.norm(v).sin().sum(), v)[0]

    module = Normed().train()
    lowered = lower(module, x(4, 3))
    found = evaluate(lowered, arguments(module, x(4, 3)))
    wanted = module(x(4, 3))
    np.testing.assert_allclose(found[0], wanted.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1], module.norm.running_mean.numpy(), rtol=1e-4, atol=1e-6)  # type: ignore[union-attr]


DISTRIBUTIONS: dict[str, Any] = {
    "categorical": lambda v: distributions.Categorical(logits=v).log_prob(torch.tensor([1, 0, 2])),
    "normal": lambda v: distributions.Normal(v, v.exp()).log_prob(v + 1),
    "bernoulli": lambda v: distributions.Bernoulli(logits=v).log_prob((v > 0).float()),
    "beta": lambda v: distributions.Beta(v.exp(), v.exp() + 1).log_prob(v.sigmoid()),
    "gamma": lambda v: distributions.Gamma(v.exp(), v.exp()).entropy(),
    "poisson": lambda v: distributions.Poisson(v.exp()).log_prob(v.exp().floor()),
    "dirichlet": lambda v: distributions.Dirichlet(v.exp()).log_prob(v.softmax(-1)),
    "student": lambda v: distributions.StudentT(v.exp() + 1).log_prob(v),
    "squashed": lambda v: distributions.TransformedDistribution(
        distributions.Normal(v, 1.0), [distributions.TanhTransform()]
    ).log_prob(v.tanh()),
    "divergence": lambda v: distributions.kl_divergence(
        distributions.Normal(v, v.exp()), distributions.Normal(0.0, 1.0)
    ),
    "mixture": lambda v: distributions.MixtureSameFamily(
        distributions.Categorical(logits=v), distributions.Normal(v, v.exp())
    ).log_prob(v[:, 0]),
}


def test_distributions_that_check_their_arguments() -> None:
    agree(lambda v: [f(v) for f in DISTRIBUTIONS.values()], x(3, 4), tolerance=1e-4)


def test_a_count_of_known_length() -> None:
    whole = torch.tensor([1, 2, 3, 3])

    def program(v: Any) -> Any:
        return v.bincount(minlength=5), torch.bincount(v, x(4), minlength=4)

    agree(program, whole)
    with pytest.raises(UnsupportedError, match="minlength"):
        lower(lambda v: torch.bincount(v), whole)


def test_connectionist_temporal_classification() -> None:
    log_p, targets = x(12, 3, 5).log_softmax(-1), torch.tensor([[1, 1, 2], [3, 4, 1], [2, 2, 2]])
    steps, lengths = torch.tensor([12, 9, 2]), torch.tensor([3, 2, 3])

    def program(p: Any) -> Any:
        ways = ("none", "mean", "sum")
        return [F.ctc_loss(p, targets, steps, lengths, reduction=r, zero_infinity=True) for r in ways]

    agree(program, log_p)


def decides(v: Any) -> Any:
    return v if v.sum() > 0 else -v


@pytest.mark.parametrize(
    ("program", "args", "error", "message"),
    [
        (decides, (x(3),), UnsupportedError, r"branches in Python.*at test_torch_export\.py:\d+.*torch\.where"),
        (lambda v: v * v.sum().item(), (x(3),), UnsupportedError, r"\.item\(\).*instead of the tensor"),
        (lambda v: torch.as_tensor(v.numpy()), (x(3),), UnsupportedError, r"at test_torch_export\.py:\d+.*numpy"),
        (lambda v: v @ v, (x(3, 4),), UnsupportedError, r"at test_torch_export\.py:\d+.*reduction dim"),
        (lambda v: v, (x(3), x(3)), ArgumentError, "too many positional arguments"),
        (lambda v: v[v > 0].mean(), (x(3),), UnsupportedError, r"aten\.index.*at test_torch_export\.py:\d+.*mask"),
        (lambda v: torch.unique(v), (x(3),), UnsupportedError, r"_unique2.*size depends on the data"),
        (torch.linalg.ldl_factor, (x(2, 2),), UnsupportedError, r"linalg_ldl_factor"),
    ],
)  # fmt: skip
def test_what_cannot_be_lowered_is_refused_in_one_message(
    program: Any, args: Any, error: Any, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(error, match=message):
        lower(program, *args)
    assert capfd.readouterr() == ("", "")


def test_a_program_in_a_folder_called_torch_has_a_location(tmp_path: Path) -> None:
    file = tmp_path / "torch" / "mine.py"
    file.parent.mkdir()
    file.write_text("import torch\n\n\ndef values(v):\n    return torch.linalg.ldl_factor(v)\n")
    spec = importlib.util.spec_from_file_location("mine", file)
    assert spec is not None
    assert spec.loader is not None
    mine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mine)
    with pytest.raises(UnsupportedError, match=r"at mine\.py:5"):
        lower(mine.values, x(2, 2))


def test_averages_over_all_batches_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="branches in Python"):
        lower(nn.BatchNorm1d(3, momentum=None).train(), x(4, 3))


def test_modules_that_a_function_refers_to_stay_as_they_were() -> None:
    norm, layer = nn.BatchNorm1d(3).train(), nn.Linear(3, 1)
    layer.weight.grad = torch.ones(1, 3)

    def step(v: Any) -> Any:
        loss = layer(norm(v)).sum()
        loss.backward()
        return loss

    with pytest.raises(UnsupportedError):
        lower(step, x(4, 3))
    assert norm.num_batches_tracked is not None
    assert int(norm.num_batches_tracked) == 0
    assert torch.equal(layer.weight.grad, torch.ones(1, 3))
    assert layer.bias.grad is None
