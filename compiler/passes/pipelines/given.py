"""Pipelines as users give them: a pass, its text, a list of either, or nothing for the default."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from compiler.passes.infrastructure.base import HloPass
from compiler.passes.infrastructure.pipeline import PassPipeline
from compiler.passes.infrastructure.registry import make_pass
from compiler.passes.pipelines.default import default_pipeline

Pipeline: TypeAlias = "PassPipeline | HloPass | Sequence[str | HloPass] | None"


def as_pipeline(pipeline: Pipeline) -> HloPass:
    """Return the pass that a user gave as a pass, a pass text, a list of either, or None for the default pipeline."""
    if pipeline is None:
        return default_pipeline()
    if isinstance(pipeline, HloPass):
        return pipeline
    if isinstance(pipeline, str):
        return make_pass(pipeline)
    return PassPipeline("given", tuple(_passes(pipeline)))


def _passes(given: Iterable[str | HloPass]) -> Iterable[HloPass]:
    return (make_pass(p) if isinstance(p, str) else p for p in given)
