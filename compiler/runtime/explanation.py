"""Explanations of compiled programs: which decisions made each kernel, and why kernels are separate."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from compiler.analysis.cost_model import CostModel, DeviceModel, module_cost
from compiler.analysis.loop_marks import is_kernel_loop, kernel_loop_of
from compiler.codegen.build_target import BuildTarget
from compiler.fusion.actions import SPLITTING_KINDS
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode
from compiler.plan import CompilationPlan, FusionStep
from compiler.runtime.boundaries import Boundaries, Boundary
from compiler.runtime.live_arrays import Peak
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
from compiler.support.display import counted, time_text
from compiler.support.memory import size_text

__all__ = ["Explanation", "KernelExplanation", "steps_of_fusions"]

DETAILED = 40
"""Greatest number of kernels of which the text shows every decision and boundary."""
_SHOWN = 8
"""Greatest number of fusions of one kernel, and of kinds of reasons, that the text lists."""


@dataclass(frozen=True)
class KernelExplanation:
    """One step of a compiled program and the decisions that made it.

    Attributes:
        name: name of the HLO instruction that it computes.
        sequence: name of the computation that runs it.
        implementation: what computes it, for example "generated c kernel (loop)" or "BLAS matrix product".
        instructions: number of HLO instructions inside.
        opcodes: how many of them have each opcode, the most frequent first.
        fusions: the fusion steps that made it, in order; empty for a single op.
        rule: the rule of the compiler that made it where no decision did, or "".
        choice: the implementation and schedule that were chosen, as text; "" for the defaults.
        runs: expected executions per call of the program.
        bytes: minimum memory traffic of one execution.
        flops: floating point operations of one execution.
        seconds: estimated seconds per call of the program; 0 where the cost model knows none.
    """

    name: str
    sequence: str
    implementation: str
    instructions: int
    opcodes: Mapping[str, int]
    fusions: tuple[FusionStep, ...]
    rule: str
    choice: str
    runs: float
    bytes: int
    flops: int
    seconds: float

    @property
    def made_by(self) -> str:
        """Return in a few words how the kernel came about."""
        if self.rule:
            return self.rule
        if not self.fusions:
            return "one instruction, nothing fused into it"
        return f"{len(self.fusions)} fusion{'s' if len(self.fusions) > 1 else ''}"

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as plain data."""
        return {
            "name": self.name, "sequence": self.sequence, "implementation": self.implementation,
            "instructions": self.instructions, "opcodes": dict(self.opcodes),
            "fusions": [{**s.action.to_json(), "made": list(s.made)} for s in self.fusions],
            "rule": self.rule, "choice": self.choice, "runs": self.runs, "bytes": self.bytes, "flops": self.flops,
            "seconds": self.seconds,
        }  # fmt: skip


