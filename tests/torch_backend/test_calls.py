"""Calls of functions compiled by the hlogym backend: memory, random numbers, shapes, and what autograd sees."""

import importlib
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree
from torch.utils.checkpoint import checkpoint

from compiler.frontends.torch_graph import LoweredGraph, lower_graph
from tests.torch_backend.compiled import assert_close, compiled

x34 = torch.arange(12, dtype=torch.float32).reshape(3, 4)


def test_outputs_alias_what_they_alias_in_eager_mode() -> None:
    def f(x: Any) -> Any:
        return x.view(-1), x[1:], (x * 2).t(), x, x.expand(2, 3, 4)

    x = x34.clone()
    found = compiled(f)(x)
    assert_close(found, f(x))
    assert found[3] is x
    found[0][0] = 9
    assert x[0, 0] == 9
    assert found[1].data_ptr() == x[1:].data_ptr()


def test_inputs_of_any_layout() -> None:
    def f(a: Any, b: Any) -> Any:
        return a @ b + a.sum(), a * 2

    call, x = compiled(f), torch.randn(6, 8)
    once = torch.randn(1, 4).expand(4, 4)
    for a, b in ((x[::2, ::2], x[:4, 1:5]), (x.t(), x), (once, once), (x[:0], torch.zeros(8, 2))):
        assert_close(call(a, b), f(a, b))


def test_channels_last_stays_channels_last() -> None:
    conv: Any = nn.Conv2d(3, 4, 3)
    conv = conv.to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    found = compiled(conv)(x)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert_close(found, conv(x))


def test_inputs_are_updated_in_place() -> None:
    def f(x: Any, y: Any) -> Any:
        x.add_(y)
        x[0] = 5
        return x.sum()

    call, y = compiled(f), torch.randn(3, 4)
    for x in (x34.clone(), torch.ones(6, 8)[::2, ::2], torch.ones(4, 3).t()):
        wanted = x.clone(memory_format=torch.preserve_format)
        version = x._version
        assert_close(call(x, y), f(wanted, y))
        assert_close(x.contiguous(), wanted.contiguous())
        assert x._version > version  # so that autograd notices


def test_an_update_of_an_input_that_overlaps_another() -> None:
    def f(x: Any, y: Any) -> Any:
        x.mul_(2)
        return y + 1

    base, wanted = torch.ones(6), torch.ones(6)
    assert_close(compiled(f)(base[:4], base[2:]), f(wanted[:4], wanted[2:]))
    assert_close(base, wanted)
    twice, wanted = torch.ones(3), torch.ones(3)
    assert_close(compiled(f)(twice, twice), f(wanted, wanted))


def test_updated_inputs_are_returned_without_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Any, y: Any) -> Any:
        x.mul_(2)
        total = y.lerp_(x, 0.5)
        return x.add_(1), total, x.sum()

    graphs: list[LoweredGraph] = []

    def recorded(*args: Any, **options: Any) -> LoweredGraph:
        graphs.append(lower_graph(*args, **options))
        return graphs[-1]

    monkeypatch.setattr("compiler.torch_backend.backend.lower_graph", recorded)
    call = compiled(f)
    base = torch.randn(6, 8)
    for x in (x34.clone(), base[::2, ::2], torch.ones(4, 3).t()):
        y = torch.randn(3, 4)
        wanted, other = x.clone(memory_format=torch.preserve_format), y.clone()
        version = x._version
        found = call(x, y)
        assert_close([t.contiguous() for t in found], [t.contiguous() for t in f(wanted, other)])
        assert found[0].data_ptr() == x.data_ptr()
        assert found[1].data_ptr() == y.data_ptr()
        assert x._version > version
    assert all(len(graph.results) == 1 for graph in graphs)  # the sum


def test_the_seed_determines_dropout_and_the_backward_pass_uses_the_same_mask() -> None:
    layer = nn.Linear(8, 8)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(8))
        layer.bias.zero_()
    module = nn.Sequential(layer, nn.Dropout(0.5))
    call, x = compiled(module), torch.rand(64, 8) + 1
    torch.manual_seed(3)
    first = call(x)
    torch.manual_seed(3)
    again, then = call(x), call(x)
    assert torch.equal(first, again)
    assert not torch.equal(first, then)
    assert 0.3 < float((first == 0).float().mean()) < 0.7
    x.requires_grad_()
    y = call(x)
    y.sum().backward()
    assert_close(x.grad, 2.0 * (y != 0))


def test_checkpoints_draw_the_same_numbers_again() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh())
    x = torch.randn(16, 8, requires_grad=True)
    y = compiled(lambda x: checkpoint(module, x, use_reentrant=False))(x)
    y.sum().backward()
    assert_close(x.grad, ((1 - y.detach() ** 2) * 2 * (y != 0)) @ module[0].weight)


def test_numbers_that_pytorch_draws_equal_those_of_eager_mode() -> None:
    module, x = nn.Dropout(0.3), torch.ones(50, 3)

    def f(x: Any) -> Any:
        return module(x) + torch.rand_like(x), torch.randn(4), torch.randint(0, 9, (5,)), torch.randperm(6)

    call = compiled(f, fallback_random=True)
    torch.manual_seed(7)
    found = call(x)
    torch.manual_seed(7)
    assert_close(found, f(x))


def test_sizes_that_change() -> None:
    call = compiled(lambda x: (x.view(x.shape[0] * 2, -1) * 2).sum(0))
    for n in range(2, 14):  # more sizes than PyTorch would recompile for
        assert_close(call(torch.ones(n, 2)), torch.full((1,), 4.0 * n))
    call = compiled(lambda x: x * x.shape[0])
    for n in (3, 5):
        x = torch.ones(n, 4)
        torch._dynamo.mark_dynamic(x, 0)
        assert_close(call(x), x * n)
    layer = nn.Linear(4, 4)
    call = compiled(layer, dynamic=True)
    for n in (2, 3):
        x = torch.randn(n, 4, requires_grad=True)
        call(x).sum().backward()
        assert_close(x.grad, layer.weight.sum(0).repeat(n, 1))


