"""CUDA kernels without a GPU: g++ compiles them, and a runtime runs their threads and checks what they access."""

from compiler.backends.cuda.emulation.emulator import EmulatedKernels, available, build

__all__ = ["EmulatedKernels", "available", "build"]
