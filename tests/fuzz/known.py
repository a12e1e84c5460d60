"""Differences of random programs that have been looked into, by source and number, with their causes."""

from __future__ import annotations

KNOWN: dict[tuple[str, int], str] = {}
