"""Trip counts of loops: worked out from the loop, or read from where XLA writes them down (backend_config)."""

from __future__ import annotations

import json

from compiler.analysis.while_loop import induction, view_loop
from compiler.ir import HloInstruction, HloModule, Opcode
from compiler.ir.attributes import Raw


def known_trip_count(loop: HloInstruction) -> int | None:
    """How often the body of a while runs; None when nobody can tell."""
    noted = _noted(loop)
    if noted is not None:
        return noted
    view = view_loop(loop)
    counter = None if view is None else induction(view)
    return None if counter is None else counter.trip_count


def annotate_trip_counts(module: HloModule) -> bool:
    """Note every known trip count in `backend_config`, because fusion hides the counter; whether any was new.

    The spelling is XLA's: backend_config={"known_trip_count":{"n":"200"}}.
    """
    changed = False
    for c in module.control_flow_computations():
        for i in c.instructions:
            if i.opcode is Opcode.WHILE and _noted(i) is None and (n := known_trip_count(i)) is not None:
                changed |= _note(i, n)
    return changed


def _noted(loop: HloInstruction) -> int | None:
    config = _config(loop)
    try:
        return None if config is None else int(config["known_trip_count"]["n"])
    except (KeyError, TypeError, ValueError):
        return None


def _config(loop: HloInstruction) -> dict[str, dict[str, str]] | None:
    """The backend_config as JSON; None when there is one that cannot be read, {} when there is none."""
    raw = loop.attr("backend_config")
    if raw is None:
        return {}
    text = str(raw)
    try:
        value = json.loads(json.loads(text) if text.startswith('"') else text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _note(loop: HloInstruction, n: int) -> bool:
    config = _config(loop)
    if config is None:
        return False
    text = json.dumps({**config, "known_trip_count": {"n": str(n)}}, separators=(",", ":"))
    loop.attributes["backend_config"] = Raw(text)
    return True
