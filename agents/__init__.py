"""Agents: MaskablePPO over decision graphs, agents for pass orders, searches, checkpoints and policy export."""
