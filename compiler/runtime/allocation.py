"""Memory allocation of a program: copy elision, the order of its steps, then buffer assignment in the arena."""

from __future__ import annotations

from compiler.runtime.buffers import assign_offsets
from compiler.runtime.coalesce import coalesce, timeline
from compiler.runtime.sharing import share_buffers
from compiler.runtime.thunk_emitter import ThunkProgram
from compiler.runtime.thunk_order import order_for_memory


def allocate(program: ThunkProgram) -> int:
    """Remove redundant copies and assign arena offsets to temporaries, in place; return the arena's size in bytes."""
    coalesce(program.thunks, program.results)
    order_for_memory(program.thunks, program.results)
    share_buffers(program.thunks, program.results)
    return assign_offsets(timeline(program.thunks, program.results).intervals())
