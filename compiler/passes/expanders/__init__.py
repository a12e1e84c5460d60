"""Passes that expand an op into simpler ops that kernels can compute."""
