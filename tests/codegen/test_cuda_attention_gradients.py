"""Gradients of attention in CUDA C++: weights are computed again from short products, in the emulator against JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from compiler import compile
from compiler.backends.cuda.cubins import compile_cubins
from compiler.backends.cuda.emulation import stand_in
from tests.codegen.nvrtc_errors import has_nvrtc
from tests.codegen.running import has_emulator

jax = pytest.importorskip("jax")
jnp = jax.numpy

needs_emulator = pytest.mark.skipif(not has_emulator(), reason="the emulator needs g++")
needs_nvrtc = pytest.mark.skipif(not has_nvrtc(), reason="NVRTC is not installed")
Attention = Callable[..., Any]


def attention(q: Any, k: Any, v: Any, mask: Any = None, exact: bool = False) -> Any:
    """Return softmax(q k) v of arrays [batch, length, heads, size]."""
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32 if exact else None) * q.shape[-1] ** -0.5
    if mask is not None:
        s = jnp.where(mask, s, -1e9 if exact else jnp.finfo(s.dtype).min)
    p = jax.nn.softmax(s.astype(jnp.float32), -1).astype(v.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


def causal(q: Any, k: Any, v: Any) -> Any:
    return attention(q, k, v, jnp.tril(jnp.ones((q.shape[1], k.shape[1]), bool)))


def causal_with_infinities(q: Any, k: Any, v: Any) -> Any:
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32)
    s = jnp.where(jnp.tril(jnp.ones(s.shape[2:], bool)), s * 0.1, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1).astype(v.dtype), v)


def exact(q: Any, k: Any, v: Any) -> Any:
    return attention(q, k, v, exact=True)


def in_halves(q: Any, k: Any, v: Any) -> Any:
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.125, -1), v)


def of_groups(q: Any, k: Any, v: Any) -> Any:
    """Return attention whose heads of queries share heads of keys."""
    q = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[3])
    s = jnp.einsum("bqhgd,bkhd->bhgqk", q, k).astype(jnp.float32) * 0.2
    out = jnp.einsum("bhgqk,bkhd->bqhgd", jax.nn.softmax(s, -1).astype(v.dtype), v)
    return out.reshape(*out.shape[:2], -1, out.shape[4])


def heads_first(q: Any, k: Any, v: Any) -> Any:
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    s = (q @ k.swapaxes(2, 3)).astype(jnp.float32) * 0.3
    return (jax.nn.softmax(s, -1).astype(v.dtype) @ v).transpose(0, 2, 1, 3)


def with_gradients(f: Attention) -> Attention:
    """Return a function of q, k, v and the gradient of the result, which returns the result and all gradients."""

    def both(g: Any, *args: Any) -> Any:
        result, back = jax.vjp(f, *args)
        return (result, *back(g))

    return both


def arguments(sizes: Sequence[Sequence[int]], kind: str, seed: int = 1) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.normal(size=size), kind) for size in sizes]


def compiled(f: Attention, args: Sequence[Any]) -> Any:
    return compile(jax.jit(f).lower(*args).as_text("hlo"), backend="cuda")


CASES: list[tuple[Attention, tuple[int, ...], str]] = [
    # batch, queries, keys, heads of queries, heads of keys, depth, features
    (exact, (1, 65, 66, 1, 1, 64, 64), "bfloat16"),
    (causal, (1, 130, 130, 1, 1, 16, 16), "float16"),
    (causal_with_infinities, (1, 140, 140, 1, 1, 24, 40), "bfloat16"),
    (in_halves, (1, 64, 80, 1, 1, 16, 16), "bfloat16"),
    (of_groups, (1, 64, 64, 2, 1, 32, 32), "bfloat16"),
    (heads_first, (1, 67, 64, 1, 1, 128, 128), "bfloat16"),
]


@needs_emulator
@pytest.mark.parametrize(("f", "sizes", "kind"), CASES, ids=[c[0].__name__ for c in CASES])
def test_gradients_recompute_weights(f: Attention, sizes: tuple[int, ...], kind: str) -> None:
    b, queries, keys, heads, shared, depth, features = sizes
    shapes = [
        (b, queries, heads, features), (b, queries, heads, depth),
        (b, keys, shared, depth), (b, keys, shared, features),
    ]  # fmt: skip
    args = arguments(shapes, kind)
    both = with_gradients(f)
    exe = compiled(both, args)

    scores = b * heads * queries * keys
    assert [k.kind for k in exe.kernels].count("attention") == 3
    assert all(s.num_elements < scores for k in exe.kernels for s in k.outputs if s.rank > 3) or keys <= features
    with stand_in.installed():
        results = [np.asarray(x.get()).astype(np.float32) for x in exe(*map(np.asarray, args))]
    for found, wanted in zip(results, both(*(a.astype(jnp.float32) for a in args)), strict=True):
        largest = float(np.max(np.abs(wanted)))
        np.testing.assert_allclose(found, np.asarray(wanted), rtol=0, atol=0.02 * largest)


def test_weights_that_are_results_are_stored() -> None:
    def both(g: Any, q: Any, k: Any, v: Any) -> Any:
        def f(q: Any, k: Any, v: Any) -> Any:
            p = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32), -1)
            return jnp.einsum("bhqk,bkhd->bqhd", p.astype(v.dtype), v), p

        result, back, p = jax.vjp(f, q, k, v, has_aux=True)
        return result, back(g), p

    exe = compiled(both, arguments([(1, 128, 2, 32)] * 4, "bfloat16"))
    assert all(k.kind != "attention" for k in exe.kernels)


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize(("f", "size"), [(causal, 64), (exact, 64), (causal, 128)])
def test_no_registers_spill(f: Attention, size: int, architecture: str) -> None:
    exe = compiled(with_gradients(f), arguments([(2, 256, 2, size)] * 4, "bfloat16"))
    for cubin in compile_cubins(exe.kernels, architecture).values():
        assert cubin.resources.spill_stores == 0, cubin.symbol
