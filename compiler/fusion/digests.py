"""Digests of what fusions compute, which are equal in every process and do not depend on names or orders.

A fusion is identified by the original values that it yields and by how it computes them from the values that it reads.
The digest of a fused computation is a Merkle hash: that of an instruction depends on the instruction without its name
and on the digests of its operands; a parameter stands for the value it reads. So neither the names, nor the numbering
of parameters and outputs, nor the order of the actions that led to a fusion matters.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from hashlib import blake2b

import numpy as np

from compiler.analysis.structure import IGNORED, is_commutative, shape_key
from compiler.fusion.rewriting import body_of, outputs_of
from compiler.ir import HloComputation, HloInstruction, HloModule, Literal, Opcode
from compiler.ir.printing import canonical_computations

DIGEST_BYTES = 16
MODULUS = 1 << (8 * DIGEST_BYTES)
_MAX_KNOWN = 50_000


class Digests:
    """Digests of instructions and fusions of one module; what several of them share is computed once."""

    def __init__(self) -> None:
        self._static: dict[Hashable, bytes] = {}
        self._computations: dict[HloComputation, bytes] = {}

    def fusion(self, fusion: HloInstruction, values: tuple[int, ...], value_of: Callable[[HloInstruction], int]) -> int:
        """Return the digest of a fusion.

        Args:
            fusion: the fusion instruction.
            values: the numbers of the original values that it yields.
            value_of: returns the number of the value that an operand reads.
        """
        body = body_of(fusion)
        given = {
            p: b"read" + value_of(o).to_bytes(8, "little")
            for p, o in zip(body.parameters, fusion.operands, strict=True)
        }
        found = self._bodies(body, given)
        outputs = sorted(v.to_bytes(8, "big") + found[o] for v, o in zip(values, outputs_of(fusion), strict=True))
        return int.from_bytes(_digest(b"".join(outputs)), "little")

    def module(self, module: HloModule) -> bytes:
        """Return the digest of what a module computes: as if it had no fusions."""
        for c in canonical_computations(module.entry):
            self.computation(c)
        return self._computations[module.entry]

    def computation(self, computation: HloComputation) -> bytes:
        """Return the digest of a computation, parameters by their numbers; it must not change afterwards."""
        found = self._computations.get(computation)
        if found is None:
            given = {p: b"parameter %d" % (p.parameter_number or 0) for p in computation.parameters}
            parts = self._bodies(computation, given)
            ends = sorted(parts[i] for i in parts if not i.users and i not in given)
            shapes = [repr(shape_key(p.shape)).encode() for p in computation.parameters]
            found = _digest(b"|".join([parts[computation.root], *ends, *shapes]))
            self._computations[computation] = found
        return found

    def _bodies(self, body: HloComputation, given: Mapping[HloInstruction, bytes]) -> dict[HloInstruction, bytes]:
        found: dict[HloInstruction, bytes] = dict(given)
        outputs: dict[HloInstruction, list[bytes]] = {}  # of fusions
        for i in body.post_order():
            if i in found:
                continue
            parts = [found[o] for o in i.operands]
            if i.opcode is Opcode.FUSION:
                inner = body_of(i)
                values = self._bodies(inner, dict(zip(inner.parameters, parts, strict=True)))
                outputs[i] = [values[o] for o in outputs_of(i)]
                found[i] = outputs[i][0] if len(outputs[i]) == 1 else _digest(b"".join(outputs[i]))
                continue
            if i.opcode is Opcode.GET_TUPLE_ELEMENT and len(several := outputs.get(i.operands[0], ())) > 1:
                found[i] = several[i.attributes["index"]]
                continue
            if is_commutative(i):
                parts.sort()
            if i.attributes and i.control_predecessors:
                parts += [b"after", *sorted(found[p] for p in i.control_predecessors)]
            found[i] = _digest(self._of(i) + b"".join(parts))
        return found

    def _of(self, i: HloInstruction) -> bytes:
        """Return the digest of an instruction without its operands."""
        attributes = tuple([(k, v) for k, v in i.attributes.items() if k not in _LEFT_OUT]) if i.attributes else ()
        # Literals are compared by identity, which is fast; the key keeps them alive, so that it stays theirs.
        key = (i.opcode, i.shape, attributes, i.literal and _Same(i.literal))
        try:
            found = self._static.get(key)
        except TypeError:  # an attribute that cannot be hashed
            return self._describe(i)
        if found is None:
            if len(self._static) >= _MAX_KNOWN:
                self._static.clear()
            found = self._static[key] = self._describe(i)
        return found

    def _describe(self, i: HloInstruction) -> bytes:
        parts = [i.opcode.text, repr(shape_key(i.shape))]
        names = sorted(k for k in i.attributes if k not in _LEFT_OUT)
        parts += [f"{k}={self._value(i.attributes[k])}" for k in names]
        if i.literal is not None:
            parts.append(_literal(i.literal))
        return _digest("|".join(parts).encode())

    def _value(self, value: object) -> str:
        if isinstance(value, HloComputation):
            return self.computation(value).hex()
        if isinstance(value, tuple):
            return "(" + ",".join(map(self._value, value)) + ")"
        return repr(value)


# Marks of decisions are frontend attributes.
_LEFT_OUT = (IGNORED - {"frontend_attributes"}) | {"control-predecessors", "kind"}


class _Same:
    """Compares an object by identity."""

    __slots__ = ("of",)

    def __init__(self, of: object) -> None:
        self.of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.of is self.of

    def __hash__(self) -> int:
        return id(self.of)


def _literal(literal: Literal) -> str:
    if literal.array is None:
        return "(" + ",".join(map(_literal, literal.elements)) + ")"
    return repr(shape_key(literal.shape)) + _digest(np.ascontiguousarray(literal.array).tobytes()).hex()


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_BYTES).digest()
