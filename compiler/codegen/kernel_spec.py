"""Kernel specifications: the source of a kernel and all that is needed to build, launch, time and identify it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from compiler.analysis.library_work import library_flops
from compiler.analysis.loop_marks import packed_loop
from compiler.analysis.trip_count import trip_count_of
from compiler.codegen.languages import C, PrintedKernel, default_schedule, find_language
from compiler.codegen.lowering.lower import SCHEDULED_KINDS, lower, roots_of
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.chains import chain_of
from compiler.codegen.nest.work import tile_products
from compiler.codegen.schedules.bind_c import check_binding
from compiler.codegen.schedules.observed import ObservedSchedule, StageMemo
from compiler.codegen.schedules.schedule import COMPILER_FLAGS, FIELD_RANGES, Schedule
from compiler.codegen.templates.loop_state import default_loop_schedule
from compiler.errors import UnsupportedError
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape

PLACEHOLDER = "HLOGYM_KERNEL"
"""The name of a kernel in its text, before its symbol is known, which is a hash of this text."""


@dataclass(frozen=True)
class KernelSpec:
    """One kernel in one language.

    Attributes:
        name: name of the HLO instruction that the kernel computes.
        kind: see `loop_ir.Kernel`.
        language: language of `source`, a name in `languages.LANGUAGES`.
        source: the function, without the preamble that all kernels share.
        symbol: name of the function in the binary; equal sources with equal flags have equal symbols.
        inputs: shapes of the arrays that are read, in order of the call.
        outputs: shapes of the arrays that are written, which follow the inputs in a call.
        bytes: minimum memory traffic, with every argument moved once.
        flops: arithmetic operations, with transcendental functions weighted.
        in_place: pairs of (input, output) positions that may share one buffer; positions count inputs first.
        must_alias: pairs of (input, output) positions that must share one buffer.
        grid: number of blocks of the CUDA launch; 0 for C.
        block: threads per block of the CUDA launch; 0 for C.
        shared_bytes: dynamic shared memory of a block of the CUDA launch.
        flags: position in COMPILER_FLAGS of the flags that the C compiler gets besides those of all kernels.
        chain: operations of a CUDA thread's longest chain, of which each needs the one before, at least; 0 for C.
        tile_flops: those of `flops` that are multiplications and additions of tiles of products; 0 for C.
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
    shared_bytes: int = 0
    flags: int = 0
    chain: int = 0
    tile_flops: int = 0

    @cached_property
    def signature(self) -> str:
        """Return the shapes of the arguments and results as text."""
        ins = ", ".join(map(str, self.inputs))
        return f"({ins}) -> ({', '.join(map(str, self.outputs))})"

    def to_json(self) -> dict[str, Any]:
        """Return a description of the kernel for readers of saved programs, without its source."""
        return {
            "name": self.name, "kind": self.kind, "language": self.language, "symbol": self.symbol,
            "signature": self.signature, "bytes": self.bytes, "flops": self.flops,
            "grid": self.grid, "block": self.block, "shared_bytes": self.shared_bytes,
        }  # fmt: skip


def fused_form(i: HloInstruction) -> HloComputation:
    """Return the computation of a fusion; wrap any other instruction in a computation of its own."""
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