class Explanation:
    """Which decisions made each kernel of a program, and for each boundary between kernels the reason for it.

    `str` of it is for a terminal: a summary, then each kernel with its boundaries, or one line per kernel when there
    are many; `of(name)` is the text of one kernel.

    Args:
        module: the module after all passes and fusion.
        plan: the decisions; None for a program that was compiled without any.
        thunks: the steps of the program, nested ones included.
        costs: the cost model, or the device of the analytic one.
        target: what kernels were built for; None: C with its defaults.
        peak: the temporary arrays that need most memory; None if the backend does not assign them.

    Attributes:
        plan: the decisions, or None.
        peak: as given.
        cost_model: the name of the cost model of the times of kernels. Those of boundaries are always of the analytic
            one, by which the rules judge fusions.
        kernels: what each step computes, in program order; copies and control flow are left out.
    """

    def __init__(
        self,
        module: HloModule,
        plan: CompilationPlan | None,
        thunks: Iterable[Thunk],
        costs: DeviceModel | CostModel,
        target: BuildTarget | None = None,
        peak: Peak | None = None,
    ) -> None:
        self.plan, self._target, self.peak = plan, target, peak
        model = costs if isinstance(costs, CostModel) else CostModel(costs)
        self._module, self._device, self._thunks = module, model.device, list(thunks)
        self.cost_model = model.name
        self.kernels: list[KernelExplanation] = list(_explain_kernels(module, plan, self._thunks, model))

    @cached_property
    def separate(self) -> tuple[str, ...]:
        """What the backend has no kernel for, so that its ops run one by one: fusions of the program, marked loops."""
        by_name = {t.name: t for t in self._thunks}
        if not by_name:
            return ()
        chosen = {} if self.plan is None else self.plan.kernels
        instructions = [(c.name, i) for c in self._module.control_flow_computations() for i in c.instructions]
        fusions = [
            i.name
            for c, i in instructions
            if i.opcode is Opcode.FUSION and i.name not in by_name and i.name not in chosen.get(c, {})
        ]
        loops = [i.name for _, i in instructions if is_kernel_loop(i) and isinstance(by_name.get(i.name), WhileThunk)]
        return (*fusions, *loops)

    @cached_property
    def boundaries(self) -> list[Boundary]:
        """The boundaries, sequence by sequence; they are judged when they are first read."""
        rules = () if self.plan is None else self.plan.rules
        return list(Boundaries(self._module, self._device, rules, self._target))

    @property
    def seconds(self) -> float:
        """Return the estimated seconds per call of all kernels."""
        return sum(k.seconds for k in self.kernels)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        plan = self.plan
        return {
            "program": self._module.name,
            "decided_by": {} if plan is None else dict(plan.decided_by),
            "passes": [] if plan is None else list(plan.passes),
            "expansions": {} if plan is None else {c.id: c.choice for c in plan.expansions},
            "loops": {} if plan is None else dict(plan.loops),
            "loop_passes": [] if plan is None else list(plan.loop_passes),
            "cost_model": self.cost_model,
            "kernels": [k.to_dict() for k in self.kernels],
            "separate": list(self.separate),
            "boundaries": [b.to_dict() for b in self.boundaries],
            "peak": None if self.peak is None else self.peak.to_dict(),
        }

    def to_json(self, indent: int | None = 1) -> str:
        """Return everything as JSON."""
        return json.dumps(self.to_dict(), indent=indent) + "\n"

    # ---- text

    def __str__(self) -> str:
        """Return the text for a terminal."""
        lines = [*self._summary(), ""]
        if len(self.kernels) <= DETAILED:
            for k in self.kernels:
                lines += [*self._kernel_text(k), ""]
        else:
            lines += [*self._table(), "", "explain().of(NAME) shows the decisions and boundaries of one kernel."]
        return "\n".join(lines).rstrip() + "\n"

    def of(self, name: str) -> str:
        """Return the text of one kernel.

        Raises:
            KeyError: there is no kernel of that name.
        """
        found = [k for k in self.kernels if k.name == name.removeprefix("%")]
        if not found:
            raise KeyError(f"no kernel is called {name}")
        return "\n".join(line for k in found for line in self._kernel_text(k)) + "\n"

    def _summary(self) -> Iterator[str]:
        reasons = Counter(b.kind_of_reason for b in self.boundaries)
        kernels = counted(len(self.kernels), "kernel")
        yield f"{self._module.name}: {kernels}, {time_text(self.seconds)} per call by the {self.cost_model}"
        yield from self._decisions()
        if self.kernels:
            kinds = Counter(k.implementation for k in self.kernels)
            yield "computed by " + ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
        if self.separate:
            yield f"op by op    {_names(self.separate)}: the backend has no kernel for them as a whole"
        if self.peak is not None and self.peak.arrays:
            yield f"memory      {size_text(self.peak.bytes)} of temporary arrays at %{self.peak.step}, the largest:"
            yield from (f"            {a}" for a in self.peak.arrays[:_SHOWN])
        yield f"boundaries  {len(self.boundaries)}" + (", by reason:" if reasons else "")
        for reason, count in reasons.most_common(_SHOWN):
            yield f"  {count:6}  {reason}"
        if len(reasons) > _SHOWN:
            yield f"  {sum(reasons.values()) - sum(n for _, n in reasons.most_common(_SHOWN)):6}  other reasons"

    def _decisions(self) -> Iterator[str]:
        plan = self.plan
        if plan is None:
            yield "decisions   none: compiled without passes and fusion"
            return
        by = plan.decided_by
        yield f"passes      {_phase(by, 'passes', 'the pipeline')}: {_list(plan.passes, 'none changed anything')}"
        if plan.expansions:
            chosen = [f"%{c.id} {c.choice}" for c in plan.expansions]
            yield f"expansions  {_phase(by, 'expansions', 'single calls')}: {_list(chosen)}"
        if plan.loop_choices:
            chosen = [f"%{c.id} {c.choice}" for c in plan.loop_choices]
            yield f"loops       {_phase(by, 'loops', 'single calls')}: {_list(chosen)}"
        if plan.loop_passes:
            yield f"then passes {_list(plan.loop_passes)}"
        yield f"fusion      {_phase(by, 'fusion', 'single calls')}: {len(plan.steps)} fusions"
        if plan.rules:
            yield f"rules       the user: {'; '.join(plan.rules)}"
        chosen_kernels = sum(map(len, plan.kernels.values()))
        whose = _phase(by, "kernels", "single calls" if chosen_kernels else "the backend's rules")
        yield f"kernels     {whose}: {chosen_kernels or 'none'} with other than the default choice"

    def _kernel_text(self, k: KernelExplanation) -> Iterator[str]:
        runs = f", {k.runs:g} runs" if k.runs != 1 else ""
        time = f", {time_text(k.seconds)}" if k.seconds else ""
        yield f"%{k.name} in %{k.sequence}: {k.implementation}{runs}{time}, {_bytes(k.bytes)} moved"
        inside = ", ".join(f"{n} {op}" if n > 1 else op for op, n in list(k.opcodes.items())[:_SHOWN])
        yield f"  computes  {k.instructions} instruction{'s' if k.instructions > 1 else ''}: {inside}"
        yield f"  made by   {k.made_by}" + (f" ({_phase(self._by, 'fusion', 'single calls')})" if k.fusions else "")
        if len(k.fusions) > _SHOWN:
            yield f"            {len(k.fusions) - _SHOWN} earlier ones, then"
        for step in k.fusions[-_SHOWN:]:
            a = step.action
            yield f"            {a.kind}: %{a.producer} -> {_names(a.consumers)} makes {_names(step.made)}"
        who = _phase(self._by, "kernels", "single calls") if k.choice else "the backend's rules"
        yield f"  schedule  {k.choice or 'default'} ({who})"
        for b in self._after.get((k.sequence, k.name), ()):
            yield f"  boundary  to %{b.consumer} ({_bytes(b.bytes)}): {_reason(b)}"

    @property
    def _by(self) -> Mapping[str, str]:
        return {} if self.plan is None else self.plan.decided_by

    @cached_property
    def _after(self) -> dict[tuple[str, str], list[Boundary]]:
        """The boundaries by the instruction that writes the value."""
        found: dict[tuple[str, str], list[Boundary]] = {}
        for b in self.boundaries:
            found.setdefault((b.sequence, b.producer), []).append(b)
        return found

    def _table(self) -> Iterator[str]:
        width = min(40, max((len(k.name) for k in self.kernels), default=0))
        yield f"{'kernel':{width + 1}}  {'time':>9}  {'moved':>9}  {'ops':>4}  made by; implementation; boundaries"
        for k in sorted(self.kernels, key=lambda k: -k.seconds):
            after = self._after.get((k.sequence, k.name), [])
            illegal = sum(b.refusal is not None for b in after)
            verdict = f"{illegal} illegal, {len(after) - illegal} not chosen" if after else "no boundary after it"
            yield (
                f"%{_cut(k.name, width):{width}}  {time_text(k.seconds):>9}  {_bytes(k.bytes):>9}  {k.instructions:4}  "
                f"{k.made_by}; {k.implementation}{' ' + k.choice if k.choice else ''}; {verdict}"
            )


