"""Passes: one file a subject, each registering itself; pipelines of them."""

import importlib
import pkgutil

from compiler.passes.base import HloPass as HloPass
from compiler.passes.base import Swept as Swept
from compiler.passes.pipeline import FixedPoint as FixedPoint
from compiler.passes.pipeline import PassPipeline as PassPipeline
from compiler.passes.pipeline import PipelineRun as PipelineRun
from compiler.passes.pipeline import run_pass as run_pass
from compiler.passes.registry import PASSES as PASSES
from compiler.passes.registry import make_pass as make_pass
from compiler.passes.registry import make_passes as make_passes

# A pass registers where it is defined, so a new one needs a file and nothing else.
for _found in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
    importlib.import_module(f"{__name__}.{_found.name}")
