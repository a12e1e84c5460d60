"""Graphs with ops that the torch backend does not lower: programs, and PyTorch between them."""

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree
from torch.utils.checkpoint import checkpoint

from compiler.torch_backend import backend, parts
from tests.torch_backend.compiled import assert_close, compiled


@torch.library.custom_op("hlogym_test::scale", mutates_args=())
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


@scale.register_fake
def _(x: Any, factor: float) -> Any:
    return torch.empty_like(x)


def _keep_factor(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.factor = inputs[1]


scale.register_autograd(lambda ctx, grad: (scale(grad, ctx.factor), None), setup_context=_keep_factor)


@torch.library.custom_op("hlogym_test::add_in_place", mutates_args=("x",))
def add_in_place(x: torch.Tensor, y: torch.Tensor) -> None:
    x.add_(y)


@torch.library.custom_op("hlogym_test::sine_and_cosine", mutates_args=())
def sine_and_cosine(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sine, and the cosine in the order of columns."""
    return x.sin(), x.cos().t().contiguous().t()


@sine_and_cosine.register_fake
def _(x: Any) -> Any:
    return torch.empty_like(x), torch.empty_strided(x.shape, (1, x.shape[0]), dtype=x.dtype)


@torch.library.custom_op("hlogym_test::count", mutates_args=())
def count(n: int) -> torch.Tensor:
    """Return a tensor with the number of calls so far, without an operand that is a tensor."""
    _calls.append(n)
    return torch.full((n,), float(len(_calls)), dtype=torch.float64)


@count.register_fake
def _(n: int) -> Any:
    return torch.empty(n, dtype=torch.float64)


_calls: list[int] = []


def drawn(*size: int) -> Any:
    return torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(size)))


def chain(x: Any, length: int = 5) -> Any:
    for k in range(length):
        x = torch.tanh(x * 1.1 + 0.1 * k)
    return x


def results(function: Any, args: tuple[Any, ...], seed: int = 0) -> list[Any]:
    """Return the outputs of a call, the gradients of all arguments and their values afterwards."""
    torch.manual_seed(seed)
    given = [
        a.clone().requires_grad_(a.requires_grad) for a in (a.detach().requires_grad_(a.requires_grad) for a in args)
    ]
    outputs = [o for o in _pytree.tree_leaves(function(*given)) if isinstance(o, torch.Tensor)]
    terms = [(o**2).sum() for o in outputs if o.requires_grad]
    wanted = [g for g in given if g.requires_grad]
    gradients = torch.autograd.grad(torch.stack(terms).sum(), wanted) if terms else ()
    return [o.detach() for o in [*outputs, *gradients, *given]]


def in_parts(function: Any, *args: Any, match: str = "between programs", **options: Any) -> Any:
    """Check a function that is compiled in parts against eager mode, and return the compiled one."""
    call = compiled(function, fallback=True, **options)
    with pytest.warns(UserWarning, match=match):
        found = results(call, args)
    for a, b in zip(found, results(function, args), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)
    return call


def test_custom_ops_between_programs() -> None:
    def f(x: Any, w: Any) -> Any:
        h = chain(scale(chain(x @ w), 2.0) @ w)
        sine, cosine = sine_and_cosine(h.detach())
        return chain(sine * cosine * h).sum() + h[:, :3].sum(), h.t()

    in_parts(f, drawn(8, 8).requires_grad_(), drawn(8, 8).requires_grad_(), match=r"PyTorch runs 2 of .*scale")


def test_the_backward_pass_is_divided_too() -> None:
    with pytest.warns(UserWarning) as caught:
        results(compiled(lambda x: chain(scale(chain(x), 2.0)), fallback=True), (drawn(8, 8).requires_grad_(),))
    assert any("PyTorch runs 1 of" in str(w.message) and "backward graph" in str(w.message) for w in caught)


def test_ops_of_pytorch() -> None:
    in_parts(lambda x: chain(torch.linalg.ldl_factor(chain(x @ x.t()))[0].abs().sort()[0]), drawn(8, 8))


def test_inputs_are_updated_after_everything_else() -> None:
    def f(x: Any, w: Any, buffer: Any) -> Any:
        h = chain(x @ w)
        buffer.mul_(2).add_(h.detach())
        part = buffer[2:]
        h = chain(scale(h, 3.0))
        add_in_place(buffer, h.detach())
        return h + buffer, buffer.t(), part * 2

    in_parts(f, drawn(8, 8).requires_grad_(), drawn(8, 8), drawn(8, 8))


def test_inputs_that_are_exchanged() -> None:
    def f(x: Any, a: Any, b: Any) -> Any:
        before = a.clone()
        a.copy_(b)
        b.copy_(before)
        return chain(scale(chain(x), 2.0)), a[1:], scale(b, 1.0)

    in_parts(f, drawn(4, 4).requires_grad_(), drawn(6, 6), drawn(6, 6))


def test_views_of_inputs_stay_views() -> None:
    def f(x: Any) -> Any:
        return chain(scale(chain(x), 2.0)), x.t(), x[1:]

    x = drawn(6, 6)
    _, transposed, rest = in_parts(f, x)(x)
    assert transposed.data_ptr() == x.data_ptr()
    assert rest.data_ptr() == x[1:].data_ptr()


def test_random_numbers_of_pytorch_are_those_of_eager_mode() -> None:
    def f(x: Any) -> Any:
        h = F.dropout(chain(scale(chain(F.dropout(x, 0.5)), 1.5)), 0.3)
        chosen = torch.multinomial(h.abs().detach() + 0.1, 2)
        return h * chosen.sum(), torch.rand(3, dtype=torch.float64)

    in_parts(f, drawn(8, 8).requires_grad_(), fallback_random=True)


def test_a_checkpoint_draws_the_same_numbers_again() -> None:
    def f(x: Any) -> Any:
        h = scale(chain(x), 2.0)
        return checkpoint(lambda h: (F.dropout(chain(h), 0.5) * h).sum(), h, use_reentrant=False)

    x = drawn(8, 8).requires_grad_()
    with pytest.warns(UserWarning, match="between programs"):
        value, gradient, _ = results(compiled(f, fallback=True), (x,))
    call = compiled(f, fallback=True)
    with pytest.warns(UserWarning, match="between programs"):
        moved = [results(call, (x + s * 1e-6 * gradient,))[0] for s in (1, -1)]
    wanted = gradient.square().sum() / (2 * value)  # the gradient is that of the squared value
    torch.testing.assert_close((moved[0] - moved[1]) / 2e-6, wanted, rtol=1e-5, atol=1e-6)


def test_ops_without_tensors_are_called_each_time() -> None:
    def f(x: Any) -> Any:
        return chain(count(3) + chain(x))

    call = compiled(f, fallback=True)
    with pytest.warns(UserWarning, match="between programs"):
        first = call(torch.zeros(3, dtype=torch.float64))
    assert not torch.equal(first, call(torch.zeros(3, dtype=torch.float64)))


def test_dynamic_shapes() -> None:
    def f(x: Any, w: Any) -> Any:
        return chain(scale(chain(x @ w), 2.0)) * x.shape[0]

    call = compiled(f, dynamic=True, fallback=True)
    w = drawn(5, 5).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rows in (4, 7, 3):
            args = (drawn(rows, 5).requires_grad_(), w)
            assert_close(results(call, args), results(f, args), 1e-7)


def test_results_whose_size_depends_on_the_data() -> None:
    def f(x: Any) -> Any:
        h = chain(x)
        chosen = h[h > 0.5]
        return chain(h * chosen.sum() / chosen.shape[0])

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        in_parts(f, drawn(8, 8), match="depends on the data")


def test_parts_that_are_not_worth_a_call_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def noted(*args: Any) -> Any:
        made.append(parts.divide(*args))
        return made[-1]

    monkeypatch.setattr(backend, "divide", noted)
    in_parts(lambda x: scale(scale(chain(x), 2.0) * 2, 3.0) + 1, drawn(4, 4))
    assert len(made[0].programs) == 1
    assert made[0].by_pytorch == 4
    with pytest.warns(UserWarning, match="op by op"):
        compiled(lambda x: scale(x * 2, 3.0) + 1, fallback=True)(drawn(4, 4))
    assert made[1] is None
