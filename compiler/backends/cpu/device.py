"""The device model of the CPU backend."""

from __future__ import annotations

from dataclasses import replace

from compiler.analysis.cost_model import DeviceModel, device_model
from compiler.backends.cpu.onednn.library import is_installed

__all__ = ["cpu_device"]


def cpu_device() -> DeviceModel:
    """Return the model of a CPU with as many cores as programs have threads, and with oneDNN if that is installed."""
    return replace(device_model("cpu"), has_epilogues=is_installed())
