"""The quickstart programs as JAX functions, with their arguments and input specs.

`env.suites.lower_quickstart` turns them into HLO text. Nothing else imports this module, so only lowering needs JAX.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from env.suites import InputSpec, Normal, Randint, Split, Tolerance, Uniform


@dataclass(frozen=True)
class Argument:
    """One argument of a program: its shape for JAX, and the spec its inputs are drawn from."""

    dims: tuple[int, ...]
    spec: InputSpec
    dtype: str = "float32"


@dataclass(frozen=True)
class Recipe:
    """One program of the suite before it is lowered; its name is the function's."""

    function: Callable[..., Any]
    split: Split
    description: str
    arguments: tuple[Argument, ...]
    tolerance: Tolerance | None = None
    chaotic: bool = False
    comment: str = ""


def normal(*dims: int, std: float = 1.0) -> Argument:
    """Return a float32 argument drawn from a normal distribution around zero."""
    return Argument(dims, Normal(0.0, std))


def uniform(low: float, high: float, *dims: int) -> Argument:
    """Return a float32 argument drawn uniformly from [low, high)."""
    return Argument(dims, Uniform(low, high))


def integers(low: int, high: int, *dims: int, dtype: str = "int32") -> Argument:
    """Return an integer argument drawn from low to high - 1."""
    return Argument(dims, Randint(low, high), dtype)


# --- Cartpole: the program of "Operator Fusion in XLA" (arXiv 2301.13062), in the forms of its ladder ---------------

ENVS = 2048
STEPS = 200
GRAVITY = 9.8
MASS_CART = 1.0
MASS_POLE = 0.1
TOTAL_MASS = MASS_CART + MASS_POLE
HALF_LENGTH = 0.5
POLE_MASS_LENGTH = MASS_POLE * HALF_LENGTH
FORCE = 10.0
TAU = 0.02
X_LIMIT = 2.4
THETA_LIMIT = 12 * 2 * math.pi / 360
RESET = 0.05

CartpoleState = tuple[Array, Array, Array, Array]


def cartpole_dynamics(state: CartpoleState, action: Array) -> CartpoleState:
    """Do one Euler step of every environment, as in Gymnasium's CartPole."""
    x, x_dot, theta, theta_dot = state
    force = jnp.where(action == 1, FORCE, -FORCE)
    cos_theta = jnp.cos(theta)
    sin_theta = jnp.sin(theta)
    temp = (force + POLE_MASS_LENGTH * theta_dot**2 * sin_theta) / TOTAL_MASS
    theta_acc = (GRAVITY * sin_theta - cos_theta * temp) / (
        HALF_LENGTH * (4.0 / 3.0 - MASS_POLE * cos_theta**2 / TOTAL_MASS)
    )
    x_acc = temp - POLE_MASS_LENGTH * theta_acc * cos_theta / TOTAL_MASS
    return x + TAU * x_dot, x_dot + TAU * x_acc, theta + TAU * theta_dot, theta_dot + TAU * theta_acc


def cartpole_done(x: Array, theta: Array) -> Array:
    """Return which environments have left the track or dropped the pole."""
    return (jnp.abs(x) > X_LIMIT) | (jnp.abs(theta) > THETA_LIMIT)


def stacked_step(state: Array, action: Array, reset_to: Array) -> tuple[Array, Array, Array]:
    """Do the paper's step, with the state in one [envs, 4] array that is split and stacked every time."""
    x, x_dot, theta, theta_dot = state.T
    state = jnp.stack(cartpole_dynamics((x, x_dot, theta, theta_dot), action), axis=-1)
    done = cartpole_done(state[:, 0], state[:, 2])
    return jnp.where(done[:, None], reset_to, state), jnp.ones(done.shape), done


