"""Programs with products and attention: which kernels they become, with the results of the interpreter."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from compiler import CompilationSession, HloModule, compile, parse
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.fusion.policies import make_policy
from compiler.interpreter import evaluate
from compiler.runtime.executable import Executable
from env.comparison import difference
from env.suites import Tolerance

jax = pytest.importorskip("jax")
jnp = jax.numpy
TOLERANCE = Tolerance(2e-5, 2e-5)


def arguments(module: HloModule) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(p.shape.dimensions).astype(p.shape.dtype) for p in module.entry.parameters]


def kinds(exe: Executable) -> list[str]:
    return [k.kind for k in exe.kernels]


def lowered(f: Callable[..., Any], *shapes: Sequence[int]) -> HloModule:
    from compiler.frontends import jax as frontend

    return frontend.lower(f, *(np.zeros(s, np.float32) for s in shapes))


def check(module: HloModule) -> Executable:
    exe, args = compile(module), arguments(module)
    assert difference(exe(*args), evaluate(module, args), TOLERANCE) is None
    return exe


def by_hand(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / 4
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), v)


def masked(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bhqd,bhkd->bhqk", q / 4, k)
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e9), axis=-1)
    return jnp.einsum("bhqk,bhkd->bqhd", weights, v).reshape(q.shape[0], q.shape[2], -1)


def merged_heads(q: Any, k: Any, v: Any) -> Any:
    flat = [x.reshape(-1, *x.shape[2:]) for x in (q, k, v)]
    weights = jax.nn.softmax(flat[0] @ flat[1].transpose(0, 2, 1), axis=-1)
    return (weights @ flat[2]).reshape(q.shape)


@pytest.mark.parametrize("f", [by_hand, masked, merged_heads])
def test_attention_is_one_kernel(f: Callable[..., Any]) -> None:
    assert kinds(check(lowered(f, *[(2, 3, 70, 16)] * 3))) == ["attention"]


@pytest.mark.parametrize("options", [{}, {"is_causal": True}])
def test_attention_of_jax_is_one_kernel(options: dict[str, bool]) -> None:
    def f(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, **options)

    assert kinds(check(lowered(f, *[(2, 70, 3, 16)] * 3))) == ["attention"]


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_pytorch_is_one_kernel(causal: bool) -> None:
    torch = pytest.importorskip("torch")
    from compiler.frontends import torch as frontend

    def f(q: Any, k: Any, v: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    assert kinds(check(frontend.lower(f, *(torch.zeros(2, 3, 70, 16) for _ in range(3))))) == ["attention"]


def test_scores_that_are_a_result_are_stored() -> None:
    def f(q: Any, k: Any, v: Any) -> Any:
        weights = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k), axis=-1)
        return weights, jnp.einsum("bqk,bkd->bqd", weights, v)

    assert "attention" not in kinds(check(lowered(f, *[(3, 40, 16)] * 3)))


def test_the_gradient_of_attention() -> None:
    def f(q: Any, k: Any, v: Any) -> Any:
        return jax.grad(lambda *x: jnp.sum(by_hand(*x) ** 2), argnums=(0, 1, 2))(q, k, v)

    check(lowered(f, *[(1, 2, 40, 16)] * 3))


def test_bias_and_activation_are_computed_with_the_product() -> None:
    module = lowered(lambda x, w, b: jax.nn.gelu(x @ w + b), (37, 40), (40, 70), (70,))
    assert kinds(check(module)) == ["product"]


def test_a_product_in_a_scan() -> None:
    def f(x: Any, w: Any) -> Any:
        return jax.lax.scan(lambda h, y: (jnp.tanh(h @ w / 20 + y), h), jnp.zeros((16, 48)), x)[1]

    assert "product" in kinds(check(lowered(f, (9, 16, 48), (48, 48))))


def test_distances_need_no_array_of_sums_of_squares() -> None:
    def f(x: Any, y: Any) -> Any:
        return (x * x).sum(1)[:, None] + (y * y).sum(1)[None] - 2 * x @ y.T

    exe = check(lowered(f, (90, 20), (70, 20)))

    assert sorted(kinds(exe)) == ["product", "reduction", "reduction"]


@pytest.mark.parametrize(
    ("f", "shapes"),
    [
        (lambda x, w, v: jnp.tanh(jnp.tanh(x @ w) @ v), [(32, 4), (4, 24), (24, 4)]),
        (lambda x, w: jnp.tanh(x @ w.T), [(4, 32), (6, 32)]),
        (lambda x, w: jnp.einsum("bij,bjk->bik", x, w), [(16, 12, 12), (16, 12, 12)]),
    ],
    ids=["of a product", "along both operands", "batch"],
)
def test_small_products_whose_sums_would_not_run_in_vectors(f: Callable[..., Any], shapes: list[Any]) -> None:
    assert "product" in kinds(check(lowered(f, *shapes)))


def test_small_products_are_sums_where_these_run_along_rows_or_columns() -> None:
    assert "product" not in kinds(check(lowered(lambda x, w: jnp.tanh(x @ w), (8, 16), (16, 16))))
    assert "product" not in kinds(check(lowered(lambda x, w: jnp.tanh(x @ w), (64, 4), (4, 4))))


def test_products_in_the_kernel_of_a_loop_are_sums() -> None:
    def f(x: Any, w: Any, v: Any) -> Any:
        def step(s: Any) -> Any:
            return s[0] + 0.01 * jnp.tanh(jnp.tanh(s[0] @ w) @ v), s[1] + 1

        return jax.lax.while_loop(lambda s: s[1] < 50, step, (x, 0))

    exe = check(lowered(f, (64, 4), (4, 16), (16, 4)))
    assert len({"loop-kernel", "product"} & set(kinds(exe))) == 1


def test_a_large_product_is_left_to_a_library() -> None:
    module = lowered(lambda x, w: x @ w, (1024, 512), (512, 1024))
    assert "product" not in kinds(compile(module))


def test_a_product_that_two_consumers_need_on_different_paths() -> None:
    """The sum is no consumer of the dot alone: fusing it with the dot would need its own result."""
    module = parse("""HloModule m
        add { a = f32[] parameter(0)
          b = f32[] parameter(1)
          ROOT c = f32[] add(a, b) }
        ENTRY e { x = f32[20,15] parameter(0)
          y = f32[15,40] parameter(1)
          d = f32[20,40] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
          zero = f32[] constant(0)
          s = f32[20] reduce(d, zero), dimensions={1}, to_apply=add
          t = f32[20,40] broadcast(s), dimensions={0}
          n = f32[20,40] negate(d)
          ROOT r = f32[20,40] add(n, t) }""")
    assert "product" in kinds(check(module))


def test_a_dot_by_a_library_is_a_choice() -> None:
    module = lowered(lambda x, w: x @ w, (20, 20), (20, 30))
    session = CompilationSession(module)
    session.run_passes()
    session.run_fusion_policy(make_policy("priority"))
    (site,) = [s for s in session.kernel_sites() if s.spec is not None and s.spec.kind == "product"]

    session.set_kernel(site, KernelChoice("separate"))
    exe, args = session.finish(), arguments(module)

    assert kinds(exe) == []
    assert difference(exe(*args), evaluate(module, args), TOLERANCE) is None
