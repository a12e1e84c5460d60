"""What a policy sees of a loop decision: a candidate per choice."""

from __future__ import annotations

from compiler.ir import HloModule
from compiler.learned.features.candidates import Candidate
from compiler.loops import FULL, KERNEL, LoopSite, find_loop, unroll_factor_of

__all__ = ["loop_candidates"]


def loop_candidates(site: LoopSite, module: HloModule) -> list[Candidate]:
    """Return the candidates of a loop of the module, one for each of `site.choices` in their order."""
    loop = find_loop(module, site)
    return [
        Candidate(
            "loop",
            loop,
            factor=0 if choice == FULL else unroll_factor_of(choice) or 1,
            in_kernel=choice == KERNEL,
            trips=site.trip_count,
        )
        for choice in site.choices
    ]
