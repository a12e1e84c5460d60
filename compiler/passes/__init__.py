"""HLO passes, one file each, in folders by subject; every pass registers itself when it is imported."""

import importlib
import pkgutil

from compiler.passes.infrastructure.base import HloPass as HloPass
from compiler.passes.infrastructure.base import Swept as Swept
from compiler.passes.infrastructure.pipeline import FixedPoint as FixedPoint
from compiler.passes.infrastructure.pipeline import PassPipeline as PassPipeline
from compiler.passes.infrastructure.pipeline import PipelineRun as PipelineRun
from compiler.passes.infrastructure.pipeline import run_pass as run_pass
from compiler.passes.infrastructure.registry import PASSES as PASSES
from compiler.passes.infrastructure.registry import make_pass as make_pass
from compiler.passes.infrastructure.registry import make_passes as make_passes

# Import all modules, so that a new pass needs a file but no entry in a list.
for _found in sorted(pkgutil.walk_packages(__path__, f"{__name__}."), key=lambda m: m.name):
    importlib.import_module(_found.name)
