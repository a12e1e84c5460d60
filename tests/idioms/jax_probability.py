"""Probabilistic idioms in JAX: sampling with keys, densities, filters, expectation maximisation, search."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.idioms.collection import Closeness, Idioms, booleans, integers, normal, uniform

IDIOMS = Idioms()
KEY = jax.random.key_data(jax.random.key(11))


def _key(data: Any) -> Any:
    return jax.random.wrap_key_data(data)


@IDIOMS.on(rows=(normal(5, 33), KEY), one=(normal(1, 64), KEY))
def gumbel_and_categorical_sampling(logits: Any, key: Any) -> Any:
    noise = -jnp.log(-jnp.log(jax.random.uniform(_key(key), logits.shape, minval=1e-6, maxval=1.0)))
    soft = jax.nn.softmax((logits + noise) / 0.5)
    hard = jax.nn.one_hot(jnp.argmax(soft, -1), logits.shape[-1])
    return hard + soft - lax.stop_gradient(soft), jax.random.categorical(_key(key), logits, axis=-1)


@IDIOMS.on(text=(normal(1, 50), np.float32(0.7), KEY), batch=(normal(7, 33), np.float32(1.3), KEY))
def nucleus_and_top_k_sampling(logits: Any, temperature: Any, key: Any) -> Any:
    logits = logits / temperature
    least = lax.top_k(logits, 10)[0][:, -1:]
    logits = jnp.where(logits < least, -jnp.inf, logits)
    down = jnp.sort(logits, axis=-1)[:, ::-1]
    total = jnp.cumsum(jax.nn.softmax(down), axis=-1)
    cutoff = jnp.sum(total < 0.9, axis=-1, keepdims=True)
    limit = jnp.take_along_axis(down, jnp.minimum(cutoff, logits.shape[-1] - 1), axis=-1)
    kept = jnp.where(logits < limit, -jnp.inf, logits)
    u = jax.random.uniform(_key(key), (logits.shape[0], 1))
    return kept, jnp.sum(jnp.cumsum(jax.nn.softmax(kept), -1) < u, axis=-1)


@IDIOMS.on(
    actions=(normal(32, 3), normal(32, 3, name="s", scale=0.3), normal(32, 3, name="a")),
    one=(normal(1, 64), normal(1, 64, name="s", scale=0.3), normal(1, 64, name="a")),
    single=(normal(64, 1), normal(64, 1, name="s", scale=0.3), normal(64, 1, name="a")),
)
def gaussian_log_probability_and_entropy(mean: Any, log_std: Any, action: Any) -> Any:
    def log_prob(mean: Any, log_std: Any) -> Any:
        return jax.scipy.stats.norm.logpdf(action, mean, jnp.exp(log_std)).sum(-1)

    entropy = jnp.sum(0.5 * jnp.log(2 * jnp.pi * jnp.e) + log_std, axis=-1)
    squashed = log_prob(mean, log_std) - jnp.log1p(-(jnp.tanh(action) ** 2) + 1e-6).sum(-1)
    grads = jax.grad(lambda m, s: log_prob(m, s).mean(), (0, 1))(mean, log_std)
    kl = jnp.sum(-log_std + 0.5 * (jnp.exp(2 * log_std) + mean**2) - 0.5, axis=-1)
    return log_prob(mean, log_std), entropy, squashed, grads, kl


@IDIOMS.on(
    densities=(uniform(65, low=0.1, high=0.9), uniform(65, low=0.5, high=3, name="a")),
    column=(uniform(64, 1, low=0.1, high=0.9), uniform(64, 1, low=0.5, high=3, name="a")),
)
def densities_of_many_distributions(x: Any, a: Any) -> Any:
    stats = jax.scipy.stats
    return (
        stats.beta.logpdf(x, a, a + 1),
        stats.gamma.logpdf(x, a),
        stats.expon.logpdf(x),
        stats.t.logpdf(x, a),
        stats.laplace.logpdf(x),
        stats.cauchy.logpdf(x),
        stats.logistic.logpdf(x),
        stats.poisson.logpmf(jnp.floor(x * 5), a),
        stats.norm.cdf(x),
        stats.norm.logsf(x),
        jax.scipy.special.xlogy(x, x),
        jax.scipy.special.entr(x),
        jax.scipy.special.erfinv(x),
        jax.scipy.special.gammaln(a),
    )


@IDIOMS.on(
    beams=(normal(4, 33), normal(4, 1, scale=3), integers(4, 9, high=33), booleans(4, chance=0.3)),
    one=(normal(1, 64), normal(1, 1), integers(1, 9, high=64), booleans(1)),
)
def beam_search_step(logits: Any, scores: Any, tokens: Any, done: Any) -> Any:
    k, vocabulary = logits.shape
    log_p = jax.nn.log_softmax(logits)
    ended = jnp.full((vocabulary,), -1e9).at[0].set(0.0)
    total = scores + jnp.where(done[:, None], ended, log_p)
    best, at = lax.top_k(total.reshape(-1), k)
    beam, token = at // vocabulary, at % vocabulary
    tokens = jnp.concatenate([tokens[beam, 1:], token[:, None].astype(tokens.dtype)], axis=1)
    return best[:, None], tokens, done[beam] | (token == 0)


@IDIOMS.on(
    mixture=(normal(100, 2), normal(3, 2, name="m"), np.full(3, 1 / 3, np.float32)),
    one=(normal(64, 1), normal(1, 1, name="m"), np.ones(1, np.float32)),
)
def expectation_maximisation_step(x: Any, means: Any, weights: Any) -> Any:
    def step(state: Any, _: Any) -> Any:
        means, var, weights = state
        apart = jnp.sum((x[:, None] - means[None]) ** 2, -1)
        log_p = jnp.log(weights) - 0.5 * apart / var - 0.5 * x.shape[1] * jnp.log(2 * jnp.pi * var)
        r = jnp.exp(log_p - jax.nn.logsumexp(log_p, axis=1, keepdims=True))
        n = r.sum(0) + 1e-6
        new = (r.T @ x) / n[:, None]
        spread = jnp.sum(r * jnp.sum((x[:, None] - new[None]) ** 2, -1), 0) / (n * x.shape[1])
        return (new, spread + 1e-3, n / x.shape[0]), jax.nn.logsumexp(log_p, axis=1).mean()

    return lax.scan(step, (means, jnp.ones(means.shape[0]), weights), None, length=3)


@IDIOMS.on(points=(normal(65, 3), normal(4, 3, name="c")), line=(normal(64, 1), normal(5, 1, name="c")))
def k_means_step(x: Any, centres: Any) -> Any:
    def step(_: Any, centres: Any) -> Any:
        apart = jnp.linalg.norm(x[:, None] - centres[None], axis=-1)
        mine = jnp.argmin(apart, axis=1)
        total = jax.ops.segment_sum(x, mine, centres.shape[0])
        count = jnp.bincount(mine, length=centres.shape[0])[:, None]
        return jnp.where(count > 0, total / jnp.maximum(count, 1), centres)

    centres = lax.fori_loop(0, 4, step, centres)
    apart = ((x[:, None] - centres) ** 2).sum(-1)
    return centres, apart.min(1).sum(), jnp.argmin(apart, 1)


@IDIOMS.on(
    Closeness(1e-3, 1e-3),
    track=(normal(33, 2),),
    one=(normal(1, 2),),
)
def kalman_filter(observations: Any) -> Any:
    f = jnp.array([[1.0, 0, 0.1, 0], [0, 1, 0, 0.1], [0, 0, 1, 0], [0, 0, 0, 1]])
    h = jnp.eye(2, 4)

    def step(state: Any, y: Any) -> Any:
        mean, cov = state
        mean, cov = f @ mean, f @ cov @ f.T + 0.01 * jnp.eye(4)
        s = h @ cov @ h.T + 0.1 * jnp.eye(2)
        gain = cov @ h.T @ jnp.linalg.inv(s)
        error = y - h @ mean
        log_p = -0.5 * (error @ jnp.linalg.solve(s, error) + jnp.linalg.slogdet(s)[1])
        return (mean + gain @ error, cov - gain @ h @ cov), (mean, log_p)

    return lax.scan(step, (jnp.zeros(4), jnp.eye(4)), observations)


@IDIOMS.on(
    words=(normal(5, 5), normal(5, 9), integers(64, high=9)),
    one_state=(normal(1, 1), normal(1, 9), integers(33, high=9)),
)
def hidden_markov_model(transition: Any, emission: Any, observed: Any) -> Any:
    """Forward algorithm, Viterbi algorithm, and the gradient of the likelihood."""

    def likelihood(t: Any, e: Any) -> Any:
        t, e = jax.nn.log_softmax(t, -1), jax.nn.log_softmax(e, -1)

        def step(alpha: Any, o: Any) -> Any:
            alpha = jax.nn.logsumexp(alpha[:, None] + t, axis=0) + e[:, o]
            return alpha, alpha

        alpha, all_ = lax.scan(step, e[:, observed[0]], observed[1:])
        return jax.nn.logsumexp(alpha), all_

    def viterbi(delta: Any, o: Any) -> Any:
        scores = delta[:, None] + transition
        return scores.max(0) + emission[:, o], scores.argmax(0)

    last, back = lax.scan(viterbi, emission[:, observed[0]], observed[1:])
    final = jnp.argmax(last)
    _, path = lax.scan(lambda s, b: (b[s], s), final, back, reverse=True)
    return jax.value_and_grad(likelihood, (0, 1), has_aux=True)(transition, emission), path


@IDIOMS.on(chain=(normal(8), KEY))
def hamiltonian_monte_carlo_step(q: Any, key: Any) -> Any:
    def energy(q: Any) -> Any:
        return 0.5 * jnp.sum(q**2) + 0.1 * jnp.sum((q[1:] - q[:-1] ** 2) ** 2)

    k1, k2 = jax.random.split(_key(key))
    p = jax.random.normal(k1, q.shape)

    def leap(state: Any, _: Any) -> Any:
        q, p = state
        p = p - 0.05 * jax.grad(energy)(q)
        q = q + 0.1 * p
        return (q, p - 0.05 * jax.grad(energy)(q)), None

    (new, momentum), _ = lax.scan(leap, (q, p), None, length=5)
    change = energy(q) + 0.5 * p @ p - energy(new) - 0.5 * momentum @ momentum
    accept = jnp.log(jax.random.uniform(k2)) < change
    return jnp.where(accept, new, q), accept, jnp.minimum(1.0, jnp.exp(change))


@IDIOMS.on(particles=(normal(100, 2), normal(100), np.float32(0.37)), one=(normal(1, 2), normal(1), np.float32(0.5)))
def systematic_resampling(particles: Any, log_weights: Any, u: Any) -> Any:
    n = particles.shape[0]
    weights = jax.nn.softmax(log_weights)
    effective = 1.0 / jnp.sum(weights**2)
    at = jnp.searchsorted(jnp.cumsum(weights), (jnp.arange(n) + u) / n)
    chosen = jnp.clip(at, 0, n - 1)
    return jnp.where(effective < n, particles[chosen], particles), effective, chosen


@IDIOMS.on(
    Closeness(2e-3, 2e-3),
    points=(normal(33, 2), normal(33), normal(5, 2, name="t")),
    line=(normal(17, 1), normal(17), normal(64, 1, name="t")),
)
def gaussian_process_prediction(x: Any, y: Any, test: Any) -> Any:
    def kernel(a: Any, b: Any) -> Any:
        return jnp.exp(-0.5 * jnp.sum((a[:, None] - b[None]) ** 2, -1))

    factor = jax.scipy.linalg.cho_factor(kernel(x, x) + 0.3 * jnp.eye(x.shape[0]))
    cross = kernel(test, x)
    mean = cross @ jax.scipy.linalg.cho_solve(factor, y)
    return mean, 1.0 - jnp.sum(cross * jax.scipy.linalg.cho_solve(factor, cross.T).T, -1)


@IDIOMS.on(Closeness(1e-3, 1e-3), costs=(uniform(17, 23),), one=(uniform(1, 64),), square=(uniform(33, 33),))
def sinkhorn(cost: Any) -> Any:
    def loss(cost: Any) -> Any:
        n, m = cost.shape
        log_k = -cost / 0.1

        def step(state: Any, _: Any) -> Any:
            f, g = state
            f = -jnp.log(n) - jax.nn.logsumexp(log_k + g[None], axis=1)
            g = -jnp.log(m) - jax.nn.logsumexp(log_k + f[:, None], axis=0)
            return (f, g), None

        (f, g), _ = lax.scan(step, (jnp.zeros(n), jnp.zeros(m)), None, length=10)
        return jnp.sum(jnp.exp(f[:, None] + log_k + g[None]) * cost)

    return jax.value_and_grad(loss)(cost)


@IDIOMS.on(
    noise=(normal(2, 17, 3), integers(2, high=50), normal(2, 17, 3, name="e")),
    one=(normal(1, 64, 1), integers(1, high=50), normal(1, 64, 1, name="e")),
)
def diffusion_noise_and_step(x: Any, t: Any, eps: Any) -> Any:
    betas = jnp.linspace(1e-4, 0.02, 50)
    alphas = jnp.cumprod(1 - betas)
    a = alphas[t].reshape((-1,) + (1,) * (x.ndim - 1))
    noisy = jnp.sqrt(a) * x + jnp.sqrt(1 - a) * eps
    before = jnp.where(t > 0, alphas[t - 1], 1.0)[:, None, None]
    guess = jnp.clip((noisy - jnp.sqrt(1 - a) * eps) / jnp.sqrt(a), -1, 1)
    return noisy, jnp.sqrt(before) * guess + jnp.sqrt(1 - before) * eps, alphas


@IDIOMS.on(
    flow=(normal(19, 4), normal(2, 8, scale=0.3), normal(8, 4, scale=0.3)),
    one=(normal(1, 4), normal(2, 64), normal(64, 4, scale=0.1)),
)
def affine_coupling_flow(x: Any, w1: Any, w2: Any) -> Any:
    def negative_log_likelihood(w1: Any, w2: Any) -> Any:
        a, b = jnp.split(x, 2, axis=-1)
        shift, scale = jnp.split(jnp.tanh(a @ w1) @ w2, 2, axis=-1)
        z = jnp.concatenate([a, b * jnp.exp(scale) + shift], axis=-1)[:, ::-1]
        return -jnp.mean(jnp.sum(jax.scipy.stats.norm.logpdf(z), -1) + scale.sum(-1))

    return jax.value_and_grad(negative_log_likelihood, (0, 1))(w1, w2)


@IDIOMS.on(counts=(np.float32(1) + integers(17, high=9), KEY))
def draws_of_many_distributions(a: Any, key: Any) -> Any:
    ks = jax.random.split(_key(key), 6)
    return (
        jax.random.normal(ks[0], (17,)),
        jax.random.bernoulli(ks[1], 0.3, (33,)),
        jax.random.permutation(ks[2], 20),
        jax.random.exponential(ks[3], (5,)),
        jax.random.truncated_normal(ks[4], -1, 1, (19,)),
        jax.random.choice(ks[5], a, (4,)),
    )
