"""Which dots become product kernels, by their sizes."""

import pytest

from compiler import parse
from compiler.ir import Opcode
from compiler.passes.dots.product_fusion import ProductFusion


@pytest.mark.parametrize(
    ("m", "k", "n", "transposed", "fused"),
    [
        (256, 256, 256, False, True),
        (256, 256, 257, False, False),
        (16, 1024, 2047, False, True),  # few rows use each element of the right operand a few times
        (17, 1024, 2047, False, False),
        (16, 1024, 4097, False, False),
        (9, 1024, 2047, False, True),
        (9, 1024, 2048, False, False),  # rows of 8 KiB compete for places in caches
        (8, 1024, 1024, False, True),
        (8, 1030, 1025, False, False),  # columns touch more than 1,024 pages
        (2, 1030, 1025, False, True),
        (32, 1024, 2048, True, False),
        (32, 512, 1024, True, True),
        (8, 64, 256, True, True),
        (8, 64, 128, True, False),  # BLAS has kernels for few rows and columns
        (4, 64, 256, True, False),
        (16, 2049, 1024, False, False),
        (1, 256, 256, False, False),
    ],
)
def test_sizes(m: int, k: int, n: int, transposed: bool, fused: bool) -> None:
    right, dim = (f"f32[{n},{k}]", 1) if transposed else (f"f32[{k},{n}]", 0)
    module = parse(f"""HloModule m
    ENTRY e {{
      a = f32[{m},{k}] parameter(0)
      b = {right} parameter(1)
      ROOT c = f32[{m},{n}] dot(a, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{{dim}}}
    }}""")
    assert ProductFusion().run(module) == fused
    assert (module.entry.root.opcode is Opcode.FUSION) == fused
