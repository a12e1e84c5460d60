"""Times of kernels and their choices: a dataset of measurements, and the cost model that is learned from it."""
