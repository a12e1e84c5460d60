"""Programs written in JAX, as a compiler sees them in practice. `PROGRAMS` maps a name to its builder.

A builder returns a function and its arguments. `env.suites.lower_jax` lowers them to the suite "jax". Importing this
package needs JAX.
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
