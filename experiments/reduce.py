"""`hlogym reduce`: shrink a program on which a backend or a list of passes fails or computes a wrong result."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.progress import Progress

from compiler.errors import HlogymError
from compiler.interpreter import Context, evaluate
from compiler.ir import HloModule
from compiler.ir.verifier import check_module
from compiler.passes.infrastructure.base import HloPass
from compiler.passes.infrastructure.registry import make_passes, pass_text
from compiler.plan import CompilationPlan
from compiler.text import parse
from env.measurement import MeasurementError, Measurer, MeasurerOptions
from env.reference import Reference
from env.suites import Program
from experiments.console import progress, stdout
from experiments.decisions import decided_session
from experiments.delta_debugging import reduce_list, reduce_module
from experiments.inputs import entry_inputs, program_of, read_module
from experiments.interruption import keeping
from experiments.results import check_output, write_text

__all__ = ["ReduceError", "reduce_for_backend", "reduce_for_passes"]

FaultOf = Callable[[HloModule], str | None]
"""Returns what goes wrong with a module as `kind: details`, or None if nothing does."""

TIMEOUT = 20.0  # seconds per candidate; reduction can turn a loop into an endless one
SPARE_ITERATIONS = 1000


class ReduceError(HlogymError, RuntimeError):
    """A program on which nothing fails, so that there is nothing to reduce."""


def reduce_for_backend(
    name: str, output: Path, backend: str, policy: str | None, seed: int, as_json: bool = False
) -> None:
    """Run `hlogym reduce` for a backend. Candidates run in a worker process, so crashes and hangs are also faults.

    Raises:
        ReduceError: the program compiles and computes the right results.
        MeasurementError: the backend does not work on this machine.
    """
    program, module = _read(name, output)
    options = MeasurerOptions(backend=backend, seed=seed, timeout=TIMEOUT)
    with Measurer(options=options) as measurer, progress() as bar:
        fault_of = partial(_backend_fault, measurer, program, policy)
        fault = fault_of(module)
        if fault is None:
            raise ReduceError(
                f"{program.name} compiles on {backend} and agrees with the interpreter; there is nothing to reduce"
            )
        if fault.startswith("program:"):
            raise ReduceError(f"{program.name}: no fault was found, but {fault.partition(': ')[2]}")
        smallest = [module]
        with keeping(lambda: _keep(output, smallest[-1])):
            small = _shrink(module, fault_of, bar, smallest)
        _write(output, small, fault_of, as_json=as_json)


def reduce_for_passes(name: str, output: Path, passes: str, seed: int, as_json: bool = False) -> None:
    """Run `hlogym reduce --passes`: reduce both the module and the list of passes while the fault remains.

    Raises:
        ReduceError: the module stays valid and its results do not change.
        UnknownNameError: there is no such pass.
    """
    suspects = make_passes(passes)
    program, module = _read(name, output)
    fault_of = partial(_passes_fault, program, seed, _iterations_allowed(program, module, seed))
    wanted = fault_of(suspects, module)
    if wanted is None:
        raise ReduceError(f"these passes do not change the results of {program.name}; there is nothing to reduce")

    def fails(some: Sequence[HloPass], candidate: HloModule) -> bool:
        return _same_kind(wanted, fault_of(some, candidate))

    with progress() as bar:
        few, smallest = list(suspects), [module]
        with keeping(lambda: _keep(output, smallest[-1], _passes_line(few))):
            few = reduce_list(suspects, lambda some: fails(some, module))
            small = _shrink(module, partial(fault_of, few), bar, smallest)
            few = reduce_list(few, lambda some: fails(some, small))
    _write(output, small, partial(fault_of, few), _passes_line(few), as_json)


def _passes_line(passes: Sequence[HloPass]) -> str:
    return f"// passes: {','.join(map(pass_text, passes))}\n"


def _read(name: str, output: Path) -> tuple[Program, HloModule]:
    program = program_of(name)
    module = read_module(program)
    check_output(output, program.path)
    # The suite's input specifications do not match the parameters of a reduced program.
    return replace(program, inputs=()), module


def _shrink(module: HloModule, fault_of: FaultOf, bar: Progress, smallest: list[HloModule]) -> HloModule:
    """Return the reduced module; `smallest` holds the smallest one so far."""
    wanted = fault_of(module) or ""
    task = bar.add_task("reducing", total=None)

    def fails(candidate: HloModule) -> bool:
        if not _same_kind(wanted, fault_of(candidate)):
            return False
        bar.update(task, description=f"reducing: {candidate.instruction_count} instructions")
        if candidate.instruction_count <= smallest[-1].instruction_count:
            smallest[:] = [candidate]
        return True

    return reduce_module(module, fails)


def _write(output: Path, module: HloModule, fault_of: FaultOf, first_line: str = "", as_json: bool = False) -> None:
    write_text(output, first_line + str(module).rstrip() + "\n")
    if as_json:
        facts = {"file": str(output), "instructions": module.instruction_count, "fault": fault_of(module)}
        print(json.dumps(facts | ({"passes": first_line.partition(": ")[2].strip()} if first_line else {})))
        return
    if first_line:
        stdout.print(first_line.removeprefix("// ").rstrip())
    stdout.print(f"{module.instruction_count} instructions left; the fault: {fault_of(module)}")


def _keep(output: Path, module: HloModule, first_line: str = "") -> str:
    """Write the smallest module that an interrupted reduction has found; return what was written."""
    write_text(output, first_line + str(module).rstrip() + "\n")
    return f"the smallest program so far, with {module.instruction_count} instructions, is in {output}"


def _same_kind(wanted: str, found: str | None) -> bool:
    """Return whether a fault is of the wanted kind: a wrong result must not be reduced to a compilation error."""
    return found is not None and found.partition(":")[0] == wanted.partition(":")[0]


# ---- faults of a backend


def _backend_fault(measurer: Measurer, program: Program, policy: str | None, module: HloModule) -> str | None:
    """Return what is wrong with a module, or None; raise MeasurementError if nothing can run on this machine."""
    try:
        plan = _plan(module, policy, measurer.options.backend)
        return measurer.check(program, plan, text=str(module))
    except MeasurementError:
        raise
    except HlogymError as error:
        return f"compile: {error}"


def _plan(module: HloModule, policy: str | None, backend: str) -> CompilationPlan | None:
    return None if policy is None else decided_session(parse(str(module)), backend, policy, None).plan


# ---- faults of passes


def _iterations_allowed(program: Program, module: HloModule, seed: int) -> int:
    """Return a limit of ten times the loop iterations of the whole program; a candidate beyond it counts as endless."""
    limit = 2**62
    context = Context(iterations=limit)
    evaluate(module, entry_inputs(program, module, seed), context)
    return 10 * (limit - (context.iterations or 0)) + SPARE_ITERATIONS


def _passes_fault(
    program: Program, seed: int, iterations: int, passes: Sequence[HloPass], module: HloModule
) -> str | None:
    try:
        inputs = entry_inputs(program, module, seed)
        wanted = Reference.of(module, inputs, iterations)
    except HlogymError:
        return None  # the candidate cannot be evaluated, so it does not show the fault
    work = module.clone()
    for hlo_pass in passes:
        try:
            hlo_pass.run(work)
        except Exception as error:  # any exception raised by a pass is a fault
            return f"raised: {pass_text(hlo_pass)}: {type(error).__name__}: {error}"
        if findings := check_module(work):
            return f"invalid: after {pass_text(hlo_pass)}: {findings[0]}"
    try:
        found = wanted.difference(evaluate(work, inputs, Context(iterations=iterations)))
    except HlogymError as error:
        return f"evaluation: {error}"
    return None if found is None else f"wrong: {found}"