def cartpole_naive(key: Array, state: Array, actions: Array) -> tuple[Array, Array, Array]:
    """Simulate with random numbers made inside the loop (threefry) and a stacked state."""

    def body(i: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        key, state, reward, dones = carry
        key, subkey = jax.random.split(key)
        reset_to = jax.random.uniform(subkey, state.shape, minval=-RESET, maxval=RESET)
        state, step_reward, done = stacked_step(state, actions[i], reset_to)
        return key, state, reward + step_reward, dones + done.astype(jnp.int32)

    envs = len(state)
    start = (key, state, jnp.zeros(envs), jnp.zeros(envs, jnp.int32))
    _, state, reward, dones = lax.fori_loop(0, len(actions), body, start)
    return state, reward, dones


def cartpole_precomputed(state: Array, actions: Array, resets: Array) -> tuple[Array, ...]:
    """Simulate with random numbers made beforehand and a stacked state."""

    def body(i: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        state, reward, dones = carry
        state, step_reward, done = stacked_step(state, actions[i], resets[i])
        return state, reward + step_reward, dones + done.astype(jnp.int32)

    start = (state, jnp.zeros(ENVS), jnp.zeros(ENVS, jnp.int32))
    result: tuple[Array, ...] = lax.fori_loop(0, STEPS, body, start)
    return result


def cartpole_split(
    x: Array, x_dot: Array, theta: Array, theta_dot: Array, actions: Array, resets: Array
) -> tuple[Array, ...]:
    """Simulate with random numbers made beforehand and the state in four separate arrays."""

    def body(i: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        *state, reward, dones = carry
        x, x_dot, theta, theta_dot = state
        x, x_dot, theta, theta_dot = cartpole_dynamics((x, x_dot, theta, theta_dot), actions[i])
        done = cartpole_done(x, theta)
        reset_to = resets[i]
        state = [jnp.where(done, reset_to[k], part) for k, part in enumerate((x, x_dot, theta, theta_dot))]
        return *state, reward + jnp.ones(done.shape), dones + done.astype(jnp.int32)

    start = (x, x_dot, theta, theta_dot, jnp.zeros(ENVS), jnp.zeros(ENVS, jnp.int32))
    result: tuple[Array, ...] = lax.fori_loop(0, STEPS, body, start)
    return result


# --- Rows: normalisations and softmax ----------------------------------------------------------------------------


def softmax(x: Array) -> Array:
    """Compute softmax along rows."""
    return jax.nn.softmax(x, axis=-1)


def layer_norm_forward(x: Array, gamma: Array, beta: Array) -> Array:
    """Compute layer normalisation along rows, with scale and shift."""
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(x - mean), axis=-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * gamma + beta


def layer_norm_backward(x: Array, gamma: Array, cotangent: Array) -> tuple[Array, ...]:
    """Compute the gradient of layer normalisation for input, scale and shift; it does not depend on the shift."""
    _, pullback = jax.vjp(layer_norm_forward, x, gamma, jnp.zeros_like(gamma))
    gradients: tuple[Array, ...] = pullback(cotangent)
    return gradients


def rms_norm(x: Array, gamma: Array) -> Array:
    """Divide by the root mean square along rows, with scale."""
    return x * lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6) * gamma


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Compute minus the log probability of each row's label."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1)[:, 0]


def log_softmax_gather(logits: Array, labels: Array) -> Array:
    """Compute the log probability of each row's label: log-softmax along rows, then a gather."""
    return -cross_entropy(logits, labels)


def softmax_cross_entropy_grad(logits: Array, labels: Array) -> tuple[Array, Array]:
    """Compute the mean cross entropy with integer labels, and its gradient with respect to the logits."""
    return jax.value_and_grad(lambda z: jnp.mean(cross_entropy(z, labels)))(logits)


# --- Elementwise, columns and transposes -------------------------------------------------------------------------


def bias_gelu(x: Array, bias: Array) -> Array:
    """Add a bias and apply the tanh approximation of GELU."""
    return jax.nn.gelu(x + bias, approximate=True)


def elementwise_chain(x: Array, y: Array, scale: Array) -> Array:
    """Apply a dozen elementwise operations to two matrices and a row."""
    gate = jax.nn.sigmoid(x * scale)
    mixed = gate * y + (1.0 - gate) * jnp.maximum(x, 0.1 * x)
    bent = jnp.log1p(jnp.abs(mixed)) * jnp.sign(mixed)
    return jnp.clip(bent - 0.5 * jnp.sqrt(jnp.square(y) + 1.0), -2.0, 2.0)


def column_stats(x: Array) -> tuple[Array, Array]:
    """Compute the mean of tanh and the mean square per column."""
    return jnp.mean(jnp.tanh(x), axis=0), jnp.mean(jnp.square(x), axis=0)


def rotary_embedding(query: Array, key: Array) -> tuple[Array, Array]:
    """Apply rotary position embedding to queries and keys, [batch, sequence, heads, dim]."""
    _, sequence, _, dim = query.shape
    frequency = 10000.0 ** (-jnp.arange(0, dim, 2, dtype=jnp.float32) / dim)
    angle = jnp.arange(sequence, dtype=jnp.float32)[:, None] * frequency
    cos, sin = jnp.cos(angle)[None, :, None, :], jnp.sin(angle)[None, :, None, :]

    def rotate(x: Array) -> Array:
        first, second = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    return rotate(query), rotate(key)


def transpose_scale_add(x: Array, y: Array, scale: Array) -> Array:
    """Transpose and scale a matrix, and add another."""
    return x.T * scale + y


def adam_step(
    parameter: Array, gradient: Array, first: Array, second: Array, step: Array
) -> tuple[Array, Array, Array]:
    """Do one Adam update of a flat parameter vector, with bias correction."""
    rate, beta1, beta2, epsilon = 1e-3, 0.9, 0.999, 1e-8
    first = beta1 * first + (1 - beta1) * gradient
    second = beta2 * second + (1 - beta2) * jnp.square(gradient)
    first_hat = first / (1 - beta1**step)
    second_hat = second / (1 - beta2**step)
    return parameter - rate * first_hat / (jnp.sqrt(second_hat) + epsilon), first, second


# --- Matrix products with work around them -----------------------------------------------------------------------


def mlp_train_step(
    w1: Array, b1: Array, w2: Array, b2: Array, x: Array, labels: Array
) -> tuple[tuple[Array, ...], Array]:
    """Do one step of gradient descent on a two-layer classifier; return the new parameters and the loss."""

    def loss(parameters: tuple[Array, ...]) -> Array:
        w1, b1, w2, b2 = parameters
        logits = jax.nn.relu(x @ w1 + b1) @ w2 + b2
        target = jax.nn.one_hot(labels, logits.shape[-1])
        return -jnp.mean(jnp.sum(target * jax.nn.log_softmax(logits), axis=-1))

    parameters = (w1, b1, w2, b2)
    value, gradients = jax.value_and_grad(loss)(parameters)
    return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients), value


def attention(query: Array, key: Array, value: Array) -> Array:
    """Compute softmax attention, [batch, heads, sequence, dim]."""
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, key) / math.sqrt(query.shape[-1])
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), value)


