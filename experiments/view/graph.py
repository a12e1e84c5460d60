"""The data of the graph page: instructions, fusions, reasons, times and passes as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compiler.analysis.cost_model import CostModel, DeviceModel, module_cost
from compiler.analysis.loop_marks import kernel_loop_of
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode
from compiler.ir.printing import PrintOptions, print_instruction
from compiler.plan import CompilationPlan
from compiler.runtime.boundaries import Boundaries
from experiments.view.history import History
from experiments.view.scopes import Scopes, scope_path

__all__ = ["Table", "graph_data"]

_OPTIONS = PrintOptions(metadata=False, max_constant_elements=8)


class Table:
    """Numbers values, so that text that occurs often is written once."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, value: str) -> int:
        """Return the number of a value."""
        found = self._numbers.get(value)
        if found is None:
            found = self._numbers[value] = len(self.values)
            self.values.append(value)
        return found


def graph_data(
    history: History,
    plan: CompilationPlan,
    costs: CostModel,
    measured: Mapping[str, float],
    implementations: Mapping[str, str],
    sources: Mapping[str, str],
) -> dict[str, Any]:
    """Return the data of the page as plain data.

    Args:
        history: the course of the compilation.
        plan: its decisions.
        costs: the cost model of the estimates.
        measured: seconds per call of each kernel, by name; may be empty.
        implementations: what computes each kernel, by name; may be empty.
        sources: of the generated kernels, by name; may be empty.
    """
    words, scopes = Table(), Scopes()
    final_seconds = module_cost(history.final, costs)
    base_seconds = module_cost(history.base, costs).by_instruction
    order = {c.name: n for n, c in enumerate(_shown_computations(history.base))}
    return {
        "name": history.final.name,
        "device": costs.device.name,
        "costModel": costs.name,
        "decidedBy": dict(plan.decided_by),
        "passCount": len(history.passes),
        "baseSeconds": history.base_seconds,
        "finalSeconds": final_seconds.seconds,
        "sequences": [
            _sequence(c, order, words, scopes, base_seconds, is_entry=c is history.base.entry)
            for c in _shown_computations(history.base)
        ],
        "scopes": scopes.rows,
        "steps": [
            [
                order[f.sequence],
                f.kind,
                f.producer,
                list(f.consumers),
                [list(m) for m in f.made],
                int(f.remains),
                f.saving,
            ]
            for f in history.fusions
        ],
        "kernels": _kernels(
            history.final, plan, final_seconds.by_instruction, measured, implementations, sources, words
        ),
        "boundaries": _boundaries(history.final, costs.device, words, order),
        "words": words.values,  # last, because the other parts add words
    }


def _shown_computations(module: HloModule) -> list[HloComputation]:
    """Return the entry, then the bodies of its loops and branches, callers before callees, loops in one kernel too."""
    found: dict[HloComputation, None] = {}
    stack = [module.entry]
    while stack:
        c = stack.pop()
        if c in found:
            continue
        found[c] = None
        for i in reversed(c.instructions):
            stack += [called for _, called in _inner(i)]
    return list(found)


def _inner(i: HloInstruction) -> list[tuple[str, HloComputation]]:
    """Return the computations that run in place of an instruction, with their roles."""
    match i.opcode:
        case Opcode.WHILE:
            return [("body", i.attributes["body"]), ("condition", i.attributes["condition"])]
        case Opcode.CONDITIONAL:
            return [(f"branch {n}", c) for n, c in enumerate(i.called_computations())]
        case Opcode.CALL:
            return [("called", c) for c in i.called_computations()]
        case _:
            return []


def _sequence(
    computation: HloComputation,
    order: Mapping[str, int],
    words: Table,
    scopes: Scopes,
    seconds: Mapping[tuple[str, str], float],
    is_entry: bool,
) -> dict[str, Any]:
    position = {i: n for n, i in enumerate(computation.post_order())}
    rows = [
        [
            i.name, words.number(i.opcode.text), words.number(i.shape.to_text(layout=False)),
            [position[o] for o in i.operands], scopes.number(scope_path(i)), i.shape.byte_size,
            seconds.get((computation.name, i.name), 0.0), words.number(print_instruction(i, _OPTIONS)),
            _flags(i), [[what, order[c.name]] for what, c in _inner(i)],
            [words.number(t) for t in _fused_lines(i)],
        ]
        for i in position
    ]  # fmt: skip
    return {"name": computation.name, "entry": is_entry, "rows": rows}


def _flags(i: HloInstruction) -> str:
    """Return letters: r for the root, k for a loop in one kernel, c for a custom fusion, b for a constant broadcast."""
    constant = i.opcode is Opcode.BROADCAST and i.operands[0].opcode is Opcode.CONSTANT
    marks = {
        "r": i.is_root,
        "k": kernel_loop_of(i) is not None,
        "c": i.attributes.get("kind") == "kCustom",
        "b": constant,
    }
    return "".join(letter for letter, holds in marks.items() if holds)


def _fused_lines(i: HloInstruction) -> list[str]:
    """Return the text of the instructions of a fusion that was there before fusion began."""
    if i.opcode is not Opcode.FUSION:
        return []
    body: HloComputation = i.attributes["calls"]
    return [print_instruction(j, _OPTIONS) for j in body.post_order() if j.opcode is not Opcode.PARAMETER]


def _kernels(
    module: HloModule,
    plan: CompilationPlan,
    seconds: Mapping[tuple[str, str], float],
    measured: Mapping[str, float],
    implementations: Mapping[str, str],
    sources: Mapping[str, str],
    words: Table,
) -> dict[str, list[Any]]:
    """Return for each fusion and kernel of the final module its times, implementation, choice, bytes and source."""
    found = {}
    for c in module.control_flow_computations():
        choices = plan.kernels.get(c.name, {})
        for i in c.instructions:
            time = seconds.get((c.name, i.name), 0.0)
            if not time and i.opcode is not Opcode.FUSION:
                continue
            choice = choices.get(i.name)
            found[f"{c.name}/{i.name}"] = [
                time, measured.get(i.name), implementations.get(i.name, ""), "" if choice is None else str(choice),
                sum(s.byte_size for o in dict.fromkeys(i.operands) for s in o.shape.leaves()) + i.shape.byte_size,
                words.number(sources.get(i.name, "")),
            ]  # fmt: skip
    return found


def _boundaries(module: HloModule, device: DeviceModel, words: Table, order: Mapping[str, int]) -> list[list[Any]]:
    """Return rows of sequence, producer, consumer, bytes, refusal (-1: legal), kind, seconds before and after."""
    return [
        [
            order[b.sequence], b.producer, b.consumer, b.bytes, -1 if b.refusal is None else words.number(b.refusal),
            b.action or "", b.before, b.after,
        ]
        for b in Boundaries(module, device)
        if b.sequence in order
    ]  # fmt: skip