@dataclass(frozen=True)
class LoweredKernel:
    """The loop nest of an instruction, which can be made into a kernel with any schedule.

    Attributes:
        name: name of the HLO instruction.
        fused: what the kernel computes.
        nest: the nest with the default schedule.
        language: a name in `languages.LANGUAGES`.
        inputs: shapes of the arrays that are read.
        outputs: shapes of the arrays that are written.
        flops: see `KernelSpec`.
    """

    name: str
    fused: HloComputation
    nest: lir.Kernel
    language: str
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    flops: int
    _bound: dict[Schedule, lir.Kernel] = field(default_factory=dict, init=False, repr=False, compare=False)

    def bind(self, schedule: Schedule | None = None) -> KernelSpec:
        """Return the kernel with a schedule; None: the default schedule of the language.

        Raises:
            UnsupportedError: the nest cannot be bound with this schedule.
        """
        schedule = schedule or _default_schedule(self.fused, self.language)
        nest = self.bound_nest(schedule)
        return print_spec(self.name, nest, self.language, self.inputs, self.outputs, self.flops)

    __call__ = bind

    def check(self, schedule: Schedule) -> None:
        """Raise UnsupportedError if the kernel cannot be made as a schedule says, if possible without making it."""
        language = find_language(self.language)
        check = language.check_choice or language.check
        if check is None:
            self.bind(schedule)
        else:
            check(self._nest(schedule), schedule)

    def _nest(self, schedule: Schedule) -> lir.Kernel:
        return _lower(self.fused, schedule, self.language) if self.nest.kind in SCHEDULED_KINDS else self.nest

    def bound_nest(self, schedule: Schedule) -> lir.Kernel:
        """Return the loop nest that `bind` prints, bound with a schedule; errors are those of `bind`."""
        bind = find_language(self.language).bind
        if isinstance(schedule, ObservedSchedule):
            return bind(self._nest(schedule), schedule)  # looking it up would read all of its fields
        if schedule not in self._bound:
            nest = bind(self._nest(schedule), schedule)
            self._bound.clear()  # only the last one is asked for again
            self._bound[schedule] = nest
        return self._bound[schedule]


class KernelVariants:
    """The kernels of one nest with many schedules, which share the work that does not depend on what differs.

    Args:
        kernel: the nest.
        preset: the schedule that `is_change_refused` changes; None: that of the language.
    """

    def __init__(self, kernel: LoweredKernel, preset: Schedule | None = None) -> None:
        self._kernel = kernel
        self._preset = preset or _default_schedule(kernel.fused, kernel.language)
        self._language = find_language(kernel.language)
        self._lower = StageMemo(partial(_lower, language=kernel.language))
        self._stages = [StageMemo(s) for s in self._language.stages or (self._language.bind,)]
        self._printed: dict[int, KernelSpec] = {}
        self._nests: list[lir.Kernel] = []  # kept, so that their ids stay theirs
        self._sources: dict[int, list[tuple[lir.Kernel, PrintedKernel]]] = {}  # by the id of the body
        # Changes that are not refused: by the fields that were read, the values of those of them that are changed.
        self._accepted: dict[frozenset[str], set[tuple[tuple[str, int], ...]]] = {}

    def __call__(self, schedule: Schedule) -> KernelSpec:
        """Return the kernel with a schedule, as `LoweredKernel.bind` does."""
        k, nest = self._kernel, self.bound_nest(schedule)
        found = self._printed.get(id(nest))
        if found is None:
            found = _spec_of(k.name, nest, self._source(nest), k.language, k.inputs, k.outputs, k.flops)
            self._printed[id(nest)] = found
            self._nests.append(nest)
        return found

    def bound_nest(self, schedule: Schedule) -> lir.Kernel:
        """Return the loop nest with a schedule, as `LoweredKernel.bound_nest` does."""
        return self._language.run_stages(self._stages, self._nest(schedule), schedule)

    def _source(self, nest: lir.Kernel) -> PrintedKernel:
        """Return a nest in its language; nests that differ in the flags of their compiler alone are printed once."""
        printed = self._sources.setdefault(id(nest.body), [])
        found = next((source for other, source in printed if replace(other, flags=nest.flags) == nest), None)
        if found is None:
            found = self._language.print_kernel(nest, PLACEHOLDER)
            printed.append((nest, found))
        return found

    def is_refused(self, schedule: Schedule) -> bool:
        """Check whether no kernel can be made with a schedule.

        One in C that can be bound can be printed, so it is not, and it is bound only if `check_binding` would bind it.
        """
        try:
            if self._language is C:
                check_binding(self._nest(schedule), schedule)
            else:
                self(schedule)
        except UnsupportedError:
            return True
        return False

    def is_change_refused(self, changes: Mapping[str, int]) -> bool:
        """Return `is_refused` for the preset with other values of some fields, given in a fixed order.

        Most changes agree with another one in all that decides it, so that not even their schedule is made.
        """
        for fields, accepted in self._accepted.items():
            if tuple([c for c in changes.items() if c[0] in fields]) in accepted:
                return False
        observed = ObservedSchedule.of(self._preset.with_values(changes))
        if self.is_refused(observed):
            return True  # it is not noted what a stage read that raised an error
        fields = frozenset(name for name in FIELD_RANGES if name.partition(".")[0] in observed.reads)
        self._accepted.setdefault(fields, set()).add(tuple([c for c in changes.items() if c[0] in fields]))
        return False

    def _nest(self, schedule: Schedule) -> lir.Kernel:
        kernel = self._kernel
        return self._lower(kernel.fused, schedule) if kernel.nest.kind in SCHEDULED_KINDS else kernel.nest


