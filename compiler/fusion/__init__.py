"""Fusion: legality, graph rewriting, the state with the legal actions, and the policies that choose among them."""
