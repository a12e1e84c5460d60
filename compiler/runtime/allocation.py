"""Memory allocation of a program: copy elision, then buffer assignment in the arena."""

from __future__ import annotations

from compiler.runtime.buffers import assign_offsets
from compiler.runtime.coalesce import coalesce, timeline
from compiler.runtime.thunk_emitter import ThunkProgram


def allocate(program: ThunkProgram) -> int:
    """Remove redundant copies and assign arena offsets to temporaries, in place; return the arena's size in bytes."""
    coalesce(program.thunks, program.results)
    return assign_offsets(timeline(program.thunks, program.results).intervals())
