"""What one execution of a bound loop nest does, in counts: operations, accesses by stride, loops and tasks.

The counts are those of the loops as they are bound to a CPU, so two schedules of a kernel differ in them where the
schedules differ in what the code does.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.index import IndexExpr, Multiple, Quotient, Remainder, Var
from compiler.codegen.nest.loop_ir import Body, For, LoopKind, Stmt
from compiler.codegen.nest.scalar_ops import SCALAR_BYTES, ScalarOp
from compiler.codegen.nest.traversal import names_of
from compiler.ir.opcodes import Opcode
from compiler.ir.types import PrimitiveType

__all__ = ["NEST_COUNTS", "nest_counts"]

_WAYS = ("scalar", "vector")
_OPS = ("simple", "multiply", "divide", "exponential", "trigonometric", "convert", "wide integer")
_STRIDES = ("same", "next", "strided", "gathered")
NEST_COUNTS = (
    *(f"{way} {op}" for way in _WAYS for op in _OPS),
    *(f"{way} {access} {stride}" for way in _WAYS for access in ("load", "store") for stride in _STRIDES),
    *(f"{way} {what}" for way in _WAYS for what in ("local", "index", "test", "branch", "assign")),
    "vector loops", "vector iterations", "serial loops", "serial iterations", "parallel loops", "tasks",
    "parallel work", "serial work", "product flops", "products", "sort work", "scan steps", "scan rows", "flagged",
    "transposed", "streamed", "updates", "local bytes", "statements", "expensive statements", "deepest loop",
    "longest body", "longest chain", "arguments", "bytes in", "bytes out", "largest argument",
)  # fmt: skip
"""The names of the counts. Operations and accesses count 4 bytes as one, index arithmetic one division as one."""

_DIVIDE = frozenset({Opcode.DIVIDE, Opcode.REMAINDER, Opcode.SQRT, Opcode.RSQRT, Opcode.CBRT})
_EXPONENTIAL = frozenset(
    {Opcode.EXPONENTIAL, Opcode.EXPONENTIAL_MINUS_ONE, Opcode.LOG, Opcode.LOG_PLUS_ONE, Opcode.TANH, Opcode.LOGISTIC}
)
_PARALLEL_KINDS = (LoopKind.PARALLEL, LoopKind.PARALLEL_VECTOR)
_RANDOM = "gathered"


def nest_counts(body: Body, arguments: Sequence[lir.Argument]) -> dict[str, float]:
    """Return the counts of statements that are bound to a CPU, by the names in NEST_COUNTS, without those of 0.

    Args:
        body: the statements of a kernel, or some of them.
        arguments: the arguments of the kernel.
    """
    counter = _Counter(arguments)
    counter.body(body, _Place())
    found = counter.found
    sizes = [a.elements * SCALAR_BYTES.get(a.type, 4) for a in arguments]
    outputs = [size for a, size in zip(arguments, sizes, strict=True) if a.is_output]
    found["arguments"] = len(sizes)
    found["bytes in"] = sum(sizes) - sum(outputs)
    found["bytes out"] = sum(outputs)
    found["largest argument"] = max(sizes, default=0)
    return dict(found)


class _Place:
    """Where a statement is.

    Attributes:
        runs: number of times that it runs.
        depth: number of loops around it.
        var: the variable along which accesses count as adjacent: that of the vector loop, or else of the innermost one.
        vector: whether it is in a vector loop.
        parallel: whether it is in a loop that threads share.
    """

    __slots__ = ("depth", "parallel", "runs", "var", "vector")

    def __init__(
        self, runs: float = 1.0, depth: int = 0, var: Var | None = None, vector: bool = False, parallel: bool = False
    ) -> None:
        self.runs, self.depth, self.var, self.vector, self.parallel = runs, depth, var, vector, parallel

    def inside(self, var: Var, runs: float, vector: bool = False, parallel: bool = False) -> _Place:
        """Return the place of the body of a loop that has `runs` iterations per execution."""
        along = self.var if self.vector else var
        return _Place(self.runs * runs, self.depth + 1, along, self.vector or vector, self.parallel or parallel)


class _Counter:
    """Counts the statements of a nest."""

    def __init__(self, arguments: Sequence[lir.Argument]) -> None:
        self.found: defaultdict[str, float] = defaultdict(float)
        self.types: dict[str, PrimitiveType] = {a.name: a.type for a in arguments}

    def body(self, body: Body, place: _Place) -> int:
        """Count statements; return the length of the longest chain of them that depend on each other."""
        found, chains = self.found, dict[str, int]()
        found["statements"] += len(body)
        found["deepest loop"] = max(found["deepest loop"], place.depth)
        if place.depth:
            found["longest body"] = max(found["longest body"], len(body))
        for s in body:
            self._statement(s, place)
            if isinstance(s, lir.Let):
                latency = 8 if isinstance(s.value, lir.Apply) and s.value.op.is_expensive else 1
                chains[s.name] = latency + max((chains.get(n, 0) for n in names_of(s)), default=0)
        longest = max(chains.values(), default=0)
        if place.depth:
            found["longest chain"] = max(found["longest chain"], longest)
        return longest

    def _add(self, place: _Place, what: str, amount: float = 1.0) -> None:
        work = place.runs * amount
        self.found[f"{'vector' if place.vector else 'scalar'} {what}"] += work
        self.found["parallel work" if place.parallel else "serial work"] += work

    def _statement(self, s: Stmt, place: _Place) -> None:
        match s:
            case lir.Let():
                self._value(s, place)
            case lir.Store() | lir.StorePair() | lir.Update():
                self._access(place, "store", s.offset, self._bytes(s.buffer))
                if isinstance(s, lir.Update):
                    self.found["updates"] += place.runs
            case lir.LocalStore():
                self._add(place, "local")
            case lir.Accumulator() | lir.Assign():
                self._add(place, "assign")
            case lir.LocalArray():
                self.types[s.name] = s.type
                self.found["local bytes"] += s.size * SCALAR_BYTES[s.type]
            case lir.If():
                self._add(place, "branch")
                self.body(s.then, place)
                self.body(s.otherwise, place)
            case For():
                self._loop(s, place)
            case _:
                self._special(s, place)

    def _special(self, s: Stmt, place: _Place) -> None:
        found = self.found
        match s:
            case lir.Reduce():
                runs = math.prod(v.extent for v in s.vars)
                self.body(s.body, place.inside(s.vars[-1], runs))
            case lir.MatrixProduct():
                found["products"] += place.runs
                work = 2.0 * place.runs * math.prod(span.extent for span in s.spans)
                found["product flops"] += work * (2.0 if s.type is PrimitiveType.F64 else 1.0)
                found["parallel work" if place.parallel else "serial work"] += work / 16
            case lir.Sort():
                n = s.position.extent
                steps = n * max(1.0, math.log2(max(1, n)))
                found["sort work"] += place.runs * steps
                self.body(s.compare, place.inside(s.position, steps))
                self.body(s.body, place.inside(s.position, n))
            case lir.SortByKey():
                n, rows = s.element.extent, s.row.extent
                found["sort work"] += place.runs * rows * n
                shared = bool(s.grain)
                found["tasks"] += place.runs * rows if shared else 0
                each = place.inside(s.row, rows, parallel=shared)
                self.body(s.read, each.inside(s.element, n))
                self.body(s.body, each.inside(s.position, s.position.extent))
            case lir.Scan():
                rows = s.rows[0].extent * s.rows[1].extent
                found["scan rows"] += place.runs * rows
                found["scan steps"] += place.runs * rows * s.step.extent
                self.body(s.body, place.inside(s.step, rows * s.step.extent))
            case lir.ForFlagged():
                found["flagged"] += place.runs * s.position.extent
                each = place.inside(s.slot, s.position.extent / 16)
                self.body(s.body, each)
                self.body(s.ordered, each)
            case lir.TransposeTile():
                found["transposed"] += place.runs * s.size * (s.height or s.size)
            case lir.StreamStore():
                found["streamed"] += place.runs * s.span.extent * self._bytes(s.buffer) / 4
            case _:
                pass

    def _loop(self, s: For, place: _Place) -> None:
        found = self.found
        extent = s.var.extent
        if s.base is not None and s.limit is not None:  # a remainder tile: the mean of what its base leaves
            low, high = s.base.range
            extent = min(extent, max(1, s.limit - (low + high) // 2))
        vector, parallel = s.kind.is_vector, s.kind in _PARALLEL_KINDS
        found["vector loops" if vector else "serial loops"] += place.runs
        found["vector iterations" if vector else "serial iterations"] += place.runs * extent
        if parallel:
            found["parallel loops"] += place.runs
            found["tasks"] += place.runs * max(1.0, extent / max(1, s.grain))
        self.body(s.body, place.inside(s.var, extent, vector, parallel))

    def _value(self, s: lir.Let, place: _Place) -> None:
        value, size = s.value, SCALAR_BYTES.get(s.type, 4)
        match value:
            case lir.Load() | lir.PairLoad():
                self._access(place, "load", value.offset, self._bytes(value.buffer))
            case lir.LocalLoad():
                self._add(place, "local", size / 4)
            case lir.LaneResult():
                self._lanes(value, place)
            case lir.IndexValue():
                self._add(place, "simple", size / 4)
                self._index(value.value, place)
            case lir.IndexTest():
                self._add(place, "test")
                self._index(value.value, place)
            case lir.Apply():
                kind = _op_kind(value.op)
                width = max(size, SCALAR_BYTES.get(value.op.type, 4)) / 4
                self._add(place, kind, width)
                if value.op.is_expensive:
                    self.found["expensive statements"] += 1
            case _:
                pass

    def _lanes(self, value: lir.LaneResult, place: _Place) -> None:
        """Count the lanes of a vector as loops that combine their halves, each over half as many as the one before."""
        combined = value.lanes - 1
        inside = _Place(place.runs, place.depth, place.var, True, place.parallel)
        self.found["vector loops"] += place.runs * math.log2(value.lanes)
        self.found["vector iterations"] += place.runs * combined
        self._add(inside, "local", 3 * combined)
        self._add(inside, "simple", combined)

    def _access(self, place: _Place, what: str, offset: IndexExpr, size: float) -> None:
        self._add(place, f"{what} {_stride(offset, place.var)}", size / 4)
        self._index(offset, place)

    def _index(self, value: IndexExpr, place: _Place) -> None:
        divisions = sum(isinstance(symbol, Quotient | Remainder) for symbol, _ in value.terms)
        if divisions:
            self._add(place, "index", divisions)

    def _bytes(self, buffer: str) -> float:
        kind = self.types.get(buffer)
        return 4.0 if kind is None else SCALAR_BYTES.get(kind, 4)


def _op_kind(op: ScalarOp) -> str:
    opcode = op.opcode
    if opcode in _DIVIDE:
        return "divide"
    if opcode in _EXPONENTIAL:
        return "exponential"
    if op.is_expensive:
        return "trigonometric"
    if opcode is Opcode.CONVERT:
        return "convert"
    if opcode is Opcode.MULTIPLY:
        wide = not op.type.is_float and op.type.bits > 32
        return "wide integer" if wide else "multiply"
    return "wide integer" if opcode is Opcode.MULHI else "simple"


def _stride(offset: IndexExpr, var: Var | None) -> str:
    """Return how an access moves when a variable grows by one."""
    stride = 0
    for symbol, c in offset.terms:
        if symbol == var:
            stride = c
        elif isinstance(symbol, Multiple):
            stride = stride or (0 if var is None else c * symbol.factor.low * symbol.value.coefficient(var))
        elif isinstance(symbol, Quotient | Remainder):
            if var is not None and var in set(symbol.value.variables()):
                return _RANDOM
        elif not isinstance(symbol, Var):
            return _RANDOM
    return "same" if stride == 0 else "next" if abs(stride) == 1 else "strided"
