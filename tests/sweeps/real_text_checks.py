"""The checks of `real_texts`: passes and native code on one HLO program from another project.

A check takes a module and returns an `Outcome`; processes and limits are handled by `real_texts`.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler import compile
from compiler.analysis.flops import module_flops
from compiler.errors import HlogymError, InterpreterError, UnsupportedError
from compiler.fusion.policies import RandomFusion
from compiler.interpreter import Context
from compiler.interpreter import evaluate as interpret
from compiler.ir import HloModule, Opcode, Shape
from compiler.ir.verifier import check_module
from compiler.passes import PASSES
from compiler.passes.infrastructure.base import op_count
from compiler.passes.pipelines.default import default_pipeline
from compiler.text import parse
from env.reference import Reference
from tests.fuzz.pass_fuzz import VARIANTS, apply
from tests.fuzz.random_modules import random_array
from tests.passes.programs import difference

Array = npt.NDArray[Any]

OK, FAILED, SKIPPED = "ok", "FAILED", "not tried"
ITERATIONS = 2000
EXPANDED_ITERATIONS = 1_000_000
"""Limit after passes: an expanded scatter or sort becomes a loop with one iteration per element."""
MOST_ELEMENTS, MOST_FLOPS, MOST_INSTRUCTIONS = 1 << 21, 1e9, 1000
SEQUENCES, SEQUENCE_LENGTH = 3, 25


@dataclass(frozen=True)
class Outcome:
    """The outcome of one check of one program.

    Attributes:
        result: OK, FAILED or SKIPPED.
        reason: what failed, or why it was not tried.
        counts: numbers by name: op counts for `counts`, the number of sequences with an effect for `passes`.
    """

    result: str
    reason: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)


def read(text: str) -> HloModule | Outcome:
    """Parse HLO text and return the module, or an outcome with the reason why it is not checked."""
    try:
        module = parse(text, fill_elided=True)
    except HlogymError as e:
        return Outcome(SKIPPED, f"does not parse: {_line(e)}")
    findings = check_module(module)
    if findings:
        return Outcome(SKIPPED, f"does not verify: {findings[0][:200]}")
    if any(str(module.header.get(k, "1")) != "1" for k in ("replica_count", "num_partitions")):
        return Outcome(SKIPPED, "is for several devices")
    if module.instruction_count > MOST_INSTRUCTIONS:
        return Outcome(SKIPPED, "is too large")
    largest = max(_elements(i.shape) for c in module.computations for i in c.instructions)
    if largest > MOST_ELEMENTS or module_flops(module) > MOST_FLOPS:
        return Outcome(SKIPPED, "is too large")
    return module


def _elements(shape: Shape) -> int:
    if shape.is_tuple:
        return max(map(_elements, shape.tuple_shapes), default=0)
    return math.prod(shape.dimensions) if shape.is_array else 0


def arguments(module: HloModule) -> list[Any]:
    """Return arguments for the entry: small numbers that are exact in all types, also valid as indices."""
    rng = np.random.default_rng(1)
    return [_value(s, rng) for s in module.parameter_shapes]


def _value(shape: Shape, rng: np.random.Generator) -> Any:
    if shape.is_tuple:
        return tuple(_value(s, rng) for s in shape.tuple_shapes)
    if not shape.is_array:
        raise InterpreterError(f"cannot make a value for a parameter of shape {shape}")
    return np.asarray(random_array(shape, rng))


def reference(module: HloModule, args: Sequence[Any]) -> Reference:
    """Return the interpreter's results as a reference; the module may be changed afterwards."""
    kept = module.clone()
    return Reference(lambda inputs, context: results(kept, inputs, context), args, ITERATIONS)


def results(module: HloModule, args: Sequence[Any], context: Context) -> list[Array]:
    """Return the interpreter's results, followed by the outfed values and the number of values left in the infeed."""
    context.infeed = _infeed(module)
    with np.errstate(all="ignore"):
        found = interpret(module, list(args), context)
    return [*found, *map(np.asarray, _leaves(tuple(context.outfeed))), np.asarray(len(context.infeed))]


def _infeed(module: HloModule) -> deque[Any]:
    """Return values for the infeed; empty if there are no infeeds or their shapes differ."""
    shapes = [i.shape.tuple_shapes[0] for c in module.computations for i in c.instructions if i.opcode is Opcode.INFEED]
    if not shapes or any(not s.compatible(shapes[0]) for s in shapes):
        return deque()
    rng = np.random.default_rng(2)
    return deque(_value(shapes[0], rng) for _ in range(30))


def _leaves(value: Any) -> list[Any]:
    return [leaf for v in value for leaf in _leaves(v)] if isinstance(value, tuple) else [value]


