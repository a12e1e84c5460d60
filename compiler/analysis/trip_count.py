"""Trip counts of `while` loops, from their condition or from an annotation in their backend_config."""

from __future__ import annotations

import json
import re
from typing import Any

from compiler.analysis.while_loop import induction, view_loop
from compiler.ir.attributes import Raw
from compiler.ir.instruction import HloInstruction
from compiler.ir.module import HloModule
from compiler.ir.opcodes import Opcode
from compiler.support.json_reading import parse_json

_KNOWN = re.compile(r'known_trip_count\W+n[\s\\":]+(\d{1,18})(?=[\s\\"}])')
"""Matches an integer trip count of at most 18 digits; anything else is ignored."""


def trip_count_of(loop: HloInstruction) -> int | None:
    """Return the number of iterations of a `while`, or None if it is not known before it runs."""
    noted = _KNOWN.search(str(loop.attr("backend_config", "")))
    if noted:
        return int(noted.group(1))
    view = view_loop(loop)
    counted = None if view is None else induction(view)
    return None if counted is None else counted.trip_count


def annotate(loop: HloInstruction) -> bool:
    """Write the trip count into the loop's backend_config, before fusion hides it; return whether it is new.

    The format is that of XLA, backend_config={"known_trip_count":{"n":"200"}}; other entries are kept.
    """
    config = _config(loop)
    if config is None or "known_trip_count" in config:
        return False
    count = trip_count_of(loop)
    if count is None:
        return False
    text = json.dumps({**config, "known_trip_count": {"n": str(count)}}, separators=(",", ":"))
    loop.set_attribute("backend_config", Raw(text))
    return True


def annotate_trip_counts(module: HloModule) -> bool:
    """Annotate every loop that control flow reaches; return whether any annotation is new."""
    loops = [i for c in module.control_flow_computations() for i in c.instructions if i.opcode is Opcode.WHILE]
    changed = [annotate(loop) for loop in loops]
    return any(changed)


def _config(loop: HloInstruction) -> dict[str, Any] | None:
    """Return the backend_config as a JSON object: {} if it is absent, None if it cannot be parsed."""
    raw = loop.attr("backend_config")
    if raw is None:
        return {}
    return read_config(str(raw))


def read_config(text: str) -> dict[str, Any] | None:
    """Parse a backend_config that is a JSON object, or a string that contains one; return None for any other."""
    try:
        value = parse_json(text, "backend_config", ValueError)
        value = parse_json(value, "backend_config", ValueError) if isinstance(value, str) else value
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
