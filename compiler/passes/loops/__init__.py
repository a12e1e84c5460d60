"""Passes on while loops and scans."""
