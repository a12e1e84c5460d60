"""Random attention: sizes, orders of dimensions, scales, masks, and the ways in which programs write a softmax."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from compiler.ir import HloComputation
from tests.codegen.running import fused

REDUCERS = """
max { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT m = f32[] maximum(a, b) }
sum { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b) }
any { a = pred[] parameter(0)
  b = pred[] parameter(1)
  ROOT o = pred[] or(a, b) }
all { a = pred[] parameter(0)
  b = pred[] parameter(1)
  ROOT o = pred[] and(a, b) }
"""
MASKS = ("none", "none", "causal -inf", "causal -1e9", "causal added", "lower", "given", "bias", "soft cap", "window")


@dataclass
class AttentionForm:
    """The sizes and the form of an attention."""

    heads: list[int]
    queries: int
    keys: int
    depth: int
    features: int
    mask: str
    type: str = "f32"
    zero_if_masked: bool = False
    values_first: bool = False
    transposed: bool = False
    scale: str = "after"
    shuffle: int = 0
    tests_all: bool = False  # for `zero_if_masked`, all(x == -inf) in place of not(any(x != -inf))

    def text(self) -> str:
        """Return the lines of the computation."""
        rng, t = random.Random(self.shuffle), self.type
        h = self.heads
        n = len(h)
        sizes = ((self.queries, self.depth), (self.keys, self.depth), (self.keys, self.features))
        q, k, v = (_Operand(rng, h, first, second) for first, second in sizes)
        scores = [*h, self.queries, self.keys]
        s, pred = f"f32[{_join(scores)}]", f"pred[{_join(scores)}]"
        rows = f"[{_join(scores[:-1])}]"
        lines = [
            f"q = {t}[{q.sizes}] parameter(0)",
            f"k = {t}[{k.sizes}] parameter(1)",
            f"v = {t}[{v.sizes}] parameter(2)",
        ]
        lines += ["low = f32[] constant(-inf)", "zero = f32[] constant(0)", "scale = f32[] constant(0.3)"]
        lines += [f"lows = {s} broadcast(low), dimensions={{}}", f"zeros = {s} broadcast(zero), dimensions={{}}"]
        left = "q"
        if self.scale == "before":
            lines += [f"qs = {t}[{q.sizes}] broadcast(c), dimensions={{}}", f"q2 = {t}[{q.sizes}] multiply(q, qs)"]
            lines.insert(3, f"c = {t}[] constant(0.3)")
            left = "q2"
        dims = _dims(q.batch, k.batch, q.second, k.second)
        lines.append(f"d0 = {t}[{_join(scores)}] dot({left}, k), {dims}")
        lines.append(f"d = {s} convert(d0)" if t != "f32" else f"d = {s} copy(d0)")
        if t == "f32":
            lines[-1] = f"d = {s} negate(d0)"
        if self.scale == "after":
            lines += [f"scales = {s} broadcast(scale), dimensions={{}}", f"e = {s} multiply(d, scales)"]
        else:
            lines.append(f"e = {s} negate(d)")
        lines += self._masked(s, pred, n)
        lines += [
            f"most = f32{rows} reduce(x, low), dimensions={{{n + 1}}}, to_apply=max",
            f"mosts = {s} broadcast(most), dimensions={{{_join(range(n + 1))}}}",
            f"below = {s} subtract(x, mosts)",
            f"w = {s} exponential(below)",
            f"total = f32{rows} reduce(w, zero), dimensions={{{n + 1}}}, to_apply=sum",
            f"totals = {s} broadcast(total), dimensions={{{_join(range(n + 1))}}}",
            f"p = {s} divide(w, totals)",
        ]
        weights = "p"
        if self.zero_if_masked:
            lines += (
                [
                    f"hidden = {pred} compare(x, lows), direction=EQ",
                    "true = pred[] constant(true)",
                    f"none = pred{rows} reduce(hidden, true), dimensions={{{n + 1}}}, to_apply=all",
                ]
                if self.tests_all
                else [
                    f"seen = {pred} compare(x, lows), direction=NE",
                    "false = pred[] constant(false)",
                    f"some = pred{rows} reduce(seen, false), dimensions={{{n + 1}}}, to_apply=any",
                    f"none = pred{rows} not(some)",
                ]
            )
            lines += [
                f"nones = {pred} broadcast(none), dimensions={{{_join(range(n + 1))}}}",
                f"p2 = {s} select(nones, zeros, p)",
            ]
            weights = "p2"
        if t != "f32":
            lines.append(f"p3 = {t}[{_join(scores)}] convert({weights})")
            weights = "p3"
        w = f"{_join(range(n))}"
        if self.values_first:
            result = [*h, self.features, self.queries]
            dims = _dims(v.batch, w, v.first, n + 1)
            lines.append(f"r = {t}[{_join(result)}] dot(v, {weights}), {dims}")
        else:
            result = [*h, self.queries, self.features]
            dims = _dims(w, v.batch, n + 1, v.first)
            lines.append(f"r = {t}[{_join(result)}] dot({weights}, v), {dims}")
        if self.transposed:
            order = list(range(n + 2))
            rng.shuffle(order)
            lines.append(f"rt = {t}[{_join(result[d] for d in order)}] transpose(r), dimensions={{{_join(order)}}}")
        lines[-1] = f"ROOT {lines[-1]}"
        return "\n".join(lines)

    def _masked(self, s: str, pred: str, n: int) -> list[str]:
        a, b = self.queries, self.keys
        square, both = f"[{a},{b}]", f"{{{n},{n + 1}}}"
        rows = [f"rows = s32{square} iota(), iota_dimension=0", f"columns = s32{square} iota(), iota_dimension=1"]
        if self.mask == "none":
            return [f"x = {s} negate(e)"]
        if self.mask == "soft cap":
            return [f"x = {s} tanh(e)"]
        if self.mask == "bias":
            return [
                f"bias = f32[{b}] parameter(3)",
                f"biases = {s} broadcast(bias), dimensions={{{n + 1}}}",
                f"x = {s} add(e, biases)",
            ]
        if self.mask == "given":
            return [
                f"mask = pred{square} parameter(3)", f"masks = {pred} broadcast(mask), dimensions={both}",
                f"x = {s} select(masks, e, lows)",
            ]  # fmt: skip
        if self.mask == "window":
            return [
                *rows, f"gap = s32{square} subtract(rows, columns)", "seven = s32[] constant(7)",
                f"sevens = s32{square} broadcast(seven), dimensions={{}}",
                f"keep = pred{square} compare(gap, sevens), direction=LE",
                f"keeps = {pred} broadcast(keep), dimensions={both}", f"x = {s} select(keeps, e, lows)",
            ]  # fmt: skip
        if self.mask == "causal added":
            return [
                *rows, f"keep = pred{square} compare(columns, rows), direction=LE",
                f"lows2 = f32{square} broadcast(low), dimensions={{}}",
                f"zeros2 = f32{square} broadcast(zero), dimensions={{}}",
                f"add = f32{square} select(keep, zeros2, lows2)", f"adds = {s} broadcast(add), dimensions={both}",
                f"x = {s} add(e, adds)",
            ]  # fmt: skip
        direction = "LT" if self.mask == "lower" else "GE"
        value = "-1e9" if self.mask == "causal -1e9" else "-inf"
        return [
            *rows, f"keep = pred{square} compare(rows, columns), direction={direction}",
            f"keeps = {pred} broadcast(keep), dimensions={both}", f"other = f32[] constant({value})",
            f"others = {s} broadcast(other), dimensions={{}}", f"x = {s} select(keeps, e, others)",
        ]  # fmt: skip

    def computation(self) -> HloComputation:
        """Return the fused computation."""
        return fused(self.text(), REDUCERS)


def random_attention(rng: random.Random) -> AttentionForm:
    """Return a random form."""
    size = [1, 2, 7, 16, 33, 64, 65, 130]
    return AttentionForm(
        rng.choice([[], [2], [2, 3]]), rng.choice(size), rng.choice(size[1:]), rng.choice([1, 5, 16, 64]),
        rng.choice([1, 8, 16, 33, 64]), rng.choice(MASKS), rng.choice(["f32", "f32", "bf16"]), rng.random() < 0.3,
        rng.random() < 0.3, rng.random() < 0.4, rng.choice(["before", "after"]), rng.randrange(1000),
    )  # fmt: skip


def _dims(lhs_batch: str, rhs_batch: str, lhs: int, rhs: int) -> str:
    return (
        f"lhs_batch_dims={{{lhs_batch}}}, rhs_batch_dims={{{rhs_batch}}}, "
        f"lhs_contracting_dims={{{lhs}}}, rhs_contracting_dims={{{rhs}}}"
    )


def _join(values: Iterable[object]) -> str:
    return ",".join(map(str, values))


class _Operand:
    """An operand with batch dimensions and two others, in random order."""

    def __init__(self, rng: random.Random, heads: list[int], first: int, second: int) -> None:
        sizes = [*heads, first, second]
        order = list(range(len(sizes)))
        if rng.random() < 0.6:
            rng.shuffle(order)
        self.sizes = _join(sizes[d] for d in order)
        self.batch = _join(order.index(d) for d in range(len(heads)))
        self.first, self.second = order.index(len(heads)), order.index(len(heads) + 1)