# ---- kernels


def _explain_kernels(
    module: HloModule, plan: CompilationPlan | None, thunks: Iterable[Thunk], costs: CostModel
) -> Iterator[KernelExplanation]:
    seconds = module_cost(module, costs).by_instruction
    steps = steps_of_fusions(plan)
    homes = {i.name: (c, i) for c in module.control_flow_computations() for i in c.instructions}
    choices = {} if plan is None else plan.kernels
    for t in thunks:
        if isinstance(t, CopyThunk | WhileThunk | ConditionalThunk):
            continue
        computation, i = homes.get(t.name, (None, None))
        key = ("" if computation is None else computation.name), t.name
        inside = [] if i is None else _inside(i)
        opcodes = Counter(j.opcode.text for j in inside)
        choice = choices.get(key[0], {}).get(t.name)
        yield KernelExplanation(
            t.name, key[0], _implementation(t), len(inside), dict(opcodes.most_common()), tuple(steps.get(key, ())),
            "" if i is None else _rule(i, bool(steps.get(key))), "" if choice is None else str(choice), t.executions,
            *t.traffic(), seconds.get(key, 0.0),
        )  # fmt: skip


def steps_of_fusions(plan: CompilationPlan | None) -> dict[tuple[str, str], list[FusionStep]]:
    """Return the steps that made each fusion of the final module, by names of sequence and fusion.

    Steps are followed backwards: what made the fusion, then what made the instructions that it took in.
    """
    found: dict[tuple[str, str], list[FusionStep]] = {}
    owners: dict[tuple[str, str], set[str]] = {}
    for step in reversed(() if plan is None else plan.steps):
        sequence = step.action.computation
        taken: set[str] = set()
        # A value that was moved is in the kernel that took it.
        made_of = step.made if step.action.kind != "move" else (step.made[-1],) * 2
        for made, consumer in zip(made_of, step.action.consumers, strict=True):
            mine = owners.get((sequence, made), {made})
            taken |= mine
            owners[sequence, consumer] = owners.get((sequence, consumer), set()) | mine
        if step.action.kind in SPLITTING_KINDS:  # what remains of the fusion was made by this step too
            taken |= owners.get((sequence, step.action.producer), {step.action.producer})
        owners[sequence, step.action.producer] = owners.get((sequence, step.action.producer), set()) | taken
        for name in taken:
            found.setdefault((sequence, name), []).append(step)
    return {key: steps[::-1] for key, steps in found.items()}


