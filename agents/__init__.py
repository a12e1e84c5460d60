"""Agents: MaskablePPO over decision graphs, searches to compare with, checkpoints and the export of policies."""
