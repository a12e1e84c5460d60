"""Utilities that know nothing of HLO: files, JSON, memory limits, safe names."""
