"""Frontends: programs of JAX, PyTorch and StableHLO into an HloModule. Each imports its framework only when called."""
