"""Backends: one package per device, found by the registry; each holds whatever only its device needs."""
