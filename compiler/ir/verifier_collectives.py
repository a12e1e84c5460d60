"""Rules of collectives: device groups, channels, number of participants, in-place permutations.

Properties of several devices together (such as deadlock-free orders of sends and receives) are not checked.
"""

from __future__ import annotations

import enum
import math
import re
from collections import Counter
from functools import lru_cache

from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape

_GROUP = re.compile(r"\{([\d,\s-]*)\}")
_IOTA_GROUPS = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?$")
_INVALID = ((-1,),)
"""Stands for groups in the form `[2,4]<=[8]` whose sides differ in size."""
_REDUCES_ONLY = (Opcode.ALL_REDUCE, Opcode.ALL_REDUCE_START)
_FLAGGED = frozenset(
    {
        Opcode.ALL_GATHER, Opcode.ALL_GATHER_START, Opcode.ALL_REDUCE, Opcode.ALL_REDUCE_START, Opcode.REDUCE_SCATTER,
    }
)  # fmt: skip
"""Opcodes with use_global_device_ids, for which a channel means cross-replica-and-partition, not cross-partition."""


class Mode(enum.Enum):
    """What replica groups contain and how many there are; XLA's CollectiveOpGroupMode (`collective_ops_utils.h`)."""

    REPLICA = "replicas"
    PARTITION = "partitions"
    BOTH = "replicas, each with all partitions"
    FLATTENED = "devices"


def mode(i: HloInstruction) -> Mode:
    """Return the mode that follows from channel_id and use_global_device_ids."""
    if i.attr("channel_id") is None:
        return Mode.REPLICA
    if i.attr("use_global_device_ids", False):
        return Mode.FLATTENED
    return Mode.BOTH if i.opcode in _FLAGGED else Mode.PARTITION


def _count(i: HloInstruction, name: str) -> int:
    module = i.parent.parent if i.parent is not None else None
    text = str(module.header.get(name, "1")) if module is not None else "1"
    return int(text) if text.isdigit() else 1


def _expected(i: HloInstruction) -> int:
    """Return how many members the groups of an instruction must have in total; 1 if the module does not say."""
    replicas, partitions = _count(i, "replica_count"), _count(i, "num_partitions")
    return {
        Mode.REPLICA: replicas,
        Mode.BOTH: replicas,
        Mode.PARTITION: partitions,
        Mode.FLATTENED: replicas * partitions,
    }[mode(i)]


@lru_cache(maxsize=256)
def replica_groups(text: str) -> tuple[tuple[int, ...], ...] | None:
    """Parse the groups of an attribute; return None for forms that name mesh axes."""
    m = _IOTA_GROUPS.match(text)
    if m is not None:
        dims, reshape = ([int(n) for n in m.group(k).split(",")] for k in (1, 2))
        ids = iota(tuple(reshape), tuple(int(n) for n in m.group(3).split(",")) if m.group(3) else None)
        if len(dims) != 2 or math.prod(dims) != len(ids):
            return _INVALID
        return tuple(ids[g * dims[1] : (g + 1) * dims[1]] for g in range(dims[0]))
    if not text.startswith("{"):
        return None
    return tuple(tuple(int(n) for n in g.split(",") if n.strip()) for g in _GROUP.findall(text[1:-1]))


