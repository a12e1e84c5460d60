"""Backends: what a device differs in, and nothing else."""

BACKENDS = ("auto", "cpu", "cuda", "interpreter")
"""What a program can be compiled for; "auto" stands for one of the others."""
