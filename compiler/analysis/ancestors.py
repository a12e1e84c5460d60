"""What instructions are computed from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from compiler.ir.instruction import HloInstruction

__all__ = ["ancestors"]


def ancestors(starts: Iterable[HloInstruction]) -> Iterator[HloInstruction]:
    """Yield instructions and all that they are computed from, each once."""
    work = list(starts)
    seen = set(work)
    while work:
        i = work.pop()
        yield i
        for o in i.operands:
            if o not in seen:
                seen.add(o)
                work.append(o)