def swiglu(x: Array, w_gate: Array, w_up: Array, w_down: Array) -> Array:
    """Compute the gated feed-forward layer of many language models."""
    return (jax.nn.silu(x @ w_gate) * (x @ w_up)) @ w_down


# --- The suite -----------------------------------------------------------------------------------------------------

ACTIONS = integers(0, 2, STEPS, ENVS)
WEIGHT = 512**-0.5


def cartpole(function: Callable[..., Any], split: Split, description: str, *arguments: Argument) -> Recipe:
    """Return the recipe of a Cartpole program, a simulator in which rounding may change a decision."""
    return Recipe(
        function,
        split,
        f"{ENVS} Cartpoles, {STEPS} steps, {description}",
        arguments,
        chaotic=True,
        comment="An environment that ends within rounding of a limit may end a step earlier or later, and its later "
        "states then differ altogether. Evaluations with random rounding show which ones may; no others may differ.",
    )


RECIPES = (
    cartpole(
        cartpole_precomputed,
        "train",
        "resets given, state stacked in one array",
        uniform(-RESET, RESET, ENVS, 4),
        ACTIONS,
        uniform(-RESET, RESET, STEPS, ENVS, 4),
    ),
    Recipe(softmax, "train", "softmax along the rows of 2048 x 1024", (normal(2048, 1024),)),
    Recipe(
        layer_norm_forward,
        "train",
        "layer normalisation along the rows of 2048 x 1024",
        (normal(2048, 1024), uniform(0.5, 1.5, 1024), normal(1024)),
    ),
    Recipe(bias_gelu, "train", "bias and tanh GELU on 2048 x 1024", (normal(2048, 1024), normal(1024))),
    Recipe(
        mlp_train_step,
        "train",
        "one SGD step of a 256-512-10 classifier on a batch of 128: parameters and loss",
        (
            normal(256, 512, std=256**-0.5),
            normal(512, std=0.1),
            normal(512, 10, std=WEIGHT),
            normal(10, std=0.1),
            normal(128, 256),
            integers(0, 10, 128),
        ),
    ),
    Recipe(column_stats, "train", "mean of tanh and mean square of every column of 4096 x 512", (normal(4096, 512),)),
    Recipe(
        elementwise_chain,
        "train",
        "a dozen elementwise operations on two 2048 x 1024 matrices and a row",
        (normal(2048, 1024), normal(2048, 1024), uniform(0.5, 2.0, 1024)),
    ),
    Recipe(
        rotary_embedding,
        "train",
        "rotary embedding of queries and keys, 4 x 256 x 8 x 64",
        (normal(4, 256, 8, 64), normal(4, 256, 8, 64)),
    ),
    Recipe(
        rms_norm,
        "validation",
        "root-mean-square normalisation along the rows of 2048 x 1024",
        (normal(2048, 1024), uniform(0.5, 1.5, 1024)),
    ),
    Recipe(
        log_softmax_gather,
        "validation",
        "log probability of one label a row, 2048 x 1024",
        (normal(2048, 1024), integers(0, 1024, 2048)),
    ),
    cartpole(
        cartpole_naive,
        "test",
        "random resets made inside the loop, state stacked in one array",
        integers(0, 2**32, 2, dtype="uint32"),
        uniform(-RESET, RESET, ENVS, 4),
        ACTIONS,
    ),
    cartpole(
        cartpole_split,
        "test",
        "resets given, state in four arrays",
        *(uniform(-RESET, RESET, ENVS) for _ in range(4)),
        ACTIONS,
        uniform(-RESET, RESET, STEPS, 4, ENVS),
    ),
    Recipe(
        layer_norm_backward,
        "test",
        "gradient of layer normalisation, 2048 x 1024, with respect to input, scale and shift",
        (normal(2048, 1024), uniform(0.5, 1.5, 1024), normal(2048, 1024)),
    ),
    Recipe(
        adam_step,
        "test",
        "one Adam update of 1,048,576 parameters",
        (
            normal(2**20),
            normal(2**20, std=0.1),
            normal(2**20, std=0.01),
            uniform(1e-4, 1e-2, 2**20),
            integers(1, 1000),
        ),
    ),
    Recipe(
        softmax_cross_entropy_grad,
        "test",
        "cross entropy of 1024 x 1000 logits with integer labels, and its gradient",
        (normal(1024, 1000), integers(0, 1000, 1024)),
    ),
    Recipe(
        attention,
        "test",
        "softmax attention, 4 batches of 2 heads, 128 positions of 64",
        (normal(4, 2, 128, 64), normal(4, 2, 128, 64), normal(4, 2, 128, 64)),
    ),
    Recipe(
        transpose_scale_add,
        "test",
        "transpose of 1024 x 1024, scaled, plus another matrix",
        (normal(1024, 1024), normal(1024, 1024), uniform(0.5, 2.0)),
    ),
    Recipe(
        swiglu,
        "test",
        "gated feed-forward layer: 256 x 512, 1024 hidden",
        (
            normal(256, 512),
            normal(512, 1024, std=WEIGHT),
            normal(512, 1024, std=WEIGHT),
            normal(1024, 512, std=1024**-0.5),
        ),
    ),
)
