"""A backend that interprets a program and measures the time of each opcode."""

from compiler.backends.tracing.backend import TracingBackend

BACKEND = TracingBackend()
"""The object that the registry finds."""
