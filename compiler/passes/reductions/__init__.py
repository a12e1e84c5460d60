"""Passes over reductions, windowed reductions and sorts."""
