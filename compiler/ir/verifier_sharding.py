"""Rules of annotations: sharding and origin must fit the shape, and result_accuracy must be valid.

Shardings are stored as text and parsed here as far as the rules require; those over named meshes are not checked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape
from compiler.ir.verifier_collectives import iota

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_TILES = re.compile(r"devices=\[([\d,\s]*)\](?:<=\[([\d,\s]*)\](?:T\(([\d,\s]*)\))?|\s*(-?\d[-\d,\s]*))?")
_LAST_DIMS = re.compile(r"last_tile_dims=\{([^}]*)\}")
_DEVICE = re.compile(r"\bdevice=(-?\d+)")
_ACCURACY = re.compile(r"\{(?:mode=(?:default|highest)|tolerance=\{(?:(?:atol|rtol|ulps)=[\d.eE+-]+,?)*\})\}")
_KINDS = ("replicated", "manual", "unknown", "unreduced", "maximal")


@dataclass(frozen=True, slots=True)
class Sharding:
    """How one array is distributed: a kind, or tiles and the devices that hold them.

    Attributes:
        kind: replicated, manual, unknown, unreduced, maximal (one device), tiled, or mesh (not parsed).
        tiles: number of tiles per dimension; the last `len(subgroups)` entries are not dimensions of the data.
        subgroups: kinds of the trailing tile dimensions.
        devices: in the order of the tiles; empty for kinds without devices.
        wrong: what is wrong with the sharding by itself, or None.
    """

    kind: str
    tiles: tuple[int, ...] = ()
    subgroups: tuple[str, ...] = ()
    devices: tuple[int, ...] = ()
    wrong: str | None = None


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(int(n) for n in (text or "").replace(" ", "").split(",") if n)


@lru_cache(maxsize=1024)
def read_sharding(text: str) -> Sharding | tuple[Sharding, ...]:
    """Parse a sharding in braces: a single one, or one per leaf of a tuple."""
    inner = _COMMENT.sub("", text).strip()[1:-1].strip()
    if inner and not inner.startswith("{"):
        return _one(inner)
    return tuple(_one(part.strip()[1:-1].strip()) for part in split(inner))


def split(text: str) -> Iterator[str]:
    """Split at commas outside of brackets and strings."""
    depth, start, quoted = 0, 0, False
    for at, c in enumerate(text):
        if c == '"' and text[at - 1 : at] != "\\":
            quoted = not quoted
        elif quoted:
            continue
        elif c == "," and depth == 0:
            yield text[start:at]
            start = at + 1
        else:
            depth += (c in "{([") - (c in "})]")
    if text[start:].strip():
        yield text[start:]


def _one(text: str) -> Sharding:
    if text.startswith(("mesh", "maximal_mesh", "@")):
        return Sharding("mesh")
    text = text.partition("metadata=")[0]
    m = _TILES.search(text)
    kind = next((k for k in _KINDS if k in _LAST_DIMS.sub("", text.partition("devices=")[0]).split()), None)
    if kind is not None and kind != "maximal":
        wrong = f"a {kind} sharding has no devices" if m is not None or _DEVICE.search(text) else None
        return Sharding(kind, wrong=wrong)
    if kind == "maximal":
        device = _DEVICE.search(text)
        devices = (int(device.group(1)),) if device is not None else ()
        return Sharding(kind, devices=devices, wrong=None if devices else "a maximal sharding names one device")
    if m is None:
        return Sharding("tiled", wrong="it has neither a kind nor tiles")
    return _tiled(m, text)


def _tiled(m: re.Match[str], text: str) -> Sharding:
    tiles, reshape = _numbers(m.group(1)), _numbers(m.group(2))
    devices = iota(reshape, _numbers(m.group(3)) or None) if reshape else _numbers(m.group(4))
    last = _LAST_DIMS.search(text)
    subgroups = tuple(w.strip() for w in last.group(1).split(",")) if last is not None else ()
    if "last_tile_dim_replicate" in text:
        subgroups = ("replicated",)
    wrong = None
    if math.prod(tiles) != len(devices):
        wrong = f"{list(tiles)} are {math.prod(tiles)} tiles, on {len(devices)} devices"
    elif len(devices) < 2:
        wrong = "tiles need two devices or more: use replicated or maximal"
    elif len(subgroups) > len(tiles):
        wrong = f"{len(subgroups)} subgroups, but only {len(tiles)} dimensions of tiles"
    return Sharding("tiled", tiles, subgroups, devices, wrong)


def sharding(i: HloInstruction) -> list[str]:
    """Check that a sharding fits the leaves of the shape and names existing devices, each at most once."""
    raw = i.attr("sharding")
    if raw is None or i.shape.is_token:
        return []
    found, leaves = read_sharding(str(raw)), list(i.shape.leaves())
    if isinstance(found, tuple) and not i.shape.is_tuple:
        return [f"%{i.name}: sharding {raw} is for a tuple, the shape is {i.shape}"]
    if isinstance(found, tuple) and len(found) != len(leaves) and (leaves or len(found) != 1):
        return [f"%{i.name}: sharding has {len(found)} parts, the shape {i.shape} {len(leaves)} leaves"]
    each = found if isinstance(found, tuple) else (found,) * len(leaves)
    partitions = _partitions(i)
    for k, (s, leaf) in enumerate(zip(each, leaves, strict=False)):
        problem = _problem(s, leaf, partitions)
        if problem is not None:
            part = f" of leaf {k}" if i.shape.is_tuple else ""
            return [f"%{i.name}: sharding{part} does not fit {leaf}: {problem}"]
    return []


def _partitions(i: HloInstruction) -> int:
    module = i.parent.parent if i.parent is not None else None
    text = str(module.header.get("num_partitions", "1")) if module is not None else "1"
    return int(text) if text.isdigit() else 1


def _problem(s: Sharding, leaf: Shape, partitions: int) -> str | None:
    if s.wrong is not None:
        return s.wrong
    if s.kind not in ("tiled", "maximal") or leaf.is_token:
        return None
    rank = len(s.tiles) - len(s.subgroups)
    if s.kind == "tiled" and rank != leaf.rank:
        return f"tiles in {rank} dimensions, expected {leaf.rank}"
    outside = next((d for d in s.devices if d < 0 or (1 < partitions <= d)), None)
    if outside is not None:
        return f"device {outside}, expected " + (f"0 to {partitions - 1}" if partitions > 1 else "0 or more")
    if len(set(s.devices)) != len(s.devices):
        return "a device holds two tiles"
    if s.kind == "tiled" and partitions > 1 and len(s.devices) != partitions:
        return f"tiles on {len(s.devices)} devices, the module has {partitions} partitions"
    return None


def consistent_while(i: HloInstruction) -> list[str]:
    """Check that a loop, its parameters and the body's root have the same sharding, where they have one."""
    body, condition = i.attr("body"), i.attr("condition")
    return _consistent(i, [i, body.root, *body.parameters[:1], *condition.parameters[:1]])


