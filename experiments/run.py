"""`hlogym run` and `hlogym compile`: compile, run, check, profile or save one program."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from rich.box import SIMPLE_HEAD
from rich.table import Table

from compiler.api import CompileOptions
from compiler.api import compile as compile_hlo
from compiler.backends.registry import find_backend
from compiler.errors import HlogymError
from compiler.fusion.policies import DEFAULT_POLICY, RuledFusion, make_policy
from compiler.fusion.protocol import as_policy
from compiler.policy import resolve_policy
from compiler.support.display import counted
from env.reference import Reference, drawn_reference, on_host, unchecked_outputs
from experiments.call_time import time_calls
from experiments.console import duration, error_console, stdout
from experiments.inputs import entry_inputs, load_inputs, program_of, read_plan, read_valid_module, save_outputs
from experiments.results import check_output

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compiler.ir import HloModule
    from compiler.plan import CompilationPlan
    from compiler.runtime.executable import Executable, ThunkTime
    from env.suites import Program
    from experiments.differences.reasons import Reason

__all__ = ["WrongResultError", "compile_ahead", "compile_hlo", "compile_program", "run_program"]


class WrongResultError(HlogymError, RuntimeError):
    """A compiled program whose outputs differ from the interpreter's."""


def compile_program(
    module: HloModule,
    backend: str,
    policy: str | None,
    plan: Path | None,
    keep_fusions: bool = False,
    rules: Sequence[str] = (),
) -> Executable:
    """Compile with the policy, the rules and the plan given on the command line; warn of rules that are not met."""
    chosen = resolve_policy(policy, find_backend(backend).name)
    if chosen.fusion is None:
        ruled = RuledFusion(rules, make_policy(DEFAULT_POLICY), DEFAULT_POLICY)
    else:
        ruled = RuledFusion(rules, as_policy(chosen.fusion), chosen.decider("fusion"))
    executable = compile_hlo(
        module,
        backend=backend,
        policy=None if policy is None else chosen,
        fusion_policy=ruled if rules else None,
        plan=None if plan is None else read_plan(plan),
        options=CompileOptions(keep_fusions=keep_fusions),
    )
    for what in ruled.unmet:
        error_console.print(f"warning: {what}", markup=False, soft_wrap=True)
    return executable


def run_program(
    name: str,
    inputs: Path | None,
    seed: int,
    backend: str,
    policy: str | None,
    plan: Path | None,
    output: Path | None,
    profile: bool,
    check: bool,
    as_json: bool,
    keep_fusions: bool = False,
    explain: bool = False,
    rules: Sequence[str] = (),
) -> None:
    """Run `hlogym run`; see its `--help`."""
    program = program_of(name)
    if output is not None:
        check_output(output, program.path, *(p for p in (inputs, plan) if p is not None))
    module = read_valid_module(program)
    arguments = entry_inputs(program, module, seed) if inputs is None else load_inputs(inputs, module)
    executable = compile_program(read_valid_module(program), backend, policy, plan, keep_fusions, rules)
    missing = find_backend(backend).why_unavailable()
    if explain and missing is not None and not (check or profile or output is not None):
        # The decisions need no device.
        _print_explanation(executable, _reasons_of(program, backend, policy, plan, keep_fusions), as_json, missing)
        return
    start = time.perf_counter()
    outputs = [on_host(o) for o in executable(*(a[...] for a in arguments))]  # views are never overwritten
    first = time.perf_counter() - start
    unchecked: list[str] = []
    if check:
        reference = (
            drawn_reference(module, lambda number: entry_inputs(program, module, seed + number))
            if inputs is None
            else Reference.of(module, arguments)
        )
        unchecked = _check(program, module, reference, outputs)
        for what in unchecked:
            error_console.print(f"warning: {what}; this is not checked", markup=False, soft_wrap=True)
    if output is not None:
        save_outputs(output, outputs)
    reasons = _reasons_of(program, backend, policy, plan, keep_fusions) if explain else []
    called = time_calls(executable, [a[...] for a in arguments], first)
    if as_json:
        facts = {**_summary(executable, outputs, check, unchecked), "time": called.to_json()}
        if explain:
            facts["explanation"] = _explanation(executable, reasons)
        print(json.dumps(facts, indent=2))
    else:
        _print_outputs(outputs, check and not unchecked)
        stdout.print(f"time: {called}", soft_wrap=True)
        if explain:
            stdout.print()
            _print_reasons(executable, reasons)
    if profile:
        console = error_console if as_json else stdout
        console.print(_profile_table(executable.profile(*arguments), _choices(executable.plan)))
        if executable.memory is not None:
            console.print(f"memory of a call: {executable.memory}", markup=False, soft_wrap=True)


def _explanation(executable: Executable, reasons: Sequence[Reason]) -> dict[str, Any]:
    return {**executable.explain().to_dict(), "reasons": [r._asdict() for r in reasons]}


