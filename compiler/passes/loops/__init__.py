"""Passes over while loops and scans."""
