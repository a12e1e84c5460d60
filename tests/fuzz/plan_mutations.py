"""Mutations of plans: structural ones of the JSON, and semantic ones that keep names and numbers plausible."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from compiler.codegen.schedules.schedule import FIELD_RANGES
from compiler.fusion.actions import KINDS
from compiler.passes import PASSES
from compiler.plan import CompilationPlan
from compiler.session import CompilationSession
from compiler.support.options import describe_options
from compiler.text import parse
from tests.fuzz.plan_programs import PROGRAMS, PlanProgram, plan_program

NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 7, 31, 33, 100, 4096, 65_536, 4_000_000, 2**31, 2**63, -(2**63), 10**30, 0.5, 1.0, -0.0, 1e300,
    float("nan"), float("inf"), True, False, None, "1", "", "a", [], [1], {}, {"a": 1}, [[[]]],
)  # fmt: skip
STRINGS: tuple[Any, ...] = (
    "", " ", "x", "main", "keep", "full", "kernel", "unroll-2", "unroll-3", "unroll-1000000000", "dce", "cse",
    "missing", "cpu", "cuda", "interpreter", "auto", "xla", "sibling", "multi-output", "../../etc/passwd", "%x", "a\nb",
    "\0", "\ud800", "é", "\U0001f600", "x" * 3000, "[bold]", "<script>", 0, 1, -1, True, None, 1.5, [], {}, ["a"],
    "while-loop-unroller{factor=1000000000}", "while-loop-unroller{max_trips=100000,max_ops=100000}",
    "while-loop-unroller{factor=2}@1000000", "call-inliner@1", "dce{", "dce}", "{}", "dce{a=1}", "dce,cse",
    "float-normalization{narrow=f32,wide=bf16}", "float-normalization{narrow=f32,wide=f64}",
    "tree-reduction{threshold=2}",
    "constant-folding{max_bytes=999999999999}", "constant-folding{max_bytes=1e3}", "distribution{float_terms=1}",
    "no-such-pass", "dce@0", "dce@", "a" + " " * 20_000 + "b",
)  # fmt: skip
DAMAGE = (b"[" * 100_000, b'{"a":' * 50_000, b"NaN", b"9" * 5000, b"\xff\xfe")
Data = Any
Mutation = Callable[[Data, PlanProgram, np.random.Generator], Data]


# ---- structural mutations of the JSON


def _paths(data: Data, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values in nested data."""
    yield at
    if isinstance(data, dict):
        for key in data:
            yield from _paths(data[key], (*at, key))
    elif isinstance(data, list):
        for n, part in enumerate(data):
            yield from _paths(part, (*at, n))


def _get(data: Data, path: tuple[Any, ...]) -> Data:
    for step in path:
        data = data[step]
    return data


def _put(data: Data, path: tuple[Any, ...], value: Data) -> Data:
    if not path:
        return value
    _get(data, path[:-1])[path[-1]] = value
    return data


def _some_path(data: Data, rng: np.random.Generator) -> tuple[Any, ...]:
    paths = list(_paths(data))[1:] or [()]
    if rng.random() < 0.5:  # prefer paths near the top, of which there are few
        paths = [p for p in paths if len(p) <= 2] or paths
    return paths[int(rng.integers(len(paths)))]


def _odd(value: Data, rng: np.random.Generator) -> Data:
    """Return an odd value to replace a value, usually of the same type."""
    pool = STRINGS if isinstance(value, str) == (rng.random() < 0.8) else NUMBERS
    return copy.deepcopy(pool[int(rng.integers(len(pool)))])


def replace_value(data: Data, program: PlanProgram, rng: np.random.Generator) -> Data:
    path = _some_path(data, rng)
    return _put(data, path, _odd(_get(data, path), rng))


def drop(data: Data, program: PlanProgram, rng: np.random.Generator) -> Data:
    path = _some_path(data, rng)
    if path:
        del _get(data, path[:-1])[path[-1]]
    return data


def double(data: Data, program: PlanProgram, rng: np.random.Generator) -> Data:
    path = _some_path(data, rng)
    parent = _get(data, path[:-1]) if path else data
    if isinstance(parent, list):
        parent.insert(int(rng.integers(len(parent) + 1)), copy.deepcopy(parent[path[-1]]))
    elif path:
        parent[f"{path[-1]}{rng.integers(3)}"] = copy.deepcopy(parent[path[-1]])
    return data


def exchange(data: Data, program: PlanProgram, rng: np.random.Generator) -> Data:
    a, b = _some_path(data, rng), _some_path(data, rng)
    if a[: len(b)] == b or b[: len(a)] == a:
        return data
    x, y = copy.deepcopy(_get(data, a)), copy.deepcopy(_get(data, b))
    return _put(_put(data, a, y), b, x)


def rename(data: Data, program: PlanProgram, rng: np.random.Generator) -> Data:
    places = [p for p in _paths(data) if p and isinstance(_get(data, p[:-1]), dict)]
    path = places[int(rng.integers(len(places)))]
    parent = _get(data, path[:-1])
    names = [str(t) for t in STRINGS if isinstance(t, str)] + list(parent)
    parent[names[int(rng.integers(len(names)))]] = parent.pop(path[-1])
    return data


def nest(data: Data, program: PlanProgram, rng: np.random.Generator) -> Data:
    value: Data = 1
    for _ in range(int(rng.choice([3, 50, 200]))):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return _put(data, _some_path(data, rng), value)


def graft(data: Data, program: PlanProgram, rng: np.random.Generator) -> Data:
    """Replace some parts by those of another plan of this program or of another one."""
    other = program if rng.random() < 0.5 else plan_program(PROGRAMS[int(rng.integers(len(PROGRAMS)))])
    there = other.plans[int(rng.integers(len(other.plans)))].to_dict()
    for key in rng.permutation(sorted(data))[: int(rng.integers(1, 4))]:
        if key != "fingerprint" and key in there:
            data[str(key)] = there[key]
    return data


