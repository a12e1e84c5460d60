"""The verifier: checks that a module is well-formed and reports every violation with its instruction.

The rules are those of XLA's `xla/service/hlo_verifier.cc` that apply to one device, without constraints on layouts.
The shape rules check shapes. All other rules of single instructions are in `verifier_instructions` and, by subject, in
`verifier_async`, `verifier_collectives`, `verifier_sharding` and `verifier_buffers`; the rules of a whole module are
in `verifier_module`.
"""

from __future__ import annotations

from compiler.errors import HloVerificationError, ShapeError
from compiler.ir.attributes import ATTRIBUTE_KINDS, AttrKind, Raw, allowed_values
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction, infer_shape
from compiler.ir.module import HloModule
from compiler.ir.opcodes import UNIVERSAL_ATTRIBUTES, Opcode
from compiler.ir.shape import Shape, too_large
from compiler.ir.verifier_instructions import RULES
from compiler.ir.verifier_module import check_structure, check_whole, with_line
from compiler.ir.verifier_sharding import CARRIED

_KNOWN = {op: frozenset({*op.row.required, *op.row.optional, *UNIVERSAL_ATTRIBUTES}) for op in Opcode}
_TYPES: dict[AttrKind, tuple[type, ...]] = {
    AttrKind.INTS: (tuple, Raw),
    AttrKind.INT: (int,),
    AttrKind.FLOAT: (float, int),
    AttrKind.BOOL: (bool,),
    AttrKind.NAME: (str,),
    AttrKind.STRING: (str,),
    AttrKind.COMPUTATION: (HloComputation,),
    AttrKind.COMPUTATIONS: (tuple,),
    AttrKind.INSTRUCTIONS: (tuple,),
    AttrKind.SLICE: (tuple,),
    AttrKind.PADDING: (tuple,),
}


def verify(module: HloModule) -> None:
    """Raise HloVerificationError with all findings if there are any."""
    findings = check_module(module)
    if findings:
        raise HloVerificationError(findings)


def check_module(module: HloModule) -> list[str]:
    """Return the findings in all computations; empty for a valid module.

    A finding names the instruction and, if it was parsed, its line number.
    """
    callers: dict[HloComputation, list[HloInstruction]] = {}
    findings = check_structure(module, callers)
    if findings:
        # The checks below walk the graph, which must be intact for that.
        return findings
    for c in module.computations:
        findings += check_computation(c)
    return findings or check_whole(module, callers)


def check_computation(computation: HloComputation) -> list[str]:
    """Return the findings in one computation."""
    where = f"computation %{computation.name}"
    if not computation.has_root:
        return [f"{where} has no root"]
    if computation.root not in computation:
        return [f"the root of {where}, %{computation.root.name}, is not in it"]
    findings: list[str] = []
    uses: dict[HloInstruction, frozenset[HloInstruction]] = {}
    for i in computation.instructions:
        findings += (with_line(i, f) for f in _check_links(i, computation, uses))
    if findings:
        return findings
    try:
        computation.order_is_known = False  # the verifier must not rely on cached state
        order = computation.post_order()
    except ValueError as e:
        return [str(e)]
    numbers = [p.parameter_number for p in computation.parameters]
    if numbers != list(range(len(numbers))):
        findings.append(f"{where}: parameters are numbered {numbers}, expected 0 to {len(numbers) - 1}")
    for i in order:
        found = check_instruction(i)
        if found:
            findings += (with_line(i, f) for f in found)
    return findings


