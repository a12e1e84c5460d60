"""Environment steps and replay buffers in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.idioms.collection import Closeness, Idioms, booleans, integers, normal, uniform

IDIOMS = Idioms()
KEY = jax.random.key_data(jax.random.key(7))


@IDIOMS.on(
    batch_32=(uniform(32, 4, low=-0.2, high=0.2), integers(32, high=2), integers(32, high=600)),
    batch_1=(uniform(1, 4, low=-3, high=3), integers(1, high=2), integers(1, high=600)),
    batch_1000=(uniform(1000, 4, low=-3, high=3), integers(1000, high=2), integers(1000, high=600)),
)
def cartpole(state: Any, action: Any, time: Any) -> Any:
    def step(s: Any, a: Any, t: Any) -> Any:
        x, x_dot, theta, theta_dot = s
        force = 10.0 * a - 10.0 * (1 - a)
        cos, sin = jnp.cos(theta), jnp.sin(theta)
        temp = (force + 0.05 * theta_dot**2 * sin) / 1.1
        acc = (9.8 * sin - cos * temp) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
        x_acc = temp - 0.05 * acc * cos / 1.1
        new = jnp.array([x + 0.02 * x_dot, x_dot + 0.02 * x_acc, theta + 0.02 * theta_dot, theta_dot + 0.02 * acc])
        done = (jnp.abs(new[0]) > 2.4) | (jnp.abs(new[2]) > 12 * 2 * jnp.pi / 360) | (t >= 500)
        return new, 1.0 - done, done

    return jax.vmap(step)(state, action, time)


@IDIOMS.on(
    batch_17=(uniform(17, low=-3, high=3), uniform(17, low=-8, high=8, name="v"), uniform(17, 1, low=-2, high=2)),
    batch_1=(uniform(1, low=-9, high=9), uniform(1, low=-8, high=8, name="v"), uniform(1, 1, low=-2, high=2)),
)
def pendulum(theta: Any, speed: Any, action: Any) -> Any:
    u = jnp.clip(action, -2.0, 2.0).squeeze(-1)
    wrapped = ((theta + jnp.pi) % (2 * jnp.pi)) - jnp.pi
    cost = wrapped**2 + 0.1 * speed**2 + 0.001 * u**2
    speed = jnp.clip(speed + (3 * 10.0 / 2 * jnp.sin(theta) + 3.0 * u) * 0.05, -8, 8)
    theta = theta + speed * 0.05
    return theta, speed, -cost, jnp.stack([jnp.cos(theta), jnp.sin(theta), speed], axis=-1)


@IDIOMS.on(
    batch_64=(uniform(64, low=-1.2, high=0.6), uniform(64, low=-0.07, high=0.07, name="v"), integers(64, high=3)),
    batch_1=(uniform(1, low=-1.2, high=0.6), uniform(1, low=-0.07, high=0.07, name="v"), integers(1, high=3)),
)
def mountain_car(position: Any, velocity: Any, action: Any) -> Any:
    velocity = jnp.clip(velocity + (action - 1) * 0.001 + jnp.cos(3 * position) * (-0.0025), -0.07, 0.07)
    position = jnp.clip(position + velocity, -1.2, 0.6)
    velocity = velocity * (1 - (position == -1.2) * (velocity < 0))
    done = (position >= 0.5) * (velocity >= 0.0)
    return position, velocity, done, -1.0 * (1 - done)


@IDIOMS.on(
    batch_33=(normal(33, 4), integers(33, high=3)),
    batch_1=(normal(1, 4), integers(1, high=3)),
)
def acrobot(state: Any, action: Any) -> Any:
    def derivative(s: Any, torque: Any) -> Any:
        a, b, da, db = s
        d1 = 0.25 + (1 + 0.25 + jnp.cos(b)) + 2.0
        d2 = 0.25 + 0.5 * jnp.cos(b) + 1.0
        phi2 = 0.5 * 9.8 * jnp.cos(a + b - jnp.pi / 2)
        phi1 = -0.5 * db**2 * jnp.sin(b) - db * da * jnp.sin(b) + 1.5 * 9.8 * jnp.cos(a - jnp.pi / 2) + phi2
        ddb = (torque + d2 / d1 * phi1 - 0.5 * da**2 * jnp.sin(b) - phi2) / (0.25 + 1.0 - d2**2 / d1)
        return jnp.stack([da, db, -(d2 * ddb + phi1) / d1, ddb])

    def step(s: Any, a: Any) -> Any:
        torque, h = a - 1.0, 0.2
        k1 = derivative(s, torque)
        k2 = derivative(s + h / 2 * k1, torque)
        k3 = derivative(s + h / 2 * k2, torque)
        k4 = derivative(s + h * k3, torque)
        s = s + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

        def wrap(v: Any) -> Any:
            return lax.while_loop(
                lambda u: u > jnp.pi, lambda u: u - 2 * jnp.pi, jnp.where(v < -jnp.pi, v + 2 * jnp.pi, v)
            )

        s = jnp.array([wrap(s[0]), wrap(s[1]), jnp.clip(s[2], -12.0, 12.0), jnp.clip(s[3], -28.0, 28.0)])
        return s, -jnp.cos(s[0]) - jnp.cos(s[1] + s[0]) > 1.0

    return jax.vmap(step)(state, action)


@IDIOMS.on(
    batch_19=(
        integers(19, 2, high=8),
        integers(19, high=4),
        integers(19, 2, high=8, name="g"),
        booleans(8, 8, chance=0.2),
    ),
    batch_1=(integers(1, 2, high=8), integers(1, high=4), integers(1, 2, high=8, name="g"), booleans(8, 8, chance=0.2)),
)
def gridworld_with_reset(position: Any, action: Any, goal: Any, walls: Any) -> Any:
    moves = jnp.array([[-1, 0], [0, 1], [1, 0], [0, -1]])

    def step(p: Any, a: Any, g: Any) -> Any:
        new = jnp.clip(p + moves[a], 0, 7)
        new = lax.select(walls[new[0], new[1]], p, new)
        done = jnp.all(new == g)
        grid = jnp.zeros((8, 8, 3), jnp.uint8).at[new[0], new[1], 0].set(255).at[g[0], g[1], 1].set(255)
        grid = grid.at[..., 2].set(walls.astype(jnp.uint8) * 255)
        return jnp.where(done, jnp.zeros(2, jnp.int32), new), done.astype(jnp.float32), done, grid

    return jax.vmap(step)(position, action, goal)


@IDIOMS.on(
    batch_8=({"s": normal(8, 4), "t": integers(8, high=20)}, normal(8), KEY),
    batch_1=({"s": normal(1, 4), "t": integers(1, high=20)}, normal(1), KEY),
)
def auto_reset(state: Any, action: Any, key: Any) -> Any:
    """Automatic reset as in gymnax and brax: a new episode is always sampled, and selected with where."""
    keys = jax.random.split(jax.random.wrap_key_data(key), action.shape[0])

    def step(s: Any, a: Any, k: Any) -> Any:
        stepped = {"s": s["s"] * 0.9 + a, "t": s["t"] + 1}
        done = (stepped["t"] >= 10) | (jnp.abs(stepped["s"]).max() > 2)
        fresh = {"s": jax.random.uniform(k, (4,), minval=-0.05, maxval=0.05), "t": 0}
        new = jax.tree.map(lambda a, b: jnp.where(done, a, b), fresh, stepped)
        return new, new["s"], done, {"terminal_observation": stepped["s"]}

    return jax.vmap(step)(state, action, keys)


@IDIOMS.on(
    wrap=(
        {"obs": normal(100, 17), "act": integers(100, high=4), "i": np.int32(97), "full": np.bool_(False)},
        normal(8, 17),
        integers(8, high=4),
    ),
    one=(
        {"obs": normal(64, 1), "act": integers(64, high=4), "i": np.int32(63), "full": np.bool_(True)},
        normal(1, 1),
        integers(1, high=4),
    ),
)
def replay_buffer_insert(buffer: Any, obs: Any, act: Any) -> Any:
    size, n = buffer["obs"].shape[0], obs.shape[0]
    at = (buffer["i"] + jnp.arange(n)) % size
    return {
        "obs": buffer["obs"].at[at].set(obs), "act": buffer["act"].at[at].set(act), "i": (buffer["i"] + n) % size,
        "full": buffer["full"] | (buffer["i"] + n >= size),
    }  # fmt: skip


@IDIOMS.on(
    batch_32=({"obs": normal(100, 5), "reward": normal(100), "done": booleans(100)}, np.int32(77), KEY),
)
def replay_buffer_sample(buffer: Any, filled: Any, key: Any) -> Any:
    at = jax.random.randint(jax.random.wrap_key_data(key), (32,), 0, filled)
    batch = jax.tree.map(lambda a: a[at], buffer)
    following = jax.tree.map(lambda a: jnp.take(a, (at + 1) % filled, axis=0), buffer)
    return batch, following["obs"]


@IDIOMS.on(
    tree=(uniform(127), uniform(17), np.int32(3)),
    small=(uniform(31), uniform(1), np.int32(0)),
)
def prioritised_replay(tree: Any, draws: Any, start: Any) -> Any:
    """A sum tree in one array: update a leaf's ancestors, then descend for each sample."""
    leaves = (tree.shape[0] + 1) // 2
    tree = tree.at[leaves - 1 + start].set(2.0)

    def rebuild(k: Any, t: Any) -> Any:
        i = leaves - 2 - k
        return t.at[i].set(t[2 * i + 1] + t[2 * i + 2])

    tree = lax.fori_loop(0, leaves - 1, rebuild, tree)

    def descend(u: Any) -> Any:
        def cond(state: Any) -> Any:
            return state[0] < leaves - 1

        def body(state: Any) -> Any:
            i, v = state
            left = tree[2 * i + 1]
            return jnp.where(v < left, 2 * i + 1, 2 * i + 2), jnp.where(v < left, v, v - left)

        return lax.while_loop(cond, body, (0, u * tree[0]))[0] - (leaves - 1)

    index = jax.vmap(descend)(draws)
    weight = (leaves * tree[index + leaves - 1] / tree[0]) ** -0.4
    return tree, index, weight / weight.max()


