"""Analyses of modules for passes, fusion and codegen; apart from trip-count annotation they change nothing."""
