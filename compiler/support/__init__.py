"""Utilities that do not depend on HLO: files, JSON, memory limits, safe names."""
