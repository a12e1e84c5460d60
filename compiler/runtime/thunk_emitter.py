"""From a module, after all passes and fusions, to thunks and the buffers they use.

Tuples exist only here: a value is a tree of buffers. Data movement that moves nothing (tuple, get-tuple-element,
reshape, bitcast, copy of a value never overwritten) is a matter of names. A loop's carried values live in state
buffers; copies into and out of them are planned first and taken out again where lifetimes allow (`runtime.coalesce`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from compiler.analysis.loop_marks import is_kernel_loop
from compiler.analysis.trip_count import trip_count_of
from compiler.codegen.kernel_spec import KernelSpec, distinct_operands, make_kernel
from compiler.codegen.loop_kernel import LoopKernel, make_loop_kernel
from compiler.codegen.schedule import Schedule
from compiler.errors import UnsupportedError
from compiler.ir.callgraph import check_call_graph
from compiler.ir.computation import HloComputation
from compiler.ir.instruction import HloInstruction
from compiler.ir.literal import Literal
from compiler.ir.module import HloModule
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape, tuple_shape
from compiler.ir.types import PrimitiveType as T
from compiler.runtime import gemm
from compiler.runtime.buffers import Buffer, BufferKind
from compiler.runtime.thunks import (
    ConditionalThunk,
    CopyThunk,
    GemmThunk,
    HostThunk,
    KernelThunk,
    Thunk,
    WhileThunk,
)
from compiler.support.recursion import ENOUGH, deep_recursion

Tree = Buffer | tuple["Tree", ...]

_ALIASES = frozenset({Opcode.RESHAPE, Opcode.COPY, Opcode.OPTIMIZATION_BARRIER, Opcode.ADD_DEPENDENCY, Opcode.DOMAIN})
_NO_KERNEL = frozenset(
    {
        Opcode.PARAMETER, Opcode.CONSTANT, Opcode.TUPLE, Opcode.AFTER_ALL, Opcode.GET_TUPLE_ELEMENT, Opcode.CALL,
        Opcode.CONDITIONAL,
    }
)  # fmt: skip
UNKNOWN_TRIPS = 10.0
"""Iterations assumed of a loop whose trip count is not known."""


@dataclass
class ThunkProgram:
    """The thunks of a program and the buffers they use."""

    thunks: list[Thunk]
    parameters: list[Buffer]
    results: list[Buffer]
    constants: list[np.ndarray]
    constant_buffers: list[Buffer]


@dataclass
class ThunkEmitter:
    """Emits the thunks of one module.

    Attributes:
        language: of the kernels, a name in `codegen.languages.LANGUAGES`.
        schedules: kernel choices by instruction name, from a plan or a selector.
    """

    language: str
    schedules: dict[str, Schedule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._constants: dict[bytes, Buffer] = {}
        self._values: list[np.ndarray] = []

    def emit(self, module: HloModule) -> ThunkProgram:
        """Return the thunks of the whole module; UnsupportedError names an op that nothing can run."""
        graph = check_call_graph(module)
        parameters: list[Buffer] = []
        trees: list[Tree] = []
        for p in module.entry.parameters:
            tree = _new_tree(p.shape, BufferKind.PARAMETER)
            for leaf in leaves(tree):
                leaf.index = len(parameters)
                parameters.append(leaf)
            trees.append(tree)
        thunks: list[Thunk] = []
        with deep_recursion(ENOUGH + 10 * graph.calls):
            root = self._sequence(module.entry, trees, thunks, 1.0)
        results = self._results(root, thunks)
        return ThunkProgram(thunks, parameters, results, self._values, list(self._constants.values()))

    def _results(self, root: Tree, thunks: list[Thunk]) -> list[Buffer]:
        """One output buffer for each leaf of the result."""
        out: list[Buffer] = []
        for leaf in leaves(root):
            target = Buffer(leaf.shape, BufferKind.OUTPUT, len(out))
            thunks.append(CopyThunk("result", leaf, target))
            out.append(target)
        return out

    # ---- sequences

    def _sequence(
        self, computation: HloComputation, arguments: Sequence[Tree], thunks: list[Thunk], runs: float
    ) -> Tree:
        env: dict[HloInstruction, Tree] = {}
        for i in computation.post_order():
            env[i] = self._instruction(i, [env[o] for o in i.operands], arguments, thunks, runs)
        return env[computation.root]

    def _instruction(
        self, i: HloInstruction, operands: list[Tree], arguments: Sequence[Tree], thunks: list[Thunk], runs: float
    ) -> Tree:
        op = i.opcode
        if op is Opcode.PARAMETER:
            return arguments[i.parameter_number or 0]
        if op is Opcode.CONSTANT:
            return self._constant(i.value)
        if op is Opcode.TUPLE:
            return tuple(operands)
        if op is Opcode.AFTER_ALL:
            return ()
        if op is Opcode.GET_TUPLE_ELEMENT:
            element: Tree = _parts(operands[0])[i.attributes["index"]]
            return element
        if _is_alias(i):
            return _as_shape(operands[0], i.shape)
        if op is Opcode.CALL:
            return self._sequence(i.attributes["to_apply"], operands, thunks, runs)
        if op is Opcode.WHILE:
            return self._while(i, operands[0], thunks, runs)
        if op is Opcode.CONDITIONAL:
            return self._conditional(i, operands, thunks, runs)
        if op is Opcode.DOT:
            planned = self._dot(i, operands, thunks, runs)
            if planned is not None:
                return planned
        return self._kernel(i, operands, thunks, runs)

    def _constant(self, literal: Literal) -> Tree:
        if literal.array is None:
            return tuple(self._constant(e) for e in literal.elements)
        key = str(literal.shape).encode() + b":" + literal.array.tobytes()
        found = self._constants.get(key)
        if found is None:
            found = self._constants[key] = Buffer(literal.shape, BufferKind.CONSTANT, len(self._values))
            self._values.append(np.ascontiguousarray(literal.array).reshape(literal.array.shape))
        return found

    # ---- kernels

    def _kernel(self, i: HloInstruction, operands: list[Tree], thunks: list[Thunk], runs: float) -> Tree:
        try:
            spec = make_kernel(i, self.language, self.schedules.get(i.name))
        except UnsupportedError:
            if i.opcode is Opcode.FUSION:  # another compiler's, or one that legality misjudged: op by op then
                return self._sequence(i.attributes["calls"], operands, thunks, runs)
            return self._host(i, operands, thunks, runs)
        by_operand = dict(zip(i.operands, operands, strict=True))
        inputs = [_leaf(by_operand[o]) for o in distinct_operands(i)]
        return self.launch(spec, i.shape, inputs, thunks, runs)

    def launch(self, spec: KernelSpec, shape: Shape, inputs: list[Buffer], thunks: list[Thunk], runs: float) -> Tree:
        """A kernel thunk with fresh outputs; what it must update in place is copied first (and coalesced later)."""
        tree = _new_tree(shape)
        outputs = list(leaves(tree))
        for source, target in spec.must_alias:
            out = outputs[target - len(inputs)]
            thunks.append(CopyThunk(spec.name, inputs[source], out, executions=runs))
            inputs[source] = out
        thunks.append(KernelThunk(spec.name, spec, tuple(inputs), tuple(outputs), executions=runs))
        return tree

    @staticmethod
    def _host(i: HloInstruction, operands: list[Tree], thunks: list[Thunk], runs: float) -> Tree:
        tree = _new_tree(i.shape)
        inputs = tuple(b for o in operands for b in leaves(o))
        thunks.append(HostThunk(i.name, i, inputs, tuple(leaves(tree)), executions=runs))
        return tree

    def _dot(self, i: HloInstruction, operands: list[Tree], thunks: list[Thunk], runs: float) -> Tree | None:
        """BLAS for f32 and f64, after transposes where the operands' dimensions are not in its order."""
        form = gemm.canonical_form(i)
        if form is None:
            return None
        sides = []
        for operand, tree, permutation in zip(i.operands, operands, form.permutations, strict=True):
            buffer = _leaf(tree)
            if permutation is not None:
                spec = make_kernel(gemm.transpose_of(operand.shape, permutation), self.language)
                buffer = _leaf(self.launch(spec, spec.outputs[0], [buffer], thunks, runs))
            sides.append(buffer)
        out = Buffer(i.shape)
        thunks.append(
            GemmThunk(
                i.name, sides[0], sides[1], out, form.batch, form.m, form.n, form.k,
                form.lhs_transposed, form.rhs_transposed, executions=runs,
            )
        )  # fmt: skip
        return out

    # ---- control flow

    def _while(self, i: HloInstruction, init: Tree, thunks: list[Thunk], runs: float) -> Tree:
        condition, body = i.attributes["condition"], i.attributes["body"]
        made = self._loop_kernel(i)
        if made is not None:
            return self._run_loop_kernel(i, made, init, thunks, runs)
        trips = trip_count_of(i)
        inner_runs = runs * (UNKNOWN_TRIPS if trips is None else trips)
        state = _new_tree(i.shape)
        invariant = _invariant_leaves(body, i.shape)
        for source, target, fixed in zip(leaves(init), leaves(state), invariant, strict=True):
            if fixed:
                target.merge(source)
            else:
                thunks.append(CopyThunk(i.name, source, target, executions=runs))
        test: list[Thunk] = []
        predicate = _leaf(self._sequence(condition, [state], test, inner_runs + runs))
        steps: list[Thunk] = []
        result = self._sequence(body, [state], steps, inner_runs)
        self._carry(i.name, list(leaves(result)), list(leaves(state)), steps, inner_runs)
        thunks.append(WhileThunk(i.name, predicate, test, steps, trips, executions=runs))
        return state

    def _loop_kernel(self, i: HloInstruction) -> LoopKernel | None:
        """The loop as one kernel, where its mark asks for that and what became of its body since still allows it."""
        if not is_kernel_loop(i):
            return None
        try:
            return make_loop_kernel(i, self.language, self.schedules.get(i.name))
        except UnsupportedError:
            return None

    def _run_loop_kernel(
        self, i: HloInstruction, made: LoopKernel, init: Tree, thunks: list[Thunk], runs: float
    ) -> Tree:
        before = _parts(init)
        shapes = i.shape.tuple_shapes
        changed = tuple_shape(*(shapes[k] for k in made.outputs))
        inputs = [_leaf(before[k]) for k in made.inputs]
        new = self.launch(made.spec, changed, inputs, thunks, runs)
        result = list(before)
        for k, tree in zip(made.outputs, _parts(new), strict=True):
            result[k] = tree
        return tuple(result)

    @staticmethod
    def _carry(name: str, new: list[Buffer], state: list[Buffer], steps: list[Thunk], runs: float) -> None:
        """Copies at the end of a loop's body, as one parallel assignment: what would be overwritten is saved first."""
        moves = [(n.resolve(), s.resolve()) for n, s in zip(new, state, strict=True) if n.resolve() is not s.resolve()]
        written = {s for _, s in moves}
        finals = []
        for source, target in moves:
            if source in written:
                saved = Buffer(source.shape)
                steps.append(CopyThunk(name, source, saved, executions=runs))
                source = saved
            finals.append((source, target))
        for source, target in finals:
            steps.append(CopyThunk(name, source, target, executions=runs))

    def _conditional(self, i: HloInstruction, operands: list[Tree], thunks: list[Thunk], runs: float) -> Tree:
        computations = i.attr("branch_computations") or (
            i.attributes["true_computation"],
            i.attributes["false_computation"],
        )
        out = _new_tree(i.shape)
        branches: list[list[Thunk]] = []
        for computation, argument in zip(computations, operands[1:], strict=True):
            steps: list[Thunk] = []
            result = self._sequence(computation, [argument], steps, runs / len(computations))
            for source, target in zip(leaves(result), leaves(out), strict=True):
                steps.append(CopyThunk(i.name, source, target, executions=runs / len(computations)))
            branches.append(steps)
        thunks.append(ConditionalThunk(i.name, _leaf(operands[0]), branches, executions=runs))
        return out


