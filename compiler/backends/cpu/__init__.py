"""The cpu backend: C compiled by gcc; kernels, driver and runtime run in this process."""

from compiler.backends.cpu.backend import CpuBackend

BACKEND = CpuBackend()
