"""Small programs drawn at random around one decision: products of many shapes, and loops of many sizes.

The suites have few programs in which these decisions matter; drawn ones show a model where a choice begins to be worth
it.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from compiler.support.files import write_file

__all__ = ["drawn_loop", "drawn_product", "write_drawn_programs"]

_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_UNARY = ("negate", "tanh", "abs", "cosine", "logistic")
_BINARY = ("add", "multiply", "subtract", "maximum")


def drawn_product(rng: random.Random) -> str:
    """Return HLO text with one product of at most 2^20 multiplications, perhaps among elementwise ops."""
    while True:
        b, m, n, k = rng.choice((1, 1, 1, 2, 4, 16)), *(rng.choice(_SIZES) for _ in range(3))
        if 8 <= b * m * n * k <= 1 << 20:
            break
    batch = b > 1
    lhs, rhs, out = ([b, *d] if batch else list(d) for d in ((m, k), (k, n), (m, n)))
    first = int(batch)
    dims = f"lhs_contracting_dims={{{first + 1}}}, rhs_contracting_dims={{{first}}}"
    dims += ", lhs_batch_dims={0}, rhs_batch_dims={0}" if batch else ""
    lines = [f"x = {_f32(lhs)} parameter(0)", f"y = {_f32(rhs)} parameter(1)"]
    left = "x"
    if rng.random() < 0.4:
        lines.append(f"l = {_f32(lhs)} {rng.choice(_UNARY)}(x)")
        left = "l"
    lines.append(f"d = {_f32(out)} dot({left}, y), {dims}")
    last = "d"
    for number in range(rng.randint(0, 3)):
        lines.append(f"u{number} = {_f32(out)} {rng.choice(_UNARY)}({last})")
        last = f"u{number}"
    return _entry(lines)


def drawn_loop(rng: random.Random) -> str:
    """Return HLO text with one loop over arrays of one size, with elementwise ops and perhaps a sum or a product."""
    n, arrays, trips = rng.choice((4, 16, 64, 256, 1024, 8192)), rng.randint(1, 4), rng.choice((8, 20, 64, 200))
    state = f"(s32[], {', '.join([f'f32[{n}]'] * arrays)})"
    lines = [f"p = {state} parameter(0)", "i = s32[] get-tuple-element(p), index=0"]
    lines += [f"a{k} = f32[{n}] get-tuple-element(p), index={k + 1}" for k in range(arrays)]
    values = [f"a{k}" for k in range(arrays)]
    for number in range(rng.randint(1, 12)):
        if rng.random() < 0.5:
            lines.append(f"v{number} = f32[{n}] {rng.choice(_UNARY)}({rng.choice(values)})")
        else:
            lines.append(f"v{number} = f32[{n}] {rng.choice(_BINARY)}({rng.choice(values)}, {rng.choice(values)})")
        values.append(f"v{number}")
    kind = rng.random()
    if kind < 0.3:  # a sum that every element needs
        lines += [
            "zero = f32[] constant(0)", f"total = f32[] reduce({values[-1]}, zero), dimensions={{0}}, to_apply=sum",
            f"spread = f32[{n}] broadcast(total), dimensions={{}}", f"shared = f32[{n}] multiply({values[-1]}, spread)",
            f"bounded = f32[{n}] tanh(shared)",
        ]  # fmt: skip
        values.append("bounded")
    elif kind < 0.5 and n <= 256:
        lines += [
            f"w = f32[{n},{n}] iota(), iota_dimension=0", f"ws = f32[{n},{n}] cosine(w)",
            f"mixed = f32[{n}] dot(ws, {values[-1]}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}",
            f"kept = f32[{n}] tanh(mixed)",
        ]  # fmt: skip
        values.append("kept")
    nexts = [values[-1 - k] if k < len(values) - arrays else f"a{k}" for k in range(arrays)]
    lines += [
        "one = s32[] constant(1)",
        "next = s32[] add(i, one)",
        f"ROOT t = {state} tuple(next, {', '.join(nexts)})",
    ]
    body = "\n  ".join(lines)
    given = [f"x{k} = f32[{n}] parameter({k})" for k in range(arrays)]
    start = f"start = {state} tuple(none, {', '.join(f'x{k}' for k in range(arrays))})"
    entry = [*given, "none = s32[] constant(0)", start, f"w = {state} while(start), condition=condition, body=body"]
    entry += [f"o{k} = f32[{n}] get-tuple-element(w), index={k + 1}" for k in range(arrays)]
    entry.append(f"r = ({', '.join([f'f32[{n}]'] * arrays)}) tuple({', '.join(f'o{k}' for k in range(arrays))})")
    return (
        "sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }\n"
        f"body {{\n  {body}\n}}\n"
        f"condition {{\n  p = {state} parameter(0)\n  i = s32[] get-tuple-element(p), index=0\n"
        f"  n = s32[] constant({trips})\n  ROOT less = pred[] compare(i, n), direction=LT\n}}\n{_entry(entry)}"
    )


def _f32(dims: list[int]) -> str:
    return f"f32[{','.join(map(str, dims))}]"


def _entry(lines: list[str]) -> str:
    return "ENTRY e {\n  " + "\n  ".join([*lines[:-1], f"ROOT {lines[-1]}"]) + "\n}\n"


def write_drawn_programs(folder: Path, products: int, loops: int, seed: int) -> Path:
    """Write a suite of drawn programs into a folder and return it; equal arguments give equal programs.

    Each ten programs are a family, so that cross-validation keeps some of each kind apart.
    """
    entries = []
    for kind, count, draw in (("product", products, drawn_product), ("loop", loops, drawn_loop)):
        for number in range(count):
            name = f"learning_{kind}_{number:04d}"
            write_file(folder / f"{name}.hlo", f"HloModule {name}\n{draw(random.Random(f'{seed} {name}'))}")
            family = f"learning_{kind}_{number // 10:02d}"
            entries.append({"name": name, "file": f"{name}.hlo", "split": "train", "description": f"a drawn {kind}",
                            "family": family})  # fmt: skip
    write_file(folder / "manifest.json", json.dumps({"programs": entries}, indent=1) + "\n")
    return folder