def test_python_numbers_inside_modules_of_any_size() -> None:
    layer = nn.LayerNorm(4, eps=1e-3)
    call = compiled(layer, dynamic=True)
    for n in (2, 3, 2):
        x = torch.randn(n, 4)
        assert_close(call(x), layer(x))
    layer.eps = 0.5
    assert_close(call(x), layer(x))


def test_python_numbers_that_change() -> None:
    call = compiled(lambda x, k: x * k)
    for k in (1, 2, 3, 0.5, 0.7):
        assert_close(call(torch.ones(3), k), torch.ones(3) * k)


def test_grad_modes() -> None:
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)
    call = compiled(layer)
    with torch.no_grad():
        assert not call(x).requires_grad
    with torch.inference_mode():
        y = call(x)
        assert y.is_inference()
    y = call(x)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    assert_close(layer.bias.grad, torch.full((4,), 4.0))


def test_autocast() -> None:
    module, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.randn(4, 8)
    call = compiled(module)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, wanted = call(x), module(x)
    assert found.dtype == torch.bfloat16
    assert_close(found, wanted, 5e-2)
    found.float().sum().backward()
    gradients = [p.grad for p in module.parameters()]
    module.zero_grad()
    wanted.float().sum().backward()
    assert_close(gradients, [p.grad for p in module.parameters()], 5e-2)


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
def test_element_types(backend: str) -> None:
    def f(a: Any, b: Any, c: Any, d: Any) -> Any:
        return a @ a.t(), b * 2, c + 1, d.real * d.imag, c > 1, (d * d.conj()).abs()

    args = (
        torch.randn(3, 4, dtype=torch.bfloat16), torch.randn(3, dtype=torch.float16), torch.arange(3),
        torch.randn(5, dtype=torch.complex64),
    )  # fmt: skip
    found = compiled(f, backend=backend)(*args)
    assert_close(found, f(*args), 3e-2)
    assert_close(compiled(lambda x: x * 2, backend=backend)(args[3].conj()), (args[3].conj() * 2).resolve_conj())


def test_several_threads() -> None:
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)
    call = compiled(layer)
    wanted = layer(x).detach()
    found: list[bool] = []

    def run() -> None:
        with torch.no_grad():
            found.extend(torch.allclose(call(x), wanted, atol=1e-5) for _ in range(50))

    with torch.no_grad():
        call(x)
    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 150
    assert all(found)


def test_ops_that_python_evaluates_read_tensors_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def converted(*_: Any) -> None:
        pytest.fail("tensors became arrays")

    def f(x: Any) -> Any:
        return torch.fft.fft(x * 2).real + 1, x.sum()

    monkeypatch.setattr("compiler.torch_backend.calling.CompiledGraph._by_arrays", converted)
    call, x = compiled(f), torch.randn(4, 20011)  # a large prime, for which there is no kernel
    for _ in range(2):
        assert_close(call(x), f(x), 1e-3)


def _scanned(x: Any, w: Any) -> Any:
    scan: Any = importlib.import_module("torch._higher_order_ops.scan").scan

    def step(c: Any, row: Any) -> Any:
        after = (c @ w + row).tanh()
        return after, {"state": after.clone(), "sum": c.sum(-1)}

    last, rows = scan(step, torch.zeros(2, 3), x)
    reverse = scan(lambda c, row: (c + row, c * 2), torch.zeros(5, 3), x, dim=1, reverse=True)
    return last, rows, reverse


def _mapped(x: Any, w: Any) -> Any:
    map_rows: Any = importlib.import_module("torch._higher_order_ops.map").map
    return map_rows(lambda row, w: (row @ w).sin() * row, x, w)


@pytest.mark.parametrize("function", [_scanned, _mapped])
def test_loops_over_rows(function: Any) -> None:
    x, w = torch.randn(5, 2, 3), torch.randn(3, 3) * 0.3
    assert_close(compiled(function)(x, w), function(x, w))
    gradients = []
    for call in (compiled(function), function):
        given = [t.clone().requires_grad_() for t in (x, w)]
        results = [r for r in _pytree.tree_leaves(call(*given)) if r.requires_grad]
        sum((r**2).sum() for r in results).backward()
        gradients.append([t.grad for t in given])
    assert_close(gradients[0], gradients[1], 1e-4)


def test_other_functions_of_functions_run_by_pytorch() -> None:
    attention: Any = importlib.import_module("torch.nn.attention.flex_attention").flex_attention
    q = torch.randn(1, 2, 8, 16)
    call = compiled(lambda q: attention(q, q, q, score_mod=lambda s, b, h, i, k: s + i - k), fallback=True)
    with pytest.warns(UserWarning, match="PyTorch runs 1 of .*flex_attention"):
        assert_close(call(q), attention(q, q, q, score_mod=lambda s, b, h, i, k: s + i - k), 1e-4)


def test_results_without_elements_are_copied_from_each_other() -> None:
    def program(x: Any) -> Any:
        y = torch.ones(x.shape[0], 16, dtype=x.dtype)
        return y + x.sum(1, keepdim=True), (y + x.sum(1, keepdim=True)).clone(), y.t() * 2

    x = torch.randn(0, 6, dtype=torch.float64)
    assert_close(compiled(program)(x), program(x))
    layers = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))
    assert_close(compiled(layers)(x.float()), layers(x.float()))