@IDIOMS.on(
    atari=(
        integers(1, 12, 12, 4, high=256, dtype=np.uint8),
        integers(1, 12, 12, high=256, dtype=np.uint8),
        booleans(1),
    ),
    batch=(integers(3, 64, 1, 2, high=256, dtype=np.uint8), integers(3, 64, 1, high=256, dtype=np.uint8), booleans(3)),
)
def frame_stack(stack: Any, frame: Any, reset: Any) -> Any:
    rolled = jnp.roll(stack, -1, axis=-1).at[..., -1].set(frame)
    fresh = jnp.repeat(frame[..., None], stack.shape[-1], axis=-1)
    out = jnp.where(reset[:, None, None, None], fresh, rolled)
    return out, out.astype(jnp.float32) / 255.0, jnp.concatenate([stack[..., 1:], frame[..., None]], -1)


@IDIOMS.on(
    image=(integers(1, 20, 18, 3, high=256, dtype=np.uint8),), one=(integers(2, 64, 2, 3, high=256, dtype=np.uint8),)
)
def preprocess_frames(frame: Any) -> Any:
    grey = (frame.astype(jnp.float32) @ jnp.array([0.299, 0.587, 0.114])).astype(jnp.uint8)
    n, h, w = grey.shape
    small = grey.reshape(n, h // 2, 2, w // 2, 2).mean((2, 4))
    return grey, small, jnp.maximum(frame[:, :-1], frame[:, 1:]), (small / 127.5 - 1.0).astype(jnp.bfloat16)


@IDIOMS.on(
    steps_20=(uniform(7, 4, low=-0.05, high=0.05), normal(4, 2)),
    batch_1=(uniform(1, 4, low=-0.05, high=0.05), normal(4, 2)),
)
def rollout_of_a_policy(start: Any, w: Any) -> Any:
    """Environment and policy in one scan that counts episodes."""

    def step(carry: Any, t: Any) -> Any:
        s, ret, length = carry
        action = jnp.argmax(s @ w, axis=-1)
        x, v, a, va = jnp.moveaxis(s, -1, 0)
        force = jnp.where(action == 1, 10.0, -10.0)
        s = jnp.stack([x + 0.02 * v, v + 0.02 * force, a + 0.02 * va, va - 0.03 * force + 0.2 * jnp.sin(a)], axis=-1)
        done = (jnp.abs(s[:, 2]) > 0.2) | (length >= 15)
        out = (done, jnp.where(done, ret + 1, 0.0))
        return (jnp.where(done[:, None], start, s), jnp.where(done, 0.0, ret + 1), jnp.where(done, 0, length + 1)), out

    n = start.shape[0]
    return lax.scan(step, (start, jnp.zeros(n), jnp.zeros(n, jnp.int32)), jnp.arange(20))


@IDIOMS.on(
    board=(integers(64, high=2).reshape(8, 8),),
    line=(integers(1, 64, high=2),),
    torus=(integers(17, 33, high=2, dtype=np.int8),),
)
def game_of_life(board: Any) -> Any:
    shifts = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0)]

    def step(b: Any, _: Any) -> Any:
        neighbours = sum(jnp.roll(b, s, (0, 1)) for s in shifts)
        b = jnp.where((neighbours == 3) | ((b == 1) & (neighbours == 2)), 1, 0).astype(b.dtype)
        return b, b.sum()

    return lax.scan(step, board, None, length=5)


