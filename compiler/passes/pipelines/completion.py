"""What the default pipeline still finds after another order of passes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.ir import HloModule
from compiler.passes.infrastructure.base import HloPass, op_count
from compiler.passes.infrastructure.pipeline import PipelineRun
from compiler.passes.infrastructure.registry import pass_text
from compiler.passes.pipelines.default import default_pipeline, simplification

__all__ = ["Completed", "complete", "run_aside"]


@dataclass(frozen=True)
class Completed:
    """A module after its completion, or any pipeline.

    Attributes:
        module: the program; after a completion that found nothing, the one given.
        ops: what is left of it.
        passes: texts of the passes that lead here from the module given.
        applications: passes that were run, whether they changed anything or not.
    """

    module: HloModule
    ops: int
    passes: list[str]
    applications: int


def complete(module: HloModule, ops: int) -> Completed:
    """Simplify to a fixed point, then run the whole default pipeline, each kept only if it leaves fewer ops.

    Args:
        module: any; it is not changed.
        ops: `op_count` of it.
    """
    done = Completed(module, ops, [], 0)
    for pipeline in (simplification(), default_pipeline()):
        done = _attempt(done, pipeline)
    return done


def run_aside(module: HloModule, pipeline: HloPass) -> Completed:
    """What a pipeline makes of a copy of the module, and how."""
    work, changed = module.clone(), []
    run = PipelineRun(hooks=(lambda p, _, did: changed.append(pass_text(p)) if did else None,))
    run.run(pipeline, work)
    return Completed(work, op_count(work), changed, len(run.records))


def _attempt(done: Completed, pipeline: HloPass) -> Completed:
    made = run_aside(done.module, pipeline)
    applications = done.applications + made.applications
    if made.ops >= done.ops:
        return replace(done, applications=applications)
    return replace(made, passes=[*done.passes, *made.passes], applications=applications)
