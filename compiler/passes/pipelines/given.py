"""Pipelines as users give them: a pass, its text, a list of either, or nothing for the default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from compiler.errors import ArgumentError, OptionError
from compiler.passes.infrastructure.base import HloPass
from compiler.passes.infrastructure.pipeline import PassPipeline
from compiler.passes.infrastructure.registry import make_pass
from compiler.passes.pipelines.default import default_pipeline
from compiler.support.untrusted import short_repr

Pipeline: TypeAlias = "PassPipeline | HloPass | Sequence[str | HloPass] | None"


def as_pipeline(pipeline: Pipeline) -> HloPass:
    """Return the pass that a user gave as a pass, a pass text, a list of either, or None for the default pipeline.

    Raises:
        ArgumentError: it is none of these.
        UnknownNameError, OptionError: there is no such pass or option.
    """
    if pipeline is None:
        return default_pipeline()
    if isinstance(pipeline, HloPass):
        return pipeline
    if isinstance(pipeline, str):
        try:
            return make_pass(pipeline)
        except OptionError as error:
            if "," not in pipeline.partition("{")[0]:
                raise
            raise OptionError(f"{error}; several passes are a list of these") from error
    if not isinstance(pipeline, Sequence):
        raise ArgumentError(f"a pipeline is a pass, its text, or a list of these, not {short_repr(pipeline)}")
    return PassPipeline("given", tuple(map(_as_pass, pipeline)))


def _as_pass(given: str | HloPass) -> HloPass:
    if isinstance(given, HloPass):
        return given
    if not isinstance(given, str):
        raise ArgumentError(f"a pass is an HloPass or its text, not {short_repr(given)}")
    return make_pass(given)
