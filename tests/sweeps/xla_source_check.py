"""Compare hlogym with XLA on one HLO program: parsing, printing, verifying, running. Used by `xla_sources`."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.errors import HlogymError, HloSyntaxError
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.module import HloModule
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape
from compiler.ir.types import PrimitiveType as T
from compiler.ir.verifier import check_module
from compiler.text import parse
from env.reference import Reference
from tests.oracle import XlaError, compile_xla, run_xla

Array = npt.NDArray[Any]
OK = "ok"
STEPS = ("parse", "verify", "round_trip", "xla_parse", "agree", "compile", "run")
MOST_ELEMENTS = 20_000_000
"""Modules with more elements in total, over all results of instructions, are not run."""
MOST_FILLED = 500_000
"""Programs with more elements in abbreviated constants (`{...}`, or one value for all) are not checked."""
_ELIDED = re.compile(r"\[([\d,\s]*)\](?:\{[^{}]*\})?\s+constant\(\s*(?:\{\s*\.\.\.\s*\}|[^{\s)]+)\s*\)")
_OTHERS = ("all-", "reduce-scatter", "collective-", "ragged-all", "send", "recv", "infeed", "outfeed")


@dataclass(frozen=True)
class StepResult:
    """The outcome of one step: `OK`, or `kind: details`."""

    step: str
    outcome: str


def check(text: str, run: bool) -> Iterator[StepResult]:
    """Yield the results of the steps in order; steps that cannot run are skipped. XLA's steps may end the process."""
    elided = _elided(text)
    if elided > MOST_FILLED:
        yield StepResult("parse", "not tried: an abbreviated constant is too large")
        return
    module, outcome = _parse(text)
    yield StepResult("parse", outcome)
    sound = module is not None
    if module is not None:
        found = _guarded(partial(_verify, module))
        sound = found == OK
        yield StepResult("verify", found)
        yield StepResult("round_trip", _guarded(partial(_round_trip, module)))
    theirs = _xla_reads(text)
    yield StepResult("xla_parse", OK if theirs[1] is None else f"rejects: {theirs[1]}")
    if module is not None and theirs[0] is not None and "..." not in text:
        yield StepResult("agree", _guarded(partial(_agree, module, theirs[0])))
    if not run or theirs[0] is None:
        return
    why = _why_not_compile(text) if module is None else why_not_run(module)
    if why:
        yield StepResult("compile", f"not tried: {why}")
        return
    yield from _run(text, module if sound else None)


def _elided(text: str) -> int:
    """Return the number of elements in constants that are abbreviated in the HLO text."""
    return sum(math.prod(map(int, dims.split(","))) for dims in _ELIDED.findall(text) if dims.strip())


def _parse(text: str) -> tuple[HloModule | None, str]:
    try:
        return parse(text, fill_elided=True), OK
    except HloSyntaxError as e:
        return None, f"rejects: {e}"
    except Exception as e:  # any other exception is a finding
        return None, f"crashes: {type(e).__name__}: {e}"


def _guarded(step: Any) -> str:
    try:
        found: str = step()
    except Exception as e:  # any exception is a finding
        return f"crashes: {type(e).__name__}: {e}"
    return found


def _verify(module: HloModule) -> str:
    findings = check_module(module)
    return "rejects: " + " | ".join(findings) if findings else OK


def _round_trip(module: HloModule) -> str:
    printed = str(module)
    again = parse(printed)
    if str(again) != printed:
        return "differs: the second print differs"
    return OK if again.fingerprint() == module.fingerprint() else "differs: the fingerprint differs"


def _xla_reads(text: str) -> tuple[str | None, str | None]:
    """Return XLA's print of HLO text, or its error message."""
    from jax._src.lib import hlo  # type: ignore[attr-defined]  # no public name parses HLO text

    options = hlo.HloPrintOptions()
    options.print_large_constants = True
    try:
        return hlo.hlo_module_from_text(text).to_string(options), None
    except Exception as e:  # jaxlib raises several types
        return None, str(e)


