"""The XLA backend: our passes, and on request our fusions, in front of stock XLA (jaxlib)."""

from compiler.backends.xla.backend import XlaBackend

BACKEND = XlaBackend()
"""The XLA backend's implementation of the `Backend` protocol."""
