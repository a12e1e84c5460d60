"""Passes that remove what is redundant, dead or known at compile time."""
