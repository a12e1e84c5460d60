"""Names of arguments and results in the source program, stored in the metadata of parameters and root."""

from __future__ import annotations

import re
from collections.abc import Sequence

from compiler.ir.attributes import Raw
from compiler.ir.instruction import HloInstruction
from compiler.ir.module import HloModule
from compiler.ir.quoting import quote, unescape

_RESULTS = re.compile(r'result_names="((?:[^"\\]|\\.)*)"')
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')


def argument_names(module: HloModule) -> dict[int, str]:
    """Return the name of each argument in the source program (`x`, `params['w']`, `layers.0.weight`), by position.

    Names are read from the parameters' metadata, where the frontends (and XLA) store them. A parameter without metadata
    is named after its instruction.
    """
    return {p.parameter_number or 0: _name(p) for p in module.entry.parameters}


def set_argument_name(parameter: HloInstruction, name: str) -> None:
    """Store the name of an entry parameter for `argument_names`."""
    parameter.set_attribute("metadata", Raw(f"{{op_name={quote(name)}}}"))


def result_names(module: HloModule) -> dict[int, str]:
    """Return the name of each result (`output_0`, `layers.1.running_mean`, `rng_state`) by position.

    Names are read from the root's frontend attributes, where the PyTorch frontend stores them; empty for other modules.
    """
    root = module.entry.root
    text = str(root.attr("frontend_attributes") or "")
    m = _RESULTS.search(text)
    return dict(enumerate(unescape(m.group(1)).split(","))) if m else {}


def set_result_names(root: HloInstruction, names: Sequence[str]) -> None:
    """Store the names of the elements of the result with the root for `result_names`."""
    root.set_attribute("frontend_attributes", Raw(f"{{result_names={quote(','.join(names))}}}"))


def _name(parameter: HloInstruction) -> str:
    metadata = parameter.attr("metadata")
    m = _OP_NAME.search(str(metadata)) if metadata is not None else None
    return unescape(m.group(1)) if m else parameter.name