def wants_kernel(i: HloInstruction) -> bool:
    """Whether an instruction of a sequence is to become a kernel, as far as its opcode and mark tell."""
    op = i.opcode
    if op in _NO_KERNEL or _is_alias(i):
        return False
    if op is Opcode.WHILE:
        return is_kernel_loop(i)
    return op is not Opcode.DOT or gemm.canonical_form(i) is None


def _is_alias(i: HloInstruction) -> bool:
    """Whether its value is the memory of its operand, under another name or shape."""
    return (i.opcode in _ALIASES and _same_type(i)) or (i.opcode is Opcode.BITCAST and _same_memory(i))


# ---- trees


def leaves(tree: Tree) -> list[Buffer]:
    """Buffers of a value, left to right."""
    out: list[Buffer] = []
    stack = [tree]
    while stack:
        t = stack.pop()
        if isinstance(t, Buffer):
            out.append(t)
        else:
            stack.extend(reversed(t))
    return out


def _leaf(tree: Tree) -> Buffer:
    if not isinstance(tree, Buffer):
        raise UnsupportedError("a tuple where an array is needed")
    return tree


def _parts(tree: Tree) -> tuple[Tree, ...]:
    if isinstance(tree, Buffer):
        raise UnsupportedError("an array where a tuple is needed")
    return tree


