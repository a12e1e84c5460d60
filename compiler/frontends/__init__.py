"""Frontends: convert programs of JAX, PyTorch and StableHLO to an HloModule; frameworks are imported when called."""
