"""Random fused computations with one dot: sizes, layouts, types, prologues and epilogues."""

from __future__ import annotations

import random

from compiler.ir import HloComputation
from tests.codegen.running import fused

MAX_PRODUCTS = 400_000
"""Maximum number of multiplications of a random dot."""


def random_product(rng: random.Random) -> HloComputation:
    """Return a fused computation of one random dot."""
    t = rng.choice(["f32", "f32", "f32", "f64", "bf16", "f16"])
    batch = rng.choice([[], [], [rng.randint(1, 5)], [2, rng.randint(1, 3)]])
    m, n, k = (_size(rng) for _ in range(3))
    while m * n * k > MAX_PRODUCTS:
        m, n, k = (_size(rng) for _ in range(3))
    left, right = rng.choice([[m], [m], [m], [2, m], []]), rng.choice([[n], [n], [n], [n, 3], []])
    depth = rng.choice([[k], [k], [k], [k, 2]])
    a, b = _Side(rng, batch, left, depth), _Side(rng, batch, right, depth)
    result = [*batch, *a.free, *b.free]
    wanted = rng.choice([t, t, "f32"]) if t in ("bf16", "f16") else t
    lines = [f"p0 = {t}{a.sizes} parameter(0)", f"p1 = {t}{b.sizes} parameter(1)"]
    x, y = "p0", "p1"
    if rng.random() < 0.3:
        lines.append(f"x = {t}{a.sizes} negate(p0)")
        x = "x"
    if rng.random() < 0.3 and t in ("f32", "f64"):  # a kernel does not round the squares of half types
        lines.append(f"y = {t}{b.sizes} multiply(p1, p1)")
        y = "y"
    dims = (
        f"lhs_batch_dims={{{a.batch}}}, rhs_batch_dims={{{b.batch}}}, "
        f"lhs_contracting_dims={{{a.depth}}}, rhs_contracting_dims={{{b.depth}}}"
    )
    shape = f"{wanted}[{','.join(map(str, result))}]"
    lines.append(f"d = {shape} dot({x}, {y}), {dims}")
    lines += _epilogue(rng, shape, wanted, result)
    lines[-1] = f"ROOT {lines[-1]}"
    return fused("\n".join(lines))


def _size(rng: random.Random) -> int:
    return rng.choice([rng.randint(1, 9), rng.choice([16, 32, 48, 64, 96, 128]), rng.randint(1, 130)])


class _Side:
    """An operand whose dimensions are in random order."""

    def __init__(self, rng: random.Random, batch: list[int], free: list[int], depth: list[int]) -> None:
        all_sizes = [*batch, *free, *depth]
        order = list(range(len(all_sizes)))
        if rng.random() < 0.6:
            rng.shuffle(order)
        self.sizes = f"[{','.join(str(all_sizes[d]) for d in order)}]"
        where = {d: at for at, d in enumerate(order)}
        self.batch = ",".join(str(where[d]) for d in range(len(batch)))
        self.free = [all_sizes[d] for d in order if len(batch) <= d < len(batch) + len(free)]
        self.depth = ",".join(str(where[d]) for d in range(len(batch) + len(free), len(all_sizes)))


def _epilogue(rng: random.Random, shape: str, t: str, result: list[int]) -> list[str]:
    sizes = ",".join(map(str, result))
    kind = rng.choice(["none", "none", "bias", "residual", "transpose", "compare", "outputs", "reshape", "convert"])
    if kind == "bias" and result:
        last = len(result) - 1
        return [
            f"p2 = {t}[{result[last]}] parameter(2)",
            f"w = {shape} broadcast(p2), dimensions={{{last}}}",
            f"s = {shape} add(d, w)",
            f"r = {shape} maximum(s, w)",
        ]
    if kind == "residual":
        return [f"p2 = {shape} parameter(2)", f"s = {shape} add(p2, d)", f"r = {shape} multiply(s, d)"]
    if kind == "transpose" and result:
        order = list(range(len(result)))
        rng.shuffle(order)
        turned = f"{t}[{','.join(str(result[d]) for d in order)}]"
        return [f"s = {shape} negate(d)", f"r = {turned} transpose(s), dimensions={{{','.join(map(str, order))}}}"]
    if kind == "compare":
        return [f"p2 = {shape} parameter(2)", f"r = pred[{sizes}] compare(d, p2), direction=GT"]
    if kind == "outputs":
        return [
            f"s = {shape} abs(d)",
            f"r = f64[{sizes}] convert(d)",
            f"both = ({shape}, f64[{sizes}]) tuple(s, r)",
        ]
    if kind == "reshape" and len(result) > 1:
        flat = f"{t}[{result[0] * result[1]}{''.join(f',{n}' for n in result[2:])}]"
        return [f"s = {flat} reshape(d)", f"r = {flat} negate(s)"]
    if kind == "convert":
        return [f"r = f64[{sizes}] convert(d)"]
    return []
