"""Lists of passes that run together: the default pipeline, XLA's order, and the combined algebraic simplifier."""
