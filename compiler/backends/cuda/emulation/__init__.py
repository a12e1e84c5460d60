"""CUDA kernels without a GPU: g++ compiles them, and a runtime runs their threads and checks what they access."""

from compiler.backends.cuda.emulation.counting import ArrayCounts, KernelCounts
from compiler.backends.cuda.emulation.emulator import EmulatedKernels, available, build
from compiler.backends.cuda.emulation.kernel_traffic import TrafficCounter

__all__ = ["ArrayCounts", "EmulatedKernels", "KernelCounts", "TrafficCounter", "available", "build"]
