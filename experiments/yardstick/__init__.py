"""Checks of the measurement itself: A/A runs, planted gains, agreement of the reward with end-to-end times."""
