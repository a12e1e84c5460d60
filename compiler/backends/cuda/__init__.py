"""The cuda backend: CUDA C++ compiled by NVRTC and launched through CuPy, which is imported when it is needed."""

from compiler.backends.cuda.backend import CudaBackend

BACKEND = CudaBackend()
