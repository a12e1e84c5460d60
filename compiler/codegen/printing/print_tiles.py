"""CUDA C++ of products and attention in tiles: their bodies become functions, which templates in headers call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from compiler.codegen.nest.index import Var
from compiler.codegen.nest.tile_attention import SLAB, TileAttention
from compiler.codegen.nest.tiles import GROUP, LEFT, RIGHT, TileOperand, TileProduct, group_number
from compiler.codegen.printing.scalar import COMPUTE_TYPES, STORAGE_TYPES, constant_text
from compiler.ir.types import PrimitiveType as T

HEADERS = ("tensor_cuda.h", "products_cuda.h", "attention_cuda.h")
"""The files with the templates, in order."""
STATIC_BYTES = 48 * 1024
"""Static shared memory that a block may use on any GPU; larger tiles are in dynamic shared memory."""
PrintArray: TypeAlias = "Callable[[str, str, int, int], None]"
PrintBody: TypeAlias = "Callable[[tuple[Any, ...]], None]"
_WRAPPING = {T.S32: "uint32_t", T.S64: "uint64_t"}
"""Unsigned types for sums that wrap around."""


def print_product(s: TileProduct, emit: Callable[[str], None], body: PrintBody, dynamic: PrintArray) -> None:
    """Print the product of a tile.

    Args:
        s: the product.
        emit: prints a line.
        body: prints statements that one thread runs for one element.
        dynamic: prints an array in dynamic shared memory, given its name, type, number of elements and bytes.
    """
    element = STORAGE_TYPES[s.type] if s.uses_tensor_cores else _WRAPPING.get(s.type, COMPUTE_TYPES[s.type])
    word = "uint32_t" if s.uses_tensor_cores else element
    _tiles(s, word, emit, dynamic)
    _operand("left_operand", s.lhs, s.row, s.depth, emit, body)
    _operand("right_operand", s.rhs, s.column, s.depth, emit, body)
    held = "float" if s.uses_tensor_cores else element
    result = f"{held} (&{GROUP})[{s.group}]" if s.group else f"{COMPUTE_TYPES[s.sums]} {s.result}"
    emit(f"const auto store_result = [&]({_parameters(s.row, s.column)}, const {result}) {{")
    if s.group:
        emit(f"  const index_t {group_number(s.column, s.group).name} = {s.column.name} / {s.group};")
    body(s.epilogue)
    emit("};")
    if s.term_value:
        emit(f"const auto term_of = [&](const {element} {LEFT}, const {element} {RIGHT}) {{")
        body(s.term)
        emit(f"  return {s.term_value};")
        emit("};")
    t = s.shape
    tile = f"{t.rows}, {t.columns}, {t.depth}, {t.row_parts}, {t.column_parts}"
    name, last = ("tensor_product", t.stages) if s.uses_tensor_cores else ("scalar_product", t.depth_parts)
    sizes = f"{s.row.extent}, {s.column.extent}, {s.depth.extent}, {s.group}"
    emit(
        f"{name}<{element}, {tile}, {last}, {sizes}>(shared_tiles, left_operand, right_operand, store_result, "
        f"(index_t){s.first_row.to_c()}, (index_t){s.first_column.to_c()}{', term(term_of)' if s.term_value else ''});"
    )


def _tiles(s: TileProduct | TileAttention, word: str, emit: Callable[[str], None], dynamic: PrintArray) -> None:
    """Print the array of the tiles in shared memory."""
    if s.shared_bytes > STATIC_BYTES:
        dynamic("shared_tiles", word, s.shared_elements, s.shared_bytes)
    else:
        emit(f"alignas(16) __shared__ {word} shared_tiles[{s.shared_elements}];")


def print_attention(s: TileAttention, emit: Callable[[str], None], body: PrintBody, dynamic: PrintArray) -> None:
    """Print the attention of a tile of queries; the arguments are those of `print_product`."""
    word = "uint32_t" if s.uses_tensor_cores else "float"
    _tiles(s, word, emit, dynamic)
    _operand("query_operand", s.queries, s.query, s.depth, emit, body)
    _operand("key_operand", s.keys, s.key, s.depth, emit, body)
    _operand("value_operand", s.values, s.feature, s.key, emit, body)
    emit(f"const auto score_of = [&]({_parameters(s.query, s.key)}, const float {s.product}) {{")
    body(s.scoring)
    emit(f"  return {s.score};")
    emit("};")
    mask = s.mask
    if mask is None:
        emit("const auto is_needed = [&](const index_t) { return true; };")
    else:
        emit(f"const auto is_needed = [&]({_parameters(mask.block)}) {{ return {mask.bound.to_c()} >= {mask.low}; }};")
    emit(f"const auto store_result = [&]({_parameters(s.query, s.feature)}, const float {s.result}) {{")
    body(s.epilogue)
    emit("};")
    part = s.part
    row = ("", "") if part is None else (part.most, part.total)
    emit(f"const auto keep_row = [&]({_parameters(s.query)}, const float {row[0]}, const float {row[1]}) {{")
    body(() if part is None else part.epilogue)
    emit("};")
    t = s.shape
    low = -math.inf if mask is None else mask.limit
    flags = (mask is not None, low != -math.inf, s.zero_if_masked, part is not None)
    first, tiles = (0, s.tiles) if part is None else (part.first_tile.to_c(), part.tiles)
    sizes = f"{tiles}, {s.query.extent}, {s.key.extent}, {s.depth.extent}, {s.feature.extent}"
    if s.uses_tensor_cores:
        tile = f"{t.queries}, {t.keys}, {t.depth}, {t.features}, {t.warps}"
        template = f"tensor_attention<{STORAGE_TYPES[s.type]}, {tile}, {_texts(s.exact_weights, *flags)}, {sizes}>"
    else:
        tile = f"{t.queries}, {t.keys}, {t.features}, {t.row_parts}, {s.threads // t.row_parts}, {SLAB}"
        template = f"scalar_attention<{tile}, {_texts(*flags)}, {sizes}>"
    emit(
        f"{template}(shared_tiles, query_operand, key_operand, value_operand, score_of, is_needed, "
        f"{constant_text(low, T.F32)}, keep_row, store_result, (index_t){s.first_query.to_c()}, (index_t){first});"
    )


def _texts(*flags: bool) -> str:
    return ", ".join(str(flag).lower() for flag in flags)


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
    along_depth = str(operand.along_depth).lower()
    if operand.group:
        along = operand.along(free, depth)
        emit(f"const auto {name}_fill = [&]({_parameters(free, depth)}, float (&{GROUP})[{operand.group}]) {{")
        emit(f"  const index_t {group_number(along, operand.group).name} = {along.name} / {operand.group};")
        body(operand.group_body)
        emit("};")
        emit(f"const auto {name} = group_operand<{along_depth}, {operand.group}>({name}_fill);")
        return
    inside = ", bool &inside" if operand.vector else ""
    emit(f"const auto {name}_at = [&]({_parameters(free, depth)}{inside}) {{")
    if operand.vector:
        body(operand.body)
        if operand.value:
            emit(f"  inside = inside && {operand.value};")
        emit(f"  return (const void *)&{operand.buffer}[inside ? {operand.offset.to_c()} : 0];")
    else:
        body(operand.body)
        emit(f"  return {operand.value};")
    emit("};")
    emit(f"const auto {name} = operand<{along_depth}, {operand.vector}>({name}_at);")
