"""Kernel sites: the kernels of a module, each with the implementations and schedules that it may have."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import SupportsIndex, TypeAlias, overload

from compiler.analysis.cost_model import CostModel, DeviceModel
from compiler.codegen.kernel_spec import KernelSpec, KernelVariants, LoweredKernel
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.schedules.kernel_choice import GENERATED, BoundKernel, KernelChoice
from compiler.codegen.schedules.schedule import Schedule
from compiler.codegen.schedules.schedule_space import ScheduleSpace, schedule_space
from compiler.codegen.templates.loop_kernel import LoopKernel, bound_loop_nest
from compiler.errors import PlanError, UnsupportedError
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode
from compiler.ir.module import is_control_flow
from compiler.runtime import complex_parts as complex_parts  # registers itself
from compiler.runtime import key_parts as key_parts  # registers itself
from compiler.runtime import separate_products as separate_products  # registers itself
from compiler.runtime.implementations import IMPLEMENTATIONS, KernelImplementation, implementations_of
from compiler.runtime.instruction_kernels import (
    GenerateKernel,
    default_kernel_schedule,
    emit_kernel,
    kernel_code,
    kernel_generator,
)
from compiler.runtime.kernel_features import kernel_features
from compiler.runtime.kernel_modules import kernel_module
from compiler.support.lru_dict import LruDict
from compiler.support.untrusted import as_integer, is_name, short_repr

SiteChoice: TypeAlias = "KernelChoice | Mapping[str, int] | int"
"""A choice as users give it: itself, the fields of a generated schedule that differ, or a position in the choices."""

_SPACES: LruDict[tuple[str, str, Schedule], ScheduleSpace] = LruDict(10_000)
"""The spaces of generated kernels by kernel, language and default; finding one generates the kernel many times."""
_REFUSED: LruDict[Hashable, tuple[int, ...]] = LruDict(10_000)
"""The positions of sampled choices that are refused, by kernel, target and sample."""


class OfferedChoices(Sequence[KernelChoice]):
    """Choices that sites of equal kernels offer.

    Two of them are equal if they are the same object, so that facts can be kept by them.

    Args:
        choices: the choices, the default first.
    """

    def __init__(self, choices: Sequence[KernelChoice]) -> None:
        self._choices = tuple(choices)

    def __len__(self) -> int:
        return len(self._choices)

    @overload
    def __getitem__(self, index: int) -> KernelChoice: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[KernelChoice]: ...

    def __getitem__(self, index: int | slice) -> KernelChoice | Sequence[KernelChoice]:
        return self._choices[index]

    @cached_property
    def lines(self) -> str:
        """The choices as text, in lines."""
        return "\n".join(map(str, self._choices))

    @cached_property
    def generated(self) -> frozenset[KernelChoice]:
        """The choices of generated kernels, of which each was made or checked before it was offered."""
        return frozenset(c for c in self._choices if c.implementation == GENERATED)


_OFFERED: LruDict[Hashable, OfferedChoices] = LruDict(20_000, lambda _, offered: len(offered))
"""What kernels offer, by kernel, target and number, up to so many choices in total."""


@dataclass(frozen=True)
class KernelTarget:
    """What kernels are made for.

    Attributes:
        backend: name of the backend.
        language: language of its generated kernels.
        default_schedule: the schedule of its kernels when none is chosen.
        device: the model of the device.
    """

    backend: str
    language: str
    default_schedule: Schedule
    device: DeviceModel


class KernelChoices(Sequence[KernelChoice]):
    """The choices of a kernel: the default, those that differ from it in one respect, then all combinations.

    They are made when they are looked up, because a kernel may have many millions of them. `size` is their number
    even where `len` cannot express it.

    Args:
        options: the implementations by name with their knobs, the default first.
    """

    def __init__(self, options: Mapping[str, ScheduleSpace]) -> None:
        self.options = dict(options)
        self._spaces = list(self.options.items())
        self.size = sum(space.size for space in self.options.values())

    def __len__(self) -> int:
        return min(self.size, sys.maxsize)

    @property
    def nearest(self) -> int:
        """Number of choices at the front that differ from the default in at most one knob or in the implementation."""
        return self._spaces[0][1].variations + len(self._spaces)

    @overload
    def __getitem__(self, index: SupportsIndex) -> KernelChoice: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[KernelChoice]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> KernelChoice | Sequence[KernelChoice]:
        if isinstance(index, slice):
            return [self._at(n) for n in range(*index.indices(len(self)))]
        n = index.__index__()
        n = n + self.size if n < 0 else n
        if not 0 <= n < self.size:
            raise IndexError(f"there is no choice {index}; the kernel has {self.size}")
        return self._at(n)

    def _at(self, n: int) -> KernelChoice:
        name, space = self._spaces[0]
        others = len(self._spaces) - 1
        if n <= space.variations:
            return KernelChoice.of_knobs(name, space.combination(n))
        if n <= space.variations + others:
            return KernelChoice(self._spaces[n - space.variations][0])
        n -= others
        if n < space.size:
            return KernelChoice.of_knobs(name, space.combination(n))
        n -= space.size
        for other, its_space in self._spaces[1:]:
            if n < its_space.size - 1:
                return KernelChoice.of_knobs(other, its_space.combination(n + 1))
            n -= its_space.size - 1
        raise IndexError("there is no such choice")

    def __contains__(self, choice: object) -> bool:
        if not isinstance(choice, KernelChoice) or choice.implementation not in self.options:
            return False
        return choice.schedule in self.options[choice.implementation]


class KernelSite:
    """One kernel of a module and what may be chosen for it.

    Args:
        instruction: the instruction that becomes the kernel.
        target: what it is made for.
        runs: expected number of executions per run of the program.

    Attributes:
        id: the names of the sequence and the instruction, `main/fusion.3`; unique in the module.
    """

    def __init__(self, instruction: HloInstruction, target: KernelTarget, runs: float = 1.0) -> None:
        if instruction.parent is None:
            raise ValueError(f"%{instruction.name} belongs to no computation")
        self.sequence, self.name = instruction.parent.name, instruction.name
        self.id = f"{self.sequence}/{self.name}"
        self.instruction, self.target, self.runs = instruction, target, runs
        self._offered: OfferedChoices | None = None

    def __repr__(self) -> str:
        return f"<KernelSite {self.id} for {self.backend}>"

    def __str__(self) -> str:
        """Return the id, the kind and the signature of the kernel."""
        spec = self.spec
        what = self.instruction.opcode.text if spec is None else f"{spec.kind} {spec.signature}"
        return f"{self.id}: {what}"

    @property
    def device(self) -> DeviceModel:
        """The model of the device that the kernel is made for."""
        return self.target.device

    @property
    def backend(self) -> str:
        """The name of the backend that the kernel is made for."""
        return self.target.backend

    @property
    def default(self) -> KernelChoice:
        """The choice that the kernel has when none is made; it is the first of `choices`."""
        preferred = next((i for i in self._libraries if i.prefers(self.instruction, self.backend)), None)
        if preferred is None and self.spec is None:
            preferred = next(iter(self._libraries), None)
        return KernelChoice() if preferred is None else KernelChoice(preferred.name)

    @cached_property
    def default_schedule(self) -> Schedule:
        """The complete schedule of the generated kernel when none is chosen."""
        return default_kernel_schedule(self.instruction, self.target.language, self.target.default_schedule)

    @cached_property
    def spec(self) -> KernelSpec | None:
        """The generated kernel with the default schedule; None when the instruction has no generated kernel."""
        try:
            if self.instruction.opcode is Opcode.WHILE:
                kernel = self._generate(self.default_schedule)
            else:  # equal kernels are generated once
                kernel = emit_kernel(self.instruction, self.target.language, self.default_schedule)
        except UnsupportedError:
            return None
        return kernel.spec if isinstance(kernel, LoopKernel) else kernel

    @cached_property
    def _generate(self) -> GenerateKernel:
        """The function that generates the kernel with a schedule; the instruction is lowered once."""
        return kernel_generator(self.instruction, self.target.language)

    def bound_nest(self, schedule: Schedule) -> lir.Kernel | None:
        """Return the loop nest that the generated kernel prints with a schedule; None when there is none."""
        try:
            if self.variants is not None:
                return self.variants.bound_nest(schedule)
            return bound_loop_nest(self.instruction, self.target.language, schedule)
        except UnsupportedError:
            return None

    def _generated_refusal(self, schedule: Schedule) -> str | None:
        """Return why the kernel cannot be generated with a schedule, or None when it can."""
        try:
            generate = self._generate
            if isinstance(generate, LoweredKernel):
                generate.check(schedule)
            else:
                generate(schedule)
        except UnsupportedError as e:
            return str(e)
        return None

    @cached_property
    def _libraries(self) -> tuple[KernelImplementation, ...]:
        return implementations_of(self.instruction, self.backend)

    @property
    def is_kernel(self) -> bool:
        """Whether anything can compute the instruction as a kernel."""
        return self.spec is not None or bool(self._libraries)

    @cached_property
    def choices(self) -> KernelChoices:
        """The choices, the default first."""
        options = {i.name: ScheduleSpace(i.knobs(self.instruction, self.backend)) for i in self._libraries}
        if self.spec is not None:
            options[GENERATED] = self._generated_space()
        first = self.default.implementation
        return KernelChoices({first: options.pop(first), **options})

    def _generated_space(self) -> ScheduleSpace:
        key = self.fingerprint, self.target.language, self.default_schedule
        found = _SPACES.get(key)
        if found is None:
            generate = self.variants or self._generate
            found = schedule_space(lambda s: kernel_code(generate, s), self.default_schedule)
            _SPACES[key] = found
        return found

    @cached_property
    def variants(self) -> KernelVariants | None:
        """The generated kernels with many schedules; None for loops, of which each is made by itself."""
        generate = self._generate
        return KernelVariants(generate, self.default_schedule) if isinstance(generate, LoweredKernel) else None

    def forget_variants(self) -> None:
        """Free the nests of `variants`: they are many, and rarely asked for again."""
        self.__dict__.pop("variants", None)

    @cached_property
    def fingerprint(self) -> str:
        """Identifies what the kernel computes, whatever the names in the module."""
        return self.module().fingerprint()

    def module(self) -> HloModule:
        """Return a new module that computes this instruction alone from parameters."""
        return kernel_module(self.instruction)

    def offered(self, limit: int) -> list[KernelChoice]:
        """Return at most `limit` choices for a search or a policy to decide among, the default first.

        They are the default, the choices that differ from it in one knob or in the implementation, and an evenly spaced
        sample of the others, without those that are refused. If the former are more than `limit`, they are sampled in
        the same way. The result depends on the kernel alone.
        """
        return list(self.shared_offer(limit))

    def shared_offer(self, limit: int) -> OfferedChoices:
        """Return `offered`, as the same object for kernels that are equal up to names."""
        kernel = self.fingerprint, self.target, self.default_schedule
        key = *kernel, tuple(self.choices.options.items()), limit
        found = _OFFERED.get(key)
        if found is None:
            found = _OFFERED[key] = OfferedChoices(self._offered_choices(limit, kernel))
        self.forget_variants()
        self._offered = found
        return found

    def _offered_choices(self, limit: int, kernel: Hashable) -> list[KernelChoice]:
        choices = self.choices
        near = choices.nearest
        found = [0, *_spread(1, near, limit - 1)]
        others = _spread(near, choices.size, limit - len(found))
        sample = [choices[n] for n in others]
        if others:
            key = kernel, tuple(choices.options), tuple(others)
            refused = _REFUSED.get(key)
            if refused is None:
                refused = tuple(n for n, c in zip(others, sample, strict=True) if self.is_refused(c))
                _REFUSED[key] = refused
            sample = [c for n, c in zip(others, sample, strict=True) if n not in refused]
        return [*(choices[n] for n in found), *sample]

    def is_refused(self, choice: KernelChoice) -> bool:
        """Check whether `check` has a reason; faster for generated kernels."""
        if choice.implementation == GENERATED and self.variants is not None:
            return self.variants.is_change_refused(choice.schedule)
        return self.check(choice) is not None

    def neighbours(self, choice: KernelChoice) -> list[KernelChoice]:
        """Return the choices that differ from one choice in a single knob, or in the implementation alone."""
        found = [KernelChoice(name) for name in self.choices.options if name != choice.implementation]
        space = self.choices.options.get(choice.implementation, ScheduleSpace())
        for knob in space.knobs:
            rest = {k: v for k, v in choice.schedule.items() if k != knob.name}
            for value in knob.values:
                changed = rest if value == knob.default else {**rest, knob.name: value}
                found.append(KernelChoice(choice.implementation, changed))
        return [c for c in dict.fromkeys(found) if c != choice]

    def features(self) -> tuple[float, ...]:
        """Return the kernel in numbers of order one; FEATURE_NAMES says what they mean."""
        seconds = CostModel(self.device).instruction(self.instruction)
        return kernel_features(self.instruction, self.spec, self.device, seconds, self.runs)

    # ---- choosing

    def choice(self, given: SiteChoice) -> KernelChoice:
        """Return a choice as `set_kernel` takes it, without fields that are the default anyway.

        Raises:
            PlanError: the value is not a choice of this kernel; the message says why.
        """
        number = as_integer(given)
        if number is not None:
            if not 0 <= number < self.choices.size:
                raise PlanError(f"kernel %{self.name} has no choice {number}; it has {self.choices.size}")
            return self.choices[number]
        if isinstance(given, KernelChoice):
            chosen = given
        elif isinstance(given, Mapping):
            chosen = KernelChoice(schedule=given)
        else:
            raise PlanError(
                f"the choice for kernel %{self.name} must be a KernelChoice, a mapping of knobs to integers, "
                f"or a position in its choices, not {short_repr(given)}"
            )
        if chosen.implementation != GENERATED:
            return chosen
        preset = self.default_schedule
        return KernelChoice(schedule={k: v for k, v in chosen.schedule.items() if v != preset.value(k)})

    def check(self, choice: SiteChoice) -> str | None:
        """Return why a choice is refused: an unknown knob, a value out of range, or the code generator; else None."""
        try:
            chosen = self.choice(choice)
        except PlanError as e:
            return str(e)
        if self._offered is not None and chosen in self._offered.generated:
            return None
        if chosen.implementation == GENERATED:
            reason = self._generated_refusal(self.default_schedule.with_values(chosen.schedule))
        else:
            reason = self._library_refusal(chosen)
        return None if reason is None else f"no kernel of %{self.name} can be made with {chosen}: {reason}"

    def _library_refusal(self, chosen: KernelChoice) -> str | None:
        implementation = IMPLEMENTATIONS.get(chosen.implementation)
        if implementation is None:
            names = ", ".join((GENERATED, *IMPLEMENTATIONS))
            return f"there is no implementation {short_repr(chosen.implementation)}; there are {names}"
        reason = implementation.refusal(self.instruction, self.backend)
        if reason is not None:
            return reason
        knobs = {k.name: k for k in implementation.knobs(self.instruction, self.backend)}
        for name, value in chosen.schedule.items():
            if name not in knobs:
                return f"{implementation.name} has no knob {short_repr(name)}; knobs: {', '.join(knobs) or 'none'}"
            if value not in knobs[name].values:
                return f"{name} must be one of {', '.join(map(str, knobs[name].values))}, not {value}"
        return None

    def bind(self, choice: SiteChoice) -> BoundKernel:
        """Return the implementation and the complete schedule of a choice.

        Raises:
            PlanError: the choice is refused; the message says why.
        """
        reason = self.check(choice)
        if reason is not None:
            raise PlanError(reason)
        chosen = self.choice(choice)
        if chosen.implementation == GENERATED:
            return BoundKernel(GENERATED, self.default_schedule.with_values(chosen.schedule))
        return BoundKernel(chosen.implementation, self.default_schedule, chosen.schedule)


def kernel_sites(module: HloModule, target: KernelTarget) -> list[KernelSite]:
    """Return the kernels of a module after fusion, sequence by sequence.

    The sequences of a loop that runs inside one kernel are part of that kernel and have none of their own.
    """
    weights = CostModel(target.device).weights(module)
    found: dict[HloComputation, list[KernelSite]] = {}
    work = [module.entry]
    while work:
        sequence = work.pop()
        if sequence in found:
            continue
        sites = [KernelSite(i, target, weights.get(sequence, 1.0)) for i in sequence.instructions]
        found[sequence] = [s for s in sites if s.is_kernel]
        kernels = {s.instruction for s in found[sequence]}
        for i in sequence.notable:
            if is_control_flow(i) and i not in kernels:
                work.extend(i.called_computations())
    return [s for c in module.control_flow_computations() for s in found.get(c, ())]


def _spread(start: int, stop: int, count: int) -> list[int]:
    """Return at most `count` evenly spaced positions from `start` on, before `stop`."""
    count = max(0, min(stop - start, count))
    return [start + n * (stop - start) // count for n in range(count)]


def find_kernel_site(sites: Sequence[KernelSite], name: str) -> KernelSite:
    """Return a site by its id, or by the name of its instruction if that is unique.

    Raises:
        PlanError: there is none, or several sequences have a kernel of that name.
    """
    if not is_name(name):
        raise PlanError(f"a kernel has a name, not {short_repr(name)}")
    found = [s for s in sites if s.id == name] or [s for s in sites if s.name == name]
    if not found:
        raise PlanError(f"there is no kernel %{name}; kernel_sites() lists the kernels of this compilation")
    if len(found) > 1:
        raise PlanError(f"several kernels are called %{name}; name one of them as {', '.join(s.id for s in found)}")
    return found[0]
