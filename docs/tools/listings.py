"""Every listing that a page can ask for by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from docs.tools import flow, tables

__all__ = ["listings"]


@cache
def listings() -> Mapping[str, Callable[[], str]]:
    """Return the functions that make the listings, by name; each is called once."""
    return {name: cache(make) for name, make in {**flow.LISTINGS, **tables.LISTINGS}.items()}
