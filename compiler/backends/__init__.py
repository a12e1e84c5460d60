"""Backends: one package per device with the code that is specific to it, found by the registry."""
