"""The thunk emitter: from an optimized module to thunks and the buffers they use.

Tuples exist only at this level: a value is a tree of buffers. Ops that move no data (tuple, get-tuple-element, reshape,
bitcast, copy) become aliases. The carried values of a loop have state buffers of their own. The emitter inserts every
copy into and out of them, and `runtime.coalesce` removes those that live ranges make redundant.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

import numpy as np

from compiler.analysis.allocations import is_allocation
from compiler.analysis.loop_marks import assumed_trips, is_kernel_loop
from compiler.analysis.trip_count import trip_count_of
from compiler.codegen.kernel_spec import KernelSpec, distinct_operands, make_kernel
from compiler.codegen.languages import C, default_schedule
from compiler.codegen.schedules.kernel_choice import GENERATED, BoundKernel, KernelBindings
from compiler.codegen.schedules.schedule import Schedule
from compiler.codegen.templates.loop_kernel import LoopKernel
from compiler.errors import UnbuildableFusionError, UnsupportedError
from compiler.interpreter.custom_calls import custom_call_refusal
from compiler.ir.callgraph import check_call_graph
from compiler.ir.computation import HloComputation, has_side_effect
from compiler.ir.instruction import HloInstruction
from compiler.ir.literal import Literal
from compiler.ir.module import HloModule, is_control_flow
from compiler.ir.opcodes import Opcode
from compiler.ir.shape import Shape, tuple_shape
from compiler.ir.types import PrimitiveType as T
from compiler.runtime import gemm
from compiler.runtime.buffers import Buffer, BufferKind
from compiler.runtime.coalesce import coalesce
from compiler.runtime.donation import donations
from compiler.runtime.implementations import KernelImplementation, find_implementation, preferred_implementation
from compiler.runtime.instruction_kernels import default_kernel_schedule, emit_kernel, is_alias
from compiler.runtime.libraries import LibraryCall
from compiler.runtime.thunks import (
    ConditionalThunk,
    CopyThunk,
    GemmThunk,
    HostThunk,
    KernelThunk,
    LibraryThunk,
    Thunk,
    WhileThunk,
)
from compiler.support.recursion import ENOUGH, deep_recursion

Tree = Buffer | tuple["Tree", ...]
"""The buffers of a value: one for an array, a tuple of trees for a tuple, () for a token."""

UNKNOWN_TRIPS = 10.0
"""Assumed number of iterations of a loop whose trip count is unknown, before it was unrolled."""
MIN_PAIRED_TRIPS = 4
"""Iterations from which it is worthwhile to look whether two of them at once need fewer copies."""
LEAST_SAVED = 0.03
"""Share of the time of an iteration that its copies must take for this."""
STEP_BYTES, BYTES_PER_FLOP = 600, 0.5
"""Bytes that could be accessed in the time to begin a step, and to compute an operation."""
SLICED = 8
"""Bytes accessed for each operation and each byte of new arrays, at most: what is more belongs to other iterations."""
MAX_PAIRED_BODY = 200
"""Instructions up to which a body is emitted twice."""


@dataclass
class ThunkProgram:
    """The thunks of a program and the buffers they use.

    Attributes:
        thunks: the thunks of the entry computation.
        parameters, results: buffers of the arguments and results, one per array.
        constants: the distinct constants.
        constant_buffers: buffers of the constants, in the same order.
    """

    thunks: list[Thunk]
    parameters: list[Buffer]
    results: list[Buffer]
    constants: list[np.ndarray]
    constant_buffers: list[Buffer]


@dataclass
class ThunkEmitter:
    """The emitter of the thunks of one module.

    Attributes:
        language: language of the kernels, a name in `codegen.languages.LANGUAGES`.
        kernels: choices that a plan or a selector made, by names of sequence and instruction.
        default_schedule: the schedule of all other kernels; None: that of the language.
        backend: the name of the backend, by which kernel implementations other than generated code are found.
        made: sequence and name of the fusions that were accepted as legal for this backend, which must have kernels.
        donate: whether results take over the memory of donated arguments.
    """

    language: str
    kernels: KernelBindings = field(default_factory=dict)
    default_schedule: Schedule | None = None
    backend: str = ""
    made: frozenset[tuple[str, str]] = frozenset()
    donate: bool = False

    def __post_init__(self) -> None:
        self._constants: dict[bytes, Buffer] = {}
        self._values: list[np.ndarray] = []
        self._undefined: set[Buffer] = set()  # buffers of allocations: there is nothing to copy from them

    def emit(self, module: HloModule) -> ThunkProgram:
        """Return the thunks of the whole module.

        Raises:
            UnsupportedError: neither a kernel, a library nor the interpreter can run an op.
            UnbuildableFusionError: a fusion of `made` has no kernel.
        """
        graph = check_call_graph(module)
        donated = donations(module) if self.donate else {}
        parameters: list[Buffer] = []
        trees: list[Tree] = []
        for p in module.entry.parameters:
            tree = _new_tree(p.shape, BufferKind.PARAMETER)
            for leaf in leaves(tree):
                leaf.index = len(parameters)
                if leaf.index in donated:
                    leaf.kind, leaf.index = BufferKind.OUTPUT, donated[leaf.index]
                parameters.append(leaf)
            trees.append(tree)
        thunks: list[Thunk] = []
        with deep_recursion(ENOUGH + 10 * graph.calls):
            root = self._sequence(module.entry, trees, thunks, 1.0)
        results = self._results(root, [b for b in parameters if b.kind is BufferKind.OUTPUT], thunks)
        return ThunkProgram(thunks, parameters, results, self._values, list(self._constants.values()))

    def _results(self, root: Tree, donated: Sequence[Buffer], thunks: list[Thunk]) -> list[Buffer]:
        """Copy each leaf of the result to an output buffer of its own, or of a donated argument; return the buffers."""
        values = leaves(root)
        taken = {b.index: b for b in donated}
        out = [taken.get(n) or Buffer(v.shape, BufferKind.OUTPUT, n) for n, v in enumerate(values)]
        self._carry("result", root, tuple(out), thunks, 1.0)
        return out

    # ---- sequences

    # The methods below append to `thunks`; `runs` is the expected number of executions per call of the program.

    def _sequence(
        self, computation: HloComputation, arguments: Sequence[Tree], thunks: list[Thunk], runs: float
    ) -> Tree:
        """Emit the thunks of a computation and return the value of its root."""
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
        if is_allocation(i):
            allocated = Buffer(i.shape.without_layout())
            self._undefined.add(allocated)
            return allocated
        if is_alias(i):
            return self.as_shape(operands[0], i.shape)
        if op is Opcode.CALL:
            return self._sequence(i.attributes["to_apply"], operands, thunks, runs)
        implemented = self._implemented(i, operands, thunks, runs)
        if implemented is not None:
            return implemented
        if op is Opcode.WHILE:
            return self._while(i, operands[0], thunks, runs)
        if op is Opcode.CONDITIONAL:
            return self._conditional(i, operands, thunks, runs)
        return self._kernel(i, operands, thunks, runs)

    def _constant(self, literal: Literal) -> Tree:
        if literal.array is None:
            return tuple(self._constant(e) for e in literal.elements)
        values = np.ascontiguousarray(literal.array)
        # A digest, because the bytes themselves would be another copy of a large constant.
        key = str(literal.shape).encode() + hashlib.sha256(values.reshape(-1).view(np.uint8).data).digest()
        found = self._constants.get(key)
        if found is None:
            found = self._constants[key] = Buffer(literal.shape, BufferKind.CONSTANT, len(self._values))
            self._values.append(values.reshape(literal.array.shape))
        return found

    # ---- kernels

    def _kernel(self, i: HloInstruction, operands: list[Tree], thunks: list[Thunk], runs: float) -> Tree:
        try:
            spec = self._generated(i)
        except UnsupportedError as e:
            if i.opcode is not Opcode.FUSION:
                return self._host(i, operands, thunks, runs)
            self._check_foreign(i, e)
            return self.unfused(i, operands, thunks, runs)
        if not isinstance(spec, KernelSpec):
            raise TypeError(f"the kernel of %{i.name} is that of a loop")
        by_operand = dict(zip(i.operands, operands, strict=True))
        inputs = [_leaf(by_operand[o]) for o in distinct_operands(i)]
        return self.launch(spec, i.shape, inputs, thunks, runs)

    def _check_foreign(self, fusion: HloInstruction, why: UnsupportedError) -> None:
        """Raise UnbuildableFusionError unless a fusion without a kernel was made by the program or another compiler."""
        if fusion.parent is None or (fusion.parent.name, fusion.name) not in self.made:
            return
        raise UnbuildableFusionError(
            f"the fusion %{fusion.name} in %{fusion.parent.name} was legal, but {self.backend or self.language} has no "
            f"kernel for it: {why}. This is a fault of hlogym; please report it with the program. "
            "Another fusion policy may avoid it"
        )

    def unfused(self, fusion: HloInstruction, operands: list[Tree], thunks: list[Thunk], runs: float) -> Tree:
        """Emit the ops of a fusion one by one and return its value."""
        return self._sequence(fusion.attributes["calls"], operands, thunks, runs)

    def _chosen(self, i: HloInstruction) -> BoundKernel | None:
        return self.kernels.get((i.parent.name, i.name)) if i.parent is not None else None

    def _implemented(self, i: HloInstruction, operands: list[Tree], thunks: list[Thunk], runs: float) -> Tree | None:
        """Emit an instruction by the library or template that was chosen or is the default; None: generate code."""
        chosen = self._chosen(i)
        if chosen is not None and chosen.implementation == GENERATED:
            return None
        if chosen is not None:
            implementation: KernelImplementation | None = find_implementation(chosen.implementation)
        else:
            implementation = preferred_implementation(i, self.backend)
        if implementation is None:
            return None
        bound = chosen or BoundKernel(implementation.name, self._schedule(i))
        tree: Tree = implementation.emit(self, i, operands, thunks, runs, bound)
        return tree

    def _schedule(self, i: HloInstruction) -> Schedule:
        preset = self.default_schedule or default_schedule(self.language)
        return default_kernel_schedule(i, self.language, preset)

    def _generated(self, i: HloInstruction) -> KernelSpec | LoopKernel:
        """Return the generated kernel of an instruction with its schedule; raise UnsupportedError if it has none."""
        chosen = self._chosen(i)
        return emit_kernel(i, self.language, self._schedule(i) if chosen is None else chosen.schedule)

    def _loop_kernel(self, i: HloInstruction) -> LoopKernel | None:
        """Return the kernel of a `while`; None if it is not marked, or has none since lowering changed its body."""
        with contextlib.suppress(UnsupportedError):
            kernel = self._generated(i)
            return kernel if isinstance(kernel, LoopKernel) else None
        return None

    def launch(self, spec: KernelSpec, shape: Shape, inputs: list[Buffer], thunks: list[Thunk], runs: float) -> Tree:
        """Emit a kernel thunk with new outputs, after copying the inputs that it updates in place to them."""
        tree = _new_tree(shape)
        outputs = list(leaves(tree))
        for source, target in spec.must_alias:
            out = outputs[target - len(inputs)]
            if inputs[source].resolve() not in self._undefined:
                thunks.append(CopyThunk(spec.name, inputs[source], out, executions=runs))
            inputs[source] = out
        thunks.append(KernelThunk(spec.name, spec, tuple(inputs), tuple(outputs), executions=runs))
        return tree

    @staticmethod
    def as_shape(tree: Tree, shape: Shape) -> Tree:
        """Return an alias of a value with another shape of as many bytes."""
        if not isinstance(tree, Buffer) or tree.shape.dimensions == shape.dimensions:
            return tree
        alias = Buffer(shape.without_layout(), tree.kind, tree.index)
        alias.forward = tree
        return alias

    @staticmethod
    def library_call(
        i: HloInstruction, call: LibraryCall, operands: list[Tree], thunks: list[Thunk], runs: float
    ) -> Tree:
        """Emit a call of a library and return its result."""
        out = Buffer(i.shape.without_layout())
        scratch = Buffer(Shape(T.U8, (call.scratch_bytes,))) if call.scratch_bytes else None
        inputs = tuple(_leaf(operands[n]) for n in call.operands)
        thunks.append(LibraryThunk(i.name, call.operation, inputs, out, scratch, call.flops, executions=runs))
        return out

    @staticmethod
    def _host(i: HloInstruction, operands: list[Tree], thunks: list[Thunk], runs: float) -> Tree:
        refusal = custom_call_refusal(i) if i.opcode is Opcode.CUSTOM_CALL else None
        if refusal is not None:
            raise UnsupportedError(refusal)
        tree = _new_tree(i.shape)
        inputs = tuple(b for o in operands for b in leaves(o))
        thunks.append(HostThunk(i.name, i, inputs, tuple(leaves(tree)), executions=runs))
        return tree

    def product(
        self,
        i: HloInstruction,
        operands: list[Tree],
        thunks: list[Thunk],
        runs: float,
        types: Container[tuple[T, T]] = gemm.PLAIN_TYPES,
    ) -> Tree:
        """Emit a BLAS call with the transposes that it needs and return its result.

        Args:
            i: the dot.
            operands: its operands.
            thunks: to which the call is appended.
            runs: expected number of executions.
            types: see `gemm.canonical_form`.

        Raises:
            UnsupportedError: BLAS does not support the dot.
        """
        form = gemm.canonical_form(i, types)
        if form is None:
            raise UnsupportedError(f"%{i.name} is empty or of types that BLAS does not have")
        sides = []
        for operand, tree, permutation in zip(i.operands, operands, form.permutations, strict=True):
            buffer = _leaf(tree)
            if permutation is not None:
                spec = make_kernel(gemm.transpose_of(operand.shape, permutation), self.language, self.default_schedule)
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
        kernel = self._loop_kernel(i)
        if kernel is not None:
            return self._launch_loop_kernel(i, kernel, init, thunks, runs)
        trips = trip_count_of(i)
        copies = self._copies_of_body(i, trips)
        if trips is not None and trips % copies:  # the first iteration, so that whole rounds are left
            init, trips = self._sequence(i.attributes["body"], [init], thunks, runs), trips - 1
        return self._steps(i, init, copies, trips, thunks, runs)

    def _steps(
        self, i: HloInstruction, init: Tree, copies: int, trips: int | None, thunks: list[Thunk], runs: float
    ) -> Tree:
        """Emit a loop with one or two iterations in each round, and return its final state."""
        inner_runs = runs * (assumed_trips(i, UNKNOWN_TRIPS) if trips is None else trips) / copies
        state = _new_tree(i.shape)
        # Values that the body passes through unchanged stay where they are; the others are copied to state buffers.
        invariant = _invariant_leaves(i.attributes["body"], i.shape)
        for source, target, fixed in zip(leaves(init), leaves(state), invariant, strict=True):
            if fixed:
                target.merge(source)
            elif source.resolve() not in self._undefined:
                thunks.append(CopyThunk(i.name, source, target, executions=runs))
        test: list[Thunk] = []
        predicate = _leaf(self._sequence(i.attributes["condition"], [state], test, inner_runs + runs))
        steps = self._iterations(i, state, copies, trips, inner_runs)
        rounds = None if trips is None else trips // copies
        thunks.append(WhileThunk(i.name, predicate, test, steps, rounds, executions=runs))
        return state

    def _iterations(self, i: HloInstruction, state: Tree, copies: int, trips: int | None, runs: float) -> list[Thunk]:
        """Return the thunks of one or two iterations of a loop, which find its state in its buffers and leave it there.

        If the trip count is unknown, the second iteration runs only if the condition holds after the first.
        """
        steps: list[Thunk] = []
        result = self._sequence(i.attributes["body"], [state], steps, runs)
        if copies == 1:
            self._carry(i.name, result, state, steps, runs)
            return steps
        second = steps
        if trips is None:
            last: list[Thunk] = []
            second = []
            predicate = _leaf(self._sequence(i.attributes["condition"], [result], steps, runs))
            self._carry(i.name, result, state, last, runs / UNKNOWN_TRIPS)
            steps.append(ConditionalThunk(i.name, predicate, [second, last], executions=runs))
        self._carry(i.name, self._sequence(i.attributes["body"], [result], second, runs), state, second, runs)
        return steps

    def _copies_of_body(self, i: HloInstruction, trips: int | None) -> int:
        """Return 2 if two iterations of a loop copy so much less than twice one that it shows, else 1.

        A value that cannot be computed where the old one is, as by a stencil, or that moves on, as the state before the
        last one, is copied in each iteration; the second of two finds it in one buffer and leaves it in the other.
        """
        body, condition = i.attributes["body"], i.attributes["condition"]
        if trips is None and (self.language != C.name or any(map(has_side_effect, condition.instructions))):
            return 1  # a GPU waits for each condition
        if (trips or MIN_PAIRED_TRIPS) < MIN_PAIRED_TRIPS or len(body.instructions) > MAX_PAIRED_BODY:
            return 1
        if any(is_control_flow(o) and not is_kernel_loop(o) for o in body.instructions):
            return 1  # each level would double the thunks
        one, two = (self._work(i, n, trips) for n in (1, 2))
        return 2 if two < 2 * (1 - LEAST_SAVED) * one else 1

    def _work(self, i: HloInstruction, copies: int, trips: int | None) -> float:
        """Return about how many bytes could be accessed in the time of some iterations of a loop, once coalesced."""
        thunks: list[Thunk] = []
        state = self._steps(i, _new_tree(i.shape, BufferKind.PARAMETER), copies, trips, thunks, 1.0)
        coalesce(thunks, leaves(state))
        return sum(_work_of(t) for block in thunks[-1].blocks() for t in block)

    def _launch_loop_kernel(
        self, i: HloInstruction, kernel: LoopKernel, init: Tree, thunks: list[Thunk], runs: float
    ) -> Tree:
        before = _parts(init)
        shapes = i.shape.tuple_shapes
        changed = tuple_shape(*(shapes[k] for k in kernel.outputs))
        inputs = [_leaf(before[k]) for k in kernel.inputs]
        new = self.launch(kernel.spec, changed, inputs, thunks, runs)
        result = list(before)
        for k, tree in zip(kernel.outputs, _parts(new), strict=True):
            result[k] = tree
        return tuple(result)

    @staticmethod
    def _carry(name: str, new: Tree, state: Tree, steps: list[Thunk], runs: float) -> None:
        """Copy new values to the buffers of a loop's state at the end of its body, or to those of the results.

        The copies are a parallel assignment, as in out-of-SSA translation: a value in a state buffer that another copy
        overwrites is saved first.
        """
        pairs = zip(leaves(new), leaves(state), strict=True)
        moves = [(n.resolve(), s.resolve()) for n, s in pairs if n.resolve() is not s.resolve()]
        written = {s for _, s in moves}
        finals, saved = [], []
        for source, target in moves:
            if source in written:
                kept = Buffer(source.shape)
                steps.append(CopyThunk(name, source, kept, executions=runs))
                saved.append((kept, target))
            else:
                finals.append((source, target))
        for source, target in (*finals, *saved):  # the order in which new values may be in the buffers of old ones
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


def _work_of(t: Thunk) -> float:
    """Return the same for one thunk; of arrays with many times more elements than it computes, it accesses slices."""
    if isinstance(t, ConditionalThunk):
        return STEP_BYTES + sum(map(_work_of, t.branches[0]))
    (accessed, flops), read = t.traffic(), {b.resolve() for b in t.reads()}
    computed = flops + sum(b.size for b in t.writes() if b.resolve() not in read)
    return STEP_BYTES + min(accessed, SLICED * computed) + BYTES_PER_FLOP * flops


# ---- trees


def leaves(tree: Tree) -> list[Buffer]:
    """Return the buffers of a value from left to right."""
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
        raise UnsupportedError("expected an array, not a tuple")
    return tree


def _parts(tree: Tree) -> tuple[Tree, ...]:
    if isinstance(tree, Buffer):
        raise UnsupportedError("expected a tuple, not an array")
    return tree


def _new_tree(shape: Shape, kind: BufferKind = BufferKind.TEMPORARY) -> Tree:
    if shape.is_tuple:
        return tuple(_new_tree(s, kind) for s in shape.tuple_shapes)
    if shape.is_token or shape.element_type is T.OPAQUE:
        return ()
    return Buffer(shape.without_layout(), kind)


def _invariant_leaves(body: HloComputation, shape: Shape) -> list[bool]:
    """Return for each leaf of a loop's state whether the body passes it through unchanged."""
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
