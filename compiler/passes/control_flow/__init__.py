"""Passes on calls, conditionals, fusions and async ops."""