@IDIOMS.on(
    board=(integers(19, 3, 3, low=-1, high=2), integers(19, high=9)),
    one=(integers(1, 3, 3, low=-1, high=2), integers(1, high=9)),
)
def tic_tac_toe(board: Any, action: Any) -> Any:
    def play(b: Any, a: Any) -> Any:
        legal = b.reshape(-1)[a] == 0
        b = jnp.where(legal, b.reshape(-1).at[a].set(1).reshape(3, 3), b)
        lines = jnp.concatenate([b.sum(0), b.sum(1), jnp.trace(b)[None], jnp.trace(b[:, ::-1])[None]])
        won = jnp.any(lines == 3)
        return -b, jnp.where(legal, jnp.where(won, 1.0, 0.0), -1.0), won | ~legal | jnp.all(b != 0), b.reshape(-1) == 0

    return jax.vmap(play)(board, action)


@IDIOMS.on(
    tree=(
        normal(33, 4, name="q"),
        integers(33, 4, high=9).astype(np.float32),
        uniform(33, 4),
        np.concatenate([np.arange(1, 33), np.full(100, -1)]).astype(np.int32).reshape(33, 4),
    ),
)
def monte_carlo_tree_descent(values: Any, visits: Any, prior: Any, children: Any) -> Any:
    def score(node: Any) -> Any:
        total = visits[node].sum()
        exploration = jnp.sqrt(total) * prior[node] / (1 + visits[node])
        return jnp.where(visits[node] > 0, values[node], 0.0) + 1.25 * exploration

    def body(state: Any) -> Any:
        node, _, depth = state
        action = jnp.argmax(score(node))
        return children[node, action], jnp.stack([node, action]), depth + 1

    return lax.while_loop(lambda s: (s[0] >= 0) & (s[2] < 10), body, (jnp.int32(0), jnp.zeros(2, jnp.int32), 0))


@IDIOMS.on(Closeness(1e-3, 1e-3), planar=(normal(17, 6), normal(17, 3)), one=(normal(1, 6), normal(1, 3)))
def rigid_body_with_contact(state: Any, action: Any) -> Any:
    def loss(a: Any) -> Any:
        def step(s: Any, _: Any) -> Any:
            q, v = s[:, :3], s[:, 3:]
            depth = jnp.maximum(0.0, -q[:, 1:2])
            contact = jnp.concatenate(
                [jnp.zeros_like(depth), 50 * depth - 5 * v[:, 1:2] * (depth > 0), jnp.zeros_like(depth)], 1
            )
            v = v + 0.01 * (a + contact + jnp.array([0.0, -9.81, 0.0]))
            return jnp.concatenate([q + 0.01 * v, v], axis=1), jnp.sum(v**2, 1)

        final, energy = lax.scan(step, state, None, length=10)
        return jnp.sum(final[:, 0]) - 0.01 * jnp.sum(energy)

    return jax.value_and_grad(loss)(action)
