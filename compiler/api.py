"""`compile`: the entry point for users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compiler.analysis.devices import device_refusal
from compiler.backends import registry
from compiler.backends.registry import find_backend
from compiler.deciders import decider_name
from compiler.errors import ArgumentError, UnsupportedError
from compiler.expansion_changes import run_expansion_changes
from compiler.expansions import ChooseExpansion, ExpansionPolicy
from compiler.fusion.policies import POLICIES, make_policy
from compiler.fusion.protocol import ChooseFusion, FusionPolicy, as_policy
from compiler.ir import HloModule
from compiler.ir.verifier import verify
from compiler.learned.learned_costs import with_learned_costs
from compiler.learned.site_policy import SiteExpansions
from compiler.loops import LoopPolicy
from compiler.passes import HloPass, PassPipeline
from compiler.passes.pipelines.given import Pipeline
from compiler.plan import CompilationPlan
from compiler.policy import HEURISTIC, Policy, resolve_policy
from compiler.runtime.executable import CallOptions, Configurable, Executable
from compiler.runtime.kernel_selector import ChooseKernel, KernelSelector
from compiler.session import CompilationSession
from compiler.support.gc_pause import gc_rarely
from compiler.support.paths import is_folder
from compiler.support.untrusted import short_repr
from compiler.text import parse


@dataclass(frozen=True)
class CompileOptions:
    """Options of `compile`.

    Attributes:
        verify: run the verifier before and after the passes.
        optimize: run passes, loop decisions and fusion; otherwise every op becomes a kernel of its own.
        keep_fusions: compile a module that is fused already, such as the text of `Executable.module`, as it is: no
            passes run, and policies decide only what is left, if they are given.
        flush_denormals: treat subnormal numbers as zero while the program runs, as XLA does (cpu only).
        num_threads: number of threads of the program, at most HLOGYM_NUM_THREADS; None for all (cpu only).
    """

    verify: bool = True
    optimize: bool = True
    keep_fusions: bool = False
    flush_denormals: bool = False
    num_threads: int | None = None

    def __post_init__(self) -> None:
        n = self.num_threads
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
            raise ValueError(f"num_threads must be a positive integer or None, not {n!r}")

    @property
    def of_calls(self) -> CallOptions:
        """Return the options that concern calls of the executable."""
        return CallOptions(self.flush_denormals, self.num_threads)


@gc_rarely()
def compile(  # users know it by this name
    module: HloModule | str,
    backend: str = "cpu",
    pipeline: PassPipeline | HloPass | Sequence[str | HloPass] | None = None,
    fusion_policy: FusionPolicy | ChooseFusion | Policy | str | None = None,
    kernel_selector: KernelSelector | ChooseKernel | None = None,
    loop_policy: LoopPolicy | None = None,
    plan: CompilationPlan | None = None,
    options: CompileOptions | None = None,
    expansion_policy: ExpansionPolicy | ChooseExpansion | None = None,
    policy: Policy | str | Path | None = None,
) -> Executable:
    """Compile a program and return the executable.

    Args:
        module: HLO text, or a module, which is not changed.
        backend: "cpu" (C compiled by gcc), "cuda" (CUDA C++ launched by CuPy), "xla" (stock XLA through jaxlib,
            after our passes, and with our fusions if a policy of fusions is given), "interpreter" (numpy), or "auto":
            cuda where there is a GPU, else cpu.
        pipeline: the passes before fusion: a PassPipeline, a list of passes or names, or None for those of `policy`.
        fusion_policy: a FusionPolicy, a function that chooses as one, a name, the parts for fusion and loops of a
            Policy, or None for that of `policy`.
        kernel_selector: a KernelSelector, or a function of a KernelSite, that chooses the implementation and the
            schedule of each kernel; None for that of `policy`.
        loop_policy: decides loops; None for that of `policy`.
        plan: decisions to replay instead of asking policies.
        options: see `CompileOptions`.
        expansion_policy: an ExpansionPolicy, or a function of an ExpansionSite, that chooses how ops such as
            convolutions are computed; None for that of `policy`.
        policy: makes every decision for which no argument above is given: "heuristic", the hand-written rules;
            "learned", the policy that ships; a fusion policy by name; the folder of an exported policy; or a Policy.
            None: the default of the backend, see `compiler.policy.default_policy`.

    Returns:
        An executable. Call it with arrays; inspect `.kernels`, `.module` and `.plan`.

    Raises:
        HloSyntaxError, HloVerificationError: the program is not valid HLO.
        UnsupportedError, BackendError, CodegenError: it cannot be built on this machine; the message says why.
        ArgumentError: `module` is not a program, `backend` is not a name, `options` are none, or the backend does not
            support one of them.
        UnknownNameError: there is no such backend, policy or pass.
        PolicyError: the folder of `policy` holds no policy that can be used.
        PlanError: the plan was made for another program or cannot be replayed, or a kernel choice is not possible.
    """
    if not isinstance(options, CompileOptions | None):
        raise ArgumentError(f"options are a CompileOptions, not {short_repr(options)}")
    options = options or CompileOptions()
    target = find_backend(backend)
    module = checked_module(module, options.verify)
    if not options.optimize:
        return _configured(with_learned_costs(target.build(module)), options)
    # Fusions that are kept leave policies only what is left, and only those that are given.
    whole = HEURISTIC if policy is None and options.keep_fusions else resolve_policy(policy, target.name)
    chosen = _overridden(whole, pipeline, expansion_policy, loop_policy, fusion_policy, kernel_selector)
    session = CompilationSession(module, target.name, chosen.passes)
    if plan is not None:
        session.replay(plan)
        return _configured(session.finish(), options)
    decide_all(session, chosen, options.keep_fusions)
    session.module.reorder()  # the verifier expects operands first
    if options.verify:
        verify(session.module)
    return _configured(session.finish(), options)


def load(path: str | Path) -> Executable:
    """Load a program that `Executable.save` wrote; a cpu program loads without a C compiler.

    Raises:
        SavedProgramError: the folder does not exist, has another format, is damaged, or was built for another kind of
            processor.
        BackendError: the program was saved for an unknown backend.
    """
    return with_learned_costs(registry.load(path))


def checked_module(module: HloModule | str, verified: bool = True) -> HloModule:
    """Return a program as a module; errors are those of `compile`.

    Args:
        module: HLO text, or a module.
        verified: run the verifier.
    """
    if isinstance(module, str) and module.endswith(".hlo") and "\n" not in module:
        raise ArgumentError(f"compile takes HLO text, not the name of a file; read {short_repr(module)} first")
    module = parse(module) if isinstance(module, str) else module
    if not isinstance(module, HloModule):
        raise ArgumentError(
            f"a program is HLO text or an HloModule, not {short_repr(module)}; compiler.frontends.jax.lower(fn, *args) "
            "and compiler.frontends.torch.lower(module, *args) make one of a function"
        )
    if verified:
        verify(module)
    refusal = device_refusal(module)
    if refusal is not None:
        raise UnsupportedError(refusal)
    return module


def _configured(executable: Executable, options: CompileOptions) -> Executable:
    """Return the executable with the options of its calls."""
    if options.of_calls == CallOptions():
        return executable
    if not isinstance(executable, Configurable):
        raise ArgumentError(
            f"flush_denormals and num_threads are options of the cpu backend, not of {executable.backend!r}"
        )
    executable.call_options = options.of_calls
    return executable


def _overridden(
    policy: Policy,
    pipeline: Pipeline,
    expansions: ExpansionPolicy | ChooseExpansion | None,
    loops: LoopPolicy | None,
    fusion: FusionPolicy | ChooseFusion | Policy | str | None,
    kernels: KernelSelector | ChooseKernel | None,
) -> Policy:
    """Return a policy with the parts that arguments of `compile` give instead of its own."""
    parts: dict[str, Any] = {"passes": pipeline, "expansions": expansions, "loops": loops, "kernels": kernels}
    labels: dict[str, str] = {}
    if isinstance(fusion, Policy):
        labels = dict.fromkeys(("fusion", "loops"), fusion.label)
        decides_loops = fusion.fusion if isinstance(fusion.fusion, LoopPolicy) else None
        parts["fusion"], parts["loops"] = fusion.fusion, loops or fusion.loops or decides_loops
    elif fusion is not None:
        made = parts["fusion"] = _fusion_policy(fusion)
        if isinstance(fusion, str):
            labels["fusion"] = fusion
        if loops is None and isinstance(made, LoopPolicy):
            parts["loops"] = made
    if loops is not None:
        labels.pop("loops", None)
    given = {phase: part for phase, part in parts.items() if part is not None}
    by = {phase: labels.get(phase, "" if phase == "passes" else decider_name(part)) for phase, part in given.items()}
    return replace(policy, **given, labels={**policy.labels, **by})


def _fusion_policy(given: FusionPolicy | ChooseFusion | str) -> FusionPolicy:
    if not isinstance(given, str):
        return as_policy(given)
    if given and given not in POLICIES and is_folder(given):
        raise ArgumentError(f"{short_repr(given)} is a folder; pass policy={short_repr(given)}")
    return make_policy(given)


def decide(
    session: CompilationSession,
    fusion_policy: FusionPolicy,
    loop_policy: LoopPolicy | None = None,
    kernel_selector: KernelSelector | ChooseKernel | None = None,
    expansion_policy: ExpansionPolicy | ChooseExpansion | None = None,
) -> None:
    """Make every decision of a session with policies.

    Args:
        session: in its initial state.
        fusion_policy: chooses fusions, and loops too if it is also a LoopPolicy and `loop_policy` is None.
        loop_policy: decides loops.
        kernel_selector: chooses kernels; None means the defaults.
        expansion_policy: chooses expansions; None means the defaults.
    """
    session.run_passes()
    if expansion_policy is not None:
        session.run_expansion_policy(expansion_policy)
    if loop_policy is None:
        # A learned policy decides loops too; a policy that only fuses leaves them to the default.
        loop_policy = fusion_policy if isinstance(fusion_policy, LoopPolicy) else None
    session.run_loop_policy(loop_policy)
    session.run_fusion_policy(fusion_policy)
    if kernel_selector is not None:
        session.run_kernel_selector(kernel_selector)


def decide_all(session: CompilationSession, policy: Policy, keep_fusions: bool = False) -> None:
    """Make every decision of a session with a policy; the rules decide the phases for which it has no part.

    Args:
        session: in its initial state.
        policy: for its backend.
        keep_fusions: the module is fused already: run no passes, and decide only the phases that have a part.
    """
    if not keep_fusions:
        session.run_passes(policy.passes)
    if isinstance(policy.expansions, SiteExpansions):
        run_expansion_changes(session, policy.expansions)
    elif policy.expansions is not None:
        session.run_expansion_policy(policy.expansions)
    if policy.loops is not None:
        session.run_loop_policy(policy.loops)
    elif not keep_fusions:
        # A learned policy decides loops too; a policy that only fuses leaves them to the default.
        session.run_loop_policy(policy.fusion if isinstance(policy.fusion, LoopPolicy) else None)
    if policy.fusion is not None:
        session.run_fusion_policy(policy.fusion)
    elif not keep_fusions:
        session.run_fusion_policy()
        session.decided_by["fusion"] = session.default_fusion()
    if policy.kernels is not None:
        session.run_kernel_selector(policy.kernels)
    session.decided_by.update({phase: by for phase in policy.parts if (by := policy.decider(phase))})
