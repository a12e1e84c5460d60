"""The pipeline in front of stock XLA, which leaves alone what XLA recognises and rewrites itself."""

from __future__ import annotations

from compiler.passes.infrastructure.pipeline import PassPipeline
from compiler.passes.pipelines.default import default_pipeline


def xla_pipeline() -> PassPipeline:
    """Return the passes that `compile(..., backend="xla")` runs."""
    return default_pipeline()
