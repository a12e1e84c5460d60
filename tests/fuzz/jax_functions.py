"""Random JAX programs: a function with arguments and its HLO text, generated from a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from env.suites.lowering import lower_to_text
from tests.fuzz import (  # noqa: F401  # what they define registers itself
    jax_control,
    jax_elementwise,
    jax_movement,
    jax_products,
    jax_recipes,
    jax_reductions,
    jax_training,
    sizes,
)
from tests.fuzz.jax_composer import Composer, close_registry, random_array

close_registry()

OUTPUTS = 8
MAX_STEPS = 14


@dataclass(frozen=True)
class Program:
    """A random JAX function with arguments.

    Attributes:
        seed: the seed of the program.
        function: a function from pytrees to a pytree.
        arguments: NumPy arrays in lists, tuples and dicts.
        wide: whether JAX keeps 64-bit types (`jax_enable_x64`).
        used: names of the pieces it consists of; set when the function is traced.
    """

    seed: int
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    wide: bool
    used: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Return the HLO text of the program."""
        with jax.enable_x64(self.wide):
            return lower_to_text(self.function, *self.arguments)

    def leaves(self) -> tuple[Any, ...]:
        """Return the arguments of the entry computation."""
        return tuple(np.asarray(leaf) for leaf in jax.tree.leaves(self.arguments))


def random_program(seed: int, max_steps: int = MAX_STEPS) -> Program:
    """Return the program of a seed."""
    rng = np.random.default_rng(seed)
    wide = bool(rng.random() < 0.3)
    pool = tuple(sizes.size(rng, 4000, zero=0.01) for _ in range(int(rng.integers(2, 5))))
    drawing = Composer(rng, [], pool)
    arguments = _arguments(drawing, wide)
    steps, inner_seed = drawing.between(2, max_steps), drawing.seed()
    used: list[str] = []

    def function(*given: Any) -> Any:
        used.clear()
        values = [jnp.asarray(v) for v in jax.tree.leaves(given)]
        c = Composer(np.random.default_rng(inner_seed), values, pool, used=used)
        c.steps(steps)
        return _results(c, len(values))

    return Program(seed, function, arguments, wide, used)


def _arguments(c: Composer, wide: bool) -> tuple[Any, ...]:
    """Return one to five random arrays, sometimes in a dict or a list."""
    narrower = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}
    main = c.pick(("float32", "float32", "float32", "bfloat16", "float16", "float64"))
    arrays = []
    for n in range(c.between(1, 5)):
        name = main if n == 0 or c.chance(0.45) else c.dtype()
        if not wide:
            name = narrower.get(name, name)
        arrays.append(random_array(c.rng, c.shape(), np.dtype(jnp.dtype(name))))
    first = arrays[0]
    if c.chance(0.35):
        arrays.append(random_array(c.rng, sizes.with_units(c.rng, first.shape), first.dtype))
    if c.chance(0.3):
        return ({f"p{k}": a for k, a in enumerate(arrays)},)
    return tuple(arrays) if c.chance(0.7) else (arrays[:1], tuple(arrays[1:]))


def _results(c: Composer, given: int) -> Any:
    """Return the last values and some others, sometimes with an argument or with duplicates."""
    made = c.values[given:] or c.values
    chosen = made[-4:] + [c.pick(made) for _ in range(c.between(0, OUTPUTS - 4))]
    if c.chance(0.05):
        chosen.append(c.values[0])
    if c.chance(0.3):
        return {"value": chosen[0], "rest": chosen[1:]}
    return tuple(chosen)
