"""JAX functions compiled by this compiler: `hlogym.jit`."""

from compiler.jit.decorator import jit as jit