def _check_links(
    i: HloInstruction, computation: HloComputation, uses: dict[HloInstruction, frozenset[HloInstruction]]
) -> list[str]:
    """Check that an instruction and its operands, users and control predecessors agree; `uses` caches operand sets."""
    where = f"%{i.name} in computation %{computation.name}"
    findings = []
    if i.parent is not computation:
        findings.append(f"{where} has the parent {i.parent!r}")
    if computation.find(i.name) is not i:
        findings.append(f"{where}: another instruction has the same name")
    for o in i.operands:
        if o.parent is not computation or o not in computation:
            findings.append(f"{where} uses %{o.name}, which is not in it")
        elif i not in o.users:
            findings.append(f"{where} uses %{o.name}, which does not list it as a user")
    for u in i.users:
        operands = uses.get(u)
        if operands is None:
            operands = uses[u] = frozenset(u.operands)
        if i not in operands:
            findings.append(f"{where} lists %{u.name} as a user, which does not use it")
    if i.attributes:
        findings += [
            f"{where} runs after %{p.name}, which is not in it"
            for p in i.control_predecessors
            if p.parent is not computation or p not in computation
        ]
    return findings


def check_instruction(i: HloInstruction) -> list[str]:
    """Return the findings in one instruction whose operands and called computations have been checked."""
    findings = _check_attributes(i) if i.attributes or i.opcode.row.required else []
    if findings:
        return findings
    try:
        want = infer_shape(i.opcode, [o.shape for o in i.operands], i.attributes, i.shape)
    except ShapeError as e:
        return [f"%{i.name}: {e}"]
    shape = i.shape
    if want is not shape and not want.compatible(shape):
        return [f"%{i.name} = {i.opcode.text}: shape is {shape}, expected {want}"]
    if shape not in _valid_shapes:
        findings += [f"%{i.name}: {problem}" for problem in shape_problems(shape)]
    for rule in RULES.get(i.opcode, ()):
        findings += rule(i)
    if i.attributes:
        for name, carried in CARRIED.items():
            if name in i.attributes:
                findings += carried(i)
    return findings


def _check_attributes(i: HloInstruction) -> list[str]:
    row = i.opcode.row
    findings: list[str] = []
    findings += [
        f"%{i.name}: {row.text} needs attribute {name}, which is missing"
        for name in row.required
        if name not in i.attributes
    ]
    known = _KNOWN[i.opcode]
    for name, value in i.attributes.items():
        if name not in known:
            findings.append(f"%{i.name}: {row.text} has no attribute {name}")
        kind = ATTRIBUTE_KINDS.get(name, AttrKind.RAW)
        types = _TYPES.get(kind)
        if types is not None and not isinstance(value, types):
            wanted = " or ".join(t.__name__ for t in types)
            findings.append(f"%{i.name}: attribute {name} must be {wanted}, is {type(value).__name__}")
        elif kind is AttrKind.NAME and value not in (allowed := allowed_values(name, row.text) or (value,)):
            findings.append(f"%{i.name}: {name} cannot be {value}, only one of {', '.join(allowed)}")
    return findings


_valid_shapes: set[Shape] = set()
"""Cache of valid shapes: a program has many instructions but few distinct shapes."""


def shape_problems(shape: Shape) -> list[str]:
    """Return what is wrong with a shape by itself; empty for a valid shape."""
    problems = _shape_problems(shape)
    if not problems and len(_valid_shapes) < 100_000:
        _valid_shapes.add(shape)
    return problems


def _shape_problems(shape: Shape) -> list[str]:
    if shape.is_tuple:
        return [p for s in shape.tuple_shapes for p in _shape_problems(s)]
    if not shape.is_array:
        return []
    problems = []
    if any(d < 0 for d in shape.dimensions):
        problems.append(f"shape {shape} has an unbounded dimension, which cannot be compiled")
    elif too_large(shape.element_type, shape.dimensions):
        problems.append(f"an array of shape {shape} would take 2^63 bytes or more")
    if shape.dynamic and len(shape.dynamic) != shape.rank:
        problems.append(f"shape {shape} has {len(shape.dynamic)} dynamic flags for {shape.rank} dimensions")
    layout = shape.layout
    if layout is not None and sorted(layout.minor_to_major) != list(range(shape.rank)):
        problems.append(f"layout {layout} is not a permutation of the {shape.rank} dimensions of {shape}")
    return problems