def check_passes(module: HloModule) -> Outcome:
    """Check the default pipeline, each pass alone (to its fixed point and in one sweep), and random sequences."""
    try:
        args = arguments(module)
        wanted: Reference | None = reference(module, args)
    except HlogymError as e:
        args, wanted, reason = [], None, f"without results: {_line(e)}"
    else:
        reason = ""
    text, effective = str(module), 0
    pending = _sequences(text)
    while pending:
        passes = pending.pop()
        work = module.clone()
        finding = apply(work, passes)
        if finding is None and str(work) != text:
            effective += 1
            finding = _results_differ(work, args, wanted)
            if len(passes) == 1 and not passes[0].endswith("@1"):
                pending.append([f"{passes[0]}@1"])  # one sweep has an effect only if the fixed point has
        if finding is not None:
            return Outcome(FAILED, f"{';'.join(passes)}: {finding}")
    finding = _pipeline(module.clone(), args, wanted)
    if finding is not None:
        return Outcome(FAILED, f"default pipeline: {finding}")
    return Outcome(OK, reason, {"sequences with an effect": effective})


def _sequences(text: str) -> list[list[str]]:
    """Return random sequences of passes, followed by each pass alone; the caller takes them from the end."""
    names = [*PASSES, *VARIANTS]
    rng = random.Random(len(text))
    drawn = ([rng.choice(names) + rng.choice(("", "@1")) for _ in range(SEQUENCE_LENGTH)] for _ in range(SEQUENCES))
    return [*drawn, *([n] for n in names)]


def _pipeline(work: HloModule, args: Sequence[Any], wanted: Reference | None) -> str | None:
    before = str(work)
    try:
        changed = default_pipeline().run(work)
    except Exception as e:  # any exception is a finding
        return f"raised {type(e).__name__}: {_line(e)}"
    findings = check_module(work)
    if findings:
        return f"left an invalid module: {findings[0]}"
    if not changed and str(work) != before:
        return "returned changed=False, but changed the module"
    return _results_differ(work, args, wanted)


def _results_differ(work: HloModule, args: Sequence[Any], wanted: Reference | None) -> str | None:
    if wanted is None:
        return None
    try:
        finding = difference(results(work, args, Context(iterations=EXPANDED_ITERATIONS)), wanted)
    except HlogymError as e:
        return f"no results: {_line(e)}"
    return None if finding is None else f"results differ: {finding}"


def check_native(module: HloModule) -> Outcome:
    """Check the compiled program with default passes and fusion, and without passes under random fusion."""
    if _infeed(module):
        return Outcome(SKIPPED, "takes an infeed")
    try:
        args = arguments(module)
        wanted = Reference.of(module, args, ITERATIONS)
    except HlogymError as e:
        return Outcome(SKIPPED, f"the interpreter has no results: {_line(e)}")
    if not all(isinstance(a, np.ndarray) for a in args):
        return Outcome(SKIPPED, "takes tuples")
    for name, options in _builds(str(module)):
        try:
            executable = compile(module, backend="cpu", **options)
        except UnsupportedError as e:
            return Outcome(SKIPPED, f"no native code: {_line(e)}")
        except Exception as e:  # any exception is a finding
            return Outcome(FAILED, f"{name}: raised {type(e).__name__}: {_line(e)}")
        try:
            found = executable(*args)
        except Exception as e:  # any exception is a finding
            return Outcome(FAILED, f"{name}: running raised {type(e).__name__}: {_line(e)}")
        finding = difference([np.asarray(a) for a in found], wanted)
        if finding is not None:
            return Outcome(FAILED, f"{name}: results differ: {finding}")
    return Outcome(OK)


def _builds(text: str) -> list[tuple[str, dict[str, Any]]]:
    fusion = RandomFusion(seed=len(text), stop_probability=0.02, max_actions=200)
    return [("default", {}), ("random fusion without passes", {"pipeline": [], "fusion_policy": fusion})]


def check_counts(module: HloModule) -> Outcome:
    """Count ops as written, after the default pipeline, and after all of XLA:CPU's passes."""
    from tests.oracle import XlaError, optimized_text

    work = module.clone()
    default_pipeline().run(work)
    try:
        theirs = op_count(parse(optimized_text(str(module)), fill_elided=True))
    except XlaError as e:
        return Outcome(SKIPPED, f"XLA:CPU rejects it: {_line(e)}")
    except HlogymError as e:
        return Outcome(SKIPPED, f"XLA:CPU's output does not parse: {_line(e)}")
    return Outcome(OK, counts={"written": op_count(module), "ours": op_count(work), "XLA": theirs})


CHECKS: Mapping[str, Callable[[HloModule], Outcome]] = MappingProxyType(
    {"passes": check_passes, "native": check_native, "counts": check_counts}
)


def check(name: str, text: str) -> Outcome:
    """Run one check, given by name, on HLO text."""
    module = read(text)
    return module if isinstance(module, Outcome) else CHECKS[name](module)


def _line(e: Exception) -> str:
    return (str(e).strip().splitlines() or ["?"])[0][:200]
