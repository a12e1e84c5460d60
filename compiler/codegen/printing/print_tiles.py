"""CUDA C++ of products of tiles: the bodies become functions, which a template of products_cuda.h calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from compiler.codegen.nest.index import Var
from compiler.codegen.nest.tiles import TileOperand, TileProduct
from compiler.codegen.printing.scalar import COMPUTE_TYPES, STORAGE_TYPES
from compiler.ir.types import PrimitiveType as T

HEADERS = ("tensor_cuda.h", "products_cuda.h")
"""The files with the templates, in order."""
PrintBody: TypeAlias = "Callable[[tuple[Any, ...]], None]"
_WRAPPING = {T.S32: "uint32_t", T.S64: "uint64_t"}
"""Unsigned types for sums that wrap around."""


def print_product(s: TileProduct, emit: Callable[[str], None], body: PrintBody) -> None:
    """Print the product of a tile.

    Args:
        s: the product.
        emit: prints a line.
        body: prints statements that one thread runs for one element.
    """
    element = STORAGE_TYPES[s.type] if s.uses_tensor_cores else _WRAPPING.get(s.type, COMPUTE_TYPES[s.type])
    word = "uint32_t" if s.uses_tensor_cores else element
    emit(f"alignas(16) __shared__ {word} shared_tiles[{s.shared_elements}];")
    _operand("left_operand", s.lhs, s.row, s.depth, emit, body)
    _operand("right_operand", s.rhs, s.column, s.depth, emit, body)
    emit(f"const auto store_result = [&]({_parameters(s.row, s.column)}, const {COMPUTE_TYPES[s.sums]} {s.result}) {{")
    body(s.epilogue)
    emit("};")
    t = s.shape
    tile = f"{t.rows}, {t.columns}, {t.depth}, {t.row_parts}, {t.column_parts}"
    function = "scalar_product"
    if s.uses_tensor_cores:
        function, tile = "tensor_product", f"{tile}, {t.stages}"
    sizes = f"{s.row.extent}, {s.column.extent}, {s.depth.extent}"
    emit(
        f"{function}<{element}, {tile}, {sizes}>(shared_tiles, left_operand, right_operand, store_result, "
        f"(index_t){s.first_row.to_c()}, (index_t){s.first_column.to_c()});"
    )


def _parameters(*variables: Var) -> str:
    return ", ".join(f"const index_t {v.name}" for v in variables)


def _operand(
    name: str,
    operand: TileOperand,
    free: Var,
    depth: Var,
    emit: Callable[[str], None],
    body: PrintBody,
) -> None:
    emit(f"const auto {name}_at = [&]({_parameters(free, depth)}) {{")
    if operand.vector:
        emit(f"  return (const void *)&{operand.buffer}[{operand.offset.to_c()}];")
    else:
        body(operand.body)
        emit(f"  return {operand.value};")
    emit("};")
    emit(f"const auto {name} = operand<{str(operand.along_depth).lower()}, {operand.vector}>({name}_at);")
