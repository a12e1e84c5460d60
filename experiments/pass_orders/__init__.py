"""Comparison of learned pass orders with fixed orders and searches, by op count and optionally by measured time.

All contenders choose from the same passes. One application of a pass is one sweep over the module and counts towards
the contender's budget.
"""