def consistent_conditional(i: HloInstruction) -> list[str]:
    """Check that a conditional and the roots of its branches have the same sharding, where they have one."""
    return _consistent(i, [i, *(c.root for c in i.called_computations())])


def _consistent(i: HloInstruction, together: Sequence[HloInstruction]) -> list[str]:
    said = [j for j in together if "sharding" in j.attributes]
    other = next((j for j in said[1:] if _leafwise(j) != _leafwise(said[0])), None)
    if other is None:
        return []
    return [
        f"%{i.name}: {i.opcode.text} must be sharded like what it calls, but %{said[0].name} has "
        f"{said[0].attr('sharding')}, %{other.name} has {other.attr('sharding')}"
    ]


def _leafwise(i: HloInstruction) -> tuple[Sharding, ...]:
    """Return one sharding per leaf; a single sharding on a tuple applies to all leaves."""
    found = read_sharding(str(i.attr("sharding")))
    return found if isinstance(found, tuple) else (found,) * sum(1 for _ in i.shape.leaves())


# ---- origins


def origin(i: HloInstruction) -> list[str]:
    """Check that an origin has the tuple structure of the shape."""
    raw = i.attr("origin")
    text = str(raw).strip()[1:-1].strip() if raw is not None else "[synthetic_call]"
    if text.startswith("["):
        return []
    ours, theirs = sorted(_paths(i.shape)), sorted(_origins(text))
    if ours == theirs:
        return []
    return [f"%{i.name}: origin has values at {_listed(theirs)}, the shape {i.shape} has leaves at {_listed(ours)}"]


def _listed(paths: Sequence[tuple[int, ...]]) -> str:
    return " ".join("{" + ",".join(map(str, p)) + "}" for p in paths) or "no index"


def _paths(shape: Shape, prefix: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    if not shape.is_tuple:
        yield prefix
    for k, part in enumerate(shape.tuple_shapes if shape.is_tuple else ()):
        yield from _paths(part, (*prefix, k))


def _origins(text: str, prefix: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Yield the paths of the leaves, `{...}`, in nested parentheses."""
    if not text.startswith("("):
        yield prefix
        return
    for k, part in enumerate(split(_COMMENT.sub("", text).strip()[1:-1])):
        yield from _origins(part.strip(), (*prefix, k))


# ---- accuracy


def result_accuracy(i: HloInstruction) -> list[str]:
    """Check that result_accuracy is a mode or a tolerance."""
    text = "".join(str(i.attr("result_accuracy")).split())
    if _ACCURACY.fullmatch(text.lower()):
        return []
    wanted = "{mode=default}, {mode=highest} or {tolerance={atol=...,rtol=...,ulps=...}}"
    return [f"%{i.name}: result_accuracy must be {wanted}, is {text}"]


CARRIED = {"sharding": sharding, "origin": origin, "result_accuracy": result_accuracy}
"""Rules by attribute, for any instruction that has it."""
CONSISTENT = {Opcode.WHILE: consistent_while, Opcode.CONDITIONAL: consistent_conditional}
"""Rules by opcode, for those that must have the same sharding as what they call."""
