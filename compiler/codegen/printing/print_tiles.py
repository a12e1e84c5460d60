"""CUDA C++ of products and attention in tiles: their bodies become functions, which templates in headers call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from compiler.codegen.nest.index import Var
from compiler.codegen.nest.tile_attention import SLAB, TileAttention, TileMask
from compiler.codegen.nest.tile_chain import HELD_DEPTH, OuterProduct, TileChain
from compiler.codegen.nest.tiles import GROUP, LEFT, RIGHT, TileOperand, TileProduct, group_number
from compiler.codegen.printing.scalar import COMPUTE_TYPES, STORAGE_TYPES, constant_text
from compiler.ir.types import PrimitiveType as T

HEADERS = ("tensor_cuda.h", "products_cuda.h", "attention_cuda.h", "chains_cuda.h")
"""The files with the templates, in order."""
MOST_CHAINED = 2
"""Inner products, and outer ones, that chained products may have."""
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
    _storing("store_result", (s.row, s.column), result, s, emit, body)
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


def _tiles(
    s: TileProduct | TileAttention | TileChain, word: str, emit: Callable[[str], None], dynamic: PrintArray
) -> None:
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
    _needed(mask, emit)
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
    flags = (
        mask is not None,
        low != -math.inf,
        s.zero_if_masked,
        part is not None and not part.divided,
        part is not None and part.divided,
    )
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


def print_chain(s: TileChain, emit: Callable[[str], None], body: PrintBody, dynamic: PrintArray) -> None:
    """Print the chained products of a tile of rows; the arguments are those of `print_product`."""
    _tiles(s, "uint32_t", emit, dynamic)
    inner, outer = ["NoProduct()"] * MOST_CHAINED, ["NoProduct()"] * MOST_CHAINED
    for n, (p, size) in enumerate(zip(s.inner, s.shape.depths, strict=True)):
        _operand(f"left{n}", p.left, s.row, p.depth, emit, body)
        _operand(f"right{n}", p.right, s.column, p.depth, emit, body)
        inner[n] = f"inner_product<{size}, {p.depth.extent}>(left{n}, right{n})"
    for n, (r, size) in enumerate(zip(s.outer, s.shape.features, strict=True)):
        _operand(f"values{n}", r.values, r.feature, s.column, emit, body)
        result = f"float (&{GROUP})[{r.group}]" if r.group else f"float {r.result}"
        _storing(f"store{n}", (s.row, r.feature), result, r, emit, body)
        flags = f"{_texts(r.exact)}, {r.source}, {r.group}"
        outer[n] = f"outer_product<{size}, {r.feature.extent}, {flags}>(values{n}, store{n})"
    names = [p.name for p in s.inner] + [""] * (MOST_CHAINED - len(s.inner))
    products = ", ".join(f"const float {name}" for name in names)
    weights = [f"weight{n}_" for n in range(MOST_CHAINED)]
    kept = (("row", s.row, s.row_values), ("column", s.column, s.column_values))
    for name, variable, values in kept:
        emit(f"const auto {name}_values = [&]({_parameters(variable)}, float (&kept_)[{max(1, len(values.names))}]) {{")
        body(values.body)
        for n, value in enumerate(values.names):
            emit(f"  kept_[{n}] = {value};")
        emit("};")
    given = ", ".join(f"const float (&{name}_kept_)[{max(1, len(values.names))}]" for name, _, values in kept)
    made = ", ".join(f"float &{w}" for w in weights)
    emit(f"const auto weigh = [&]({_parameters(s.row, s.column)}, {products}, {given}, {made}) {{")
    for name, _, values in kept:
        for n, value in enumerate(values.names):
            emit(f"  const float {value} = {name}_kept_[{n}];")
    body(s.weighing)
    for w, r in zip(weights, s.outer, strict=False):
        emit(f"  {w} = {r.weight};")
    emit("};")
    _needed(s.mask, emit)
    emit(f"const auto reach = [&]({_parameters(s.row, s.column)}) {{")
    body(s.reach)
    emit(f"  return {s.reached or '0.0f'};")
    emit("};")
    low = -math.inf if s.mask is None else s.mask.limit
    flags = _texts(s.mask is not None, low != -math.inf, s.by_row, sum(s.shape.depths) <= HELD_DEPTH)
    counts = f"{len(s.row_values.names)}, {len(s.column_values.names)}"
    tile = f"{s.shape.rows}, {s.shape.columns}, {flags}, {counts}, {s.row.extent}, {s.column.extent}"
    emit(
        f"tensor_chain<{STORAGE_TYPES[s.type]}, {tile}>(shared_tiles, {', '.join([*inner, *outer])}, row_values, "
        f"column_values, weigh, is_needed, reach, {constant_text(low, T.F32)}, (index_t){s.first_row.to_c()});"
    )


def _storing(
    name: str,
    at: tuple[Var, Var],
    result: str,
    s: TileProduct | OuterProduct,
    emit: Callable[[str], None],
    body: PrintBody,
) -> None:
    """Print the function that stores results, single ones or groups of neighbours, at a row and a column."""
    emit(f"const auto {name} = [&]({_parameters(*at)}, const {result}) {{")
    if s.group:
        emit(f"  const index_t {group_number(at[1], s.group).name} = {at[1].name} / {s.group};")
    body(s.epilogue)
    emit("};")


def _needed(mask: TileMask | None, emit: Callable[[str], None]) -> None:
    """Print the function that says whether a tile has other scores than masked ones."""
    if mask is None:
        emit("const auto is_needed = [&](const index_t) { return true; };")
    else:
        emit(f"const auto is_needed = [&]({_parameters(mask.block)}) {{ return {mask.bound.to_c()} >= {mask.low}; }};")


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