def _inside(i: HloInstruction) -> list[HloInstruction]:
    """Return the instructions that a kernel computes, without parameters and constants."""
    if i.opcode is Opcode.FUSION:
        body: HloComputation = i.attributes["calls"]
        found = [j for j in body.instructions if j.opcode not in (Opcode.PARAMETER, Opcode.CONSTANT, Opcode.TUPLE)]
        loop = kernel_loop_of(i)
        return found if loop is None else [*found, *_inside(loop)[1:]]
    if i.opcode is Opcode.WHILE:
        body = i.attributes["body"]
        return [i, *(j for j in body.instructions if j.opcode not in (Opcode.PARAMETER, Opcode.CONSTANT))]
    return [i]


def _rule(i: HloInstruction, fused: bool) -> str:
    if kernel_loop_of(i) is not None:
        packed = ", with the packing of its state" if i.opcode is Opcode.FUSION else ""
        return f"the decision to run the whole loop in one kernel{packed}"
    if i.opcode is Opcode.FUSION and not fused:
        if i.attributes["kind"] == "kCustom":
            return "a rule of the compiler: products, attention and library calls are grouped after the passes"
        return "the program: it was fused when compilation began"
    return ""


def _implementation(t: Thunk) -> str:
    match t:
        case KernelThunk():
            return f"generated {t.spec.language} kernel ({t.spec.kind})"
        case LibraryThunk():
            return f"library call ({_operation(t)})"
        case GemmThunk():
            return "BLAS matrix product"
        case HostThunk():
            return "the interpreter: nothing else computes it"
        case _:
            return t.kind


def _operation(t: LibraryThunk) -> str:
    """Return the operation of a library call, with those that it computes on its result."""
    name = str(t.operation.get("operation", t.operation.get("kind", "library")))
    after = [*(["bias"] if t.operation.get("has_bias") else []), *(str(p[0]) for p in t.operation.get("posts", ()))]
    return f"{name}, then {', '.join(after)}" if after else name


# ---- words


def _phase(by: Mapping[str, str], phase: str, otherwise: str) -> str:
    return by.get(phase) or otherwise


def _names(names: Sequence[str]) -> str:
    shown = ", ".join("%" + n for n in names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


def _list(items: Sequence[str], empty: str = "none") -> str:
    """Return items as text, equal neighbours counted, and a long list cut."""
    runs: list[tuple[str, int]] = []
    for item in items:
        if runs and runs[-1][0] == item:
            runs[-1] = (item, runs[-1][1] + 1)
        else:
            runs.append((item, 1))
    shown = [f"{item} x{n}" if n > 1 else item for item, n in runs[: 3 * _SHOWN]]
    more = f", and {len(runs) - len(shown)} more" if len(runs) > len(shown) else ""
    return ", ".join(shown) + more if shown else empty


def _reason(b: Boundary) -> str:
    if b.refusal is not None:
        return f"illegal: {b.refusal}"
    change = "would save" if b.after < b.before else "would lose"
    amount, before, after = map(time_text, (abs(b.before - b.after), b.before, b.after))
    return f"not chosen: {b.action} {change} {amount} (analytic estimate: {before} -> {after})"


def _bytes(number: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.3g} {unit}" if number < 1000 else f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.3g} GiB"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
