"""The implementation of attention in two stages, for few queries with many keys on a GPU.

Blocks compute the attention of parts of the keys, and a second kernel adds what these contribute, with the ops that
follow the attention: one block per tile of queries would leave most multiprocessors idle.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from compiler.analysis.attention import Attention, attention_of
from compiler.codegen.kernel_spec import build_spec, flops_of, make_kernel
from compiler.codegen.lowering.lower import roots_of
from compiler.codegen.schedules.kernel_choice import BoundKernel
from compiler.codegen.schedules.schedule_space import Knob
from compiler.codegen.schedules.template_schedules import TileAttentionSchedule
from compiler.codegen.templates.tile_attention import KeyParts, best_parts, lower_key_parts
from compiler.errors import UnsupportedError
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape, tuple_shape
from compiler.ir.types import PrimitiveType as T
from compiler.passes.infrastructure.builder import Builder
from compiler.runtime.implementations import KernelImplementation, register_implementation

if TYPE_CHECKING:
    from compiler.runtime.thunk_emitter import ThunkEmitter

PARTS = "parts"
"""The number of parts into which the keys are divided."""
CHOICES = (2, 4, 8, 16, 32, 64)
"""Numbers of parts worth trying."""


def _attention(i: HloInstruction, backend: str) -> Attention | None:
    """Return the attention that a fusion is on a GPU, or None."""
    if backend != "cuda" or i.opcode is not Opcode.FUSION:
        return None
    found = attention_of(i.attributes["calls"])
    if found is None or any(r in (found.most, found.total) for r in roots_of(i.attributes["calls"])):
        return None  # results of rows are sums of all keys
    return found


def _default_parts(i: HloInstruction, backend: str) -> int:
    """Return the number of parts that is estimated to be fastest; 1 if there is no attention, or no kernel of it."""
    found = _attention(i, backend)
    if found is None:
        return 1
    fused: HloComputation = i.attributes["calls"]
    try:
        return best_parts(fused, roots_of(fused), found, TileAttentionSchedule())
    except UnsupportedError:
        return 1


def _refusal(i: HloInstruction, backend: str) -> str | None:
    found = _attention(i, backend)
    if found is None:
        return f"%{i.name} is no attention of a GPU"
    try:
        fused: HloComputation = i.attributes["calls"]
        parts = lower_key_parts(fused, roots_of(fused), found, TileAttentionSchedule(), CHOICES[0])
        make_kernel(_second_stage(i, found, parts)[0], "cuda")
    except UnsupportedError as e:
        return str(e)
    return None


def _knobs(i: HloInstruction, backend: str) -> tuple[Knob, ...]:
    default = max(CHOICES[0], _default_parts(i, backend))
    return (Knob(PARTS, tuple(sorted({*CHOICES, default})), default),)


def _emit(
    emitter: ThunkEmitter, i: HloInstruction, operands: list[Any], thunks: list[Any], runs: float, bound: BoundKernel
) -> Any:
    found = _attention(i, emitter.backend)
    if found is None:
        raise UnsupportedError(f"%{i.name} is no attention")
    fused: HloComputation = i.attributes["calls"]
    count = bound.options.get(PARTS) or max(CHOICES[0], _default_parts(i, emitter.backend))
    made = lower_key_parts(fused, roots_of(fused), found, bound.schedule.tile_attention, count)
    spec = build_spec(
        i.name, made.kernel, emitter.language, bound.schedule, fused.parameter_shapes, made.outputs, flops_of(fused)
    )
    contributions: Any = emitter.launch(spec, tuple_shape(*made.outputs), list(operands), thunks, runs)
    second, others = _second_stage(i, found, made)
    combined = make_kernel(second, emitter.language, emitter.default_schedule)
    inputs = [*contributions, *(operands[n] for n in others)]
    return emitter.launch(combined, i.shape, inputs, thunks, runs)


KEY_PARTS = register_implementation(
    KernelImplementation("key-parts", _refusal, _emit, _knobs, lambda i, backend: _default_parts(i, backend) > 1)
)


# ---- the second stage


def _second_stage(i: HloInstruction, a: Attention, made: KeyParts) -> tuple[HloInstruction, tuple[int, ...]]:
    """Return the fusion that adds the contributions of the parts, and what follows the attention.

    Its operands are the outputs of the first stage, then those operands of the attention whose numbers are returned.
    """
    fused: HloComputation = i.attributes["calls"]
    body = HloComputation(f"{i.name}_sums")
    b = Builder(body)
    sums, most, total = (body.add_parameter(n, s) for n, s in enumerate(made.outputs))
    image = {a.output: _divided(b, a, made, sums, most, total)}
    read: list[int] = []

    def copy(x: HloInstruction) -> HloInstruction:
        if x not in image:
            if x.opcode is Opcode.PARAMETER:
                image[x] = body.add_parameter(len(made.outputs) + len(read), x.shape)
                read.append(x.parameter_number or 0)
            else:
                image[x] = body.clone_instruction(x, [copy(o) for o in x.operands])
        return image[x]

    body.root = copy(fused.root)
    alone = HloComputation("main")
    shapes = body.parameter_shapes
    parameters = [alone.add_parameter(n, s) for n, s in enumerate(shapes)]
    attributes = {"kind": "kCustom", "calls": body}
    fusion = alone.add(Opcode.FUSION, parameters, i.shape, name=f"{i.name}.sums", attributes=attributes)
    return fusion, tuple(read)


def _divided(
    b: Builder, a: Attention, made: KeyParts, sums: HloInstruction, most: HloInstruction, total: HloInstruction
) -> HloInstruction:
    """Add the sums of all parts over those of the weights, in the shape and the type of the attention."""
    sizes = sums.shape.dimensions
    part = len(sizes) - 2
    rows = sums.shape.with_dimensions((*sizes[:part], sizes[-1]))
    whole = [d for d in range(len(sizes)) if d != part]

    def everywhere(x: HloInstruction) -> HloInstruction:
        return b.broadcast(x, sizes, range(part + 1))

    low = b.scalar(-math.inf, T.F32)
    top = b.reduce(everywhere(most), low, [part], _reducer(Opcode.MAXIMUM))
    none = b.compare(top, b.broadcast(low, rows.dimensions, ()), "EQ")
    # While all scores are -inf, 0 stands for their maximum, as in the first stage.
    zeros = b.splat(0.0, rows)
    shift = b.broadcast(b.add(Opcode.SELECT, none, zeros, top), sizes, whole)
    share = b.add(Opcode.EXPONENTIAL, b.add(Opcode.SUBTRACT, everywhere(most), shift))
    zero = b.scalar(0.0, T.F32)
    above, below = (
        b.reduce(b.add(Opcode.MULTIPLY, share, x), zero, [part], _reducer(Opcode.ADD))
        for x in (sums, everywhere(total))
    )
    result = b.add(Opcode.DIVIDE, above, below)
    if a.zero_if_masked:
        result = b.add(Opcode.SELECT, none, zeros, result)
    wanted = a.output.shape
    if made.feature is None:
        result = b.reshape(result, wanted.dimensions)
    else:
        last = wanted.rank - 1
        result = b.transpose(
            result, [last if d == made.feature else d - (d > made.feature) for d in range(wanted.rank)]
        )
    return b.convert(result, wanted.element_type)


def _reducer(opcode: Opcode) -> HloComputation:
    function = HloComputation(opcode.text)
    function.root = function.add(opcode, [function.add_parameter(n, Shape(T.F32, ())) for n in range(2)])
    return function
