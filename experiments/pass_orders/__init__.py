"""Learned pass orders against fixed orders and searches, on programs they have not seen: op counts, then measured time.

Every contender chooses from the same passes, one sweep per application, and its applications are counted.
"""
