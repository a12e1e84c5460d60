"""Passes on reductions, windowed reductions and sorts."""
