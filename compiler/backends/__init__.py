"""Backends: what a device differs in, and nothing else."""
