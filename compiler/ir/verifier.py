"""The verifier: every rule a well-formed module keeps, each breach reported with its instruction."""

from __future__ import annotations

from compiler.errors import HloVerificationError, ShapeError
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction, infer_shape
from compiler.ir.module import HloModule
from compiler.ir.opcodes import Opcode


def verify(module: HloModule) -> None:
    """Raise HloVerificationError with every finding; return quietly when there is none."""
    findings = check_module(module)
    if findings:
        raise HloVerificationError(findings)


def check_module(module: HloModule) -> list[str]:
    """Findings over all computations, empty for a valid module."""
    findings: list[str] = []
    for c in module.computations:
        findings += check_computation(c)
    findings += _check_call_graph(module)
    return findings


def check_computation(computation: HloComputation) -> list[str]:
    """Findings in one computation."""
    where = f"computation %{computation.name}"
    if not computation.has_root:
        return [f"{where} has no root"]
    try:
        order = computation.post_order()
    except ValueError as e:
        return [str(e)]
    findings: list[str] = []
    numbers = [p.parameter_number for p in computation.parameters]
    if numbers != list(range(len(numbers))):
        findings.append(f"{where}: parameters are numbered {numbers}, expected 0 to {len(numbers) - 1}")
    members = set(computation.instructions)
    for i in order:
        if i not in members:
            findings.append(f"%{i.name} is used in {where} but stands elsewhere")
        findings += _check_instruction(i)
    return findings


def _check_instruction(i: HloInstruction) -> list[str]:
    findings = [f"%{i.name}: attribute {a} is missing" for a in i.opcode.row.required if a not in i.attributes]
    if findings:
        return findings
    for o in i.operands:
        if i not in o.users:
            findings.append(f"%{i.name} uses %{o.name}, which does not list it as a user")
    if i.opcode is Opcode.CONSTANT and not i.value.shape.compatible(i.shape):
        findings.append(f"%{i.name}: literal of shape {i.value.shape} in a constant of shape {i.shape}")
    try:
        want = infer_shape(i.opcode, [o.shape for o in i.operands], i.attributes, i.shape)
    except ShapeError as e:
        return [*findings, f"%{i.name}: {e}"]
    if not want.compatible(i.shape):
        findings.append(f"%{i.name} = {i.opcode.text}: shape is {i.shape}, expected {want}")
    return findings


def _check_call_graph(module: HloModule) -> list[str]:
    known = set(module.computations)
    findings = []
    for c in known:
        for i in c.instructions:
            findings += [
                f"%{i.name} calls %{callee.name}, which is not in the module"
                for callee in i.called_computations()
                if callee not in known
            ]
    return findings
