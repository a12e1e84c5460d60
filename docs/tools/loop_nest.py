"""The loop IR as text for a reader, with loop kinds and reductions written out."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.codegen.nest import loop_ir as lir

__all__ = ["loop_nest_text"]


def loop_nest_text(kernel: lir.Kernel) -> str:
    """Return a kernel before it is printed in a language: its arguments, loops and statements."""
    arguments = ", ".join(
        f"{'out ' if a.is_output else ''}{a.name}: {a.type.text}[{a.elements}]" for a in kernel.arguments
    )
    return "\n".join([f"{kernel.kind} kernel ({arguments})", *_lines(kernel.body, 1)])


def _lines(body: tuple[lir.Stmt, ...], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for s in body:
        match s:
            case lir.For():
                yield f"{indent}for {s.var.name} in 0..{s.var.extent}  ({_kind(s)}):"
                yield from _lines(s.body, depth + 1)
            case lir.Reduce():
                domain = " x ".join(f"{v.name} in 0..{v.extent}" for v in s.vars)
                yield f"{indent}reduce over {domain}:"
                yield from _lines(s.body, depth + 1)
                yield from (f"{indent}  {r.name}: {r.type.text} = {r.combiner.text} of {r.value}" for r in s.reductions)
            case lir.If():
                yield f"{indent}if {s.condition}:"
                yield from _lines(s.then, depth + 1)
                if s.otherwise:
                    yield f"{indent}else:"
                    yield from _lines(s.otherwise, depth + 1)
            case lir.Sort():
                yield f"{indent}sort {s.left.extent} elements by {s.before}"
            case lir.Scan():
                rows = " x ".join(f"{v.name} in 0..{v.extent}" for v in s.rows)
                yield f"{indent}scan {s.step.name} in 0..{s.step.extent} for {rows}:"
                yield from _lines(s.body, depth + 1)
            case lir.SortByKey():
                yield f"{indent}first {s.position.extent} of {s.element.extent} elements by {s.key} of each row"
            case lir.TransposeTile():
                yield f"{indent}{s.array} = transposed tile of {s.buffer}[{s.offset.to_c()}]"
            case _:
                yield indent + _simple(s)


def _kind(loop: lir.For) -> str:
    reduced = ", ".join(f"{c.combiner.text} into {c.accumulator}" for c in loop.combined)
    return loop.kind.value + (f", {reduced}" if reduced else "")


def _simple(s: lir.Stmt) -> str:
    match s:
        case lir.Let():
            return f"{s.name}: {s.type.text} = {_value(s.value)}"
        case lir.Accumulator():
            return f"accumulator {s.name}: {s.type.text} = {s.init}"
        case lir.Assign():
            return f"{s.name} = {s.value}"
        case lir.LocalArray():
            return f"{s.scope.value} array {s.name}: {s.type.text}[{s.size}]"
        case lir.LocalStore():
            return f"{s.array}[{s.offset.to_c()}] = {s.value}"
        case lir.Store():
            return f"{s.buffer}[{s.offset.to_c()}] = {s.value}"
        case lir.StorePair():
            return f"{s.buffer}[{s.offset.to_c()}], {s.buffer}[{(s.offset + 1).to_c()}] = {s.first}, {s.second}"
        case lir.Update():
            return f"{s.buffer}[{s.offset.to_c()}] {s.combiner.text}= {s.value}"
        case _:
            raise TypeError(f"{type(s).__name__} has no text")


def _value(value: lir.Expr) -> str:
    match value:
        case lir.Constant() | lir.Opaque():
            return str(value.value)
        case lir.Apply():
            return f"{value.op}({', '.join(value.args)})"
        case lir.IndexValue():
            return value.value.to_c()
        case lir.IndexTest():
            bounds = ["-inf" if value.low is None else str(value.low), "inf" if value.high is None else str(value.high)]
            return f"{bounds[0]} <= {value.value.to_c()} <= {bounds[1]}"
        case lir.PairLoad():
            return f"{value.buffer}[{value.offset.to_c()}], {value.buffer}[{(value.offset + 1).to_c()}]"
        case lir.PairHalf():
            return f"{value.pair}.{'second' if value.second else 'first'}"
        case lir.Load():
            return f"{value.buffer}[{value.offset.to_c()}]"
        case lir.LocalLoad():
            return f"{value.array}[{value.offset.to_c()}]"
        case lir.LaneResult():
            return f"{value.combiner.text} of the {value.lanes} elements of {value.array}"
        case lir.Current():
            return value.name
