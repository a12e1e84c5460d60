"""CompilationSession: one compilation, decision by decision, with undo, fork and replay.

The Gymnasium environments are built on it; it does not depend on Gymnasium.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from compiler.analysis.cost_model import Cost, DeviceModel, module_cost
from compiler.backends.backend import OwnDefaults, default_fusion
from compiler.backends.registry import BACKENDS, build_target, find_backend, known_backend
from compiler.codegen.languages import C
from compiler.codegen.schedules.kernel_choice import BoundKernel, KernelBindings, KernelChoice
from compiler.deciders import decider_name, replayed_from
from compiler.errors import ArgumentError, FusionError, HlogymError, PlanError
from compiler.expansions import (
    ChooseExpansion,
    ExpansionPolicy,
    ExpansionSite,
    apply_expansion,
    as_expansion_policy,
    expansion_sites,
    find_expansion_site,
)
from compiler.fusion.actions import FusionAction
from compiler.fusion.known_fusions import KnownFusions
from compiler.fusion.policies import make_policy
from compiler.fusion.policies.ruled import RuledFusion
from compiler.fusion.protocol import ChooseFusion, FusionPolicy, as_policy, run_policy
from compiler.fusion.recomputation import recompute_outputs
from compiler.fusion.state import FusionState
from compiler.ir import HloInstruction, HloModule
from compiler.learned.learned_costs import with_learned_costs
from compiler.loops import KEEP, KernelLoops, KnownLoops, LoopPolicy, LoopSite, apply_loop_choice, find_site, loop_sites
from compiler.lowering import lower_for
from compiler.passes import HloPass, PipelineRun, make_pass
from compiler.passes.infrastructure.registry import pass_text
from compiler.passes.pipelines.default import default_pipeline
from compiler.passes.pipelines.given import Pipeline, as_pipeline
from compiler.plan import PHASES, CompilationPlan, ExpansionChoice, FusionStep, LoopChoice, Phase
from compiler.plan_binding import FusionBase, PlanBinding
from compiler.runtime.executable import Executable
from compiler.runtime.instruction_kernels import has_kernel
from compiler.runtime.kernel_selector import ChooseKernel, KernelSelector, PreparedSelector, as_selector
from compiler.runtime.kernel_sites import KernelSite, KernelTarget, SiteChoice, find_kernel_site, kernel_sites
from compiler.support.gc_pause import gc_rarely
from compiler.support.untrusted import short_repr


class SessionError(HlogymError, RuntimeError):
    """A decision was made that belongs to an earlier phase."""


@dataclass(frozen=True)
class _Passes:
    applied: tuple[str, ...]


@dataclass(frozen=True)
class _LoopCleanup:
    applied: tuple[str, ...]


@dataclass(frozen=True)
class _Kernel:
    site: KernelSite
    choice: KernelChoice
    bound: BoundKernel


_Decision: TypeAlias = "_Passes | ExpansionChoice | LoopChoice | _LoopCleanup | FusionStep | _Kernel"


class CompilationSession:
    """One compilation, decision by decision.

    The phases are passes, expansions, loops, fusion, kernels and done, in this order. A decision of a later phase ends
    the earlier phases; a decision of an earlier phase is refused. `plan` records every decision.

    Attributes:
        target: what loops and fusions are checked for before they are accepted.
        known_fusions: what default fusion has made of the sequences of this session and its forks.
        decided_by: phase -> the name of the policy that decided it, or "plan"; phases without an entry were decided by
            single calls or by the rules of the compiler.

    Args:
        module: the module to compile; the session works on a copy.
        backend: name of the backend that `finish` builds for.
        pipeline: the passes that `run_passes()` runs by default; None means those of the backend, which
            are `default_pipeline()` for most.
        device: the device model that estimates costs; None means that of the backend.
        cleanup: the passes that run after loop decisions that changed the module; None means those of the backend.
    """

    def __init__(
        self,
        module: HloModule,
        backend: str = "cpu",
        pipeline: Pipeline = None,
        device: DeviceModel | None = None,
        cleanup: Pipeline = None,
    ) -> None:
        if not isinstance(module, HloModule):
            raise ArgumentError(f"a session compiles an HloModule, not {short_repr(module)}; parse(text) makes one")
        self._source = module.clone()
        self.fingerprint = module.fingerprint()
        self._backend = find_backend(backend)
        self.device = device or self._backend.device_model()
        self.target = build_target(self._backend)
        self._pipeline, self._cleanup = pipeline, cleanup
        self._known_loops = KnownLoops()
        self.known_fusions = KnownFusions(self.device, self.target)
        self._reset()

    def _reset(self) -> None:
        self.module = self._source.clone()
        self.phase: Phase = "passes"
        self._decisions: list[_Decision] = []
        self.decided_by: dict[str, str] = {}
        self.rules: tuple[str, ...] = ()
        self._state: FusionState | None = None
        self._unfused: HloModule | None = None
        self._base: FusionBase | None = None
        self._forget_kernels()

    def _forget_kernels(self) -> None:
        """Forget the kernels of the fusions so far."""
        self._sites: list[KernelSite] | None = None
        self._kernel_module: HloModule | None = None

    @property
    def backend(self) -> str:
        """The name of the backend that `finish` builds for."""
        return self._backend.name

    # ---- passes

    def run_passes(self, pipeline: Pipeline = None) -> bool:
        """Run a pipeline, by default the session's; return whether the module changed."""
        self._enter("passes")
        return self._run_passes(self.default_passes if pipeline is None else as_pipeline(pipeline), _Passes)

    @property
    def default_passes(self) -> HloPass:
        """What `run_passes()` runs if it is given nothing."""
        return self._default_pipeline() if self._pipeline is None else as_pipeline(self._pipeline)

    def take_passes(self, module: HloModule, applied: Sequence[str]) -> None:
        """Continue with what passes made of the session's module elsewhere, without running them.

        Args:
            module: the result; it is copied.
            applied: those passes that changed something, as text.
        """
        self._enter("passes")
        self.module = module.clone()
        if applied:
            self._decisions.append(_Passes(tuple(applied)))

    def _default_pipeline(self) -> HloPass:
        return self._backend.default_pipeline() if isinstance(self._backend, OwnDefaults) else default_pipeline()

    def default_loops(self) -> LoopPolicy:
        """Return the policy for loops of `compile` for the backend if none is given."""
        return self._backend.default_loops() if isinstance(self._backend, OwnDefaults) else KernelLoops()

    def default_fusion(self) -> str:
        """Return the name of the fusion policy of `compile` for the backend if none is given."""
        return default_fusion(self._backend)

    def apply_pass(self, name: str | HloPass) -> bool:
        """Run one pass, given as an object or as text; return whether the module changed.

        Args:
            name: the pass, for example `while-loop-unroller{factor=4}`.

        Raises:
            UnknownNameError: there is no such pass.
        """
        return self.run_passes(make_pass(name) if isinstance(name, str) else name)

    def _run_passes(self, pipeline: HloPass, kind: type[_Passes] | type[_LoopCleanup]) -> bool:
        applied: list[str] = []

        def note(hlo_pass: HloPass, module: HloModule, changed: bool) -> None:
            del module
            if changed:
                applied.append(pass_text(hlo_pass))

        changed = PipelineRun(hooks=(note,)).run(pipeline, self.module)
        if applied:
            self._decisions.append(kind(tuple(applied)))
        return changed

    # ---- expansions

    def expansions(self) -> list[ExpansionSite]:
        """Return the ops that may be computed in several ways and have not been decided yet."""
        if self._base is not None:
            return []
        done = {d.id for d in self._decisions if isinstance(d, ExpansionChoice)}
        return [s for s in expansion_sites(self.module, self._backend) if s.id not in done]

    def set_expansion(self, site: ExpansionSite | str, choice: str) -> bool:
        """Decide how one op is computed; return whether the module changed.

        Raises:
            PlanError: there is no such choice.
        """
        self._enter("expansions")
        found = find_expansion_site(self.module, site if isinstance(site, str) else site.id, self._backend)
        changed = apply_expansion(self.module, found.position, choice, self._backend)
        self._decisions.append(ExpansionChoice(found.id, found.position, choice))
        return changed

    def run_expansion_policy(self, policy: ExpansionPolicy | ChooseExpansion) -> None:
        """Decide every op that may be computed in several ways, also those that earlier choices bring about.

        Args:
            policy: asked once for each site.

        Raises:
            ArgumentError: `policy` is neither a policy nor a function.
            PlanError: it chose something that is not possible.
        """
        policy = as_expansion_policy(policy)
        self.decided_by["expansions"] = decider_name(policy)
        while left := self.expansions():
            self.set_expansion(left[0], policy.choose_expansion(left[0]))

    # ---- loops

    def loops(self) -> list[LoopSite]:
        """Return the loops that have not been decided yet, each with its choices."""
        if self._base is not None:
            return []
        done = {d.id for d in self._decisions if isinstance(d, LoopChoice)}
        return loop_sites(self.module, self._known_loops, self.target, done)

    def set_loop(self, site: LoopSite | str, choice: str) -> bool:
        """Decide one loop; return whether the module changed.

        Raises:
            PlanError: there is no such loop, or it has no such choice.
        """
        self._enter("loops")
        found = find_site(self.module, site if isinstance(site, str) else site.id, self._known_loops, self.target)
        changed = apply_loop_choice(self.module, found.position, choice, self._known_loops, self.target)
        self._decisions.append(LoopChoice(found.id, found.position, choice))
        return changed

    def run_loop_policy(self, policy: LoopPolicy | None = None) -> None:
        """Decide every remaining loop with a policy, by default that of `compile` for the backend.

        Raises:
            ArgumentError: `policy` is no policy.
            PlanError: it chose something that is not possible.
        """
        policy = self.default_loops() if policy is None else policy
        if not isinstance(policy, LoopPolicy):
            raise ArgumentError(f"a loop policy has choose_loop(site, module), which {short_repr(policy)} has not")
        self.decided_by["loops"] = decider_name(policy)
        for site in self.loops():
            self.set_loop(site, policy.choose_loop(site, self.module))

    # ---- fusion

    @property
    def is_fusing(self) -> bool:
        """Whether there is a state of fusion, which the first query or decision about fusions makes."""
        return self._state is not None

    @property
    def fusion(self) -> FusionState:
        """The state of fusion; reading it ends the earlier phases."""
        if self._state is None:
            self._begin_fusion()
            with gc_rarely():
                self._unfused = self.module.clone()
                self._state = FusionState(self.module, self.device, target=self.target)
        return self._state

    def _begin_fusion(self) -> FusionBase:
        """End the phases before fusion."""
        if self._base is None:
            self._enter("fusion")
            if any(isinstance(d, LoopChoice) and d.choice != KEEP for d in self._decisions):
                cleanup = self._default_pipeline() if self._cleanup is None else as_pipeline(self._cleanup)
                self._run_passes(cleanup, _LoopCleanup)
            self._lower()
        return self._require_base()

    def _lower(self) -> None:
        with gc_rarely():
            lower_for(self.module, self._backend, self.target, self._known_loops)
            self._base = FusionBase.of(self.module)

    @property
    def fusion_base(self) -> FusionBase:
        """The names and positions of instructions when fusion began; reading it ends the earlier phases."""
        return self._begin_fusion()

    def actions(self) -> list[FusionAction]:
        """Return the fusions that are legal now."""
        return self.fusion.actions()

    def why_not(self, action: FusionAction) -> str | None:
        """Return why a fusion is refused, or None when it is legal."""
        return self.fusion.why_not(action)

    def apply(self, action: FusionAction) -> HloInstruction:
        """Fuse and return the fusion; FusionError says why it is not legal."""
        state = self.fusion
        self._enter("fusion")
        fused = state.apply(action)
        self._forget_kernels()
        self._decisions.append(FusionStep(action, state.made[-1]))
        return fused

    def run_fusion_policy(self, policy: FusionPolicy | ChooseFusion | None = None) -> list[FusionAction]:
        """Fuse until the policy, by default that of `compile` for the backend, stops; return its actions.

        Raises:
            ArgumentError: `policy` is neither a policy nor a function.
            FusionError: the policy chose something that is not a legal action.
        """
        policy = make_policy(self.default_fusion()) if policy is None else as_policy(policy)
        self._enter("fusion")
        self.decided_by["fusion"] = decider_name(policy)
        self.rules = tuple(map(str, policy.rules)) if isinstance(policy, RuledFusion) else ()
        state = self.fusion
        start = len(state.history)
        self._forget_kernels()
        with gc_rarely():
            try:
                return run_policy(state, policy)
            finally:
                taken = zip(state.history[start:], state.made[start:], strict=True)
                self._decisions += [FusionStep(action, made) for action, made in taken]

    # ---- kernels

    def kernel_sites(self) -> list[KernelSite]:
        """Return the kernels with their choices, sequence by sequence; this ends the phases before fusion.

        They are those of the `kernel_module`. A backend that compiles no kernels has none.
        """
        _ = self.fusion
        if self._sites is None:
            language = self._backend.language
            if language is None:
                return []
            target = KernelTarget(self.backend, language, self._backend.default_schedule, self.device)
            self._sites = kernel_sites(self.kernel_module(), target)
        return list(self._sites)

    def set_kernel(self, site: KernelSite | str, choice: SiteChoice) -> KernelChoice:
        """Choose the implementation and the schedule of a kernel; return the choice in its normal form.

        Args:
            site: a site, its id, or the name of its instruction if that is unique among the kernels.
            choice: a KernelChoice, a position in the choices of the site, or the fields of the schedule of the
                generated kernel that differ from the defaults.

        Raises:
            PlanError: there is no such kernel, the choice has an unknown knob or value, or no kernel can be made with
                it.
        """
        sites = self.kernel_sites()
        self._enter("kernels")
        if self._backend.language is None:
            raise PlanError(
                f"the backend {self.backend} makes no kernels, so nothing can be chosen for {short_repr(site)}"
            )
        found = find_kernel_site(sites, site.id if isinstance(site, KernelSite) else site)
        bound = found.bind(choice)
        decision = _Kernel(found, found.choice(choice), bound)
        self._decisions.append(decision)
        return decision.choice

    def chosen_kernel(self, site: KernelSite) -> KernelChoice:
        """Return the choice of a kernel now: what was set, or the default."""
        return self._chosen_kernels().get(site.id, site.default)

    def _chosen_kernels(self) -> dict[str, KernelChoice]:
        """Return the choices that differ from the default, by site."""
        chosen = {d.site.id: d for d in self._decisions if isinstance(d, _Kernel)}
        return {name: d.choice for name, d in chosen.items() if d.choice != d.site.default}

    def run_kernel_selector(self, selector: KernelSelector | ChooseKernel) -> None:
        """Decide every kernel with a selector.

        Raises:
            ArgumentError: `selector` is neither a selector nor a function.
            PlanError: it chose something that is not possible.
        """
        selector = as_selector(selector)
        self.decided_by["kernels"] = decider_name(selector)
        sites = self.kernel_sites()
        if isinstance(selector, PreparedSelector):
            selector.prepare(sites)
        for site in sites:
            choice = selector.choose_kernel(site)
            if choice != site.default:
                self.set_kernel(site, choice)

    def kernels(self) -> list[HloInstruction]:
        """Return the instructions that become kernels, sequence by sequence; this ends the earlier phases."""
        _ = self.fusion
        sequences = self.module.control_flow_computations()
        return [i for c in sequences for i in c.instructions if has_kernel(i, self._language)]

    @property
    def _language(self) -> str:
        """The language of the kernels; for a backend without kernels, `kernels` lists those that C would have."""
        return self._backend.language or C.name

    # ---- the whole

    @property
    def plan(self) -> CompilationPlan:
        """The record of all decisions so far."""
        by_kind: dict[type, list[Any]] = {}
        for d in self._decisions:
            by_kind.setdefault(type(d), []).append(d)
        steps, base = by_kind.get(FusionStep, []), self._base
        kernels: dict[str, dict[str, KernelChoice]] = {}
        sites = {d.site.id: d.site for d in by_kind.get(_Kernel, ())}
        for site_id, chosen in self._chosen_kernels().items():
            kernels.setdefault(sites[site_id].sequence, {})[sites[site_id].name] = chosen
        return CompilationPlan(
            fingerprint=self.fingerprint,
            passes=tuple(p for d in by_kind.get(_Passes, ()) for p in d.applied),
            expansions=tuple(by_kind.get(ExpansionChoice, ())),
            loop_choices=tuple(by_kind.get(LoopChoice, ())),
            loop_passes=tuple(p for d in by_kind.get(_LoopCleanup, ()) for p in d.applied),
            base="" if base is None else base.fingerprint,
            sequences=() if base is None else base.sequences,
            places={} if base is None else base.positions(steps, kernels),
            steps=tuple(steps),
            kernels=kernels,
            backend=self.backend,
            decided_by=dict(self.decided_by),
            rules=self.rules,
        )

    def cost(self) -> Cost:
        """Return the estimated run time of the module in its present state."""
        return module_cost(self.module, self.device)

    def replay(self, plan: CompilationPlan) -> None:
        """Restart the session and make every decision of a plan.

        Raises:
            PlanError: the plan was made for another module, or one of its decisions is not possible. The session is
                then in its initial state.
        """
        if not isinstance(plan, CompilationPlan):
            raise PlanError(
                f"expected a CompilationPlan, got {short_repr(plan)}; CompilationPlan.load reads one from a file"
            )
        plan.check_module(self._source)
        self._check_backend(plan)
        self._reset()
        try:
            with _as_plan_errors():
                self._replay(plan)
        except BaseException:
            self._reset()
            raise

    def replay_fusions(self, plan: CompilationPlan) -> None:
        """Make the fusions and kernel choices of a plan, whose other decisions this session has made.

        Raises:
            PlanError: the plan was made for another module or for other decisions before fusion, or one of its
                decisions is not possible. The session then has some of them.
        """
        if plan.fingerprint != self.fingerprint or not plan.base:
            raise PlanError("the plan does not continue the decisions of this session")
        self._check_backend(plan)
        with _as_plan_errors():
            self._label(plan)
            self._replay_fusions(plan)

    def _check_backend(self, plan: CompilationPlan) -> None:
        if known_backend(plan.backend) is None:
            known = ", ".join(BACKENDS)
            raise PlanError(f"the plan was made for an unknown backend {plan.backend!r}; there are {known}")
        if plan.kernels and plan.backend != self.backend and self._backend.language is not None:
            raise PlanError(
                f"the plan chooses kernels for the backend {plan.backend}, and this compilation is for {self.backend}; "
                "use that backend, or replay plan.without_kernels()"
            )

    def _label(self, plan: CompilationPlan) -> None:
        self.rules = plan.rules
        self.decided_by = {phase: replayed_from(plan.decided_by.get(phase, "")) for phase in PHASES[:-1]}

    def _replay(self, plan: CompilationPlan) -> None:
        self._label(plan)
        for text in (*plan.passes, *plan.loop_passes):
            make_pass(text)  # reports a bad pass before any work is done
        if plan.passes:
            self._take(_Passes(plan.passes))
        for expansion in plan.expansions:
            self._take(expansion)
        for choice in plan.loop_choices:
            self._take(choice)
        if plan.loop_passes:
            self._take(_LoopCleanup(plan.loop_passes))
        if not plan.base:
            return
        self.phase = "fusion"
        self._lower()
        self._replay_fusions(plan)

    def _replay_fusions(self, plan: CompilationPlan) -> None:
        binding = PlanBinding(plan, self._require_base())
        for n, step in enumerate(plan.steps):
            try:
                self.apply(binding.bind_action(step.action))
            except FusionError as e:
                raise PlanError(f"fusion {n} of the plan cannot be replayed: {e}") from None
            binding.note_fusions(step, self.fusion.made[-1])
        if self._backend.language is None:
            return  # kernel choices change how kernels run and not what they compute
        for (sequence, name), kernel in binding.bind_kernels(plan.kernels).items():
            self.set_kernel(f"{sequence}/{name}", kernel)

    def _require_base(self) -> FusionBase:
        if self._base is None:
            raise SessionError("fusion has not started")
        return self._base

    def _take(self, decision: _Decision) -> None:
        """Repeat a decision of this session."""
        match decision:
            case _Passes(applied) | _LoopCleanup(applied):
                for text in applied:
                    PipelineRun().run(make_pass(text), self.module)
                self._decisions.append(decision)
            case ExpansionChoice():
                self.phase = "expansions"
                apply_expansion(self.module, decision.position, decision.choice, self._backend)
                self._decisions.append(decision)
            case LoopChoice():
                self.phase = "loops"
                apply_loop_choice(self.module, decision.position, decision.choice, self._known_loops, self.target)
                self._decisions.append(decision)
            case FusionStep(action):
                self.apply(action)
            case _Kernel():
                self.set_kernel(decision.site, decision.choice)

    def undo(self) -> bool:
        """Undo the last decision; return False when there is none."""
        if not self._decisions:
            return False
        last = self._decisions[-1]
        if isinstance(last, _Kernel):
            self._decisions.pop()
            self.phase = "kernels" if self._decisions and isinstance(self._decisions[-1], _Kernel) else "fusion"
            return True
        if isinstance(last, FusionStep) and self._state is not None:
            self._decisions.pop()
            self._undo_fusion()
            return True
        kept = self._decisions[:-1]
        self._reset()
        for d in kept:
            self._take(d)
        return True

    def _undo_fusion(self) -> None:
        if self._unfused is None or self._state is None:
            raise SessionError("fusion has not started")
        if self._state.can_undo:
            self._state.undo()
        else:  # a fork cannot take back what was done before it
            self.module = self._unfused.clone()
            self._state = FusionState(self.module, self.device, target=self.target)
            for d in self._decisions:
                if isinstance(d, FusionStep):
                    self._state.apply(d.action)
        self._forget_kernels()
        self.phase = "fusion"

    def fork(self) -> CompilationSession:
        """Return an independent session that continues from the same decisions."""
        other = copy.copy(self)  # every field; below, what must not be shared
        other._decisions = list(self._decisions)
        if self._kernel_module is self.module:  # else it is a copy that no session changes
            other._forget_kernels()
        other.decided_by = dict(self.decided_by)
        if self._state is None:
            other.module = self.module.clone()
        else:
            other._state = self._state.fork()
            other.module = other._state.module
        return other

    def finish(self) -> Executable:
        """Build and return the executable."""
        if self._base is None:
            lower_for(self.module, self._backend, self.target, self._known_loops)
        plan = self.plan
        self.phase = "done"
        return with_learned_costs(self._backend.build(self.final_module(), plan, self.kernel_bindings))

    def final_module(self) -> HloModule:
        """Return the module of which kernels are made: the present one, or a copy with what kernels compute again."""
        self.module.reorder()  # fusions are where they were created, and a scheduled module must list operands first
        return self.kernel_module()

    def kernel_module(self) -> HloModule:
        """Return the same with its instructions in the order that they have now; it must not be changed."""
        if self._kernel_module is None:
            is_c = self._backend.language == C.name
            self._kernel_module = recompute_outputs(self.module, self.target) if is_c else self.module
        return self._kernel_module

    @property
    def kernel_bindings(self) -> KernelBindings:
        """The kernels that were chosen, by names of sequence and instruction; all others are the default."""
        return {(d.site.sequence, d.site.name): d.bound for d in self._decisions if isinstance(d, _Kernel)}

    def _enter(self, phase: Phase) -> None:
        if PHASES.index(phase) < PHASES.index(self.phase):
            raise SessionError(f"{phase} are decided already, the session is at {self.phase}; undo, or start a new one")
        self.phase = phase


@contextmanager
def _as_plan_errors() -> Iterator[None]:
    """Report errors of the compiler inside a `with` block as errors of the plan that is replayed."""
    try:
        yield
    except PlanError:
        raise
    except HlogymError as e:
        raise PlanError(f"the plan cannot be replayed: {e}") from None