def _lower(fused: HloComputation, schedule: Schedule | None, language: str) -> lir.Kernel:
    return lower(fused, schedule, find_language(language).tiles)


def _default_schedule(fused: HloComputation, language: str) -> Schedule:
    loop = packed_loop(fused)
    return default_schedule(language) if loop is None else default_loop_schedule(loop, language)


def lower_instruction(i: HloInstruction, language: str) -> LoweredKernel:
    """Return the loop nest of an instruction; a fusion, or any other instruction, which is treated as a fusion of one.

    Raises:
        UnsupportedError: the instruction cannot become one kernel.
    """
    fused = fused_form(i)
    outputs = tuple(r.shape for r in roots_of(fused))
    nest = _lower(fused, None, language)
    return LoweredKernel(i.name, fused, nest, language, fused.parameter_shapes, outputs, flops_of(fused))


def make_kernel(i: HloInstruction, language: str, schedule: Schedule | None = None) -> KernelSpec:
    """Return the kernel of an instruction.

    Args:
        i: a fusion, or any other instruction, which is treated as a fusion of one.
        language: a name in `languages.LANGUAGES`.
        schedule: the language's default schedule when None.

    Raises:
        UnsupportedError: the instruction cannot become one kernel.
    """
    return lower_instruction(i, language).bind(schedule)


def build_spec(
    name: str,
    kernel: lir.Kernel,
    language: str,
    schedule: Schedule,
    inputs: tuple[Shape, ...],
    outputs: tuple[Shape, ...],
    flops: int,
) -> KernelSpec:
    """Bind and print a lowered kernel and return its specification.

    Raises:
        UnsupportedError: the kernel cannot be bound with this schedule.
    """
    nest = find_language(language).bind(kernel, schedule)
    return print_spec(name, nest, language, inputs, outputs, flops)


def kernel_symbol(identity: str) -> str:
    """Return the symbol of a kernel with this identity: its source without symbol, and its flags."""
    return f"hk_{hashlib.sha256(identity.encode()).hexdigest()[:20]}"


def spec_of_text(
    i: HloInstruction,
    kind: str,
    language: str,
    text: str,
    inputs: tuple[Shape, ...],
    outputs: tuple[Shape, ...],
    flops: int,
) -> KernelSpec:
    """Return the specification of a kernel that is no nest.

    Args:
        i: what the kernel computes.
        kind: see `KernelSpec`.
        language: a name in `languages.LANGUAGES`.
        text: the source, with PLACEHOLDER where the symbol belongs.
        inputs: shapes of the arrays that are read.
        outputs: shapes of the arrays that are written.
        flops: arithmetic operations.
    """
    symbol = kernel_symbol(text)
    moved = sum(s.byte_size for s in (*inputs, *outputs))
    return KernelSpec(i.name, kind, language, text.replace(PLACEHOLDER, symbol), symbol, inputs, outputs, moved, flops)


