"""What the default pipeline can still simplify after another order of passes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.ir import HloModule
from compiler.passes.infrastructure.base import HloPass, op_count
from compiler.passes.infrastructure.pipeline import PipelineRun
from compiler.passes.infrastructure.registry import pass_text
from compiler.passes.pipelines.default import default_pipeline, simplification

__all__ = ["Completed", "complete", "run_on_copy"]


@dataclass(frozen=True)
class Completed:
    """A module after its completion, or after any pipeline.

    Attributes:
        module: the program; the given one if the completion did not improve it.
        ops: its op count.
        passes: the passes, as strings, that transformed the given module into this one.
        applications: number of pass applications, also of those without effect.
    """

    module: HloModule
    ops: int
    passes: list[str]
    applications: int


def complete(module: HloModule, ops: int) -> Completed:
    """Simplify a module, then run the whole default pipeline; each result is kept only if it has fewer ops.

    Args:
        module: any module; it is not changed.
        ops: its `op_count`.
    """
    done = Completed(module, ops, [], 0)
    for pipeline in (simplification(), default_pipeline()):
        done = _attempt(done, pipeline)
    return done


def run_on_copy(module: HloModule, pipeline: HloPass) -> Completed:
    """Run a pipeline on a copy of the module; return the result and the passes that changed it."""
    work, changed = module.clone(), []
    run = PipelineRun(hooks=(lambda p, _, did: changed.append(pass_text(p)) if did else None,))
    run.run(pipeline, work)
    return Completed(work, op_count(work), changed, len(run.records))


def _attempt(done: Completed, pipeline: HloPass) -> Completed:
    made = run_on_copy(done.module, pipeline)
    applications = done.applications + made.applications
    if made.ops >= done.ops:
        return replace(done, applications=applications)
    return replace(made, passes=[*done.passes, *made.passes], applications=applications)
