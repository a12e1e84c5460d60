"""`hlogym reduce`: shrink a program on which a backend fails or computes something else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from compiler.errors import HlogymError
from compiler.fusion.policies import make_policy
from compiler.ir import HloInstruction, HloModule, Opcode
from compiler.ir.verifier import verify
from compiler.passes.registry import make_pass
from compiler.plan import CompilationPlan
from compiler.session import CompilationSession
from compiler.text import parse
from env.measurement import Measurer, MeasurerOptions
from env.suites import Program
from experiments.console import progress, stdout
from experiments.inputs import program_of, read_module
from experiments.results import check_writable, write_text
from experiments.run import chosen_policy

__all__ = ["ReduceError", "reduce_program"]


class ReduceError(HlogymError, RuntimeError):
    """A program with nothing to reduce."""


def reduce_program(name: str, output: Path, backend: str, policy: str | None, seed: int) -> None:
    """See `hlogym reduce --help`. Each candidate runs in a worker process, so crashes and hangs are faults like others.

    Raises:
        ReduceError: the program is right as it is.
    """
    program = program_of(name)
    module = read_module(program)
    check_writable(output.parent)
    with Measurer(options=MeasurerOptions(backend=backend, seed=seed, timeout=60)) as measurer, progress() as bar:
        fault = _fault(measurer, program, module, policy)
        if fault is None:
            raise ReduceError(f"{program.name} compiles on {backend} and equals the interpreter; there is no fault")
        task = bar.add_task("reducing", total=None)
        smaller: HloModule | None = module
        while smaller is not None:
            module = smaller
            bar.update(task, description=f"reducing: {len(module.entry)} instructions in the entry")
            kept = (c for c in _candidates(module) if _same_kind(fault, _fault(measurer, program, c, policy)))
            smaller = next(kept, None)
    write_text(output, str(module).rstrip() + "\n")
    stdout.print(f"{len(module.entry)} instructions left in the entry; the fault: {fault}", markup=False)


def _fault(measurer: Measurer, program: Program, module: HloModule, policy: str | None) -> str | None:
    """What goes wrong with a module, or None."""
    bare = replace(program, inputs=())  # the specs of the whole program do not fit a smaller one's parameters
    try:
        return measurer.check(bare, _plan(module, policy), text=str(module))
    except HlogymError as error:
        return f"compile: {error}"


def _plan(module: HloModule, policy: str | None) -> CompilationPlan | None:
    chosen = chosen_policy(policy)
    if chosen is None:
        return None
    session = CompilationSession(parse(str(module)))
    session.run_passes()
    session.run_fusion_policy(make_policy(chosen) if isinstance(chosen, str) else chosen)
    return session.plan


def _same_kind(wanted: str, found: str | None) -> bool:
    """The same class of fault: a program that is wrong must not turn into one that merely does not compile."""
    return found is not None and found.partition(":")[0] == wanted.partition(":")[0]


def _candidates(module: HloModule) -> Iterator[HloModule]:
    """Valid modules that are smaller: another root first, then single instructions replaced by parameters."""
    for make in (_with_root, _with_parameter):
        for name in [i.name for i in module.entry.post_order()]:
            try:
                candidate = make(module.clone(), name)
                if candidate is None:
                    continue
                candidate.header.pop("entry_computation_layout", None)
                make_pass("dce").run(candidate)
                _drop_dead_parameters(candidate)
                verify(candidate)
            except (HlogymError, ValueError):
                continue
            if len(candidate.entry) < len(module.entry):
                yield candidate


def _drop_dead_parameters(module: HloModule) -> None:
    """DCE leaves parameters alone, because they are the program's face; here they are only in the way."""
    for parameter in module.entry.parameters:
        if parameter.is_dead:
            module.entry.remove(parameter)
    for number, parameter in enumerate(module.entry.parameters):
        parameter.parameter_number = number


def _with_root(module: HloModule, name: str) -> HloModule | None:
    found = module.entry.find(name)
    if found is None or found.is_root or not found.shape.is_array:
        return None
    module.entry.root = found
    return module


def _with_parameter(module: HloModule, name: str) -> HloModule | None:
    found: HloInstruction | None = module.entry.find(name)
    fixed = (Opcode.PARAMETER, Opcode.CONSTANT)
    if found is None or found.is_root or found.opcode in fixed or not found.shape.is_array:
        return None
    parameter = module.entry.add_parameter(len(module.entry.parameters), found.shape, f"{name}.in")
    module.entry.replace_uses(found, parameter)
    return module
