"""Printers of bound nests, and the C that kernels include."""
