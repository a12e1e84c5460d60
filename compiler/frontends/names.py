"""Which argument of the source program each entry parameter stands for, and which output each result."""

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
    """Argument position -> name in the source program (`x`, `params['w']`, `layers.0.weight`).

    Read from the parameters' metadata, where the frontends (and XLA) keep it; a parameter without any goes by the
    name of its instruction.
    """
    return {p.parameter_number or 0: _name(p) for p in module.entry.parameters}


def set_argument_name(parameter: HloInstruction, name: str) -> None:
    """Keep `name` with an entry parameter, for `argument_names` to find."""
    parameter.attributes["metadata"] = Raw(f"{{op_name={quote(name)}}}")


def result_names(module: HloModule) -> dict[int, str]:
    """Position in the result -> name (`output_0`, `layers.1.running_mean`, `rng_state`).

    Read from the root's frontend attributes, where the PyTorch frontend keeps it; empty for other modules.
    """
    root = module.entry.root
    text = str(root.attr("frontend_attributes") or "")
    m = _RESULTS.search(text)
    return dict(enumerate(unescape(m.group(1)).split(","))) if m else {}


def set_result_names(root: HloInstruction, names: Sequence[str]) -> None:
    """Keep the names of a result's elements with the root, for `result_names` to find."""
    root.attributes["frontend_attributes"] = Raw(f"{{result_names={quote(','.join(names))}}}")


def _name(parameter: HloInstruction) -> str:
    metadata = parameter.attr("metadata")
    m = _OP_NAME.search(str(metadata)) if metadata is not None else None
    return unescape(m.group(1)) if m else parameter.name
