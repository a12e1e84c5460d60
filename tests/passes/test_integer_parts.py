"""Deep products of short integers in parts."""

import numpy as np
import pytest

from compiler import compile, parse
from compiler.backends.cuda.emulation import available, stand_in
from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.ir.types import PrimitiveType
from compiler.ir.verifier import check_module
from compiler.passes.dots.integer_parts import IntegerParts
from compiler.passes.infrastructure.registry import make_pass
from compiler.text import parse as parse_text

PRODUCTS = {
    "rows": ("3,{k}", "{k},4", "3,4", "lhs_contracting_dims={1}, rhs_contracting_dims={0}"),
    "columns": ("{k},3", "4,{k}", "3,4", "lhs_contracting_dims={0}, rhs_contracting_dims={1}"),
    "batch": (
        "2,3,{k}", "2,{k},4", "2,3,4",
        "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}",
    ),
    "two": ("3,2,{k}", "2,{k},4", "3,4", "lhs_contracting_dims={1,2}, rhs_contracting_dims={0,1}"),
}  # fmt: skip
EINSUMS = {"rows": "ik,kj->ij", "columns": "ki,jk->ij", "batch": "bik,bkj->bij", "two": "ilk,lkj->ij"}


def product(name: str, types: tuple[str, str, str], k: int) -> str:
    lhs, rhs, out, dims = (s.replace("{k}", str(k)) for s in PRODUCTS[name])
    a, b, r = types
    return (
        f"HloModule m\nENTRY e {{ a = {a}[{lhs}] parameter(0) b = {b}[{rhs}] parameter(1)\n"
        f"ROOT d = {r}[{out}] dot(a, b), {dims} }}"
    )


def extremes(text: str, rng: np.random.Generator) -> list[np.ndarray]:
    """Return random arguments whose first rows have the numbers with the largest products."""
    args = []
    for s in parse_text(text).parameter_shapes:
        info = np.iinfo(s.dtype)
        args.append(rng.integers(info.min, info.max, s.dimensions, dtype=s.dtype, endpoint=True))
        args[-1].flat[: args[-1].size // 3] = info.min if info.min else info.max
    return args


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize(
    ("types", "k"),
    [(("s8", "s8", "s32"), 4096), (("s8", "s8", "s32"), 1500), (("u8", "u8", "s32"), 1000), (("u8", "s8", "s8"), 2001)],
)
def test_sums_are_exact_in_f32(name: str, types: tuple[str, str, str], k: int) -> None:
    text = product(name, types, k)
    module = parse(text)
    args = extremes(text, np.random.default_rng(k))
    exact = np.einsum(EINSUMS[name], *(a.astype(np.int64) for a in args))
    assert IntegerParts().run(module)
    assert check_module(module) == []
    make_pass("operand-upcaster").run(module)
    dots = [i for i in module.entry.instructions if i.opcode is Opcode.DOT]
    assert {o.shape.element_type.text for i in dots for o in i.operands} == {"f32"}
    np.testing.assert_array_equal(evaluate(module, args)[0], exact.astype(PrimitiveType(types[2]).dtype))


@pytest.mark.parametrize(("types", "k"), [(("s8", "s8", "s32"), 1024), (("s16", "s16", "s32"), 3000)])
def test_other_products_stay(types: tuple[str, str, str], k: int) -> None:
    module = parse(product("rows", types, k))
    text = str(module)
    assert not IntegerParts().run(module)
    assert str(module) == text


@pytest.mark.skipif(not available(), reason="the emulator needs g++")
def test_a_gpu_needs_no_f64() -> None:
    text = product("rows", ("s8", "s8", "s32"), 2500)
    args = extremes(text, np.random.default_rng(1))
    executable = compile(text, backend="cuda")
    with stand_in.installed():
        (got,) = executable(*args)
    assert not any("double" in k.source for k in executable.kernels)
    np.testing.assert_array_equal(got.get(), args[0].astype(np.int64) @ args[1].astype(np.int64))


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize(("types", "k"), [(("s8", "s8", "s32"), 4096), (("u8", "s8", "s32"), 1500)])
def test_a_processor_needs_no_f64(name: str, types: tuple[str, str, str], k: int) -> None:
    text = product(name, types, k)
    exe = compile(text, "cpu")
    assert "f64" not in str(exe.module)
    args = extremes(text, np.random.default_rng(k))
    exact = np.einsum(EINSUMS[name], *(a.astype(np.int64) for a in args))
    np.testing.assert_array_equal(exe(*args)[0], exact.astype(np.int32))
