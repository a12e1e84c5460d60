"""Memory of a program: copies that are not needed are removed, then each buffer gets its offset in the arena."""

from __future__ import annotations

from compiler.runtime.buffers import assign_offsets
from compiler.runtime.coalesce import coalesce, timeline
from compiler.runtime.thunk_emitter import ThunkProgram


def allocate(program: ThunkProgram) -> int:
    """Assign memory to all temporaries of a program, in place; return the size of the arena in bytes."""
    coalesce(program.thunks, program.results)
    return assign_offsets(timeline(program.thunks, program.results).intervals())
