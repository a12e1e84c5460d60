"""The cpu backend: C compiled by gcc; kernels, driver and runtime run in this process."""

from compiler.backends.cpu.backend import CpuBackend
from compiler.backends.cpu.eigenvalues import eigenvalues_of
from compiler.backends.cpu.factorizations import factorizations_of
from compiler.backends.cpu.fourier_kernels import fourier_of
from compiler.backends.cpu.lapack_calls import lapack_of
from compiler.backends.cpu.onednn.implementation import onednn_of
from compiler.backends.cpu.sparse_products import sparse_products_of
from compiler.runtime.implementations import register_implementation

BACKEND = CpuBackend()
"""The cpu backend's implementation of the `Backend` protocol."""

register_implementation(onednn_of(BACKEND.name))
register_implementation(factorizations_of(BACKEND.name))
register_implementation(eigenvalues_of(BACKEND.name))
register_implementation(lapack_of(BACKEND.name))
register_implementation(fourier_of(BACKEND.name))
register_implementation(sparse_products_of(BACKEND.name))
