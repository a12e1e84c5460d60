"""Derivations of numeric constants in the code."""