def _agree(module: HloModule, theirs: str) -> str:
    """Return whether XLA's prints of the original text and of the printed module are the same program as the module."""
    wanted, printed = module.fingerprint(), str(module)
    again, complaint = _xla_reads(printed)
    if again is None:
        return f"rejects: hlogym's print: {complaint}"
    try:
        first, second = (parse(t, fill_elided=True).fingerprint() for t in (theirs, again))
    except HloSyntaxError as e:
        return f"known: {SHORT_FORM}" if "-start(" in e.source_line else f"rejects: XLA's print: {e}"
    if first == second == wanted:
        return OK
    known = _why_read_otherwise(printed, theirs)
    if known:
        return f"known: {known}"
    return f"differs: XLA reads another program from {'the original' if first != wanted else 'the printed module'}"


SHORT_FORM = "XLA prints short forms of async-start that omit parts of the start and its computation"


def _why_read_otherwise(printed: str, theirs: str) -> str | None:
    """Return a known reason why XLA reads or prints another program, or None."""
    if theirs.count("async-start(") < printed.count("async-start("):
        return SHORT_FORM
    if re.search(r"\(-?nan, ", printed):
        return "jaxlib copies a NaN real part into the imaginary part"
    if re.search(r"f8e8m0fnu\S* constant\(", printed):
        return "XLA prints f8e8m0fnu with two digits, which are closer to another value"
    if "-0.0" in printed:
        return "XLA reads -0 as 0"
    if re.search(r"backend_config=\{\s*\"", printed):
        return "XLA omits fields of backend_config that have their default value or that it does not know"
    return None


def _why_not_compile(text: str) -> str | None:
    found = re.search(rf"(?:{'|'.join(_OTHERS)})[\w-]*(?=\()", text)
    return f"{found[0]} needs other devices" if found else None


def why_not_run(module: HloModule) -> str | None:
    """Return why a module cannot run on one device in a short time, or None."""
    if any(int(str(module.header.get(key, 1))) > 1 for key in ("replica_count", "num_partitions")):
        return "for several devices"
    instructions = [i for c in module.computations for i in c.instructions]
    for i in instructions:
        if i.opcode.text.startswith(_OTHERS):
            return "needs other devices"
    leaves = [leaf for i in instructions for leaf in i.shape.leaves()]
    if any(not leaf.is_array for shape in module.parameter_shapes for leaf in shape.leaves()):
        return "takes tokens or opaque values"
    if any(leaf.is_dynamic for shape in module.parameter_shapes for leaf in shape.leaves()):
        return "takes arrays of dynamic size"
    if sum(math.prod(leaf.dimensions) for leaf in leaves) > MOST_ELEMENTS:
        return "large"
    return None


def _run(text: str, module: HloModule | None) -> Iterator[StepResult]:
    if module is None:
        try:
            compile_xla(text)
        except Exception as e:  # jaxlib raises several types
            yield StepResult("compile", f"rejects: {e}")
        else:
            yield StepResult("compile", OK)
        return
    module = plainer(module)
    try:
        compile_xla(str(module))
    except Exception as e:  # jaxlib raises several types
        yield StepResult("compile", f"rejects: {e}")
        return
    yield StepResult("compile", OK)
    rng = np.random.default_rng(zlib.crc32(text.encode()))
    flat = with_flat_parameters(module)
    args = [random_input(shape, rng) for shape in flat.parameter_shapes]
    yield StepResult("run", _guarded(partial(_values, flat, args)))


def _values(module: HloModule, args: list[Array]) -> str:
    try:
        wanted = run_xla(str(module), args)
    except XlaError as e:
        return f"not run: XLA:CPU: {e}"
    finally:
        compile_xla.cache_clear()
    try:
        reference = Reference.of(module, args)
    except HlogymError as e:
        return f"rejects: {type(e).__name__}: {e}"
    finding = reference.difference(wanted)
    if finding is None:
        return OK
    known = _why_other_values(module)
    return f"known: {known}" if known else f"differs: {finding}"


_PLAIN_REDUCERS = frozenset(
    {Opcode.ADD, Opcode.MULTIPLY, Opcode.MAXIMUM, Opcode.MINIMUM, Opcode.AND, Opcode.OR, Opcode.XOR}
)


