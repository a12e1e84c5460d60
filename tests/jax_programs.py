"""The JAX programs of `env.suites.jax_programs`, lowered to HLO text, with their arguments."""

from __future__ import annotations

from functools import cache

import jax
import numpy as np

from env.suites.jax_programs import PROGRAMS
from env.suites.jax_programs.collection import Array
from env.suites.lowering import lower_to_text

__all__ = ["PROGRAMS", "lower_to_text", "program_text"]


@cache
def program_text(name: str) -> tuple[str, tuple[Array, ...]]:
    """Return the HLO text of a program and its arguments, one array per parameter of the entry."""
    fn, args = PROGRAMS[name]()
    text = lower_to_text(fn, *args)
    return text, tuple(np.asarray(leaf) for leaf in jax.tree.leaves(args))
