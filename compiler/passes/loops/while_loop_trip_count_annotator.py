"""Trip count annotation: writes what is known of a loop's counter into its backend_config, as XLA does."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from compiler.analysis.trip_count import read_config
from compiler.analysis.while_loop import Induction, induction
from compiler.ir import HloInstruction, HloModule
from compiler.ir.attributes import Raw
from compiler.passes.infrastructure.registry import register
from compiler.passes.loops.loop_editing import Loops


@register
@dataclass(frozen=True)
class WhileLoopTripCountAnnotator:
    """Write `known_trip_count`, `known_induction_variable` and `known_init_step` into each loop's backend_config."""

    name: ClassVar[str] = "while-loop-trip-count-annotator"

    def run(self, module: HloModule) -> bool:
        """Run the pass; return whether the module changed."""
        changed = False
        for view in Loops(module).views():
            counter = induction(view)
            if counter is not None:
                changed |= _annotate(view.instruction, counter)
        return changed


def _annotate(loop: HloInstruction, counter: Induction) -> bool:
    config = _config(loop)
    if config is None:
        return False
    known: dict[str, Any] = {
        **config,
        "known_trip_count": {"n": str(counter.trip_count)},
        "known_induction_variable": {"tuple_index": str(counter.index)},
        "known_init_step": {"init": str(counter.start), "step": str(counter.step)},
    }
    if known == config:
        return False
    loop.set_attribute("backend_config", Raw(json.dumps(known, separators=(",", ":"))))
    return True


def _config(loop: HloInstruction) -> dict[str, Any] | None:
    """Return the current configuration, or None if it is not JSON and must not be changed."""
    return read_config(str(loop.attr("backend_config", "{}")))
