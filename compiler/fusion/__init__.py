"""Fusion: which are legal, how they are made, the state that keeps them up to date, and policies that choose."""