def iota(reshape: tuple[int, ...], transpose: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return 0, 1, 2... reshaped, transposed and flattened; empty if `transpose` is not a permutation."""
    order = transpose or tuple(range(len(reshape)))
    if sorted(order) != list(range(len(reshape))):
        return ()
    strides = [math.prod(reshape[d + 1 :]) for d in range(len(reshape))]
    ids = [0]
    for d in order:
        ids = [base + k * strides[d] for base in ids for k in range(reshape[d])]
    return tuple(ids)


def groups(i: HloInstruction) -> list[str]:
    """Check that the groups contain all devices exactly once, and have equal sizes unless they only reduce."""
    raw = i.attr("replica_groups")
    found = replica_groups(str(raw)) if raw is not None else None
    if not found:
        return []
    if found is _INVALID:
        return [f"%{i.name}: replica_groups must have as many elements as devices, is {raw}"]
    members = [m for g in found for m in g]
    if any(not g for g in found):
        return [f"%{i.name}: replica_groups has an empty group"]
    if sorted(members) != list(range(len(members))):
        return [f"%{i.name}: replica_groups must name each of 0 to {len(members) - 1} once, is {raw}"]
    if i.opcode not in _REDUCES_ONLY and len({len(g) for g in found}) > 1:
        return [f"%{i.name}: replica_groups must be of one size, is {raw}"]
    expected = _expected(i)
    if expected not in (1, len(members)):
        return [
            f"%{i.name}: replica_groups must name all {expected} {mode(i).value} of the module, names {len(members)}"
        ]
    return []


def channel(i: HloInstruction) -> list[str]:
    """Check that an all-reduce's channel id is positive, and that global device ids have a channel."""
    number = i.attr("channel_id")
    if number is not None and number <= 0 and i.opcode is Opcode.ALL_REDUCE:
        return [f"%{i.name}: channel_id must be greater than 0, is {number}"]
    if i.attr("use_global_device_ids", False) and number is None:
        return [f"%{i.name}: use_global_device_ids needs a channel_id"]
    return []


def flattened_groups(i: HloInstruction) -> list[str]:
    """Check that global device ids come with explicit groups."""
    raw = i.attr("replica_groups")
    if i.attr("use_global_device_ids", False) and (raw is None or str(raw) == "{}"):
        return [f"%{i.name}: use_global_device_ids needs replica_groups"]
    return []


def group_size(i: HloInstruction) -> int:
    """Return the number of devices in a group; 1 if the module does not say."""
    raw = i.attr("replica_groups")
    found = replica_groups(str(raw)) if raw is not None else ()
    if found is None:
        return 1
    size = len(found[0]) if found else _expected(i)
    return size * _count(i, "num_partitions") if mode(i) is Mode.BOTH else size


def shards(i: HloInstruction) -> list[str]:
    """Check that the dimension grows or shrinks by the group size in a gather or reduce-scatter."""
    size, at = group_size(i), i.attr("dimensions", (0,))
    whole = i.shape.tuple_shapes[1] if i.opcode is Opcode.ALL_GATHER_START else i.shape
    result = whole.tuple_shapes[0] if whole.is_tuple else whole
    a, b = i.operands[0].shape.dimensions[at[0]], result.dimensions[at[0]]
    small, large = (b, a) if i.opcode is Opcode.REDUCE_SCATTER else (a, b)
    if size == 1 or small * size == large:
        return []
    return [
        f"%{i.name}: {i.opcode.text} over groups of {size} makes {size} parts of dimension {at[0]}, "
        f"the shapes have {small} and {large}"
    ]


def exchanged(i: HloInstruction) -> list[str]:
    """Check that an all-to-all has one operand per group member, or a dimension that the group size divides."""
    size, dims = group_size(i), i.attr("dimensions", ())
    if size == 1:
        return []
    if dims:
        n = i.operands[0].shape.dimensions[dims[0]]
        wrong = n % size
        return [f"%{i.name}: dimension {dims[0]} of size {n} cannot be split in {size} parts"] if wrong else []
    if len(i.operands) != size:
        return [f"%{i.name}: all-to-all over groups of {size} needs as many operands, got {len(i.operands)}"]
    return []


# ---- collective-permute


def source_targets(i: HloInstruction) -> list[str]:
    """Check that the pairs name existing devices, and none more often than it has slices to send or receive."""
    raw = i.attr("source_target_pairs")
    pairs = replica_groups(str(raw)) or ()
    if any(len(p) != 2 for p in pairs):
        return [f"%{i.name}: source_target_pairs must be pairs, is {raw}"]
    limit = _count(i, "num_partitions" if mode(i) is Mode.PARTITION else "replica_count")
    allowed = _slices(i)
    for side, what in ((0, "source"), (1, "target")):
        counts = Counter(p[side] for p in pairs)
        wrong = next((d for d in counts if d < 0 or (limit > 1 and d >= limit)), None)
        if wrong is not None:
            return [f"%{i.name}: {what} {wrong} in source_target_pairs must be from 0 to {limit - 1}"]
        often = next((d for d, n in counts.items() if n > allowed), None)
        if often is not None:
            times = "twice" if allowed == 1 else f"more than {allowed} times"
            return [f"%{i.name}: device {often} is a {what} {times} in source_target_pairs"]
    return []


def _slices(i: HloInstruction) -> int:
    """Return how many slices an in-place permutation sends; 1 if it is not in place."""
    if "slice_sizes" not in i.attributes or len(i.operands) != 4:
        return 1
    offsets = i.operands[2].shape
    if i.operands[0].shape.is_tuple and offsets.tuple_shapes:
        offsets = offsets.tuple_shapes[0]
    return max(1, len(offsets.tuple_shapes))


def in_place(i: HloInstruction) -> list[str]:
    """Check that an in-place permutation has one offset per buffer, with one index per dimension."""
    if "slice_sizes" not in i.attributes or len(i.operands) != 4:
        return []
    source, target, *offsets = (o.shape for o in i.operands)
    if source.is_tuple != target.is_tuple or len(source.tuple_shapes) != len(target.tuple_shapes):
        return [f"%{i.name}: input {source} and output {target} must both be arrays, or tuples of the same length"]
    findings = []
    for what, buffer, offset in (("input", source, offsets[0]), ("output", target, offsets[1])):
        buffers = buffer.tuple_shapes if buffer.is_tuple else (buffer,)
        each = offset.tuple_shapes if buffer.is_tuple else (offset,)
        if len(buffers) != len(each):
            findings.append(f"%{i.name}: {what} has {len(buffers)} buffers and {len(each)} offsets")
            continue
        for b, o in zip(buffers, each, strict=True):
            if not _fits_offset(b, o):
                findings.append(f"%{i.name}: {what} offset {o} must have an index for each dimension of {b}")
    return findings


def _fits_offset(buffer: Shape, offset: Shape) -> bool:
    """Check for a tuple of one index per dimension, or a tuple of such tuples."""
    if not offset.is_tuple:
        return False
    parts = offset.tuple_shapes
    if parts and all(p.is_tuple for p in parts):
        return all(len(p.tuple_shapes) == buffer.rank for p in parts)
    return all(p.is_array for p in parts) and len(parts) == buffer.rank
