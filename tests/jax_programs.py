"""Real programs, written in JAX and lowered to HLO text: what the compiler meets in practice.

`PROGRAMS` maps a name to a builder of (function, arguments); `lower_to_text` lowers a function, constants in full.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import numpy as np
from jax._src.lib import hlo  # type: ignore[attr-defined]  # no public name prints HLO with all its constants

from tests.programs.collection import Array, Builder
from tests.programs.indexing import INDEXING
from tests.programs.networks import NETWORKS
from tests.programs.numerics import NUMERICS
from tests.programs.randomness import RANDOMNESS

PROGRAMS: dict[str, Builder] = {
    **NETWORKS.builders,
    **RANDOMNESS.builders,
    **INDEXING.builders,
    **NUMERICS.builders,
}


def lower_to_text(fn: Callable[..., Any], *args: Any) -> str:
    """HLO text of a function for CPU, before XLA's optimisations, every constant in full, unused arguments kept."""
    lowered = jax.jit(fn, keep_unused=True).trace(*args).lower(lowering_platforms=("cpu",))
    options = hlo.HloPrintOptions()
    options.print_large_constants = True
    options.print_metadata = False
    return str(lowered.compiler_ir("hlo").get_hlo_module().to_string(options))


@cache
def program_text(name: str) -> tuple[str, tuple[Array, ...]]:
    """HLO text of a program and its arguments as the entry takes them, one array a parameter."""
    fn, args = PROGRAMS[name]()
    text = lower_to_text(fn, *args)
    return text, tuple(np.asarray(leaf) for leaf in jax.tree.leaves(args))