# ---- semantic mutations, with plausible names and numbers


def reorder(data: Data, program: PlanProgram, rng: np.random.Generator) -> Data:
    """Permute a list of decisions, or keep only some of them."""
    key = str(rng.choice(["fusions", "fusions", "passes", "loops", "loop_passes", "sequences"]))
    entries = data.get(key, [])
    order = [int(n) for n in rng.permutation(len(entries))]
    if rng.random() < 0.5:
        order = sorted(order[: int(rng.integers(len(order) + 1))])
    data[key] = [entries[n] for n in order]
    return data


def other_fusion(data: Data, program: PlanProgram, rng: np.random.Generator) -> Data:
    """Change the names or the kind of a fusion, or exchange its producer and consumer."""
    if not data.get("fusions"):
        return data
    fusion = data["fusions"][int(rng.integers(len(data["fusions"])))]
    names = [n for row in data["places"].values() for n in row] + [m for f in data["fusions"] for m in f["made"]]
    match int(rng.integers(4)):
        case 0:
            fusion["kind"] = str(rng.choice(KINDS))
        case 1:
            fusion["producer"] = str(rng.choice(names))
        case 2:
            fusion["consumers"] = [str(rng.choice(names)) for _ in fusion["consumers"]]
        case _:
            fusion["producer"], fusion["consumers"] = fusion["consumers"][0], [fusion["producer"]]
    return data


def other_places(data: Data, program: PlanProgram, rng: np.random.Generator) -> Data:
    rows = [r for r in data.get("places", {}).values() if r]
    if rows:
        row = rows[int(rng.integers(len(rows)))]
        name = str(rng.choice(list(row)))
        row[name] = max(0, row[name] + int(rng.integers(-3, 4)))
    return data


def other_kernels(data: Data, program: PlanProgram, rng: np.random.Generator) -> Data:
    """Add kernel choices with values inside and outside of their ranges."""
    names = [n for row in data.get("places", {}).values() for n in row]
    names += [m for f in data.get("fusions", []) for m in f["made"]] + list(data.get("kernels", {}))
    for _ in range(int(rng.integers(1, 4))):
        if names:
            field = str(rng.choice(list(FIELD_RANGES)))
            allowed = FIELD_RANGES[field]
            number = allowed[int(rng.integers(len(allowed)))] if rng.random() < 0.4 else int(2 ** rng.integers(0, 18))
            data.setdefault("kernels", {}).setdefault(str(rng.choice(names)), {})[field] = number
    return data


def other_decisions(data: Data, program: PlanProgram, rng: np.random.Generator) -> Data:
    """Change the passes, their options and the loop choices, and keep some of the other decisions."""
    passes = list(data.get("passes", []))
    for _ in range(int(rng.integers(1, 4))):
        passes.insert(int(rng.integers(len(passes) + 1)), random_pass(rng))
    session = CompilationSession(parse(program.text))
    try:
        session.run_passes(passes)
        for site in session.loops():
            session.set_loop(site, str(rng.choice(site.choices)))
        _ = session.fusion
    except ValueError:  # an option is out of its range
        return {**data, "passes": passes}
    kept = {k: data.get(k, []) for k in ("fusions", "places", "kernels") if rng.random() < 0.5}
    return {**session.plan.to_dict(), **kept}


def random_pass(rng: np.random.Generator) -> str:
    """Return a random pass with random options."""
    name = str(rng.choice(sorted(PASSES)))
    options = [o.partition("=") for o in describe_options(PASSES[name]).split(", ") if o]
    chosen = []
    for option, _, default in options:
        if default in ("true", "false"):
            chosen.append(f"{option}={rng.choice(['true', 'false'])}")
        elif default.isdigit():
            chosen.append(f"{option}={int(2 ** rng.integers(0, 24))}")
    return name + ("{" + ",".join(chosen) + "}" if chosen and rng.random() < 0.8 else "")


STRUCTURAL: tuple[Mutation, ...] = (replace_value, replace_value, drop, double, exchange, rename, nest, graft)
MEANING: tuple[Mutation, ...] = (reorder, other_fusion, other_places, other_kernels, other_kernels, other_decisions)


# ---- mutations of files, and of plans built in Python


def mutated_bytes(text: str, rng: np.random.Generator) -> bytes:
    """Return the damaged contents of a plan's file."""
    data = text.encode("utf-8", "surrogatepass")
    at, span = int(rng.integers(len(data) + 1)), int(rng.integers(1, 30))
    match int(rng.integers(8)):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + data[at + span :]
        case 2:
            return data[:at] + rng.bytes(span) + data[at:]
        case 3:
            return data[:at] + data[at : at + span] * 2 + data[at + span :]
        case 4:
            return data[:at] + DAMAGE[int(rng.integers(len(DAMAGE)))] + data[at:]
        case 5:
            return b"\xef\xbb\xbf" + data
        case 6:
            lines = data.split(b"\n")
            n = int(rng.integers(len(lines)))
            return b"\n".join([*lines[:n], lines[n], *lines[n:]])
        case _:
            return data.decode("utf-8", "replace").encode("utf-16")


def mutated_fields(plan: CompilationPlan, rng: np.random.Generator) -> CompilationPlan:
    """Return a plan, built in Python, with one field replaced by an odd value."""
    field = dataclasses.fields(plan)[int(rng.integers(len(dataclasses.fields(plan))))].name
    return dataclasses.replace(plan, **{field: _odd(getattr(plan, field), rng)})
