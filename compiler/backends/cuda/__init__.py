"""The cuda backend: CUDA C++ compiled by NVRTC and launched through CuPy, which is imported when it is needed."""

from compiler.backends.cuda.backend import CudaBackend
from compiler.backends.cuda.library_products import cublas_of
from compiler.backends.cuda.library_sorts import cub_sort_of
from compiler.backends.cuda.matrix_kernels import matrix_kernels_of
from compiler.runtime.implementations import register_implementation

BACKEND = CudaBackend()
"""The cuda backend's implementation of the `Backend` protocol."""

register_implementation(cublas_of(BACKEND.name))
register_implementation(cub_sort_of(BACKEND.name))
register_implementation(matrix_kernels_of(BACKEND.name))
