"""Passes over matrix products and convolutions."""
