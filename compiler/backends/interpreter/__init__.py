"""The interpreter as a backend: slow, and right by definition."""

from compiler.backends.interpreter.backend import InterpreterBackend

BACKEND = InterpreterBackend()
