"""Passes that rewrite elementwise arithmetic, comparisons and type conversions."""
