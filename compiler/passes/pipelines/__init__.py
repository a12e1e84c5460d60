"""Pass pipelines: the default pipeline, XLA's order, and the combined algebraic simplifier."""
