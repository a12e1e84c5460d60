"""The environments that are registered, by what the agent decides."""

from __future__ import annotations

from typing import ClassVar

from compiler.plan import Phase
from env.decision import DecisionEnv
from env.pass_order import PassOrderEnv

__all__ = ["CompileEnv", "ExpansionsEnv", "FusionEnv", "KernelsEnv", "PassOrderEnv", "UnrollEnv"]


class FusionEnv(DecisionEnv):
    """`hlogym/Fusion-v0`: decide how each loop runs, then which instructions become one kernel.

    Description:
        An episode starts after the default passes. For each loop the agent chooses whether to keep it or how far to
        unroll it; then it fuses, one legal fusion after the other, until it stops. The baseline is the default passes
        with loops kept and nothing fused.

    `DecisionEnv` describes actions, observations, rewards, `info` and arguments.
    """

    phases: ClassVar[tuple[Phase, ...]] = ("loops", "fusion")


class UnrollEnv(DecisionEnv):
    """`hlogym/Unroll-v0`: decide how each loop runs.

    Description:
        An episode starts after the default passes. For each loop the agent chooses whether to keep it or how far to
        unroll it; then the default policy fuses. The baseline is the default passes with loops kept, fused by the
        default policy.

    `DecisionEnv` describes actions, observations, rewards, `info` and arguments.
    """

    phases: ClassVar[tuple[Phase, ...]] = ("loops",)


class ExpansionsEnv(DecisionEnv):
    """`hlogym/Expansions-v0`: decide how ops without kernels of their own are computed.

    Description:
        An episode starts after the default passes. For each op that may be computed in several ways, such as a
        convolution (a library call, a product over patches) or a small product (a library call, loops), the agent takes
        one of them; then the default policies decide loops and fuse. The baseline is the same compilation with the
        default of every op.

    `DecisionEnv` describes actions, observations, rewards, `info` and arguments.
    """

    phases: ClassVar[tuple[Phase, ...]] = ("expansions",)


class KernelsEnv(DecisionEnv):
    """`hlogym/Kernels-v0`: decide the implementation and the schedule of each kernel.

    Description:
        An episode starts after the default passes, loop decisions and fusions. For each kernel that has more than one
        choice the agent takes one of them. The baseline is the same compilation with the default of every kernel.

        The cost model does not know schedules: it gives the choices of a kernel the same time. The estimated reward of
        each decision is therefore 0, and only a measured reward tells choices apart.

    `DecisionEnv` describes actions, observations, rewards, `info` and arguments.
    """

    phases: ClassVar[tuple[Phase, ...]] = ("kernels",)


class CompileEnv(DecisionEnv):
    """`hlogym/Compile-v0`: take all decisions of a compilation in one episode.

    Description:
        The agent chooses passes until it stops, then how ops are expanded and how each loop runs, then fusions, then
        the implementation and the schedule of each kernel. The baseline is the default passes with default expansions,
        loops kept, nothing fused, and the default of every kernel.

    `DecisionEnv` describes actions, observations, rewards, `info` and arguments.
    """

    phases: ClassVar[tuple[Phase, ...]] = ("passes", "expansions", "loops", "fusion", "kernels")
