"""CompilationSession: the decisions of one compilation one by one, with undo, fork and replay. It knows no gym."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from compiler.analysis.cost_model import Cost, DeviceModel, device_model, module_cost
from compiler.backends import BACKENDS
from compiler.codegen.schedule import Schedule, checked_choice
from compiler.errors import FusionError, HlogymError, PlanError
from compiler.fusion.actions import FusionAction
from compiler.fusion.protocol import FusionPolicy, run_policy
from compiler.fusion.state import FusionState
from compiler.ir import HloInstruction, HloModule
from compiler.loops import LoopPolicy, LoopSite, apply_loop_choice, find_site, loop_sites
from compiler.passes import HloPass, PassPipeline, PipelineRun, make_pass
from compiler.passes.infrastructure.registry import pass_text
from compiler.passes.pipelines.default import default_pipeline, lower
from compiler.plan import CompilationPlan, FusionStep, LoopChoice
from compiler.plan_binding import Places, Translation
from compiler.support.untrusted import is_name, short_repr

if TYPE_CHECKING:
    from compiler.runtime.executable import Executable

Phase: TypeAlias = Literal["passes", "loops", "fusion", "kernels", "done"]
PHASES: tuple[Phase, ...] = get_args(Phase)
Pipeline: TypeAlias = "PassPipeline | HloPass | Sequence[str | HloPass] | None"


class SessionError(HlogymError, RuntimeError):
    """A decision that belongs to a phase that is over."""


@dataclass(frozen=True)
class _Passes:
    applied: tuple[str, ...]


@dataclass(frozen=True)
class _LoopCleanup:
    applied: tuple[str, ...]


@dataclass(frozen=True)
class _Kernel:
    name: str
    choice: Mapping[str, int]
    schedule: Schedule


_Decision: TypeAlias = "_Passes | LoopChoice | _LoopCleanup | FusionStep | _Kernel"


class CompilationSession:
    """One compilation, decision by decision.

    Phases follow each other: passes, loops, fusion, kernels, done. A decision of a later phase ends the earlier ones;
    a decision of an earlier phase is refused. Every decision goes into `plan`.

    Args:
        module: what to compile; it is copied, never changed.
        backend: which backend `finish` builds for; its device model prices the decisions.
        pipeline: what `run_passes()` runs by default; None: `default_pipeline()`.
        device: device model by which costs are estimated; None: the backend's.
    """

    def __init__(
        self,
        module: HloModule,
        backend: str = "cpu",
        pipeline: Pipeline = None,
        device: DeviceModel | None = None,
    ) -> None:
        self._source = module.clone()
        self.fingerprint = module.fingerprint()
        self.backend = backend
        self.device = device or device_model("gpu" if backend == "cuda" else "cpu")
        self._pipeline = pipeline
        self._reset()

    def _reset(self) -> None:
        self.module = self._source.clone()
        self.phase: Phase = "passes"
        self._decisions: list[_Decision] = []
        self._state: FusionState | None = None
        self._fusion_base: HloModule | None = None
        self._places: Places | None = None

    # ---- passes

    def run_passes(self, pipeline: Pipeline = None) -> bool:
        """Run a pipeline (default: the session's); whether anything changed."""
        self._enter("passes")
        return self._run_passes(as_pipeline(pipeline if pipeline is not None else self._pipeline), _Passes)

    def apply_pass(self, name: str | HloPass) -> bool:
        """Run one pass, by text (`while-loop-unroller{factor=4}`) or itself; whether anything changed.

        UnknownNameError when there is no such pass.
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

    # ---- loops

    def loops(self) -> list[LoopSite]:
        """The loops as they stand, with what may be chosen for each; those decided already are left out."""
        if self._state is not None:
            return []
        done = {d.id for d in self._decisions if isinstance(d, LoopChoice)}
        return [s for s in loop_sites(self.module) if s.id not in done]

    def set_loop(self, site: LoopSite | str, choice: str) -> bool:
        """Decide one loop; whether the module changed. PlanError when there is no such loop or choice."""
        self._enter("loops")
        found = find_site(self.module, site if isinstance(site, str) else site.id)
        changed = apply_loop_choice(self.module, found.position, choice)
        self._decisions.append(LoopChoice(found.id, found.position, choice))
        return changed

    def run_loop_policy(self, policy: LoopPolicy) -> None:
        """Ask a policy about each loop there is now."""
        for site in self.loops():
            self.set_loop(site, policy.choose_loop(site, self.module))

    # ---- fusion

    @property
    def fusion(self) -> FusionState:
        """The state of fusion; asking for it ends the phases before."""
        if self._state is None:
            self._enter("fusion")
            if any(isinstance(d, LoopChoice) and d.choice != "keep" for d in self._decisions):
                self._run_passes(cleanup_pipeline(), _LoopCleanup)
            self._start_fusion()
        if self._state is None:
            raise SessionError("fusion has not started")
        return self._state

    def _start_fusion(self) -> None:
        self._lower()
        self._places = Places.of(self.module)
        self._fusion_base = self.module.clone()
        self._state = FusionState(self.module, self.device)

    def _lower(self) -> None:
        """Follows from the module alone, so no plan needs to tell of it."""
        if self.backend != "interpreter":
            lower(self.module)

    def actions(self) -> list[FusionAction]:
        """The legal fusions now."""
        return self.fusion.actions()

    def why_not(self, action: FusionAction) -> str | None:
        """The reason a fusion is refused, or None when it is legal."""
        return self.fusion.why_not(action)

    def apply(self, action: FusionAction) -> HloInstruction:
        """Fuse; FusionError says why when that is not legal."""
        state = self.fusion
        self._enter("fusion")
        fused = state.apply(action)
        self._decisions.append(FusionStep(action, state.made[-1]))
        return fused

    def run_fusion_policy(self, policy: FusionPolicy) -> list[FusionAction]:
        """Let a policy choose until it is done; returns its actions."""
        self._enter("fusion")
        state = self.fusion
        start = len(state.history)
        try:
            return run_policy(state, policy)
        finally:
            taken = zip(state.history[start:], state.made[start:], strict=True)
            self._decisions += [FusionStep(action, made) for action, made in taken]

    # ---- kernels

    def set_kernel(self, name: str, choice: Mapping[str, int]) -> None:
        """Choose how the kernel of an instruction is made: what differs from the defaults of a schedule.

        Raises:
            PlanError: there is no such kernel, a field or value that cannot be, or a kernel that cannot be made so.
        """
        from compiler.runtime.kernel_choices import chosen_schedule
        from compiler.runtime.thunk_emitter import wants_kernel

        _ = self.fusion
        self._enter("kernels")
        if not is_name(name):
            raise PlanError(f"a kernel has a name, not {short_repr(name)}")
        checked = checked_choice(choice)
        found = [i for c in self.module.control_flow_computations() if (i := c.find(name)) is not None]
        if not found:
            raise PlanError(f"there is no kernel %{name}")
        # Sequences may use one name for different things; what has no kernel is not meant.
        schedules = [chosen_schedule(i, self._language, checked) for i in found if wants_kernel(i) or len(found) == 1]
        if not schedules:
            raise PlanError(f"there is no kernel %{name}: the instructions of that name need none")
        self._decisions.append(_Kernel(name, checked, min(schedules, key=lambda s: s.lanes)))

    def kernels(self) -> list[HloInstruction]:
        """The instructions that become kernels as the module stands, sequence by sequence; ends the phases before."""
        from compiler.runtime.kernel_choices import becomes_kernel

        _ = self.fusion
        sequences = self.module.control_flow_computations()
        return [i for c in sequences for i in c.instructions if becomes_kernel(i, self._language)]

    @property
    def _language(self) -> str:
        return "cuda" if self.backend == "cuda" else "c"

    # ---- the whole

    @property
    def plan(self) -> CompilationPlan:
        """Every decision so far."""
        by_kind: dict[type, list[Any]] = {}
        for d in self._decisions:
            by_kind.setdefault(type(d), []).append(d)
        steps, kernels = by_kind.get(FusionStep, []), by_kind.get(_Kernel, [])
        places = self._places
        return CompilationPlan(
            fingerprint=self.fingerprint,
            passes=tuple(p for d in by_kind.get(_Passes, ()) for p in d.applied),
            loop_choices=tuple(by_kind.get(LoopChoice, ())),
            loop_passes=tuple(p for d in by_kind.get(_LoopCleanup, ()) for p in d.applied),
            base="" if places is None else places.fingerprint,
            sequences=() if places is None else places.sequences,
            places={} if places is None else places.table(steps, [d.name for d in kernels]),
            steps=tuple(steps),
            kernels={d.name: d.choice for d in kernels},
            backend=self.backend,
        )

    def cost(self) -> Cost:
        """Estimated time of the module as it stands."""
        return module_cost(self.module, self.device)

    def replay(self, plan: CompilationPlan) -> None:
        """Start anew and take every decision of a plan.

        Raises:
            PlanError: the plan is of another module, or a decision of it cannot be taken; the session is then as new.
        """
        if not isinstance(plan, CompilationPlan):
            raise PlanError(
                f"expected a CompilationPlan, got {short_repr(plan)}; CompilationPlan.load reads one from a file"
            )
        plan.check_module(self._source)
        _check_backend(plan)
        self._reset()
        try:
            self._replay(plan)
        except BaseException as e:
            self._reset()
            if isinstance(e, PlanError) or not isinstance(e, HlogymError):
                raise
            raise PlanError(f"the plan cannot be replayed: {e}") from None

    def _replay(self, plan: CompilationPlan) -> None:
        for text in (*plan.passes, *plan.loop_passes):
            make_pass(text)  # so that a bad one is found before work is done
        if plan.passes:
            self._take(_Passes(plan.passes))
        for choice in plan.loop_choices:
            self._take(choice)
        if plan.loop_passes:
            self._take(_LoopCleanup(plan.loop_passes))
        if not plan.base:
            return
        self.phase = "fusion"
        self._start_fusion()
        translation = Translation(plan, self._require_places())
        for n, step in enumerate(plan.steps):
            try:
                self.apply(translation.action(step.action))
            except FusionError as e:
                raise PlanError(f"fusion {n} of the plan cannot be replayed: {e}") from None
            translation.made(step, self.fusion.made[-1])
        for name, kernel in translation.kernels(plan.kernels).items():
            self.set_kernel(name, kernel)

    def _require_places(self) -> Places:
        if self._places is None:
            raise SessionError("fusion has not started")
        return self._places

    def _take(self, decision: _Decision) -> None:
        """Take a decision of this session again, exactly."""
        match decision:
            case _Passes(applied) | _LoopCleanup(applied):
                for text in applied:
                    PipelineRun().run(make_pass(text), self.module)
                self._decisions.append(decision)
            case LoopChoice():
                self.phase = "loops"
                apply_loop_choice(self.module, decision.position, decision.choice)
                self._decisions.append(decision)
            case FusionStep(action):
                self.apply(action)
            case _Kernel(name=name, choice=choice):
                self.set_kernel(name, choice)

    def undo(self) -> bool:
        """Take back the last decision; False when there is none."""
        if not self._decisions:
            return False
        last, kept = self._decisions[-1], self._decisions[:-1]
        if isinstance(last, _Kernel):
            self._decisions = kept
            return True
        if isinstance(last, FusionStep) and self._fusion_base is not None:
            self._undo_fusion(kept)
            return True
        self._reset()
        for d in kept:
            self._take(d)
        return True

    def _undo_fusion(self, kept: list[_Decision]) -> None:
        base = self._fusion_base
        if base is None:
            raise SessionError("fusion has not started")
        self.module = base.clone()
        self._state = FusionState(self.module, self.device)
        for d in kept:
            if isinstance(d, FusionStep):
                self._state.apply(d.action)
        self._decisions = kept
        self.phase = "fusion"

    def fork(self) -> CompilationSession:
        """An independent session that goes on from here."""
        other = CompilationSession.__new__(CompilationSession)
        other._source, other.fingerprint = self._source, self.fingerprint
        other.backend, other.device, other._pipeline = self.backend, self.device, self._pipeline
        other.phase = self.phase
        other._decisions = list(self._decisions)
        other._fusion_base, other._places = self._fusion_base, self._places
        if self._state is None:
            other._state, other.module = None, self.module.clone()
        else:
            other._state = self._state.fork()
            other.module = other._state.module
        return other

    def finish(self) -> Executable:
        """Build what the decisions led to."""
        from compiler.runtime.build import build_executable

        if self._state is None:
            self._lower()
        self.module.reorder()  # what a scheduled module needs to be valid
        plan = self.plan
        self.phase = "done"
        schedules = {d.name: d.schedule for d in self._decisions if isinstance(d, _Kernel)}
        return build_executable(self.module, self.backend, plan=plan, schedules=schedules)

    def _enter(self, phase: Phase) -> None:
        if PHASES.index(phase) < PHASES.index(self.phase):
            raise SessionError(f"{phase} are decided already, the session is at {self.phase}; undo, or start a new one")
        self.phase = phase


def _check_backend(plan: CompilationPlan) -> None:
    known = BACKENDS[1:]
    if plan.backend not in known:
        raise PlanError(f"the plan was made for an unknown backend {plan.backend!r}; there are {', '.join(known)}")


def as_pipeline(pipeline: Pipeline) -> HloPass:
    """A pass from what users give: a pipeline or pass, a list of them or of names, None for the default."""
    if pipeline is None:
        return default_pipeline()
    if isinstance(pipeline, HloPass):
        return pipeline
    if isinstance(pipeline, str):
        return make_pass(pipeline)
    return PassPipeline("given", tuple(_passes(pipeline)))


def _passes(given: Iterable[str | HloPass]) -> Iterable[HloPass]:
    return (make_pass(p) if isinstance(p, str) else p for p in given)


def cleanup_pipeline() -> HloPass:
    """What runs after loops have been unrolled."""
    return default_pipeline()
