"""Random kernels of every kind: fusions, products, attention, sorts, selections and cumulative reductions."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from compiler.codegen.kernel_spec import fused_form
from compiler.ir import HloComputation
from compiler.text import parse
from tests.codegen.attentions import random_attention
from tests.codegen.products import random_product
from tests.codegen.random_fusions import random_fusion
from tests.codegen.test_running import running_text
from tests.codegen.test_sort_by_key import sort_text, top_k_text

TYPES = ("f32", "f32", "s32", "f64", "bf16", "u8")


def random_kernel(rng: np.random.Generator) -> HloComputation:
    """Return a random computation, for use as one fused computation; half of them are random fusions."""
    kind = int(rng.integers(10))
    seed = random.Random(int(rng.integers(1 << 30)))
    if kind < 5:
        return random_fusion(rng)
    if kind < 7:
        return random_product(seed)
    if kind == 7:
        return replace(random_attention(seed), type="f32").computation()
    t, rows = seed.choice(TYPES), seed.randint(1, 20)
    n = seed.choice([seed.randint(1, 40), seed.randint(100, 2000)])
    if kind == 8:
        axis = seed.randrange(3)
        sizes = [seed.randint(1, 20), seed.randint(1, 8), seed.choice([1, 3, 40])]
        sizes[axis] = n // 4 + 1
        text = running_text(seed.choice(["f32", "s32", "f64"]), "add", (sizes[0], sizes[1], sizes[2]), axis)
    elif seed.random() < 0.5:
        text = top_k_text(t, rows, n, seed.randint(1, n), largest=seed.random() < 0.5)
    else:
        text = sort_text(t, (rows, n, seed.choice([1, 1, 3])), seed.choice(["LT", "GT"]))
    return fused_form(parse(text).entry.root)
