"""Policies for loops and fusion that are trained by the predicted time of a GPU: search, imitation, policy gradient."""
