"""What a policy sees of an expansion decision: a candidate per choice."""

from __future__ import annotations

from compiler.expansions import ExpansionSite
from compiler.ir import HloModule
from compiler.learned.features.candidates import Candidate

__all__ = ["expansion_candidates"]


def expansion_candidates(site: ExpansionSite, module: HloModule) -> list[Candidate]:
    """Return the candidates of a site of the module, one for each of `site.choices` in their order."""
    computation, _, name = site.id.partition("/")
    found = module.find(computation)
    instruction = None if found is None else found.find(name)
    return [Candidate("expansion", instruction, expansion=c, keeps=c == site.default) for c in site.choices]
