"""Passes over calls, conditionals, fusions and asynchronous pairs."""