def _why_other_values(module: HloModule) -> str | None:
    """Return a known reason why two correct results may differ, or None."""
    instructions = [i for c in module.computations for i in c.instructions]
    opcodes = {i.opcode for i in instructions}
    if re.search(r"\(-?nan, ", str(module)):
        return "jaxlib copies a NaN real part into the imaginary part"
    if opcodes & {Opcode.RNG, Opcode.RNG_GET_AND_UPDATE_STATE}:
        return "random numbers"
    if Opcode.SET_DIMENSION_SIZE in opcodes:
        return "elements beyond the size of a dynamic dimension"
    if opcodes & {Opcode.TRIANGULAR_SOLVE, Opcode.CHOLESKY}:
        return "a linear system that is ill-conditioned for random inputs"
    if any(i.opcode is Opcode.SORT and len(i.operands) > 1 and not i.attr("is_stable", False) for i in instructions):
        return "ties of a sort that is not stable"
    reductions = [i for i in instructions if i.opcode in (Opcode.REDUCE, Opcode.REDUCE_WINDOW)]
    if any(_starts_anywhere(i) for i in reductions):
        return "a reduction whose initial value is not neutral, and which XLA may combine more than once"
    reducers = [i.attr("to_apply").root for i in reductions]
    if any(r.opcode not in _PLAIN_REDUCERS or len(r.users) > 0 or len(r.parent) > 3 for r in reducers):
        return "a reduction whose result depends on the order"
    return None


def plainer(module: HloModule) -> HloModule:
    """Return a copy in which fusions are calls, and bitcasts between default layouts are reshapes.

    XLA:CPU compiles only fusions that it made itself, and few bitcasts.
    """
    copy = module.clone()
    for c in copy.computations:
        for i in c.instructions:
            if i.opcode is Opcode.FUSION:
                c.replace(i, c.add(Opcode.CALL, i.operands, i.shape, to_apply=i.attr("calls")))
            elif i.opcode is Opcode.BITCAST and _is_reshape(i.shape, i.operands[0].shape):
                c.replace(i, c.add(Opcode.RESHAPE, i.operands, i.shape))
    copy.header.pop("is_scheduled", None)
    return copy


def _is_reshape(to: Shape, of: Shape) -> bool:
    return to.layout is None and of.layout is None and to.element_type is of.element_type


def _starts_anywhere(reduction: HloInstruction) -> bool:
    opcode = reduction.attr("to_apply").root.opcode
    neutral = {Opcode.ADD: 0, Opcode.MULTIPLY: 1}.get(opcode)
    inits = reduction.operands[len(reduction.operands) // 2 :]
    return neutral is not None and any(
        i.opcode is not Opcode.CONSTANT or bool(np.any(i.value.value != neutral)) for i in inits
    )


def with_flat_parameters(module: HloModule) -> HloModule:
    """Return a module whose entry takes the leaves of tuple parameters as separate parameters.

    A module without tuple parameters is returned unchanged.
    """
    if not any(p.shape.is_tuple for p in module.entry.parameters):
        return module
    copy = module.clone()
    old, flat = copy.entry, HloComputation(copy.unique_computation_name("flat"))
    leaves = [leaf for shape in old.parameter_shapes for leaf in shape.leaves()]
    values = iter([flat.add_parameter(n, leaf) for n, leaf in enumerate(leaves)])
    flat.root = flat.inline(old, [_packed(flat, shape, values) for shape in old.parameter_shapes])
    copy.add(flat, entry=True)
    copy.remove(old)
    for key in ("entry_computation_layout", "input_output_alias", "buffer_donor", "is_scheduled"):
        copy.header.pop(key, None)
    return copy


def _packed(entry: HloComputation, shape: Shape, leaves: Iterator[HloInstruction]) -> HloInstruction:
    if not shape.is_tuple:
        return next(leaves)
    return entry.add(Opcode.TUPLE, [_packed(entry, part, leaves) for part in shape.tuple_shapes])


def random_input(shape: Shape, rng: np.random.Generator) -> Array:
    """Return random values: floats in [-2, 2), booleans, or integers from 0 to 3, which may be valid indices."""
    t, dims = shape.element_type, shape.dimensions
    if t is T.PRED:
        return rng.integers(0, 2, dims).astype(np.bool_)
    if t.is_complex:
        return np.asarray(rng.uniform(-2, 2, dims) + 1j * rng.uniform(-2, 2, dims)).astype(shape.dtype)
    if t.is_float:
        return np.asarray(rng.uniform(-2, 2, dims)).astype(shape.dtype)
    return np.asarray(rng.integers(0, 4, dims)).astype(shape.dtype)
