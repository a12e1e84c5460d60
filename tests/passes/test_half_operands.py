"""Products of f32 whose operands are halves or short integers."""

import numpy as np
import pytest

from compiler import compile, parse
from compiler.backends.cuda.emulation import available, stand_in
from compiler.interpreter import evaluate
from compiler.ir import HloModule, Opcode
from compiler.ir.verifier import check_module
from compiler.passes.dots.half_operands import HalfOperands

needs_emulator = pytest.mark.skipif(not available(), reason="the emulator needs g++")
DIMS = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"


def converted(lhs: str, rhs: str, n: int = 9) -> HloModule:
    return parse(
        f"""HloModule m
        ENTRY e {{
          a = {lhs}[12,40] parameter(0)
          b = {rhs}[40,{n}] parameter(1)
          x = f32[12,40] convert(a)
          y = f32[40,{n}] convert(b)
          ROOT d = f32[12,{n}] dot(x, y), {DIMS}
        }}"""
    )


def operand_types(module: HloModule) -> list[str]:
    (dot,) = (i for i in module.entry.instructions if i.opcode is Opcode.DOT)
    assert dot.shape.element_type.text == "f32"
    return [o.shape.element_type.text for o in dot.operands]


@pytest.mark.parametrize(
    ("lhs", "rhs", "half"),
    [
        ("bf16", "bf16", "bf16"), ("f16", "f16", "f16"), ("s8", "u8", "bf16"), ("bf16", "s8", "bf16"),
        ("f8e4m3fn", "f8e5m2", "bf16"), ("f16", "f8e4m3fn", "f16"), ("pred", "s4", "bf16"),
    ],
)  # fmt: skip
def test_halves_are_multiplied_where_they_are_exact(lhs: str, rhs: str, half: str) -> None:
    module = converted(lhs, rhs)
    assert HalfOperands().run(module)
    assert check_module(module) == []
    assert operand_types(module) == [half, half]


def test_every_short_integer_is_exact() -> None:
    module = parse(
        f"""HloModule m
        ENTRY e {{
          a = s8[256,1] parameter(0)
          b = u8[1,256] parameter(1)
          x = f32[256,1] convert(a)
          y = f32[1,256] convert(b)
          ROOT d = f32[256,256] dot(x, y), {DIMS}
        }}"""
    )
    assert HalfOperands().run(module)
    a, b = np.arange(-128, 128, dtype=np.int8)[:, None], np.arange(256, dtype=np.uint8)[None]
    assert operand_types(module) == ["bf16", "bf16"]
    np.testing.assert_array_equal(evaluate(module, [a, b])[0], a.astype(np.int64) * b)


@pytest.mark.parametrize(("lhs", "rhs"), [("f16", "bf16"), ("s16", "s8"), ("bf16", "s32"), ("f64", "bf16")])
def test_other_types_stay(lhs: str, rhs: str) -> None:
    module = converted(lhs, rhs)
    text = str(module)
    assert not HalfOperands().run(module)
    assert str(module) == text


def test_a_product_with_a_vector_stays() -> None:
    assert not HalfOperands().run(converted("bf16", "bf16", n=1))


@pytest.mark.parametrize(("value", "is_half"), [("0", True), ("-inf", True), ("0.1", False)])
def test_moved_elements_are_halves_if_what_is_added_is_exact(value: str, is_half: bool) -> None:
    module = parse(
        f"""HloModule m
        ENTRY e {{
          a = bf16[10,20] parameter(0)
          b = bf16[3,44] parameter(1)
          x = f32[10,20] convert(a)
          c = f32[] constant({value})
          p = f32[10,24] pad(x, c), padding=0_0x2_2
          l = f32[10,22] slice(p), slice={{[0:10], [0:22]}}
          r = f32[10,22] slice(p), slice={{[0:10], [2:24]}}
          j = f32[10,44] concatenate(l, r), dimensions={{1}}
          y = f32[3,44] convert(b)
          t = f32[44,3] transpose(y), dimensions={{1,0}}
          ROOT d = f32[10,3] dot(j, t), {DIMS}
        }}"""
    )
    rng = np.random.default_rng(0)
    args = [rng.normal(size=s.dimensions).astype(s.dtype) for s in module.parameter_shapes]
    args[1][:, 0], args[1][:, -1] = 1, 1  # infinities meet no zeros
    wanted = evaluate(module, args)
    assert HalfOperands().run(module) == is_half
    assert check_module(module) == []
    assert operand_types(module) == [("bf16" if is_half else "f32")] * 2
    np.testing.assert_allclose(evaluate(module, args)[0], wanted[0], rtol=1e-6, atol=1e-6)


CONVOLUTION = """HloModule m
ENTRY e {
  x = bf16[2,9,9,16] parameter(0)
  w = bf16[3,3,16,32] parameter(1)
  b = bf16[32] parameter(2)
  c = bf16[2,9,9,32] convolution(x, w), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
  d = bf16[2,9,9,32] broadcast(b), dimensions={3}
  ROOT s = bf16[2,9,9,32] add(c, d)
}"""


@needs_emulator
def test_a_convolution_of_halves_is_one_kernel_of_tensor_cores() -> None:
    module = parse(CONVOLUTION)
    rng = np.random.default_rng(1)
    args = [rng.normal(size=s.dimensions).astype(s.dtype) for s in module.parameter_shapes]
    (wanted,) = evaluate(module, args)
    executable = compile(module, backend="cuda")
    (kernel,) = executable.kernels
    with stand_in.installed():
        (got,) = executable(*args)
    assert "tensor_product<bfloat16_t" in kernel.source
    assert "inside = inside && " in kernel.source  # elements of the padding are zeros that are not loaded
    np.testing.assert_allclose(got.get().astype(np.float32), wanted.astype(np.float32), rtol=0.02, atol=0.05)
