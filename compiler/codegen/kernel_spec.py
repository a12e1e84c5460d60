"""KernelSpec: a kernel's source with everything needed to build, launch, time and identify it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from compiler.codegen import loop_ir as lir
from compiler.codegen.languages import default_schedule, find_language
from compiler.codegen.lower import lower, roots_of
from compiler.codegen.schedule import Schedule
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape

_PLACEHOLDER = "HLOGYM_KERNEL"


@dataclass(frozen=True)
class KernelSpec:
    """One kernel in one language.

    Attributes:
        name: of the HLO instruction it was made from.
        kind: see `loop_ir.Kernel`.
        language: that `source` is written in, a name in `languages.LANGUAGES`.
        source: the function, without the preamble all kernels share.
        symbol: its name in the binary: equal sources have equal symbols.
        inputs, outputs: shapes of the array arguments, in order of the call.
        bytes: least traffic, every argument once. flops: arithmetic, transcendentals weighted.
        in_place, must_alias: see `loop_ir.Kernel`; positions count inputs, then outputs.
        grid, block: CUDA launch; 0 for C.
    """

    name: str
    kind: str
    language: str
    source: str
    symbol: str
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    bytes: int
    flops: int
    in_place: tuple[tuple[int, int], ...] = ()
    must_alias: tuple[tuple[int, int], ...] = ()
    grid: int = 0
    block: int = 0

    @cached_property
    def signature(self) -> str:
        """Shapes of the arguments as text."""
        ins = ", ".join(map(str, self.inputs))
        return f"({ins}) -> ({', '.join(map(str, self.outputs))})"

    def to_json(self) -> dict[str, Any]:
        """What a reader of a saved executable needs."""
        return {
            "name": self.name, "kind": self.kind, "language": self.language, "symbol": self.symbol,
            "signature": self.signature, "bytes": self.bytes, "flops": self.flops,
            "grid": self.grid, "block": self.block,
        }  # fmt: skip


def fused_form(i: HloInstruction) -> HloComputation:
    """The fused computation of a fusion; for any other op, one that holds just that op."""
    if i.opcode is Opcode.FUSION:
        called: HloComputation = i.attributes["calls"]
        return called
    alone = HloComputation(f"wrapped_{i.name}")
    operands: dict[HloInstruction, HloInstruction] = {}
    for o in i.operands:
        if o not in operands:
            operands[o] = alone.add_parameter(len(operands), o.shape)
    alone.root = alone.clone_instruction(i, [operands[o] for o in i.operands])
    if i.shape.is_tuple:
        parts = [alone.add(Opcode.GET_TUPLE_ELEMENT, [alone.root], index=k) for k in range(len(i.shape.tuple_shapes))]
        alone.root = alone.add(Opcode.TUPLE, parts)
    return alone


def make_kernel(i: HloInstruction, language: str, schedule: Schedule | None = None) -> KernelSpec:
    """The kernel of an instruction that stands in a sequence; UnsupportedError says why there is none."""
    fused = fused_form(i)
    schedule = schedule or default_schedule(language)
    outputs = tuple(r.shape for r in roots_of(fused))
    return build_spec(
        i.name, lower(fused, schedule), language, schedule, fused.parameter_shapes, outputs, flops_of(fused)
    )


def build_spec(
    name: str,
    kernel: lir.Kernel,
    language: str,
    schedule: Schedule,
    inputs: tuple[Shape, ...],
    outputs: tuple[Shape, ...],
    flops: int,
) -> KernelSpec:
    """Print a lowered kernel and return its spec; the symbol is a hash of the source."""
    printed = find_language(language).print_kernel(kernel, _PLACEHOLDER, schedule)
    symbol = f"hk_{hashlib.sha256(printed.source.encode()).hexdigest()[:20]}"
    return KernelSpec(
        name=name,
        kind=kernel.kind,
        language=language,
        source=printed.source.replace(_PLACEHOLDER, symbol),
        symbol=symbol,
        inputs=inputs,
        outputs=outputs,
        bytes=sum(s.byte_size for s in (*inputs, *outputs)),
        flops=flops,
        in_place=kernel.in_place,
        must_alias=kernel.must_alias,
        grid=printed.grid,
        block=printed.block,
    )


def flops_of(computation: HloComputation) -> int:
    """Arithmetic of one run: the table's flops an element, reductions by what they read."""
    total = 0
    for i in computation.instructions:
        if i.opcode is Opcode.REDUCE:
            total += sum(o.shape.num_elements for o in i.operands[: len(i.operands) // 2])
        else:
            total += i.opcode.row.flops * i.shape.num_elements
    return total


def distinct_operands(i: HloInstruction) -> tuple[HloInstruction, ...]:
    """The array arguments of `make_kernel(i)`'s kernel: operands of a fusion as they are, of another op each once."""
    if i.opcode is Opcode.FUSION:
        return i.operands
    return tuple(dict.fromkeys(i.operands))
