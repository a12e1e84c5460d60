"""Lowering of fused computations to loop nests without a schedule."""
