"""The interpreter backend: slow, and correct by definition."""

from compiler.backends.interpreter.backend import InterpreterBackend

BACKEND = InterpreterBackend()