def print_spec(
    name: str,
    kernel: lir.Kernel,
    language: str,
    inputs: tuple[Shape, ...],
    outputs: tuple[Shape, ...],
    flops: int,
) -> KernelSpec:
    """Print a bound kernel and return its specification, whose symbol is a hash of source and flags."""
    printed = find_language(language).print_kernel(kernel, PLACEHOLDER)
    return _spec_of(name, kernel, printed, language, inputs, outputs, flops)


def _spec_of(
    name: str,
    kernel: lir.Kernel,
    printed: PrintedKernel,
    language: str,
    inputs: tuple[Shape, ...],
    outputs: tuple[Shape, ...],
    flops: int,
) -> KernelSpec:
    """Return the specification of a bound kernel, given what is printed for it under the name PLACEHOLDER."""
    identity = "\n".join([printed.source, *COMPILER_FLAGS[kernel.flags]])
    symbol = kernel_symbol(identity)
    return KernelSpec(
        name=name,
        kind=kernel.kind,
        language=language,
        source=printed.source.replace(PLACEHOLDER, symbol),
        symbol=symbol,
        inputs=inputs,
        outputs=outputs,
        bytes=sum(s.byte_size for s in (*inputs, *outputs)),
        flops=flops,
        in_place=kernel.in_place,
        must_alias=kernel.must_alias,
        grid=printed.grid,
        block=printed.block,
        shared_bytes=printed.shared_bytes,
        flags=kernel.flags,
        chain=chain_of(kernel.body, printed.block) if printed.block else 0,
        tile_flops=min(flops, 2 * printed.grid * tile_products(kernel.body)) if printed.block else 0,
    )


def flops_of(computation: HloComputation) -> int:
    """Return the flops of one execution: per element those of the opcode table, for a reduction its input elements.

    A matrix product has two for each pair of elements that it multiplies. Those of a fusion are those of its body; a
    loop has those of its body in each iteration. Elements that no slice or gather takes are not computed.
    """
    total = 0
    needed = _needed_elements(computation)
    for i in computation.instructions:
        if i.opcode is Opcode.REDUCE:
            total += sum(o.shape.num_elements for o in i.operands[: len(i.operands) // 2])
        elif i.opcode in (Opcode.DOT, Opcode.CONVOLUTION):
            total += int(library_flops(i))
        elif i.opcode is Opcode.FUSION:
            total += flops_of(i.attributes["calls"])
        elif i.opcode is Opcode.WHILE:
            total += (trip_count_of(i) or 1) * flops_of(i.attributes["body"])
        else:
            total += i.opcode.row.flops * needed[i]
    return total


_TAKES = frozenset({Opcode.SLICE, Opcode.DYNAMIC_SLICE, Opcode.GATHER})
"""Ops that read as many elements of their first operand as they have results, at most."""
_PASSES_ON = frozenset({Opcode.BROADCAST, Opcode.RESHAPE, Opcode.TRANSPOSE, Opcode.REVERSE, *_TAKES})
"""Ops for each of whose results one element of an operand suffices, besides the elementwise ones."""


def _needed_elements(computation: HloComputation) -> dict[HloInstruction, int]:
    """Return for each instruction the number of elements that its users need, at most; all of the root."""
    needed: dict[HloInstruction, int] = {}
    for i in reversed(computation.post_order()):
        whole = i.shape.num_elements
        users = i.users
        if i is computation.root or not users or not all(_narrows(u, i) for u in users):
            needed[i] = whole
        else:
            needed[i] = min(whole, sum(needed.get(u, 0) for u in users))
    return needed


def _narrows(user: HloInstruction, operand: HloInstruction) -> bool:
    """Check whether `user` needs no more elements of `operand` than those of it that are needed."""
    if user.opcode in _TAKES:
        return operand not in user.operands[1:]
    return user.opcode in _PASSES_ON or user.opcode.is_elementwise


def distinct_operands(i: HloInstruction) -> tuple[HloInstruction, ...]:
    """Return the operands that are arguments of `make_kernel(i)`: all of a fusion, the distinct ones of other ops."""
    if i.opcode is Opcode.FUSION:
        return i.operands
    return tuple(dict.fromkeys(i.operands))
