"""NVIDIA GPUs: CUDA C++ built by NVRTC and launched through CuPy, which is imported only when a program runs."""

from compiler.backends.cuda.backend import CudaBackend

BACKEND = CudaBackend()
