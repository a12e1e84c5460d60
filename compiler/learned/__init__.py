"""Learned policies: features, networks and policy folders, in numpy alone."""
