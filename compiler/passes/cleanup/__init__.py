"""Passes that remove redundant and dead code and fold constants."""
