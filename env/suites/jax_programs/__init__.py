"""Real programs, written in JAX: what the compiler meets in practice. `PROGRAMS` maps a name to its builder.

A builder makes a function and arguments to call it with. `env.suites.lower_jax` writes them out as the suite "jax".
Importing this needs JAX.
"""

from __future__ import annotations

from env.suites.jax_programs.collection import Builder
from env.suites.jax_programs.indexing import INDEXING
from env.suites.jax_programs.networks import NETWORKS
from env.suites.jax_programs.numerics import NUMERICS
from env.suites.jax_programs.randomness import RANDOMNESS

__all__ = ["PROGRAMS"]

PROGRAMS: dict[str, Builder] = {
    **NETWORKS.builders,
    **RANDOMNESS.builders,
    **INDEXING.builders,
    **NUMERICS.builders,
}
