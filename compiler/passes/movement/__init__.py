"""Passes over ops that move data: reshape, transpose, broadcast, slice, concatenate, pad, gather."""
