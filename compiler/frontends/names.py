"""Which argument of the source program each entry parameter stands for."""

from __future__ import annotations

import re

from compiler.ir.attributes import Raw
from compiler.ir.instruction import HloInstruction
from compiler.ir.module import HloModule
from compiler.ir.quoting import quote, unescape

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


def _name(parameter: HloInstruction) -> str:
    metadata = parameter.attr("metadata")
    m = _OP_NAME.search(str(metadata)) if metadata is not None else None
    return unescape(m.group(1)) if m else parameter.name