def _new_tree(shape: Shape, kind: BufferKind = BufferKind.TEMPORARY) -> Tree:
    if shape.is_tuple:
        return tuple(_new_tree(s, kind) for s in shape.tuple_shapes)
    if shape.is_token or shape.element_type is T.OPAQUE:
        return ()
    return Buffer(shape.without_layout(), kind)


def _as_shape(tree: Tree, shape: Shape) -> Tree:
    """The same memory under another shape."""
    if not isinstance(tree, Buffer) or tree.shape.dimensions == shape.dimensions:
        return tree
    alias = Buffer(shape.without_layout(), tree.kind, tree.index)
    alias.forward = tree
    return alias


def _same_type(i: HloInstruction) -> bool:
    """Not so for a copy in a program of mixed precision."""
    return i.shape.element_type is i.operand(0).shape.element_type


def _same_memory(i: HloInstruction) -> bool:
    """Whether a bitcast leaves row-major bytes as they are."""
    return all(s.layout is None for s in (i.shape, i.operands[0].shape)) and i.shape.is_array


def _invariant_leaves(body: HloComputation, shape: Shape) -> list[bool]:
    """For each leaf of a loop's state, whether the body hands it on untouched."""
    root, parameter = body.root, body.parameters[0]
    if root is parameter:
        return [True] * len(list(_array_leaves(shape)))
    if not shape.is_tuple or root.opcode is not Opcode.TUPLE:
        return [False] * len(list(_array_leaves(shape)))
    out: list[bool] = []
    for k, (operand, part) in enumerate(zip(root.operands, shape.tuple_shapes, strict=True)):
        same = (
            operand.opcode is Opcode.GET_TUPLE_ELEMENT
            and operand.operands[0] is parameter
            and operand.attributes["index"] == k
        )
        out += [same] * len(list(_array_leaves(part)))
    return out


def _array_leaves(shape: Shape) -> list[Shape]:
    return [s for s in shape.leaves() if s.is_array]
