"""Lowering of ops with algorithms of their own: sorts, scatters, running reductions, products, attention, loops."""