def _print_reasons(executable: Executable, reasons: Sequence[Reason]) -> None:
    stdout.print(f"{executable.explain()}", markup=False, highlight=False, soft_wrap=True)
    for reason in reasons:
        stdout.print(f"{reason.phase:11} {reason.where}: {reason.text}", soft_wrap=True)


def _print_explanation(executable: Executable, reasons: Sequence[Reason], as_json: bool, missing: str) -> None:
    """Print the decisions of a program that cannot run here, and why it cannot."""
    if as_json:
        print(json.dumps({"explanation": _explanation(executable, reasons), "not_run": missing}, indent=2))
        return
    _print_reasons(executable, reasons)
    error_console.print(f"not run: {missing}", markup=False, soft_wrap=True)


def _reasons_of(
    program: Program, backend: str, policy: str | None, plan: Path | None, keep_fusions: bool
) -> list[Reason]:
    """Return the reasons that the policy gives for its choices; none if a plan or the program made them."""
    if plan is not None or keep_fusions:
        return []
    from experiments.differences.reasons import policy_reasons
    from experiments.differences.sides import DEFAULT, side_of

    module, name = read_valid_module(program), find_backend(backend).name
    return policy_reasons(module, name, side_of(policy or DEFAULT, module, name))


def _choices(plan: CompilationPlan | None) -> dict[str, str]:
    """Return the kernel choices of a plan that are not the default, by the name of the kernel."""
    rows = plan.kernels.values() if plan is not None else ()
    return {name: str(choice) for row in rows for name, choice in row.items()}


def _profile_table(rows: Sequence[ThunkTime], choices: Mapping[str, str]) -> Table:
    table = Table(box=SIMPLE_HEAD, header_style="bold")
    table.add_column("step")
    for name in ("kind", "runs per call", "time per run", "share", "GB/s", "GFLOP/s"):
        table.add_column(name, justify="right")
    if choices:
        table.add_column("choice")
    whole = sum(r.seconds * r.executions for r in rows) or 1.0
    for r in rows:
        share = r.seconds * r.executions / whole
        flops = r.flops / r.seconds / 1e9 if r.seconds else 0.0
        bandwidth = r.bytes / r.seconds / 1e9 if r.seconds else 0.0
        numbers = (f"{r.executions:g}", duration(r.seconds), f"{share:.0%}", f"{bandwidth:.1f}", f"{flops:.1f}")
        table.add_row(r.name, r.kind, *numbers, *([choices.get(r.name, "")] if choices else []))
    return table


def compile_ahead(
    name: str,
    output: Path,
    backend: str,
    policy: str | None,
    plan: Path | None,
    rules: Sequence[str] = (),
    as_json: bool = False,
) -> None:
    """Run `hlogym compile`; see its `--help`."""
    executable = compile_program(read_valid_module(program_of(name)), backend, policy, plan, rules=rules)
    executable.save(output)
    if as_json:
        print(json.dumps({"folder": str(output), "backend": executable.backend, "kernels": len(executable.kernels)}))
    else:
        stdout.print(f"{output}: {counted(len(executable.kernels), 'kernel')}")


def _check(program: Program, module: HloModule, reference: Reference, outputs: Sequence[npt.NDArray[Any]]) -> list[str]:
    """Compare the outputs with the interpreter's; return what the comparison could not check.

    Raises:
        WrongResultError: the outputs differ.
    """
    if (finding := reference.difference(outputs, program.tolerance)) is not None:
        raise WrongResultError(f"{program.name}: the compiled program differs from the interpreter: {finding}")
    nothing = unchecked_outputs(module, reference.outputs)
    return nothing or [w for w in (reference.unchecked,) if w is not None]


def _summary(
    executable: Executable, outputs: Sequence[npt.NDArray[Any]], checked: bool, unchecked: Sequence[str]
) -> dict[str, Any]:
    return {
        "outputs": [{"dtype": str(o.dtype), "shape": list(o.shape)} for o in outputs],
        "kernels": [{"name": k.name, "kind": k.kind, "bytes": k.bytes, "flops": k.flops} for k in executable.kernels],
        "memory": None if executable.memory is None else {**asdict(executable.memory), "peak": executable.memory.peak},
        "equals_interpreter": True if checked and not unchecked else None,
        "unchecked": list(unchecked),
    }


def _print_outputs(outputs: Sequence[npt.NDArray[Any]], checked: bool) -> None:
    for i, o in enumerate(outputs):
        shown = np.array2string(o, threshold=6, edgeitems=2, precision=5, separator=", ").replace("\n", "")
        stdout.print(f"out{i}: {o.dtype}{list(o.shape)} {shown}", soft_wrap=True)
    if checked:
        stdout.print("outputs agree with the interpreter's")
