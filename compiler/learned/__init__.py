"""Learned policies: features, networks, trees and policy folders, in numpy alone."""
